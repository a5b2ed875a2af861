"""The oracle tournament: what a listwise judge could reach if the pool held every gold document.

Source: OBLIQ-Bench (arXiv 2605.06235): gold documents are put into the pool, which is shuffled and
cut into batches; the best of each batch meet in a final batch, and the tails are interleaved. It
uses the judgments, so it is a ceiling and never a result.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from eval_mteb.dense import document_texts
from eval_mteb.models import local_meta
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mteb.models import SearchProtocol
    from mteb.models.model_meta import ModelMeta

    from eval_mteb.baselines.listwise import Orderer
    from obliq_hf.records import Qrels

__all__ = ["PLANS", "OracleSearch", "oracle_plan"]

PLANS = {
    "twitter": (20, 4),
    "wildchat": (20, 4),
    "math": (6, 2),
    "writing": (20, 4),
    "congress": (20, 4),
}
"""Documents a batch and how many of each go on, per task, as in the paper."""


def oracle_plan(task: str) -> tuple[int, int]:
    """Batch size and winners per batch; those of most tasks where the task is not the paper's."""
    return PLANS.get(task, (20, 4))


class OracleSearch:
    """A ceiling: a tournament over the first stage's pool with the gold documents put in.

    Args:
        base: The search model whose first documents make the pool.
        orderer: Orders one batch.
        qrels: The judgments; their positive documents are put into the pool.
        pool: Documents in the pool, gold included.
        batch: Documents a batch.
        winners: How many of each batch go on.
        seed: Seed of the shuffle.
    """

    ceiling = True
    """Whatever it is measured as, it is written and shown as a ceiling, never as a result."""

    strict_order = False

    def __init__(
        self,
        base: SearchProtocol,
        orderer: Orderer,
        qrels: Qrels,
        *,
        pool: int = 100,
        batch: int = 20,
        winners: int = 4,
        seed: int = 0,
    ) -> None:
        if not 0 < winners < batch:
            raise ObliqError(f"winners ({winners}) must be fewer than a batch ({batch})")
        self.base = base
        self.orderer = orderer
        self.qrels = qrels
        self.pool = pool
        self.batch = batch
        self.winners = winners
        self.seed = seed
        self.seconds = 0.0
        self._texts: dict[str, str] = {}

    def costs(self) -> dict[str, Any]:
        """What the search and the tournament cost."""
        own = getattr(self.base, "costs", None)
        counted = dict(own() if callable(own) else own or {})
        seconds = {**counted.pop("seconds", {}), "tournament": self.seconds}
        asked: dict[str, Any] = getattr(self.orderer, "costs", dict)()
        return {"seconds": seconds, **counted, **asked}

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named so that nobody takes it for a system."""
        inner = self.base.mteb_model_meta
        plan = [self.pool, self.batch, self.winners, self.seed]
        revision = content_hash(inner.name, inner.revision, self.orderer.name, plan, self.qrels)
        return local_meta("ceiling-oracle-tournament-with-gold-injected", revision[:40])

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Index the corpus with the search model and keep the texts."""
        self._texts = dict(zip(corpus["id"], document_texts(corpus), strict=True))
        self.base.index(corpus, **kwargs)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """Put the gold documents into the pool and hold the tournament."""
        texts = dict(zip(queries["id"], queries["text"], strict=True))
        first = self.base.search(queries, top_k=top_k, top_ranked=top_ranked, **kwargs)
        hidden = getattr(top_ranked, "excluded", None) or {}
        rankings: dict[str, list[str]] = {}
        pools: dict[str, list[str]] = {}
        for number, query in enumerate(texts):
            ranked = sorted(first.get(query, {}), key=lambda d: -first[query][d])
            rankings[query] = ranked
            barred = set(hidden.get(query, ()))
            gold = [
                d
                for d, grade in self.qrels.get(query, {}).items()
                if grade > 0 and d in self._texts and d not in barred
            ]
            others = [d for d in ranked if d not in set(gold)]
            pool = [*gold[: self.pool], *others[: max(0, self.pool - len(gold))]]
            rng = np.random.default_rng([self.seed, number])
            pools[query] = [pool[i] for i in rng.permutation(len(pool))]
        start = time.perf_counter()
        orders = self._tournaments(texts, pools)
        self.seconds = time.perf_counter() - start
        results = {}
        for query, order in orders.items():
            seen = set(order)
            full = [*order, *(d for d in rankings[query] if d not in seen)][:top_k]
            results[query] = {document: float(-rank) for rank, document in enumerate(full)}
        return results

    def _tournaments(
        self, texts: dict[str, str], pools: dict[str, list[str]]
    ) -> dict[str, list[str]]:
        batches = [
            (query, pool[start : start + self.batch])
            for query, pool in pools.items()
            for start in range(0, len(pool), self.batch)
        ]
        ordered: dict[str, list[list[str]]] = {query: [] for query in pools}
        for (query, _), order in zip(batches, self._order(texts, batches), strict=True):
            ordered[query].append(order)
        finals = [
            (query, [d for order in orders for d in order[: self.winners]])
            for query, orders in ordered.items()
        ]
        merged: dict[str, list[str]] = {}
        for (query, _), head in zip(finals, self._order(texts, finals), strict=True):
            tails = [order[self.winners :] for order in ordered[query]]
            merged[query] = [*head, *_interleaved(tails)]
        return merged

    def _order(
        self, texts: dict[str, str], batches: Sequence[tuple[str, list[str]]]
    ) -> list[list[str]]:
        asked = [(q, texts[q], [(d, self._texts[d]) for d in batch]) for q, batch in batches]
        return self.orderer.order(asked)


def _interleaved(lists: list[list[str]]) -> list[str]:
    longest = max((len(entries) for entries in lists), default=0)
    return [entries[i] for i in range(longest) for entries in lists if i < len(entries)]

"""A multi-hop agent: several searches with notes between them, then one listwise rerank.

Source: the strongest zero-shot system of OBLIQ-Bench (arXiv 2605.06235): 4 hops, 25 documents a
hop, notes, then a final rerank of what was gathered. Its prompts are not published; these are ours.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from eval_mteb.baselines.listwise import LLMOrder, sliding_order
from eval_mteb.baselines.prompts import cut, load_prompt, task_words
from eval_mteb.baselines.rewriter import Spending
from eval_mteb.dense import document_texts
from eval_mteb.models import local_meta
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.llm import ParseFailure, answer_object

if TYPE_CHECKING:
    from mteb.models import SearchProtocol
    from mteb.models.model_meta import ModelMeta

    from obliq_hf.llm import ChatAnswer, ChatClient, ChatRequest
    from obliq_hf.tasks import ObliqTask

__all__ = ["MultiHopSearch"]


class MultiHopSearch:
    """Search, take notes, search again; rerank what was gathered; the first stage follows.

    All queries take a hop together, so that the model is asked many things at once.

    Args:
        base: The search model.
        client: The language model.
        task: Says what decides relevance.
        hops: Searches per query.
        per_hop: New documents taken from each.
        window: Documents a listwise call of the final rerank sees.
        words: Words of each document that are shown.
    """

    strict_order = False

    def __init__(
        self,
        base: SearchProtocol,
        client: ChatClient,
        task: ObliqTask,
        *,
        hops: int = 4,
        per_hop: int = 25,
        window: int = 20,
        words: int = 120,
    ) -> None:
        if hops < 1 or per_hop < 1:
            raise ObliqError("an agent needs at least one hop and one document a hop")
        self.base = base
        self.client = client
        self.task = task
        self.hops = hops
        self.per_hop = per_hop
        self.window = window
        self.words = words
        self.failures: Counter[str] = Counter()
        self.notes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.orders: Counter[str] = Counter()
        self.spending = Spending(client)
        self._texts: dict[str, str] = {}

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after both models and the plan."""
        inner = self.base.mteb_model_meta
        plan = [self.hops, self.per_hop, self.window, self.words]
        revision = content_hash(
            self.client.identity, inner.name, inner.revision, plan, self.task.to_dict()
        )
        short = f"multihop-{self.client.model}-{inner.name}".replace("/", "-")
        return local_meta(short, revision[:40], model_type=["hybrid"])

    def costs(self) -> dict[str, Any]:
        """Seconds, calls, tokens, and the answers that could not be used, by reason."""
        return {
            "seconds": dict(self.seconds),
            "llm": self.spending.so_far(),
            "unusable_answers": dict(self.failures),
            "listwise_answers": dict(self.orders),
        }

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Index the corpus with the search model and keep the texts for the agent to read."""
        self._texts = dict(zip(corpus["id"], document_texts(corpus), strict=True))
        self.base.index(corpus, **kwargs)

    def search(self, queries: Any, *, top_k: int, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Take the hops, rerank the gathered documents, and append the first stage's others."""
        texts = dict(zip(queries["id"], queries["text"], strict=True))
        gathered: dict[str, dict[str, None]] = {query: {} for query in texts}
        latest: dict[str, list[str]] = {query: [] for query in texts}
        start = time.perf_counter()
        for hop in range(self.hops):
            searches = self._next_searches(hop, texts, latest)
            # enough to hold per_hop documents that are new even if all others were seen
            depth = (hop + 1) * self.per_hop
            found = self.base.search(_dataset(searches), top_k=min(depth, top_k), **kwargs)
            for query in texts:
                new = [d for d in _ranked(found.get(query, {})) if d not in gathered[query]]
                latest[query] = new[: self.per_hop]
                gathered[query].update(dict.fromkeys(latest[query]))
        self.seconds["hops"] = time.perf_counter() - start
        start = time.perf_counter()
        orderer = LLMOrder(self.client, self.task, words=self.words, notes=self.notes)
        pools = [
            (query, texts[query], [(d, self._texts[d]) for d in gathered[query]]) for query in texts
        ]
        orders = sliding_order(orderer, pools, window=self.window, step=max(1, self.window // 2))
        self.orders.update(orderer.counts)
        self.seconds["rerank"] = time.perf_counter() - start
        rest = self.base.search(_dataset(texts), top_k=top_k, **kwargs)
        results = {}
        for query, order in zip(texts, orders, strict=True):
            seen = set(order)
            full = [*order, *(d for d in _ranked(rest.get(query, {})) if d not in seen)][:top_k]
            results[query] = {document: float(-rank) for rank, document in enumerate(full)}
        return results

    def _next_searches(
        self, hop: int, texts: dict[str, str], latest: dict[str, list[str]]
    ) -> dict[str, str]:
        prompt = load_prompt("multihop_first" if hop == 0 else "multihop_next")
        requests = [self._request(prompt, hop, q, text, latest[q]) for q, text in texts.items()]
        answers = self.client.complete_all(requests)
        searches = {}
        for query, text in texts.items():
            found = self._read(answers[query], prompt.required)
            if isinstance(found.get("notes"), str):
                self.notes[query] = found["notes"]
            wanted = found.get("search_text")
            searches[query] = wanted if isinstance(wanted, str) and wanted.strip() else text
        return searches

    def _request(
        self, prompt: Any, hop: int, query: str, text: str, latest: list[str]
    ) -> ChatRequest:
        shown = "\n".join(
            f"{i}. {cut(self._texts[d], self.words)}" for i, d in enumerate(latest, 1)
        )
        extra = {"notes": self.notes.get(query) or "none yet", "documents": shown or "nothing new"}
        return prompt.request(
            query,
            max_tokens=768,
            query=text,
            **task_words(self.task),
            **(extra if hop else {}),
        )

    def _read(self, answer: ChatAnswer, required: tuple[str, ...]) -> dict[str, Any]:
        try:
            return answer_object(answer, required)
        except ParseFailure as failure:
            self.failures[failure.reason] += 1
            return {}


def _dataset(texts: dict[str, str]) -> Any:
    return Dataset.from_dict({"id": list(texts), "text": list(texts.values())})


def _ranked(scored: dict[str, float]) -> list[str]:
    return sorted(scored, key=lambda d: -scored[d])

"""A judge that knows the right answer and errs at a stated rate, in the place of a language model.

What a reranking algorithm can make of a pool, apart from any model: with no errors it is the
algorithm's ceiling, with errors it shows what an algorithm forgives. Never a result: it reads the
judgments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking.asking import _shown, offered_texts, query_of, stable_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from obliq_hf.llm import ChatRequest
    from obliq_hf.records import Qrels
    from obliq_hf.reranking.asking import Asking
    from obliq_hf.reranking.values import Pool

__all__ = ["OracleClient", "noisy_order"]


def noisy_order(grades: Sequence[float], error_rate: float, rng: np.random.Generator) -> list[int]:
    """Positions by grade, as a judge sees them who takes some documents for others.

    Each document is misjudged with probability ``error_rate``: its grade is then that of a
    document drawn at random from the same list. Equal grades come in random order.

    Args:
        grades: The true grades, in the order shown.
        error_rate: 0 sees everything, 1 sees nothing.
        rng: The source of chance.

    Returns:
        Positions, best first.
    """
    true = np.asarray(grades, dtype=np.float64)
    wrong = rng.random(len(true)) < error_rate
    seen = np.where(wrong, true[rng.integers(0, len(true), len(true))], true)
    return np.lexsort((rng.random(len(true)), -seen)).tolist()


class OracleClient(ScriptedClient):
    """A client that answers ranking requests from judgments; identifiers are numbers.

    Args:
        pools: The pools that will be asked about.
        qrels: Query id -> document id -> grade.
        error_rate: As in :func:`noisy_order`.
        asking: How the reranker asks, so that cut texts are recognised.
        seed: Seed of the errors; an equal request is always answered alike.

    Raises:
        ObliqError: An error rate outside of [0, 1], or two candidates of one query that are shown
            with the same text and have different grades.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        qrels: Qrels,
        *,
        asking: Asking,
        error_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not 0 <= error_rate <= 1:
            raise ObliqError(f"error_rate is {error_rate}; it must lie between 0 and 1")
        super().__init__(self._answer, model=f"oracle-{error_rate}", batch=256)
        self.asking = asking
        self.error_rate = error_rate
        self.seed = seed
        self._grades: dict[str, dict[str, int]] = {}
        for pool in pools:
            judged = qrels.get(pool.query_id, {})
            known = self._grades.setdefault(_shown(pool.query, asking.query), {})
            for candidate in pool.candidates:
                grade = judged.get(candidate.id, 0)
                shown = _shown(candidate.text, asking.documents)
                if known.setdefault(shown, grade) != grade:
                    raise ObliqError(
                        f"query {pool.query_id!r}: document {candidate.id!r} is shown with the "
                        "same text as one of another grade"
                    )

    def _answer(self, request: ChatRequest) -> str:
        judged: Mapping[str, int] = self._grades[query_of(request)]
        texts = offered_texts(request)
        content = request.messages[-1]["content"]
        rng = np.random.default_rng(stable_seed(self.seed, self.error_rate, content))
        order = noisy_order([judged[text] for text in texts], self.error_rate, rng)
        named = order[: self.asking.wanted(request)]
        return " > ".join(f"[{position + 1}]" for position in named)

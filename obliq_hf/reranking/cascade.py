"""Several rerankers one after another, each over what the one before leaves: deep pools.

A first stage of 1,000 documents is beyond what a language model reads at a reasonable price. A
cheap step brings 1,000 down to 100 (the fusion with another run, a cross-encoder, or a wide
tournament), and the reranker proper orders those. Recall at 100 of the result is the recall of the
pre-selection; what each step took is kept apart.

A query for which no step that asks got a usable answer keeps the first stage's order: steps that
ask nothing do not move it either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.reranking.values import Ranking, Tally, permutation

if TYPE_CHECKING:
    from collections.abc import Generator

    from obliq_hf.llm import ChatAnswer, ChatRequest
    from obliq_hf.reranking.reranker import Reranker
    from obliq_hf.reranking.values import Pool
    from obliq_hf.tasks import ObliqTask

__all__ = ["Cascade"]


@dataclass(frozen=True)
class Cascade:
    """Steps, each with the number of candidates that it hands on.

    Attributes:
        steps: Rerankers with what they keep; documents not kept follow in the order of the step
            that dropped them. The last step's number is not used.

    Raises:
        ObliqError: No steps, or a step that keeps nothing or more than the one before.
    """

    steps: tuple[tuple[Reranker, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        kept = [keep for _, keep in self.steps[:-1]]
        if not self.steps or any(keep < 1 for keep in kept) or kept != sorted(kept, reverse=True):
            raise ObliqError(f"each step must keep at least 1 and no more than the last: {kept}")

    @property
    def asks(self) -> bool:
        """Whether any step asks."""
        return any(reranker.asks for reranker, _ in self.steps)

    @property
    def name(self) -> str:
        """The steps' names, joined."""
        parts = [f"{reranker.name}>{keep}" for reranker, keep in self.steps[:-1]]
        return "_then_".join([*parts, self.steps[-1][0].name])

    @property
    def identity(self) -> dict[str, Any]:
        """The steps'."""
        last = len(self.steps) - 1
        return {
            "cascade": [
                [reranker.identity, None if i == last else keep]
                for i, (reranker, keep) in enumerate(self.steps)
            ]
        }

    def rank(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], Ranking]:
        """Step after step; the first stage's order where nothing usable was answered."""
        order = list(range(len(pool)))
        left = len(pool)
        total = Tally()
        parts: dict[str, Tally] = {}
        asked = failed = 0
        for reranker, keep in self.steps:
            if left < 2:
                break
            ranking = yield from reranker.rank(pool.select(order[:left]), task)
            inner, repaired = permutation(ranking.order, left)
            ranking.tally.repaired += repaired
            total.add(ranking.tally)
            parts[reranker.name] = ranking.tally
            asked += reranker.asks
            failed += ranking.failed
            order[:left] = [order[position] for position in inner]
            left = min(left, keep)
        if asked > 0 and failed == asked:
            order = list(range(len(pool)))
        return Ranking(tuple(order), None, total, failed=asked > 0 and failed == asked, parts=parts)

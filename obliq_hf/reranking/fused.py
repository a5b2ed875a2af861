"""A reranker's ranking fused with the first stage's, and a stored run as a reranker."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash
from obliq_hf.reranking.values import Ranking, Tally
from obliq_hf.search.fusion import FUSION_METHODS, fuse

if TYPE_CHECKING:
    from collections.abc import Generator

    from obliq_hf.llm import ChatAnswer, ChatRequest
    from obliq_hf.llm.flows import Flow
    from obliq_hf.reranking.reranker import Reranker
    from obliq_hf.reranking.values import Pool
    from obliq_hf.search.runs import Run
    from obliq_hf.tasks import ObliqTask

__all__ = ["Fused", "StoredScores"]


@dataclass(frozen=True)
class Fused:
    """The scores of a reranker and of the first stage, put together.

    A reranker that gives an order alone counts by rank. A query for which nothing usable was
    answered keeps the first stage's order.

    Attributes:
        reranker: The reranker.
        method: ``zscore`` or ``rrf``; see :mod:`obliq_hf.search.fusion`.
        weight: The reranker's weight beside the first stage's 1.

    Raises:
        ObliqError: An unknown method, or a weight that is not positive.
    """

    reranker: Reranker
    method: str = "zscore"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in FUSION_METHODS:
            raise ObliqError(
                f"unknown fusion method {self.method!r}{nearest(self.method, FUSION_METHODS)}"
            )
        if not self.weight > 0:
            raise ObliqError(f"weight must be positive, not {self.weight}")

    @property
    def asks(self) -> bool:
        """As the reranker."""
        return self.reranker.asks

    @property
    def name(self) -> str:
        """The reranker's name, marked as fused."""
        return f"{self.reranker.name}+{self.method}"

    @property
    def identity(self) -> dict[str, Any]:
        """The reranker's, the method and the weight."""
        return {"fused": self.reranker.identity, "method": self.method, "weight": self.weight}

    def rank(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], Ranking]:
        """Rank, then fuse."""
        ranking = yield from self.reranker.rank(pool, task)
        if ranking.failed:
            return ranking
        started = time.perf_counter()
        scores = ranking.scores
        if scores is None:
            places = {position: rank for rank, position in enumerate(ranking.order)}
            scores = tuple(-float(places[p]) for p in range(len(pool)))
        first = {str(p): candidate.score for p, candidate in enumerate(pool.candidates)}
        second = {str(p): scores[p] for p in ranking.order}
        fused = fuse([{"q": first}, {"q": second}], method=self.method, weights=[1.0, self.weight])[
            "q"
        ]
        order = tuple(int(position) for position in fused)
        seconds = time.perf_counter() - started
        ranking.tally.seconds += seconds
        ranking.tally.latency += seconds
        return replace(ranking, order=order, scores=tuple(fused[str(p)] for p in range(len(pool))))


@dataclass(frozen=True)
class StoredScores:
    """Orders candidates by another run's scores; those it lacks follow in first-stage order.

    Attributes:
        run: The other run.
        label: Its name.
    """

    run: Run
    label: str = "run"

    asks = False

    @property
    def name(self) -> str:
        """``scores:`` and the run's name."""
        return f"scores:{self.label}"

    @property
    def identity(self) -> dict[str, Any]:
        """The run's content."""
        content = {query: list(found.items()) for query, found in self.run.items()}
        return {"reranker": "scores", "run": content_hash(content)}

    def rank(self, pool: Pool, task: ObliqTask) -> Flow[Ranking]:
        """By the run's scores."""
        started = time.perf_counter()
        found = self.run.get(pool.query_id, {})
        lowest = min(found.values(), default=0.0)
        scores = tuple(found.get(candidate.id, lowest) for candidate in pool.candidates)
        known = [candidate.id in found for candidate in pool.candidates]
        order = sorted(range(len(pool)), key=lambda p: (not known[p], -scores[p], p))
        seconds = time.perf_counter() - started
        return Ranking(tuple(order), scores, Tally(seconds=seconds, latency=seconds))
        yield  # a generator, like every reranker

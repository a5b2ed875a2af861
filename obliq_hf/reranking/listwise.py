"""Listwise reranking with overlapping windows, from back to front (RankGPT, arXiv 2304.09542).

The model orders a window of candidates; the window then moves up by a step, so that what is best in
one window meets the next. One pass brings the best to the front; it does not sort the tail.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.reranking.asking import Asking, Questions, stable_seed
from obliq_hf.reranking.schedule import together
from obliq_hf.reranking.values import Ranking, Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from obliq_hf.llm import ChatAnswer, ChatRequest
    from obliq_hf.reranking.values import Pool
    from obliq_hf.tasks import ObliqTask

__all__ = ["Listwise", "windows"]


def windows(depth: int, *, window: int = 20, step: int = 10) -> list[tuple[int, int]]:
    """First and last place + 1 of every window, back to front.

    The first window ends at the depth, the last begins at 0 and is as full as the depth allows.

    Raises:
        ObliqError: A window below 2, or a step that is not from 1 to the window.
    """
    if window < 2 or not 1 <= step <= window:
        raise ObliqError(
            f"a window of {window} moved by {step} cannot order a list; the window must be at "
            "least 2 and the step from 1 to the window"
        )
    if depth < 2:
        return []
    start = max(0, depth - window)
    found = [(start, depth)]
    while start > 0:
        start = max(0, start - step)
        found.append((start, min(start + window, depth)))
    return found


@dataclass(frozen=True)
class Listwise:
    """Windows over the first candidates; those beneath keep their order.

    Attributes:
        depth: Candidates ordered, the paper's K; None orders all.
        window: Candidates a call.
        step: How far the window moves.
        asking: How to ask; the prompt ``task`` is the task-aware form, ``generic`` RankGPT's.
        shuffle: Show each window in shuffled order; off in RankGPT.
        seed: Seed of the shuffles.

    Raises:
        ObliqError: A depth below 1, or windows that cannot order a list.
    """

    depth: int | None = 20
    window: int = 20
    step: int = 10
    asking: Asking = field(default_factory=Asking)
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise ObliqError(f"depth must be at least 1, not {self.depth}")
        windows(2, window=self.window, step=self.step)

    asks = True

    @property
    def name(self) -> str:
        """``listwise:`` and the depth."""
        return f"listwise:{self.depth or 'all'}"

    @property
    def identity(self) -> dict[str, Any]:
        """All settings."""
        return {
            "reranker": "listwise",
            "depth": self.depth,
            "window": self.window,
            "step": self.step,
            "shuffle": self.shuffle,
            "seed": self.seed,
            **self.asking.identity,
        }

    def rank(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], Ranking]:
        """Move the window from back to front."""
        depth = len(pool) if self.depth is None else min(self.depth, len(pool))
        spans = windows(depth, window=self.window, step=self.step)
        order = list(range(len(pool)))
        tally = Tally()
        answered = 0
        if spans:
            asked = pool.select(range(depth))
            questions = Questions(self.asking, asked, task, purpose="listwise")
        for number, (start, end) in enumerate(spans):
            shown = order[start:end]
            seed = stable_seed(self.seed, pool.query_id, "listwise", number)
            if self.shuffle:
                rng = np.random.default_rng(seed)
                shown = [shown[i] for i in rng.permutation(len(shown)).tolist()]
            answers = yield [questions.ask("window", shown, seed=seed)]
            tally.take(answers.values())
            best = questions.read(answers["window"], shown, len(shown), tally)
            answered += bool(best)
            tally.filled += len(shown) - len(best)
            named = set(best)
            order[start:end] = [*best, *(p for p in order[start:end] if p not in named)]
        return Ranking(tuple(order), None, tally, failed=bool(spans) and not answered)

    def sweep(
        self, pool: Pool, task: ObliqTask, depths: Sequence[int]
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], dict[int, Ranking]]:
        """The rankings of several depths, side by side: windows that are equal are asked once.

        Args:
            pool: The candidates.
            task: What decides relevance.
            depths: Depths.

        Returns:
            Depth -> its ranking. There are as many rounds as the deepest needs.
        """
        flows = [replace(self, depth=depth).rank(pool, task) for depth in depths]
        results = yield from together(flows)
        return dict(zip(depths, results, strict=True))

"""TourRank: tournaments in groups, one point for each time a document goes on.

Source: TourRank (arXiv 2406.11678). A tournament deals the candidates into groups, asks of each
group which few are the best, and lets those go on to the next stage; a document has a point for
every stage it passes. Points of several independent tournaments are summed, and equal points keep
the first stage's order.

* Groups are dealt by stride over the documents that are left, in first-stage order, and shuffled
  inside. A shuffle depends on the seed, the query's id, the tournament's number, the stage and who
  is left, and on nothing else: five tournaments begin with the requests of one.
* Places that an answer leaves open (short, refused, failed) go to the group's documents in
  first-stage order, so that a tournament nobody answers gives the first stage's order.
* All groups of a stage in all tournaments are asked at once: five rounds for 100 documents,
  whatever the number of tournaments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.reranking.asking import Asking, Questions, stable_seed
from obliq_hf.reranking.stage_plan import StagePlan, scaled_plan
from obliq_hf.reranking.values import Ranking, Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from obliq_hf.llm import ChatAnswer, ChatRequest
    from obliq_hf.reranking.values import Pool
    from obliq_hf.tasks import ObliqTask

__all__ = ["TourRank", "points_order", "settled"]


@dataclass(frozen=True)
class TourRank:
    """Tournaments over a pool of any size.

    Attributes:
        rounds: Independent tournaments, the paper's Y.
        asking: How to ask.
        plan: The stages, for pools of exactly its size; pools of other sizes follow the plan that
            :func:`~obliq_hf.reranking.stage_plan.scaled_plan` makes for them.
        stop: Leave out the stages that keep fewer documents than this; for a pre-selection.
        seed: Seed of the shuffles.
        early_stop: Hold the tournaments one after another, and stop as soon as the remaining ones
            can no longer change the first so many documents or their order; None holds all
            tournaments side by side.

    Raises:
        ObliqError: Fewer than one tournament, or an early stop below 1.
    """

    rounds: int = 5
    asking: Asking = field(default_factory=Asking)
    plan: StagePlan | None = None
    stop: int = 0
    seed: int = 0
    early_stop: int | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ObliqError(f"a tournament needs at least one round, not {self.rounds}")
        if self.early_stop is not None and self.early_stop < 1:
            raise ObliqError(f"early_stop is {self.early_stop}; it must be at least 1")

    asks = True

    @property
    def name(self) -> str:
        """``tourrank:`` and the number of tournaments."""
        return f"tourrank:{self.rounds}" + (f">{self.stop}" if self.stop else "")

    @property
    def identity(self) -> dict[str, Any]:
        """All settings."""
        return {
            "reranker": "tourrank",
            "rounds": self.rounds,
            "plan": None if self.plan is None else str(self.plan),
            "stop": self.stop,
            "seed": self.seed,
            "early_stop": self.early_stop,
            **self.asking.identity,
        }

    def plan_for(self, size: int) -> StagePlan:
        """The stages for a pool of this size."""
        if self.plan is not None and self.plan.size == size:
            return self.plan
        return scaled_plan(size, stop=self.stop)

    def rank(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], Ranking]:
        """Hold the tournaments; points are the scores."""
        brackets = yield from self._hold(pool, task, self.early_stop)
        return _ranking(brackets, len(pool), side_by_side=self.early_stop is None)

    def sweep(
        self, pool: Pool, task: ObliqTask, rounds: Sequence[int]
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], dict[int, Ranking]]:
        """The rankings of several numbers of tournaments, from the calls of the largest.

        Args:
            pool: The candidates.
            task: What decides relevance.
            rounds: Numbers of tournaments, none above :attr:`rounds`.

        Returns:
            Number of tournaments -> its ranking, with what so many tournaments take.
        """
        wrong = [y for y in rounds if not 1 <= y <= self.rounds]
        if wrong:
            raise ObliqError(f"{wrong[0]} rounds are not among 1..{self.rounds}")
        brackets = yield from self._hold(pool, task, None)
        return {y: _ranking(brackets[:y], len(pool)) for y in rounds}

    def _hold(
        self, pool: Pool, task: ObliqTask, early_stop: int | None
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], list[_Bracket]]:
        plan = self.plan_for(len(pool))
        questions = Questions(self.asking, pool, task, purpose="tourrank")
        brackets = [_Bracket(plan, questions, y, self.seed) for y in range(self.rounds)]
        if early_stop is None:
            yield from _play(brackets)
            return brackets
        for bracket in brackets:
            for _ in plan.stages:
                if settled(*_standing(brackets, len(pool)), top=early_stop):
                    bracket.tally.spared += sum(b.calls_left for b in brackets)
                    return brackets
                yield from _play([bracket], stages=1)
        return brackets


def _play(
    brackets: list[_Bracket], *, stages: int | None = None
) -> Generator[list[ChatRequest], dict[str, ChatAnswer], None]:
    """Play the next stages of several tournaments, all groups of a stage at once."""
    played = 0
    while any(b.left for b in brackets) and (stages is None or played < stages):
        answers = yield [request for b in brackets if b.left for request in b.requests()]
        for bracket in brackets:
            if bracket.left:
                bracket.take(answers)
        played += 1


class _Bracket:
    """One tournament under way."""

    def __init__(self, plan: StagePlan, questions: Questions, number: int, seed: int) -> None:
        size = len(questions.pool)
        self._plan = plan
        self._questions = questions
        self._number = number
        self._seed = seed
        self._stage = 0
        self._groups: list[list[int]] = []
        self.alive = list(range(size))
        self.points = [0] * size
        self.tally = Tally()
        self.answered = 0

    @property
    def left(self) -> int:
        """Stages still to be played."""
        return len(self._plan.stages) - self._stage

    @property
    def calls_left(self) -> int:
        """Calls still to be made."""
        return sum(stage.groups for stage in self._plan.stages[self._stage :])

    def _id(self, group: int) -> str:
        return f"{self._number}.{self._stage}.{group}"

    def requests(self) -> Iterator[ChatRequest]:
        """The questions of the stage, one a group."""
        stage = self._plan.stages[self._stage]
        self._groups = []
        query = self._questions.pool.query_id
        place = stable_seed(self._seed, query, self._number, self._stage)
        rng = np.random.default_rng(place)
        dealt = zip(stage.deal(self.alive), stage.picks(), strict=True)
        for group, (members, picks) in enumerate(dealt):
            shown = [members[i] for i in rng.permutation(len(members)).tolist()]
            self._groups.append(shown)
            yield self._questions.ask(self._id(group), shown, picks=picks, seed=place + group)

    def take(self, answers: dict[str, ChatAnswer]) -> None:
        """Who goes on, by the answers of the stage."""
        stage = self._plan.stages[self._stage]
        own = [answers[self._id(group)] for group in range(stage.groups)]
        self.tally.take(own)
        on: list[int] = []
        for answer, shown, picks in zip(own, self._groups, stage.picks(), strict=True):
            chosen = self._questions.read(answer, shown, picks, self.tally)
            self.answered += bool(chosen)
            if len(chosen) < picks:
                self.tally.filled += picks - len(chosen)
                rest = sorted(set(shown) - set(chosen))
                chosen = chosen + rest[: picks - len(chosen)]
            on += chosen
        for position in on:
            self.points[position] += 1
        self.alive = sorted(on)
        self._stage += 1


def points_order(points: Sequence[int]) -> list[int]:
    """Positions by points, equal ones in first-stage order."""
    return sorted(range(len(points)), key=lambda position: (-points[position], position))


def _ranking(brackets: Sequence[_Bracket], size: int, *, side_by_side: bool = True) -> Ranking:
    points, _ = _standing(brackets, size)
    tally = Tally()
    for bracket in brackets:
        tally.add(bracket.tally, side_by_side=side_by_side)
    failed = tally.requests > 0 and not any(bracket.answered for bracket in brackets)
    return Ranking(
        tuple(points_order(points)), tuple(float(p) for p in points), tally, failed=failed
    )


def _standing(brackets: Sequence[_Bracket], size: int) -> tuple[list[int], list[int]]:
    """Per document its points so far, and the most it can still gain."""
    points, gains = [0] * size, [0] * size
    for bracket in brackets:
        for position, won in enumerate(bracket.points):
            points[position] += won
        for position in bracket.alive if bracket.left else ():
            gains[position] += bracket.left
    return points, gains


def settled(points: Sequence[int], gains: Sequence[int], *, top: int) -> bool:
    """Whether what is still to be played can change the first documents or their order.

    A document can be overtaken by one behind it only if that one's points and all it can still
    gain exceed its own points, or equal them where the other is ahead in the first stage; what
    the document itself may still gain is not counted on.

    Args:
        points: Points so far, by first-stage position.
        gains: Most points that each can still gain.
        top: How many documents must be certain.

    Returns:
        True where nothing can change among the first ``top``.
    """
    order = points_order(points)
    best: tuple[int, int] | None = None  # the strongest that documents further down can become
    for rank in range(len(order) - 1, -1, -1):
        position = order[rank]
        if rank < top and best is not None and best > (points[position], -position):
            return False
        reach = (points[position] + gains[position], -position)
        best = reach if best is None else max(best, reach)
    return True

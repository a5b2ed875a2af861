"""Stage plans of a tournament: how many groups a stage has and how many documents go on.

The plan of TourRank (arXiv 2406.11678) for 100 documents keeps 100 -> 50 -> 20 -> 10 -> 5 -> 2::

    >>> str(scaled_plan(100))
    '5x20>10 5x10>4 1x20>10 1x10>5 1x5>2'

Other sizes follow the same ladder of numbers, 2, 5, 10, 20, 50, 100, 200, ...:

* the stages keep the numbers of the ladder below the size, the largest first; a number above
  three quarters of what is left is passed over; pools of two or three keep one;
* a stage that keeps more than two in five has as few groups as keep each within 20 documents, one
  that keeps fewer as few as keep each within 10;
* groups differ by at most one document, and so do the numbers that go on, the first groups having
  the larger ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from obliq_hf.errors import ObliqError

__all__ = ["Stage", "StagePlan", "parse_plan", "scaled_plan"]

GROUP = 20
"""Most documents a group."""
STEEP_GROUP = 10
"""Most documents a group in a stage that keeps two in five or fewer."""

_STAGE = re.compile(r"(\d+)x(\d+)>(\d+)")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a tournament.

    Attributes:
        entrants: Documents that take part.
        groups: Groups they are dealt into.
        keep: Documents that go on, over all groups.
    """

    entrants: int
    groups: int
    keep: int

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= self.entrants:
            raise ObliqError(
                f"a stage of {self.entrants} documents cannot have {self.groups} groups"
            )
        if not self.groups <= self.keep < self.entrants:
            raise ObliqError(
                f"a stage of {self.entrants} documents in {self.groups} groups must keep at least "
                f"one a group and fewer than all, not {self.keep}"
            )

    def deal(self, entrants: list[int]) -> list[list[int]]:
        """Deal documents into groups by stride: group i takes i, i + groups, i + 2 groups, ..."""
        return [entrants[i :: self.groups] for i in range(self.groups)]

    def picks(self) -> list[int]:
        """How many of each group go on."""
        share, rest = divmod(self.keep, self.groups)
        return [share + (i < rest) for i in range(self.groups)]

    def __str__(self) -> str:
        size = -(-self.entrants // self.groups)
        return f"{self.groups}x{size}>{-(-self.keep // self.groups)}"


@dataclass(frozen=True)
class StagePlan:
    """The stages of a tournament, each taking in what the one before keeps.

    Raises:
        ObliqError: A stage does not take in what the one before keeps.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if before.keep != after.entrants:
                raise ObliqError(f"stage {after} takes {after.entrants}, but {before.keep} go on")

    @property
    def size(self) -> int:
        """Documents the plan is for; 0 without stages."""
        return self.stages[0].entrants if self.stages else 0

    @property
    def calls(self) -> int:
        """Calls of one tournament."""
        return sum(stage.groups for stage in self.stages)

    @property
    def widest(self) -> int:
        """Documents of the largest group."""
        return max((-(-s.entrants // s.groups) for s in self.stages), default=0)

    def __str__(self) -> str:
        return " ".join(map(str, self.stages))


@cache
def scaled_plan(size: int, *, stop: int = 0) -> StagePlan:
    """The plan for a pool of any size; the rule is the module's.

    Args:
        size: Documents in the pool.
        stop: Leave out the stages that keep fewer than this; for a pre-selection.

    Returns:
        The plan; without stages for fewer than two documents.
    """
    if size <= 3:
        ladder = [1] if size > 1 else []
    else:
        decades = range(len(str(size)))
        ladder = [m * 10**d for d in decades for m in (1, 2, 5) if 2 <= m * 10**d < size]
    stages: list[Stage] = []
    left = size
    for keep in reversed(ladder):
        if keep < stop:
            break
        if 4 * keep > 3 * left:
            continue
        widest = GROUP if 5 * keep > 2 * left else STEEP_GROUP
        stages.append(Stage(left, min(-(-left // widest), keep), keep))
        left = keep
    return StagePlan(tuple(stages))


def parse_plan(text: str, size: int) -> StagePlan:
    """A plan from text such as ``5x20>10 5x10>4 1x20>10``.

    Args:
        text: Stages, each as groups x documents > how many of each go on.
        size: Documents in the pool.

    Raises:
        ObliqError: A stage that cannot be read or that does not follow on the one before.
    """
    stages = []
    left = size
    for part in re.split(r"[\s,]+", text.strip()):
        found = _STAGE.fullmatch(part)
        if found is None:
            raise ObliqError(f"stage {part!r} is not of the form GROUPSxSIZE>KEEP, as in 5x20>10")
        groups, each, keep = map(int, found.groups())
        if groups * each != left:
            raise ObliqError(f"stage {part!r} takes {groups * each} documents, but {left} are left")
        stages.append(Stage(left, groups, groups * keep))
        left = groups * keep
    return StagePlan(tuple(stages))

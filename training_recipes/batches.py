"""Global batches without false negatives by construction.

With in-batch negatives every text of a batch is a negative of every other row. Two rows may
therefore share a batch only if neither holds a document that is the other's anchor or positive,
the same text under another id, a neighbour of these in the graph, or (graph rows) from the same
source; and no mined negative of one is any of these for the other. Batches are planned for all
processes together and then cut into equal shares, one dataset per batch, so all processes
draw from the same dataset at every step.
"""

from __future__ import annotations

import logging
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from training_recipes.conflicts import Conflicts

__all__ = [
    "BatchPlan",
    "DatasetPlan",
    "GlobalBatch",
    "plan_batches",
]

logger = logging.getLogger(__name__)

_CHUNK = 256
_FAILURES = 10


@dataclass(frozen=True)
class GlobalBatch:
    """One step's rows over all processes.

    Attributes:
        dataset: Position of the dataset they come from.
        rows: Row numbers in it.
        negatives: Mined negatives used per row: as many as all of the rows have.
    """

    dataset: int
    rows: tuple[int, ...]
    negatives: int

    @property
    def seen_negatives(self) -> int:
        """How many negatives each anchor of the batch is compared with."""
        return len(self.rows) * (1 + self.negatives) - 1


@dataclass(frozen=True)
class DatasetPlan:
    """What the plan does with one dataset; every row of every pass is counted once.

    Attributes:
        name: Its name.
        rows: Its rows.
        passes: How often it is gone through.
        used: Rows that are trained on, over all passes.
        dropped: Rows of a pass that no batch admitted, over all passes.
        never_used: Rows that no pass used.
        batches: Its batches.
        short: Batches smaller than the batch size.
        mean_rows: Mean rows of a batch.
        negatives: Least, mean and most negatives an anchor is compared with.
        negatives_cut: Mined negatives left unused because another row of the batch has fewer.
    """

    name: str
    rows: int
    passes: int
    used: int
    dropped: int
    never_used: int
    batches: int
    short: int
    mean_rows: float
    negatives: tuple[int, float, int]
    negatives_cut: int


@dataclass(frozen=True)
class BatchPlan:
    """All global batches of a training, in order.

    Attributes:
        batches: One a step.
        datasets: What happens to each dataset.
        batch_size: Rows of a full batch.
        min_batch_size: Rows of the smallest batch that is trained on.
        multiple: The size of a short batch is a multiple of this.
    """

    batches: tuple[GlobalBatch, ...]
    datasets: tuple[DatasetPlan, ...]
    batch_size: int
    min_batch_size: int
    multiple: int

    def __len__(self) -> int:
        return len(self.batches)

    def shares(self, rank: int, world: int) -> Iterator[list[tuple[int, int, int]]]:
        """The part of each batch that one process works on.

        Args:
            rank: Number of the process.
            world: Number of processes.

        Yields:
            ``(dataset, row, negatives)`` per row, for one batch after the other.
        """
        for batch in self.batches:
            share = len(batch.rows) // world
            rows = batch.rows[rank * share : (rank + 1) * share]
            yield [(batch.dataset, row, batch.negatives) for row in rows]


def _postings(column: list[list[int]], numbers: int) -> list[np.ndarray]:
    """Number -> rows that hold it."""
    found: list[list[int]] = [[] for _ in range(numbers)]
    for row, held in enumerate(column):
        for number in held:
            found[number].append(row)
    return [np.array(rows, dtype=np.int64) for rows in found]


class _Packer:
    """Fills batches greedily: the first row in order that conflicts with none of the batch."""

    def __init__(self, conflicts: Conflicts) -> None:
        self.conflicts = conflicts
        columns = (conflicts.touched, conflicts.blocked, conflicts.negatives)
        numbers = 1 + max((n for c in columns for row in c for n in row), default=-1)
        self.touching, self.blocking, self.using = (_postings(c, numbers) for c in columns)
        self.stamp = np.zeros(len(conflicts), dtype=np.int64)
        self.number = 0

    def _take(self, row: int) -> None:
        """Mark every row that conflicts with ``row`` as closed to the present batch."""
        stamp, number = self.stamp, self.number
        for held in self.conflicts.blocked[row]:
            stamp[self.touching[held]] = number
            stamp[self.using[held]] = number
        for held in self.conflicts.touched[row]:
            stamp[self.blocking[held]] = number
        for held in self.conflicts.negatives[row]:
            stamp[self.blocking[held]] = number

    def _scan(self, queue: np.ndarray, batch: list[int], size: int) -> tuple[np.ndarray, int]:
        """Fill ``batch`` from ``queue``; returns the rows passed over and how far it got."""
        passed: list[np.ndarray] = []
        place = 0
        while place < len(queue) and len(batch) < size:
            chunk = queue[place : place + _CHUNK]
            taken: list[int] = []
            end = len(chunk)
            for i in np.flatnonzero(self.stamp[chunk] != self.number):
                row = int(chunk[i])
                if self.stamp[row] == self.number:
                    continue
                batch.append(row)
                taken.append(int(i))
                self._take(row)
                if len(batch) == size:
                    end = int(i) + 1
                    break
            passed.append(np.delete(chunk[:end], taken))
            place += end
        return (np.concatenate(passed) if passed else queue[:0]), place

    def pack(
        self, order: np.ndarray, *, size: int, multiple: int, minimum: int
    ) -> tuple[list[list[int]], list[int]]:
        """Put the rows of ``order`` into batches.

        Returns:
            The batches, and the rows that found no place.
        """
        waiting, coming = order[:0], order
        batches: list[list[int]] = []
        dropped: list[int] = []
        failures = 0
        while len(waiting) or len(coming):
            self.number += 1
            batch: list[int] = []
            passed, place = self._scan(waiting, batch, size)
            waiting = np.concatenate([passed, waiting[place:]])
            if len(batch) < size:
                passed, place = self._scan(coming, batch, size)
                waiting = np.concatenate([waiting, passed])
                coming = coming[place:]
            keep = len(batch) - len(batch) % multiple
            if keep < minimum:
                dropped.extend(batch)
                failures += 1
                if failures == _FAILURES:
                    # what is left conflicts with itself nearly everywhere
                    dropped.extend(waiting.tolist())
                    return batches, dropped
                continue
            failures = 0
            if keep < len(batch):
                waiting = np.concatenate([np.array(batch[keep:], dtype=np.int64), waiting])
            batches.append(batch[:keep])
        return batches, dropped


def _order(conflicts: Conflicts, carried: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """A shuffled order in which rows that share a document or source lie far apart.

    Rows that the last pass dropped come first. Rows with more mined negatives come before rows
    with fewer, so that few batches hold both.
    """
    rows = len(conflicts)
    frequency = np.zeros(1 + max((n for t in conflicts.touched for n in t), default=-1), np.int64)
    for held in conflicts.touched:
        frequency[held] += 1
    commonest = np.array(
        [max(held, key=lambda n: (frequency[n], n)) if held else -1 for held in conflicts.touched],
        dtype=np.int64,
    )
    shuffled = rng.permutation(rows)
    place = rng.random(rows)
    by_number = shuffled[np.argsort(commonest[shuffled], kind="stable")]
    values, starts, sizes = np.unique(commonest[by_number], return_index=True, return_counts=True)
    for value, start, count in zip(values, starts, sizes, strict=True):
        if value >= 0 and count > 1:
            members = by_number[start : start + count]
            place[members] = (np.arange(count) + place[members]) / count
    fresh = np.ones(rows, dtype=bool)
    fresh[list(carried)] = False
    return np.lexsort((place, fresh, -conflicts.negative_counts))


def _seeded(seed: int, name: str, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode()), number])


def _sizes(batch_size: int, min_batch_size: int | None, world: int) -> tuple[int, int]:
    """``(multiple, minimum)`` of short batches."""
    if batch_size % world:
        raise ObliqError(
            f"training.batch_size: {batch_size} rows cannot be shared equally by {world} "
            f"processes; use a multiple of {world}"
        )
    multiple = math.lcm(math.gcd(2, batch_size), world)
    minimum = max(2, batch_size // 4) if min_batch_size is None else min_batch_size
    if minimum > batch_size:
        raise ObliqError(
            f"training.min_batch_size: {minimum} is above training.batch_size {batch_size}"
        )
    return multiple, max(minimum, multiple)


def plan_batches(
    datasets: Sequence[Conflicts],
    *,
    batch_size: int,
    repeat: Sequence[int],
    seed: int,
    world: int = 1,
    min_batch_size: int | None = None,
    max_steps: int | None = None,
) -> BatchPlan:
    """Plan every global batch of a training; the same arguments give the same plan.

    A batch takes rows of one dataset, and the datasets take turns in proportion to their
    batches. Where no admissible row is left, a batch is short; its size is then a multiple of 2
    and of ``world``, and if that is below ``min_batch_size`` its rows are dropped: counted, and
    first in line in the next pass over the dataset.

    Args:
        datasets: One per dataset.
        batch_size: Rows of a full batch over all processes.
        repeat: Passes over each dataset.
        seed: Seed of the order.
        world: Number of processes; must divide ``batch_size``.
        min_batch_size: Rows of the smallest batch to train on; default a quarter of a full one.
        max_steps: Keep only the first batches.

    Raises:
        ObliqError: ``batch_size`` does not suit ``world`` or ``min_batch_size``, or no batch
            can be filled.
    """
    multiple, minimum = _sizes(batch_size, min_batch_size, world)
    placed: list[tuple[float, int, int, GlobalBatch]] = []
    dropped = [0] * len(datasets)
    for d, (conflicts, passes) in enumerate(zip(datasets, repeat, strict=True)):
        packer = _Packer(conflicts)
        carried: list[int] = []
        made: list[GlobalBatch] = []
        for number in range(passes):
            rng = _seeded(seed, conflicts.name, number)
            order = _order(conflicts, carried, rng)
            batches, carried = packer.pack(
                order, size=batch_size, multiple=multiple, minimum=minimum
            )
            dropped[d] += len(carried)
            for i in rng.permutation(len(batches)):
                rows = batches[i]
                fewest = int(conflicts.negative_counts[rows].min())
                made.append(GlobalBatch(d, tuple(rows), fewest))
        jitter = _seeded(seed, conflicts.name, passes).random(len(made))
        placed.extend(((i + jitter[i]) / len(made), d, i, b) for i, b in enumerate(made))
    batches_in_turn = tuple(batch for *_, batch in sorted(placed, key=lambda p: p[:3]))
    if not batches_in_turn:
        sizes = ", ".join(f"{c.name} {len(c)} rows" for c in datasets)
        raise ObliqError(
            f"no batch of at least {minimum} rows can be filled from {sizes or 'no dataset'}; "
            "lower training.min_batch_size or training.batch_size, or add rows"
        )
    if max_steps is not None:
        batches_in_turn = batches_in_turn[:max_steps]
    plans = tuple(
        _account(c, d, passes, dropped[d], batches_in_turn, batch_size)
        for d, (c, passes) in enumerate(zip(datasets, repeat, strict=True))
    )
    for plan in plans:
        logger.info(
            "%s: %d rows x %d passes -> %d batches of %.1f rows (%d short); %d rows dropped; "
            "%.0f negatives per anchor",
            plan.name, plan.rows, plan.passes, plan.batches, plan.mean_rows, plan.short,
            plan.dropped, plan.negatives[1],
        )  # fmt: skip
        if plan.batches and plan.mean_rows < 0.75 * batch_size and plan.short > 1:
            logger.warning(
                "%s: batches hold %.1f rows on average, not %d: more of its rows would be wrong "
                "negatives of each other; a smaller training.batch_size trains as well",
                plan.name, plan.mean_rows, batch_size,
            )  # fmt: skip
    return BatchPlan(batches_in_turn, plans, batch_size, minimum, multiple)


def _account(
    conflicts: Conflicts,
    dataset: int,
    passes: int,
    dropped: int,
    batches: Sequence[GlobalBatch],
    batch_size: int,
) -> DatasetPlan:
    own = [b for b in batches if b.dataset == dataset]
    used = sum(len(b.rows) for b in own)
    seen = [b.seen_negatives for b in own] or [0]
    cut = sum(int(conflicts.negative_counts[list(b.rows)].sum()) for b in own)
    return DatasetPlan(
        name=conflicts.name,
        rows=len(conflicts),
        passes=passes,
        used=used,
        dropped=dropped,
        never_used=len(conflicts) - len({row for b in own for row in b.rows}),
        batches=len(own),
        short=sum(len(b.rows) < batch_size for b in own),
        mean_rows=used / max(len(own), 1),
        negatives=(min(seen), sum(seen) / len(seen), max(seen)),
        negatives_cut=cut - sum(b.negatives * len(b.rows) for b in own),
    )

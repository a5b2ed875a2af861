"""Rows of the table of benchmarks, and how they are timed."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["NOT_INSTALLED", "Row", "by_size", "environment", "fastest", "markdown"]


NOT_INSTALLED = "not installed"
_VERDICTS = {None: "", True: " met", False: " **missed**"}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: What was done.
        size: How much of it, at the largest size.
        seconds: Ours.
        beside: What else does it -> its seconds.
        aims: One of ``beside`` -> the largest ratio of ours to it that is aimed at.
        interval: One of ``beside`` -> the ratio's interval, where steps were paired.
        growth: Ours, from each size to the next, twice as large.
        growth_beside: The first of ``beside``, which is what ours builds on, likewise.
        note: What else to know.
    """

    what: str
    size: str
    seconds: float
    beside: dict[str, float] = field(default_factory=dict)
    aims: dict[str, float] = field(default_factory=dict)
    interval: dict[str, tuple[float, float]] = field(default_factory=dict)
    growth: tuple[float, ...] = ()
    growth_beside: tuple[float, ...] = ()
    note: str = ""

    def ratio(self, label: str) -> float:
        """Ours over another's."""
        return self.seconds / self.beside[label]

    def met(self, label: str) -> bool | None:
        """Whether the aim is met, by the upper end of the interval where there is one."""
        if label not in self.aims:
            return None
        reached = self.interval[label][1] if label in self.interval else self.ratio(label)
        return reached <= self.aims[label]

    def grows_no_faster(self, tolerance: float = 0.1) -> bool | None:
        """Whether ours grows no faster than what it builds on.

        Judged by the last doubling: in it, what does not depend on the size weighs least.

        Args:
            tolerance: Share of the other's growth that ours may be above it.

        Returns:
            None where growth of either was not measured.
        """
        if not self.growth or not self.growth_beside:
            return None
        return self.growth[-1] <= self.growth_beside[-1] * (1 + tolerance)

    @property
    def missed(self) -> list[str]:
        """What was aimed at and not reached."""
        missed = [f"{self.what}, beside {label}" for label in self.aims if not self.met(label)]
        if self.grows_no_faster() is False:
            missed.append(f"{self.what}, growth")
        return missed

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the ratios and whether the growth is no faster."""
        return {
            **asdict(self),
            "ratios": {label: self.ratio(label) for label in self.beside},
            "grows_no_faster": self.grows_no_faster(),
        }


def fastest(functions: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Seconds of each function, the least of some rounds in which they take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for label, function in functions.items():
            started = time.perf_counter()
            function()
            best[label] = min(best[label], time.perf_counter() - started)
    return best


def by_size(
    what: str,
    sizes: Sequence[int],
    make: Callable[[int], dict[str, Callable[[], object]]],
    *,
    unit: str,
    aims: dict[str, float] | None = None,
    rounds: int = 3,
    note: str = "",
) -> Row:
    """Measure at growing sizes; the first function that ``make`` gives is ours.

    Args:
        what: What is done.
        sizes: Each twice the one before.
        make: Size -> what is called how, on inputs that are ready; what ours builds on is second.
        unit: What the size counts.
        aims: See :class:`Row`.
        rounds: Rounds at each size.
        note: See :class:`Row`.
    """
    measured = [fastest(make(size), rounds) for size in sizes]
    ours, *others = measured[-1]

    def growth(label: str) -> tuple[float, ...]:
        return tuple(large[label] / small[label] for small, large in pairwise(measured))

    return Row(
        what=what,
        size=f"{sizes[-1]:,} {unit}",
        seconds=measured[-1][ours],
        beside={label: measured[-1][label] for label in others},
        aims=aims or {},
        growth=growth(ours),
        growth_beside=growth(others[0]) if others else (),
        note=note,
    )


def environment() -> dict[str, str]:
    """The machine and the versions, without names of people or places."""
    names = (
        "torch", "numpy", "scipy", "transformers", "sentence-transformers", "accelerate", "peft",
        "mteb", "faiss-cpu", "bm25s", "rank-bm25",
    )  # fmt: skip
    found = {"python": platform.python_version(), "machine": platform.machine()}
    found["processor"] = _processor()
    found["cores"] = str(len(os.sched_getaffinity(0)))
    found["threads"] = os.environ.get("OMP_NUM_THREADS", "default")
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = NOT_INSTALLED
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - no path of ours
            return next(
                (line.partition(":")[2].strip() for line in lines if "model name" in line), ""
            )
    except OSError:
        return platform.processor()


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| what | size | seconds | beside | seconds | ratio | aim | growth for twice the size |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        grown = _growth(row)
        if not row.beside:
            lines.append(
                f"| {row.what} | {row.size} | {row.seconds:.3f} | – | – | – | – | {grown} |"
            )
        for number, (label, seconds) in enumerate(row.beside.items()):
            what, size, ours = (
                (row.what, row.size, f"{row.seconds:.3f}") if not number else ("",) * 3
            )
            ratio = f"{row.ratio(label):.2f}"
            if label in row.interval:
                low, high = row.interval[label]
                ratio += f" [{low:.3f}, {high:.3f}]"
            met = _VERDICTS[row.met(label)]
            aim = f"<= {row.aims[label]:.2f}{met}" if label in row.aims else ""
            lines.append(
                f"| {what} | {size} | {ours} | {label} | {seconds:.3f} | {ratio} | {aim} | "
                f"{grown if not number else ''} |"
            )
        if row.note:
            lines.append(f"| | | | *{row.note}* | | | | |")
    return "\n".join(lines) + "\n"


def _growth(row: Row) -> str:
    ours = ", ".join(f"{factor:.2f}" for factor in row.growth)
    theirs = ", ".join(f"{factor:.2f}" for factor in row.growth_beside)
    return f"{ours} (beside: {theirs}){_VERDICTS[row.grows_no_faster()]}" if theirs else ours

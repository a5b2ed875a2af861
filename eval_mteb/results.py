"""Reading evaluation folders back: tasks, systems, per-query scores, costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError, nearest
from obliq_hf.files import read_json
from obliq_hf.records import read_excluded, read_qrels
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from obliq_hf.records import Qrels
    from obliq_hf.search.runs import Run

__all__ = ["SystemResult", "TaskResults", "read_results"]

_ORDER = ("bm25", "teacher", "base", "base-plain", "base-prompt", "student", "fusion")

Scores = dict[str, float]
"""Query id -> value."""


@dataclass(frozen=True)
class SystemResult:
    """One system on one task.

    Attributes:
        name: The system's name.
        folder: Where its files lie.
        per_query: Metric -> query id -> value.
        cost: Seconds by phase, calls, tokens.
        about: What was measured: fingerprint, model and revision.
        chosen: For ``base``, which candidate it is.
    """

    name: str
    folder: Path
    per_query: dict[str, Scores]
    cost: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    chosen: dict[str, Any] | None = None

    @property
    def ceiling(self) -> bool:
        """Whether it used the judgments, so that it is no result."""
        return bool(self.about.get("ceiling"))

    @cached_property
    def run(self) -> Run:
        """The ranking."""
        return read_run(self.folder / "run.trec")

    def scores(self, metric: str) -> Scores:
        """Per-query values of one metric.

        Raises:
            DataError: The metric was not computed; those that were are named.
        """
        if metric not in self.per_query:
            raise DataError(
                f"{self.folder}: metric {metric!r} was not computed"
                f"{nearest(metric, self.per_query)}"
            )
        return self.per_query[metric]

    def mean(self, metric: str) -> float:
        """The mean over the task's queries."""
        values = self.scores(metric)
        return sum(values.values()) / len(values)


@dataclass(frozen=True)
class TaskResults:
    """All systems measured on one task."""

    key: str
    folder: Path
    info: dict[str, Any]
    systems: dict[str, SystemResult]

    @cached_property
    def qrels(self) -> Qrels:
        """The judgments scored with."""
        return read_qrels(self.folder / "qrels.tsv")

    @cached_property
    def excluded(self) -> dict[str, list[str]]:
        """Query id -> ids of documents it must not retrieve."""
        file = self.folder / "excluded.json"
        return read_excluded(file) if file.is_file() else {}

    @property
    def groups(self) -> dict[str, dict[str, str]]:
        """Column (author, work, ...) -> query id -> value."""
        return self.info.get("groups") or {}


def _read_system(folder: Path) -> SystemResult:
    def optional(name: str) -> Any:
        return read_json(folder / name) if (folder / name).is_file() else None

    return SystemResult(
        name=folder.name,
        folder=folder,
        per_query=read_json(folder / "per_query.json"),
        cost=optional("cost.json") or {},
        about=optional("system.json") or {},
        chosen=optional("chosen.json"),
    )


def _sorted(names: Iterable[str]) -> list[str]:
    def place(name: str) -> tuple[int, str]:
        return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)

    return sorted(names, key=place)


def read_results(folder: str | Path) -> dict[str, TaskResults]:
    """Read an evaluation folder.

    Args:
        folder: The folder given to :func:`eval_mteb.evaluation.evaluate_folder` as ``out``, or
            a run's folder that holds it as ``eval``.

    Returns:
        Task key -> results. Half-written systems cannot be there; a folder without
        ``per_query.json`` is passed over.

    Raises:
        DataError: There are no results at all.
    """
    root = Path(folder)
    if not any(root.glob("*/task.json")) and (root / "eval").is_dir():
        root = root / "eval"
    found: dict[str, TaskResults] = {}
    for task in sorted(root.iterdir()) if root.is_dir() else []:
        if not (task / "task.json").is_file():
            continue
        names = [
            p.name
            for p in task.iterdir()
            if not p.name.startswith(".") and (p / "per_query.json").is_file()
        ]
        systems = {name: _read_system(task / name) for name in _sorted(names)}
        if systems:
            found[task.name] = TaskResults(task.name, task, read_json(task / "task.json"), systems)
    if not found:
        raise DataError(f"{root}: no results (expected <task>/<system>/per_query.json)")
    return found

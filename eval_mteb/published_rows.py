"""The papers' rows, to stand beside measured ones: published, not measured here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

__all__ = ["PublishedRow", "published_rows", "rows_for"]

Score = float | tuple[float, float]


@dataclass(frozen=True)
class PublishedRow:
    """One system's published nDCG@10.

    Attributes:
        system: Its name.
        source: Where it was published.
        scores: ``gold`` and ``pooled`` -> task -> value, or a range of two reports.
        ceiling: Whether gold documents were given to it.
        note: What else is to be known.
    """

    system: str
    source: str
    scores: dict[str, dict[str, Score]] = field(default_factory=dict)
    ceiling: bool = False
    note: str = ""

    def text(self, task: str, judgments: str) -> str:
        """The value as people write it; an en dash where it is not known."""
        value = self.scores.get(judgments, {}).get(task)
        if value is None:
            return "–"
        values = value if isinstance(value, tuple) else (value,)
        return "–".join(f"{v:.3f}".removeprefix("0") for v in values)


def _score(value: Any) -> Score:
    return (float(value[0]), float(value[1])) if isinstance(value, list) else float(value)


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """All rows of ``published/obliq_bench.yaml``."""
    file = resources.files("eval_mteb") / "published" / "obliq_bench.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    rows = []
    for row in content["rows"]:
        scores = {
            kind: {task: _score(value) for task, value in row[kind].items()}
            for kind in ("gold", "pooled")
            if kind in row
        }
        rows.append(
            PublishedRow(
                system=row["system"],
                source=row["source"],
                scores=scores,
                ceiling=bool(row.get("ceiling", False)),
                note=row.get("note", ""),
            )
        )
    return tuple(rows)


def rows_for(task: str, judgments: str) -> list[PublishedRow]:
    """The rows that have a value for a task under one kind of judgments."""
    return [row for row in published_rows() if task in row.scores.get(judgments, {})]

"""Mined hard negatives as values and as files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError
from obliq_hf.files import iter_jsonl, write_json, write_jsonl

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MinedNegatives", "MiningReport", "read_negatives", "write_negatives"]


@dataclass
class MiningReport:
    """How mining went; the numbers of all queries add up.

    Attributes:
        queries: Number of queries.
        wanted: Negatives asked for each query.
        mined: Negatives found by BM25, all queries together.
        filled: Negatives drawn at random.
        short_queries: Queries that have fewer than ``wanted`` in the end.
        missing: Negatives those queries lack.
        considered: Documents looked at in the ranked lists.
        skipped: Reason -> how many of them could not be negatives.
        settings: The settings of the run.
    """

    queries: int = 0
    wanted: int = 0
    mined: int = 0
    filled: int = 0
    short_queries: int = 0
    missing: int = 0
    considered: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def shortage(self) -> str:
        """The shortage in words: ``1 query, 2 negatives missing``."""
        queries = "1 query" if self.short_queries == 1 else f"{self.short_queries} queries"
        negatives = "1 negative" if self.missing == 1 else f"{self.missing} negatives"
        return f"{queries}, {negatives} missing"

    def summary(self) -> str:
        """One line for people."""
        share = sum(self.skipped.values()) / self.considered if self.considered else 0.0
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.skipped.items())
        return (
            f"{self.mined} negatives mined for {self.queries} queries, {self.filled} drawn at "
            f"random; {self.shortage()}; {share:.0%} of the documents considered were skipped"
            + (f" ({reasons})" if reasons else "")
        )


@dataclass(frozen=True)
class MinedNegatives:
    """The negatives of every query, best BM25 rank first, drawn ones last.

    Attributes:
        ids: Document ids, at most ``report.wanted`` a query.
        ranks: The rank of each among the query's admissible documents; 0 for a drawn one.
        report: Counts.
    """

    ids: list[list[str]]
    ranks: list[list[int]]
    report: MiningReport

    def __len__(self) -> int:
        return len(self.ids)


def write_negatives(
    path: str | Path,
    query_ids: Sequence[str],
    positives: Sequence[Sequence[str]],
    mined: MinedNegatives,
) -> None:
    """Write negatives as JSON lines; the report goes beside them as ``<name>.report.json``.

    Args:
        path: The file; its rows are ``query_id``, ``positive_ids``, ``negative_ids`` and
            ``ranks`` (0: drawn at random).
        query_ids: Id of each row.
        positives: Document ids of each row.
        mined: The negatives of the same rows.
    """
    target = Path(path)
    rows = zip(query_ids, positives, mined.ids, mined.ranks, strict=True)
    write_jsonl(
        target,
        (
            {"query_id": q, "positive_ids": list(p), "negative_ids": ids, "ranks": ranks}
            for q, p, ids, ranks in rows
        ),
    )
    write_json(target.with_suffix(".report.json"), mined.report.to_dict())


def read_negatives(path: str | Path) -> dict[tuple[str, str], tuple[list[str], list[int]]]:
    """Read what :func:`write_negatives` wrote.

    Returns:
        (query id, first positive's id) -> (negative ids, ranks).

    Raises:
        DataError: A row lacks a field or has one of the wrong type; file and line are named.
    """
    found: dict[tuple[str, str], tuple[list[str], list[int]]] = {}
    for number, row in iter_jsonl(path):
        for name in ("positive_ids", "negative_ids", "ranks"):
            if not isinstance(row.get(name), list):
                raise DataError(f"{path}:{number} field {name!r} must be a list")
        if not isinstance(row.get("query_id"), str) or not row["positive_ids"]:
            raise DataError(f"{path}:{number} needs a query_id and at least one of positive_ids")
        if not all(isinstance(i, str) for i in [*row["positive_ids"], *row["negative_ids"]]):
            raise DataError(f"{path}:{number}: document ids must be strings")
        found[row["query_id"], row["positive_ids"][0]] = (row["negative_ids"], row["ranks"])
    return found

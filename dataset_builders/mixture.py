"""The mixture: all training datasets of a run in one folder, checked for leaks.

``mixture.json`` names the datasets and where they come from; each is a parquet file with the
columns of :func:`mixture_features`, and needs nothing else to be trained on.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_builders.near_duplicates import NearDuplicateIndex, text_key
from dataset_builders.training_rows import TrainingRows
from obliq_hf import __version__
from obliq_hf.errors import DataError
from obliq_hf.files import atomic_path, content_hash, read_json, safe_name, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from datasets import Features

__all__ = [
    "LeakCheck",
    "MixtureDataset",
    "build_mixture",
    "mixture_features",
    "read_mixture",
]

logger = logging.getLogger(__name__)

_WRITE_BLOCK = 5_000


def mixture_features(negatives: int) -> Features:
    """Columns of a dataset with up to the given number of hard negatives a row.

    Those of :func:`obliq_hf.records.train_features` and ``filled``, the number of a row's
    negatives, at the end, that were drawn at random. A row with fewer negatives than columns has
    null in the last ones.
    """
    from datasets import Features, Value

    from obliq_hf.records import train_features

    return Features({**train_features(negatives), "filled": Value("int32")})


@dataclass(frozen=True)
class LeakCheck:
    """What must not be trained on.

    Attributes:
        queries: Texts of the evaluation queries. A training query that is the same as one of
            them, or nearly, is dropped.
        passages: Texts of passages held out: a query row whose positive is the same is dropped.
            Give the relevant passages of the evaluation queries where each query has its own.
        graph_rows: Drop rows of graphs as well if either document is an evaluation query (or
            nearly) or a held-out passage. Otherwise these are only counted: a graph over the
            searched corpus holds its passages.
    """

    queries: Sequence[str] = ()
    passages: Sequence[str] = ()
    graph_rows: bool = False

    def apply(self, rows: TrainingRows) -> TrainingRows:
        """Drop or count the rows that leak; ``info["evaluation_texts"]`` has the counts."""
        index = NearDuplicateIndex(self.queries)
        queries = {text_key(text) for text in self.queries}
        held_out = {text_key(text) for text in self.passages}
        found: dict[int, str] = {}
        known: dict[tuple[bytes, str], str | None] = {}

        def check(text: str, side: str) -> str | None:
            key = text_key(text)
            if (key, side) not in known:
                reason = None
                if side == "anchor" or rows.kind == "graph":
                    if key in queries:
                        reason = f"{side} is an evaluation query"
                    elif index.matches(text):
                        reason = f"{side} is nearly an evaluation query"
                if reason is None and key in held_out:
                    reason = f"{side} is a held-out passage"
                known[key, side] = reason
            return known[key, side]

        for i, (anchor, positive) in enumerate(zip(rows.anchors, rows.positives, strict=True)):
            reason = check(anchor, "anchor") or check(positive, "positive")
            if reason is not None:
                found[i] = reason
        counts = dict(Counter(found.values()))
        rows = replace(rows, info={**rows.info, "evaluation_texts": counts})
        return rows.drop(found) if rows.kind == "queries" or self.graph_rows else rows


@dataclass(frozen=True)
class MixtureDataset:
    """One dataset of a mixture folder.

    Attributes:
        name: Its name.
        task: The task whose prompt its anchors get.
        kind: ``graph`` or ``queries``.
        path: Its parquet file.
        rows: Number of rows.
        negatives: Most hard negatives a row has.
        info: All else that ``mixture.json`` says of it.
    """

    name: str
    task: str
    kind: str
    path: Path
    rows: int
    negatives: int
    info: dict[str, Any] = field(default_factory=dict)


def _write_rows(path: Path, rows: TrainingRows, negatives: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = mixture_features(negatives).arrow_schema
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(rows), _WRITE_BLOCK):
            part = slice(start, start + _WRITE_BLOCK)
            columns = {**rows.columns(part, negatives), "filled": rows.filled[part]}
            writer.write_table(pa.table(columns, schema=schema))


def build_mixture(
    out: str | Path,
    datasets: Sequence[TrainingRows],
    *,
    leaks: LeakCheck | None = None,
    seed: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> list[MixtureDataset]:
    """Check training datasets and write them, all of them or none.

    Args:
        out: The folder; an existing one is replaced.
        datasets: The datasets; names must differ, also in lower case.
        leaks: What must not be trained on.
        seed: The run's seed, to be recorded.
        provenance: Further provenance; no clock, path or user belongs here.

    Returns:
        What was written.

    Raises:
        DataError: No dataset, a name given twice, or a dataset without rows; the message says
            why its rows were dropped.
    """
    if not datasets:
        raise DataError("a mixture needs at least one dataset: queries, a graph, or both")
    names = Counter(rows.name.lower() for rows in datasets)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise DataError(f"two training datasets are named {twice[0]!r}; names must differ")
    checked = [leaks.apply(rows) if leaks is not None else rows for rows in datasets]
    entries: list[dict[str, Any]] = []
    for rows in checked:
        if not len(rows):
            why = ", ".join(f"{n} x {reason}" for reason, n in rows.dropped.items())
            raise DataError(
                f"training dataset {rows.name!r} has no rows left ({why or 'none given'}); leave "
                "it out or give it others"
            )
        counts = [len(row) for row in rows.negatives]
        most = max(counts)
        entries.append(
            {
                "name": rows.name,
                "task": rows.task,
                "kind": rows.kind,
                "path": f"{rows.name}.parquet",
                "rows": len(rows),
                "negatives": most,
                "rows_with_fewer_negatives": sum(count < most for count in counts),
                "negatives_drawn_at_random": sum(rows.filled),
                "dropped": rows.dropped,
                "fingerprint": content_hash(
                    *(getattr(rows, column) for column in TrainingRows._COLUMNS)
                ),
                "source": rows.info,
            }
        )
        if rows.dropped:
            logger.info("%s: %d rows kept, dropped: %s", rows.name, len(rows), rows.dropped)
    with atomic_path(out) as folder:
        folder.mkdir()
        for rows, entry in zip(checked, entries, strict=True):
            _write_rows(folder / entry["path"], rows, entry["negatives"])
        write_json(
            folder / "mixture.json",
            {
                "datasets": entries,
                "rows": sum(entry["rows"] for entry in entries),
                "seed": seed,
                "version": __version__,
                "leak_check": None
                if leaks is None
                else {
                    "queries": len(leaks.queries),
                    "passages": len(leaks.passages),
                    "graph_rows": leaks.graph_rows,
                },
                **(provenance or {}),
            },
        )
    return read_mixture(out)


def read_mixture(folder: str | Path) -> list[MixtureDataset]:
    """The datasets of a mixture folder, checked but not loaded.

    Raises:
        DataError: ``mixture.json`` is missing or lacks a field, a file is missing, or it has
            another number of rows than recorded.
    """
    import pyarrow.parquet as pq

    root = Path(folder)
    value = read_json(root / "mixture.json")
    entries = value.get("datasets") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{root / 'mixture.json'}: a list 'datasets' is needed")
    found = []
    for number, entry in enumerate(entries):
        where = f"{root / 'mixture.json'} dataset {number}"
        types = {"name": str, "task": str, "kind": str, "path": str, "rows": int, "negatives": int}
        for key, kind in types.items():
            if not isinstance(entry.get(key), kind):
                raise DataError(f"{where}: field {key!r} must be of type {kind.__name__}")
        path = root / safe_name(entry["path"], "file of a training dataset")
        if not path.is_file():
            raise DataError(f"{path}: no such file, though {where} names it")
        rows = pq.ParquetFile(path).metadata.num_rows
        if rows != entry["rows"]:
            raise DataError(f"{path}: {rows} rows, but {where} records {entry['rows']}")
        info = {k: v for k, v in entry.items() if k not in types}
        known = {k: entry[k] for k in types if k != "path"}
        found.append(MixtureDataset(**known, path=path, info=info))
    return found

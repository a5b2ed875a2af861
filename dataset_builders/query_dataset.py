"""The folder of a set of synthetic queries: what is written into it, and reading it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_builders.hard_negatives import mine
from dataset_builders.mined_negatives import write_negatives
from dataset_builders.training_rows import query_rows
from obliq_hf.errors import DataError
from obliq_hf.files import atomic_path, read_json, write_json, write_jsonl
from obliq_hf.records import Queries, read_qrels, read_queries, train_features, write_qrels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dataset_builders.query_flow import Outcome
    from dataset_builders.training_rows import TrainingRows
    from obliq_hf.records import Corpus
    from obliq_hf.tasks import ObliqTask

__all__ = ["NegativeSettings", "read_synthetic", "write_query_folder", "write_training_rows"]


@dataclass(frozen=True)
class NegativeSettings:
    """The BM25 negatives of every query.

    Args:
        count: Negatives a query; 0 mines none.
        first_rank: First rank taken among the admissible documents.
        last_rank: Last rank taken.
    """

    count: int = 4
    first_rank: int = 10
    last_rank: int = 100


def write_query_folder(
    out: Path,
    task: ObliqTask,
    corpus: Corpus,
    outcomes: Iterable[Outcome],
    info: dict[str, Any],
    negatives: NegativeSettings,
    *,
    progress: bool = False,
) -> None:
    """Write the files of :mod:`dataset_builders.synthetic_queries`, mining the negatives.

    `queries.json` is written last: it is there only if all others are.

    Args:
        out: The folder.
        task: The task.
        corpus: The documents.
        outcomes: What became of each document, in order; gone through several times.
        info: What `queries.json` says; the report of the mining is added.
        negatives: How negatives are mined.
        progress: Show a progress bar of the mining.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "queries.json").unlink(missing_ok=True)

    def id_of(outcome: Outcome) -> str:
        return f"{task.name}-{corpus.ids[outcome.row]}"

    write_jsonl(
        out / "failed.jsonl",
        (
            {
                "doc_id": corpus.ids[o.row],
                "reason": o.reason,
                "detail": o.detail,
                "calls": o.calls,
                "problems": o.problems,
            }
            for o in outcomes
            if o.query is None
        ),
    )
    write_jsonl(
        out / "queries.jsonl",
        (
            {
                "_id": id_of(o),
                "text": o.query,
                "doc_id": corpus.ids[o.row],
                "metadata": {
                    "task": task.name,
                    "lens": info["lens"]["name"],
                    "stage_a": o.stage_a,
                    "calls": sum(o.calls.values()),
                },
            }
            for o in outcomes
            if o.query is not None
        ),
    )
    found = [(id_of(o), o.row, o.query or "") for o in outcomes if o.query is not None]
    write_qrels(out / "qrels" / "train.tsv", {i: {corpus.ids[row]: 1} for i, row, _ in found})
    if found:
        info["mining"] = _write_training(out, task, corpus, found, negatives, progress)
    write_json(out / "queries.json", info)


def _write_training(
    out: Path,
    task: ObliqTask,
    corpus: Corpus,
    found: list[tuple[str, int, str]],
    negatives: NegativeSettings,
    progress: bool,
) -> dict[str, Any]:
    ids = [i for i, _, _ in found]
    positives = [[corpus.ids[row]] for _, row, _ in found]
    mined = mine(
        [text for _, _, text in found],
        positives,
        corpus,
        n=negatives.count,
        first_rank=negatives.first_rank,
        last_rank=negatives.last_rank,
        show_progress=progress,
    )
    write_negatives(out / "negatives.jsonl", ids, positives, mined)
    queries = Queries(ids, [text for _, _, text in found])
    rows = query_rows(
        queries,
        {i: {p[0]: 1} for i, p in zip(ids, positives, strict=True)},
        corpus,
        task=task.name,
        negatives=mined if negatives.count else None,
    )
    write_training_rows(out / "train.parquet", rows, negatives.count)
    return mined.report.to_dict()


def write_training_rows(path: Path, rows: TrainingRows, negatives: int) -> None:
    """Write training rows as parquet with :func:`obliq_hf.records.train_features`.

    Args:
        path: The file.
        rows: The rows.
        negatives: Columns `negative_1 ..`; shorter rows have null in the last ones.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = train_features(negatives).arrow_schema
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for start in range(0, len(rows), 5000):
            columns = rows.columns(slice(start, start + 5000), negatives)
            writer.write_table(pa.table(columns, schema=schema))


def read_synthetic(folder: str | Path) -> tuple[Queries, dict[str, dict[str, int]], dict[str, Any]]:
    """Read a folder that :func:`dataset_builders.synthetic_queries.synthesize` wrote.

    Args:
        folder: The folder.

    Returns:
        The queries, their judgments (query id -> document id -> 1), and `queries.json`.

    Raises:
        DataError: The folder is not complete.
    """
    root = Path(folder)
    if not (root / "queries.json").is_file():
        raise DataError(
            f"{root}: no queries.json; 'obliq queries synthesize' writes it when it has finished"
        )
    info = read_json(root / "queries.json")
    return read_queries(root / "queries.jsonl"), read_qrels(root / "qrels" / "train.tsv"), info

"""The configs of graphs, training mixtures and training queries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError
from obliq_hf.files import iter_jsonl, read_json, safe_name
from obliq_hf.hub.metadata_columns import MetadataColumns
from obliq_hf.hub.parquet import DatasetConfig, config_from_parquet, rows_to_tables
from obliq_hf.records import clean_id, clean_text, edge_features, iter_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["graph_config_name", "graph_configs", "mixture_configs", "query_configs"]

_EMBEDDED_TEACHER = "stylometric"
_PASSAGE = ("passage_id", "doc_id", "positive_id", "document_id")
"""Names that the field of a query's passage may have, as training reads them."""


def graph_config_name(info: Mapping[str, Any], task: str) -> str:
    """``<task>-k<k>``; with the teacher's name where it is not the embedded one.

    A graph of random neighbours, the control, is called so too.
    """
    teacher = str(info.get("teacher", _EMBEDDED_TEACHER))
    slug = re.sub("[^a-z0-9]+", "-", teacher.replace("\\", "/").rstrip("/").split("/")[-1].lower())
    parts = [task]
    if not slug.startswith(_EMBEDDED_TEACHER):
        parts.append(slug.strip("-"))
    if info.get("neighbours") == "random":
        parts.append("random")
    return "-".join([*parts, f"k{info['k']}"])


def graph_configs(
    folder: str | Path, *, task: str, name: str | None = None
) -> tuple[list[DatasetConfig], list[str]]:
    """The configs of a graph folder: its edges, all edges it was taken from, its purity.

    Args:
        folder: Holds ``edges.parquet`` and ``graph.json``; ``complete.parquet`` and
            ``purity.json`` where there are any.
        task: The task that the pairs train.
        name: Name of the config, instead of ``<task>-k<k>``.

    Returns:
        The configs, and the names of those the graph does not have.

    Raises:
        DataError: A file is missing or lacks a column.
    """
    root = Path(folder)
    info = read_json(root / "graph.json")
    if not isinstance(info, dict) or not isinstance(info.get("k"), int):
        raise DataError(f"{root / 'graph.json'}: a whole number 'k' is needed")
    base = name or graph_config_name(info, task)
    configs = [
        config_from_parquet(
            base, root / "edges.parquet", edge_features(), about="directed edges, nearest first"
        )
    ]
    if (root / "complete.parquet").is_file():
        configs.append(
            config_from_parquet(
                f"{base}-complete",
                root / "complete.parquet",
                edge_features(),
                about="all edges that the dose was taken from",
            )
        )
    if (root / "purity.json").is_file():
        configs.append(_purity_config(f"{base}-purity", root / "purity.json"))
    names = {config.name for config in configs}
    return configs, [n for n in (f"{base}-complete", f"{base}-purity") if n not in names]


def _purity_config(name: str, path: Path) -> DatasetConfig:
    from datasets import Features, Value

    screen = read_json(path)
    number = Value("float64")
    features = Features(
        {
            "label": Value("string"),
            "edges_taken": Value("string"),
            "k": Value("int32"),
            "edges": Value("int64"),
            "purity": number,
            "purity_low": number,
            "purity_high": number,
            "random_rate": number,
            "lift": number,
            "lift_low": number,
            "lift_high": number,
            "least_similarity": number,
        }
    )
    rows: list[dict[str, Any]] = []
    for kind in ("at", "confident"):
        for entry in screen.get(kind) or []:
            low, high = entry.get("ci95") or (None, None)
            lift_low, lift_high = entry.get("lift_ci95") or (None, None)
            rows.append(
                {
                    "label": screen.get("label"),
                    "edges_taken": "up to rank k" if kind == "at" else "most similar first",
                    "k": entry.get("k"),
                    "edges": entry.get("edges"),
                    "purity": entry.get("purity"),
                    "purity_low": low,
                    "purity_high": high,
                    "random_rate": entry.get("random_rate"),
                    "lift": entry.get("lift"),
                    "lift_low": lift_low,
                    "lift_high": lift_high,
                    "least_similarity": entry.get("least_similarity"),
                }
            )
    if not rows:
        rows.append({"label": screen.get("label"), "edges_taken": "not measured"})
    tables = rows_to_tables(lambda: rows, features, str(path))
    about = "purity, random-pair rate and lift, with 95 % intervals"
    return DatasetConfig(name, features, {"train": tables}, about=about)


def _texts_and_ids(name: str, path: Path, split: str = "train") -> list[DatasetConfig]:
    """Two configs of one training file: the texts, ready for a trainer, and all that is beside."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features

    try:
        features = Features.from_arrow_schema(pq.read_schema(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not readable as parquet: {error}") from error
    texts = [c for c in features if c in ("anchor", "positive") or re.fullmatch(r"negative_\d+", c)]
    missing = [c for c in ("anchor", "positive") if c not in texts]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r} (columns: {', '.join(features)})")
    beside = {c: f for c, f in features.items() if c not in texts}
    configs = [
        config_from_parquet(
            name,
            path,
            Features({column: features[column] for column in texts}),
            split=split,
            about="anchor, positive and hard negatives, in the order that trainers expect",
        )
    ]
    if beside:
        configs.append(
            config_from_parquet(
                f"{name}-ids",
                path,
                Features(beside),
                split=split,
                about=f"ids, sources and conflicts of the rows of {name}, row by row",
            )
        )
    return configs


def mixture_configs(folder: str | Path) -> tuple[list[DatasetConfig], list[str]]:
    """The configs of a training mixture: two for each dataset.

    Raises:
        DataError: ``mixture.json`` or a file it names is not as it must be.
    """
    root = Path(folder)
    value = read_json(root / "mixture.json")
    entries = value.get("datasets") if isinstance(value, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{root / 'mixture.json'}: a list 'datasets' is needed")
    configs: list[DatasetConfig] = []
    for number, entry in enumerate(entries):
        where = f"{root / 'mixture.json'} dataset {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise DataError(f"{where}: field 'name' must be text")
        path = root / safe_name(entry.get("path"), f"{where}: field 'path'")
        configs += _texts_and_ids(entry["name"], path)
    return configs, []


def query_configs(
    folder: str | Path, *, corpus: str | Path | None = None
) -> tuple[list[DatasetConfig], list[str]]:
    """The configs of training queries: two for each task.

    Args:
        folder: What ``obliq queries`` wrote (``queries.json`` with ``train.parquet``), or a
            folder of ``<task>.jsonl`` whose rows have ``query`` or ``text``, and ``passage_id``,
            ``doc_id``, ``positive_id`` or ``document_id``.
        corpus: The corpus whose passages the rows of the second kind name.

    Raises:
        DataError: A file is not as it must be, a passage is unknown, or no corpus was given.
    """
    root = Path(folder)
    if (root / "queries.json").is_file():
        task = str(_task_of(root))
        configs = _texts_and_ids(task, root / "train.parquet")
        configs = [configs[0], *_provenance(f"{task}-provenance", root / "queries.jsonl")]
        return configs, []
    files = sorted(root.glob("*.jsonl"))
    if not files:
        raise DataError(f"{root}: neither queries.json nor <task>.jsonl there")
    if corpus is None or not Path(corpus).exists():
        raise DataError(
            f"{root}: its rows name passages by id; say which corpus they are from (--corpus)"
        )
    texts = {d.id: d.text for d in iter_documents(corpus)}
    configs = []
    for file in files:
        configs.append(_pairs(file.stem, file, texts))
        configs += _provenance(f"{file.stem}-provenance", file)
    return configs, []


def _task_of(root: Path) -> str:
    info = read_json(root / "queries.json")
    task = info.get("task") if isinstance(info, dict) else None
    if isinstance(task, dict):
        task = task.get("name")
    if not isinstance(task, str):
        raise DataError(f"{root / 'queries.json'}: field 'task' must name the task")
    return task


def _query_text(row: dict[str, Any], where: str) -> str:
    for name in ("query", "text"):
        if name in row:
            return clean_text(row[name], f"{where} field {name!r}")
    raise DataError(f"{where} has no field 'query' (fields: {', '.join(row)})")


def _passage_of(row: dict[str, Any], where: str) -> str:
    for name in _PASSAGE:
        if name in row:
            return clean_id(row[name], f"{where} field {name!r}")
    raise DataError(
        f"{where} has no field {_PASSAGE[0]!r} (nor {', '.join(_PASSAGE[1:])}); fields: "
        f"{', '.join(row)}"
    )


def _pairs(name: str, file: Path, texts: Mapping[str, str]) -> DatasetConfig:
    from datasets import Features, Value

    features = Features({"anchor": Value("string"), "positive": Value("string")})

    def rows() -> Iterator[dict[str, Any]]:
        for number, row in iter_jsonl(file):
            where = f"{file}:{number}"
            passage = _passage_of(row, where)
            if passage not in texts:
                raise DataError(f"{where}: passage {passage!r} is not in the corpus")
            yield {"anchor": _query_text(row, where), "positive": texts[passage]}

    about = "a query and the passage it was written from"
    tables = rows_to_tables(rows, features, str(file))
    return DatasetConfig(name, features, {"train": tables}, about=about)


def _provenance(name: str, file: Path) -> list[DatasetConfig]:
    """One config with everything that stands beside the queries, nested fields joined by ``_``."""
    from datasets import Features

    def flat(row: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in row.items():
            inner = value if isinstance(value, dict) else None
            if key == "metadata" and inner is not None:
                values.update(flat(inner))
            elif inner is not None:
                values.update({f"{key}_{k}": v for k, v in inner.items()})
            elif key not in ("query", "text"):
                values["query_id" if key in ("id", "_id") else key] = value
        return values

    if not file.is_file():
        return []
    columns = MetadataColumns()
    for _, row in iter_jsonl(file):
        columns.see(flat(row))
    features = Features(columns.features())

    def rows() -> Iterator[dict[str, Any]]:
        for _, row in iter_jsonl(file):
            yield columns.row(flat(row))

    tables = rows_to_tables(rows, features, str(file))
    about = "ids, first-stage descriptions and other provenance, row by row"
    return [DatasetConfig(name, features, {"train": tables}, about=about)]

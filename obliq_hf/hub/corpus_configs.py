"""The configs of a corpus folder: what mteb's loader reads, and what it does not know of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError
from obliq_hf.hub.metadata_columns import MetadataColumns
from obliq_hf.hub.parquet import DatasetConfig, rows_to_tables
from obliq_hf.records import (
    clean_text,
    corpus_file,
    iter_documents,
    read_excluded,
    read_qrels,
    read_queries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from obliq_hf.records import Qrels

__all__ = ["CORPUS_SUFFIXES", "corpus_configs"]

CORPUS_SUFFIXES = ("corpus", "queries", "qrels", "qrels-pooled", "top_ranked", "excluded")
"""A task's configs are ``<task>-<suffix>``."""

_LIST_IDS = 1_000_000


@dataclass(frozen=True)
class _Scan:
    ids: list[str]
    metadata: MetadataColumns
    has_groups: bool


def _scan(file: Path) -> _Scan:
    """Read the corpus once to learn its ids, its metadata and whether its rows are sound."""
    seen: dict[str, bytes] = {}
    columns = MetadataColumns()
    has_groups = False
    for document in iter_documents(file):
        mark = hashlib.blake2b(document.text.encode("utf-8"), digest_size=8).digest()
        if seen.setdefault(document.id, mark) != mark:
            raise DataError(f"{file}: id {document.id!r} stands for two different texts")
        columns.see({k: v for k, v in document.metadata.items() if k != "group"})
        has_groups = has_groups or document.group is not None
    if not seen:
        raise DataError(f"{file}: the corpus holds no documents")
    return _Scan(list(seen), columns, has_groups)


def _clean(values: dict[str, Any], where: str) -> dict[str, Any]:
    return {k: clean_text(v, where) if isinstance(v, str) else v for k, v in values.items()}


def _corpus(file: Path, scan: _Scan) -> tuple[Any, Callable[[], Any]]:
    from datasets import Features, Value

    text = Value("string")
    columns: dict[str, Any] = {"id": text, "title": text, "text": text}
    if scan.has_groups:
        columns["group"] = text
    features = Features({**columns, **scan.metadata.features()})

    def rows() -> Iterator[dict[str, Any]]:
        done: set[str] = set()
        for document in iter_documents(file):
            if document.id in done:
                continue
            done.add(document.id)
            row = {"id": document.id, "title": document.title, "text": document.text}
            if scan.has_groups:
                row["group"] = document.group  # type: ignore[assignment]
            extra = scan.metadata.row(document.metadata)
            yield {**row, **_clean(extra, f"{file} metadata of {document.id!r}")}

    return features, rows_to_tables(rows, features, str(file))


def _queries(file: Path) -> tuple[Any, Callable[[], Any]]:
    from datasets import Features, Value

    queries = read_queries(file)
    columns = MetadataColumns()
    for metadata in queries.metadata:
        columns.see(metadata)
    features = Features({"id": Value("string"), "text": Value("string"), **columns.features()})

    def rows() -> Iterator[dict[str, Any]]:
        for i, text, metadata in zip(queries.ids, queries.texts, queries.metadata, strict=True):
            extra = _clean(columns.row(metadata), f"{file} metadata of {i!r}")
            yield {"id": i, "text": text, **extra}

    return features, rows_to_tables(rows, features, str(file))


def _judgments(folder: Path) -> dict[str, Qrels]:
    found = {}
    for file in sorted(folder.glob("*.tsv")) if folder.is_dir() else []:
        qrels = read_qrels(file)
        if qrels:
            found[file.stem] = qrels
    return found


def _qrels_config(name: str, judgments: dict[str, Qrels], about: str) -> DatasetConfig:
    from datasets import Features, Value

    features = Features(
        {"query-id": Value("string"), "corpus-id": Value("string"), "score": Value("int32")}
    )

    def reader(qrels: Qrels) -> Callable[[], Any]:
        def rows() -> Iterator[dict[str, Any]]:
            for query, judged in qrels.items():
                for document, grade in judged.items():
                    yield {"query-id": query, "corpus-id": document, "score": grade}

        return rows_to_tables(rows, features, name)

    return DatasetConfig(name, features, {s: reader(q) for s, q in judgments.items()}, about=about)


def _exclusion_configs(
    task: str, ids: list[str], judged: dict[str, list[str]], excluded: dict[str, list[str]]
) -> list[DatasetConfig]:
    from datasets import Features, List, Value

    features = Features({"query-id": Value("string"), "corpus-ids": List(Value("string"))})

    def listed(queries: list[str]) -> Callable[[], Any]:
        def rows() -> Iterator[dict[str, Any]]:
            for query in queries:
                if excluded.get(query):
                    yield {"query-id": query, "corpus-ids": excluded[query]}

        return rows_to_tables(rows, features, f"{task}-excluded")

    def admissible(queries: list[str]) -> Callable[[], Iterator[pa.Table]]:
        def tables() -> Iterator[pa.Table]:
            import numpy as np
            import pyarrow as pa

            row = {document: i for i, document in enumerate(ids)}
            every = pa.array(ids, pa.string())
            at_once = max(1, _LIST_IDS // len(ids))
            for start in range(0, len(queries), at_once):
                part = queries[start : start + at_once]
                lists = []
                for query in part:
                    keep = np.ones(len(ids), dtype=bool)
                    keep[[row[d] for d in excluded.get(query, ()) if d in row]] = False
                    lists.append(every.filter(pa.array(keep)))
                offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
                values = pa.ListArray.from_arrays(pa.array(offsets), pa.concat_arrays(lists))
                columns = {"query-id": pa.array(part, pa.string()), "corpus-ids": values}
                yield pa.table(columns).cast(features.arrow_schema)

        return tables

    return [
        DatasetConfig(
            f"{task}-top_ranked",
            features,
            {split: admissible(queries) for split, queries in judged.items()},
            about="per query, the documents that may be retrieved (mteb's filter)",
        ),
        DatasetConfig(
            f"{task}-excluded",
            features,
            {split: listed(queries) for split, queries in judged.items()},
            about="per query, the documents that may not be retrieved (the same, the short way)",
        ),
    ]


def corpus_configs(folder: str | Path) -> tuple[list[DatasetConfig], list[str]]:
    """The configs of a corpus folder in this project's layout.

    Args:
        folder: Holds ``corpus.jsonl`` and ``tasks/<task>/``; a task may have a ``corpus.jsonl``
            of its own.

    Returns:
        The configs, and the names of those that the tasks do not have. Tasks on one corpus share
        its files.

    Raises:
        DataError: A file is not as it must be, or a task has no judgments.
    """
    root = Path(folder)
    tasks = sorted(p for p in (root / "tasks").iterdir() if (p / "queries.jsonl").is_file())
    if not tasks:
        raise DataError(f"{root}: no task below tasks/ has a queries.jsonl")
    scans: dict[Path, _Scan] = {}
    corpora: dict[Path, DatasetConfig] = {}
    configs: list[DatasetConfig] = []
    for place in tasks:
        task = place.name
        own = place / "corpus.jsonl"
        file = own if own.is_file() else corpus_file(root)
        if file not in corpora:
            scans[file] = _scan(file)
            features, tables = _corpus(file, scans[file])
            corpora[file] = DatasetConfig(
                f"{task}-corpus", features, {"corpus": tables}, about="documents"
            )
        gold, pooled = _judgments(place / "qrels"), _judgments(place / "qrels-pooled")
        if not gold and not pooled:
            raise DataError(f"{place}: no judgments in qrels/ or qrels-pooled/")
        configs.append(replace(corpora[file], name=f"{task}-corpus"))
        query_features, query_tables = _queries(place / "queries.jsonl")
        configs.append(
            DatasetConfig(
                f"{task}-queries", query_features, {"queries": query_tables}, about="queries"
            )
        )
        if gold:
            configs.append(_qrels_config(f"{task}-qrels", gold, "gold judgments"))
        if pooled:
            configs.append(_qrels_config(f"{task}-qrels-pooled", pooled, "pooled judgments"))
        if (place / "excluded.json").is_file():
            excluded = read_excluded(place / "excluded.json")
            if any(excluded.values()):
                splits = {
                    split: list({**gold.get(split, {}), **pooled.get(split, {})})
                    for split in {**gold, **pooled}
                }
                configs += _exclusion_configs(task, scans[file].ids, splits, excluded)
    names = {config.name for config in configs}
    absent = [f"{p.name}-{s}" for p in tasks for s in CORPUS_SUFFIXES]
    return configs, [name for name in absent if name not in names]

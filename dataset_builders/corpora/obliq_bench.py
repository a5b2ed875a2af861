"""OBLIQ-Bench (arXiv 2605.06235) as corpus folders of ours, from the Hub or from a copy.

The benchmark has no split of its own: ``official`` holds all its queries, and ``train``, ``dev``
and ``test`` are a partition of them that keeps queries together which share a judged or excluded
document.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_builders.corpora.grouped_split import split_queries
from obliq_hf.errors import DataError, nearest
from obliq_hf.files import atomic_path, hash_files, write_json, write_jsonl
from obliq_hf.hub.names import check_repo_id
from obliq_hf.hub.repository import HubError
from obliq_hf.records import (
    iter_documents,
    read_excluded,
    read_qrels,
    read_queries,
    write_excluded,
    write_qrels,
    write_queries,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from obliq_hf.records import Qrels

__all__ = ["CONFIGS", "REPOSITORY", "build", "download"]

logger = logging.getLogger(__name__)

REPOSITORY = "dianetc/OBLIQ-Bench"
CONFIGS = {
    "twitter": "descriptive/twitter",
    "wildchat": "descriptive/wildchat",
    "math": "analogues/math",
    "writing": "analogues/writing",
    "congress": "tip-of-tongue/congress",
}
"""Config -> its folder in the repository."""
SHARES = {"train": 0.2, "dev": 0.2, "test": 0.6}
OFFICIAL = "official"
"""The split that holds all queries, for numbers to compare with others'."""


@dataclass(frozen=True)
class _Source:
    folder: Path
    info: dict[str, Any]


def download(
    repository: str = REPOSITORY,
    *,
    tasks: Sequence[str] = tuple(CONFIGS),
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    cache_folder: str | Path | None = None,
) -> tuple[Path, str]:
    """Fetch the files of some configs from the Hub, or find them in the cache.

    Args:
        repository: ``organisation/name``.
        tasks: The configs.
        revision: Branch, tag or commit.
        token: The Hub's token; by default that of the environment.
        endpoint: The Hub's address, likewise.
        cache_folder: Where downloads are kept.

    Returns:
        The folder with the benchmark's layout, and the commit.

    Raises:
        HubError: It cannot be had, or lacks a config; endpoint and revision are named.
    """
    from huggingface_hub import constants, snapshot_download

    from obliq_hf.hub.download import fetching
    from obliq_hf.hub.redaction import redact

    check_repo_id(repository)
    server = redact(endpoint or constants.ENDPOINT)
    where = f"dataset {repository} at {server}, revision {revision or 'main'}"
    with fetching(where, token=token):
        folder = Path(
            snapshot_download(
                repository,
                repo_type="dataset",
                revision=revision,
                token=token,
                endpoint=endpoint,
                cache_dir=cache_folder,
                allow_patterns=[f"{CONFIGS[task]}/**" for task in tasks],
            )
        )
    for task in tasks:
        if not (folder / CONFIGS[task] / "corpus" / "corpus.jsonl").is_file():
            raise HubError(f"{where}: it has no {CONFIGS[task]}/corpus/corpus.jsonl")
    return folder, folder.name


def build(
    out: str | Path,
    source: str | Path = REPOSITORY,
    *,
    task: str | None = None,
    revision: str | None = None,
    shares: Mapping[str, float] | None = None,
    seed: int = 0,
    group_field: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    cache_folder: str | Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Write corpus folders from OBLIQ-Bench.

    Documents are read and written in a stream. Every document keeps its id; texts that stand
    under several ids are counted, not joined.

    Args:
        out: The folder to write: the corpus folder itself where there is one task to import, else
            the parent of one corpus folder a task.
        source: The repository (``organisation/name``), or a local copy of it, or of one task.
        task: ``twitter``, ``wildchat``, ``math``, ``writing`` or ``congress``; default all that
            are there.
        revision: Branch, tag or commit of the repository.
        shares: Split -> share of the queries; default a fifth each to train and dev.
        seed: Of the split.
        group_field: Metadata field that names a document's source.
        token: The Hub's token.
        endpoint: The Hub's address.
        cache_folder: Where downloads are kept.

    Returns:
        Task -> what its ``corpus.json`` says.

    Raises:
        DataError: A file, row or field is not as it must be; or no such task.
        HubError: The repository cannot be had.
    """
    if task is not None and task not in CONFIGS:
        raise DataError(f"OBLIQ-Bench has no task {task!r}{nearest(task, CONFIGS)}")
    wanted = [task] if task is not None else list(CONFIGS)
    place = Path(source)
    if place.exists():
        if revision is not None:
            raise DataError(f"{place} is a folder, which has no revision ({revision!r} was given)")
        found = _local(place, task)
        if not found:
            raise DataError(
                f"{place}: no task of OBLIQ-Bench there; expected "
                f"{' or '.join(f'{CONFIGS[name]}/' for name in wanted)} with corpus/corpus.jsonl "
                "and queries+qrels/"
            )
    else:
        root, commit = download(
            str(source),
            tasks=wanted,
            revision=revision,
            token=token,
            endpoint=endpoint,
            cache_folder=cache_folder,
        )
        found = {
            name: _Source(
                root / CONFIGS[name],
                {"dataset": str(source), "revision": commit, "config": name,
                 "license": "cc-by-4.0"},
            )
            for name in wanted
        }  # fmt: skip
    alone = task is not None or (place / "queries+qrels").is_dir()
    return {
        name: _build_one(
            Path(out) if alone else Path(out) / name,
            name,
            each,
            shares or SHARES,
            seed,
            group_field,
        )
        for name, each in found.items()
    }


def _local(place: Path, task: str | None) -> dict[str, _Source]:
    def info(folder: Path, name: str) -> _Source:
        return _Source(folder, {"config": name, "sha256": hash_files(folder)})

    if (place / "queries+qrels").is_dir():
        name = task or next((n for n, sub in CONFIGS.items() if sub.endswith(place.name)), None)
        if name is None:
            raise DataError(f"{place}: say with --task which task of OBLIQ-Bench it is")
        return {name: info(place, name)}
    return {
        name: info(place / sub, name)
        for name, sub in CONFIGS.items()
        if (place / sub / "queries+qrels").is_dir() and task in (None, name)
    }


@dataclass
class _Counts:
    ids: set[str]
    texts: set[bytes]
    repeated_texts: int = 0
    repeated_rows: int = 0
    empty: int = 0


def _documents(file: Path, group_field: str | None, counts: _Counts) -> Iterator[dict[str, Any]]:
    marks: dict[str, bytes] = {}
    for document in iter_documents(file, group_field=group_field):
        mark = hashlib.blake2b(document.text.encode(), digest_size=16).digest()
        if document.id in marks:
            if marks[document.id] != mark:
                raise DataError(f"{file}: id {document.id!r} stands for two different texts")
            counts.repeated_rows += 1
            continue
        marks[document.id] = mark
        counts.repeated_texts += mark in counts.texts
        counts.texts.add(mark)
        counts.empty += not (document.text.strip() or document.title.strip())
        metadata = {k: v for k, v in document.metadata.items() if k != "group"}
        if document.group is not None:
            metadata["group"] = document.group
        yield {
            "_id": document.id,
            "title": document.title,
            "text": document.text,
            "metadata": metadata,
        }
    counts.ids = set(marks)


def _build_one(
    out: Path,
    task: str,
    source: _Source,
    shares: Mapping[str, float],
    seed: int,
    group_field: str | None,
) -> dict[str, Any]:
    inner = source.folder / "queries+qrels"
    queries = read_queries(inner / "queries.jsonl")
    gold = read_qrels(inner / "qrels.tsv")
    pooled_file = inner / "qrels_pool.tsv"
    pooled = read_qrels(pooled_file) if pooled_file.is_file() else None
    excluded_file = inner / "per_query_excluded_ids.json"
    excluded = read_excluded(excluded_file) if excluded_file.is_file() else {}
    known = set(queries.ids)
    for name, judged in (("qrels.tsv", gold), ("qrels_pool.tsv", pooled or {})):
        if judged and not known & set(judged):
            raise DataError(f"{inner / name}: names no query of queries.jsonl")
    touched = {
        query: [*gold.get(query, ()), *(pooled or {}).get(query, ()), *excluded.get(query, ())]
        for query in queries.ids
    }
    split = split_queries(queries.ids, touched, shares, seed=seed)
    members = {**split.splits, OFFICIAL: list(queries.ids)}
    counts = _Counts(set(), set())
    with atomic_path(out) as folder:
        folder.mkdir()
        rows = write_jsonl(
            folder / "corpus.jsonl",
            _documents(source.folder / "corpus" / "corpus.jsonl", group_field, counts),
        )
        if not rows:
            raise DataError(f"{source.folder}: the corpus holds no documents")
        place = folder / "tasks" / task
        write_queries(place / "queries.jsonl", queries)
        for name, ids in members.items():
            _write_split(place / "qrels" / f"{name}.tsv", gold, ids)
            if pooled is not None:
                _write_split(place / "qrels-pooled" / f"{name}.tsv", pooled, ids)
        if any(excluded.values()):
            write_excluded(place / "excluded.json", excluded)
        judgments = {"gold": gold, **({"pooled": pooled} if pooled is not None else {})}
        dangling = {
            f"{kind} judgments of documents not in the corpus": sum(
                document not in counts.ids for judged in qrels.values() for document in judged
            )
            for kind, qrels in judgments.items()
        }
        info: dict[str, Any] = {
            "source": {"builder": "obliq-bench", **source.info},
            "documents": rows,
            "documents with the text of an earlier one": counts.repeated_texts,
            "empty documents": counts.empty,
            "sha256": hash_files(folder / "corpus.jsonl"),
            "split": split.info,
            "tasks": {
                task: {
                    "queries": {name: len(ids) for name, ids in members.items()},
                    "judgments": {
                        kind: sum(len(judged) for judged in qrels.values())
                        for kind, qrels in judgments.items()
                    },
                    "queries with exclusions": sum(map(bool, excluded.values())),
                }
            },
            "kept, though never found": dangling,
            "dropped": {"repeated rows": counts.repeated_rows} if counts.repeated_rows else {},
        }
        write_json(folder / "corpus.json", info)
    if counts.repeated_texts:
        logger.info("%s: %d documents repeat an earlier text", task, counts.repeated_texts)
    return info


def _write_split(path: Path, qrels: Qrels, ids: list[str]) -> None:
    chosen = {query: qrels[query] for query in ids if query in qrels}
    if chosen:
        write_qrels(path, chosen)

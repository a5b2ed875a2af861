"""Several tasks with corpora of their own, in one folder: OBLIQ-Bench, or folders laid out like it.

:mod:`dataset_builders.corpora.obliq_bench` imports the benchmark with splits to develop on; this
one lays whole tasks side by side, as a training over all of them reads them.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_builders.corpora.obliq_bench import CONFIGS, REPOSITORY, download
from obliq_hf.errors import DataError, nearest
from obliq_hf.files import atomic_path, safe_name, write_json
from obliq_hf.records import Queries, write_corpus, write_excluded, write_qrels, write_queries
from obliq_hf.task_data import available_splits, available_tasks, read_task_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.task_data import TaskData

__all__ = ["build", "folder_of"]

logger = logging.getLogger(__name__)


def folder_of(root: str | Path, task: str) -> Path:
    """The folder below ``root`` that holds a task with its corpus, in either layout."""
    for place in (Path(root) / "tasks" / task, Path(root) / CONFIGS.get(task, task)):
        if place.is_dir():
            return place
    return Path(root)


def build(
    out: str | Path,
    path: str | Path | None,
    *,
    tasks: Sequence[str],
    folders: Mapping[str, str | Path] | None = None,
    group_fields: Mapping[str, str] | None = None,
    revision: str | None = None,
) -> dict[str, int]:
    """Write a folder of ours in which every task has its own corpus below ``tasks/<task>/``.

    Args:
        out: The folder to write; an existing one is replaced.
        path: A folder in OBLIQ-Bench's layout; None fetches the tasks asked for from the Hub.
        tasks: The tasks to take.
        folders: Task -> a folder of its own in any layout, for tasks that ``path`` does not hold.
        group_fields: Task -> the metadata field that names a document's source.
        revision: Commit or tag of the data on the Hub.

    Returns:
        Task -> number of documents.

    Raises:
        DataError: A task is nowhere, or a file, row or field is not as it must be.
        HubError: The benchmark cannot be had from the Hub.
    """
    own = {name: Path(place) for name, place in (folders or {}).items()}
    groups = dict(group_fields or {})
    for key, given in (("folders", own), ("group_fields", groups)):
        for name in given:
            if name not in tasks:
                raise DataError(f"{key}: no task {name!r}{nearest(name, tasks)}")
    wanted = [name for name in tasks if name not in own]
    root = Path(path) if path is not None else None
    commit = None
    if root is None and wanted:
        for name in wanted:
            if name not in CONFIGS:
                raise DataError(f"{REPOSITORY}: holds no task {name!r}{nearest(name, CONFIGS)}")
        root, commit = download(tasks=wanted, revision=revision)
    known = available_tasks(root) if root is not None else []
    for name in wanted:
        if name not in known:
            raise DataError(f"{root}: holds no task {name!r}{nearest(name, known)}")
    provenance: dict[str, Any] = {
        "source": {
            "builder": "several",
            "name": REPOSITORY.rpartition("/")[2] if path is None else Path(path).resolve().name,
            "repository": REPOSITORY if path is None else None,
            "revision": commit,
        },
        "tasks": {},
        "dropped": {},
    }
    counts: dict[str, int] = {}
    with atomic_path(out) as folder:
        folder.mkdir()
        for name in tasks:
            source = own.get(name, root)
            assert source is not None
            inside = name if name in known and name not in own else None
            place = folder / "tasks" / safe_name(name, "task name")
            counts[name] = _write_task(place, source, inside, groups.get(name), name, provenance)
        provenance["documents"] = sum(counts.values())
        write_json(folder / "corpus.json", provenance)
    return counts


def _write_task(
    place: Path,
    source: Path,
    inside: str | None,
    group_field: str | None,
    name: str,
    provenance: dict[str, Any],
) -> int:
    """Write one task with its corpus; returns the number of documents."""
    splits = available_splits(source, task=inside)
    if not splits:
        raise DataError(f"{source}: task {name!r} has no judgments")
    queries: dict[str, tuple[str, dict[str, Any]]] = {}
    excluded: dict[str, list[str]] = {}
    first: TaskData | None = None
    judged: dict[str, int] = {}
    for split in splits:
        data = read_task_data(
            source,
            task=inside,
            split=split,
            group_field=group_field,
            empty="keep",
            corpus=None if first is None else first.corpus,
        )
        first = first or data
        write_qrels(place / "qrels" / f"{safe_name(split, 'split')}.tsv", data.qrels)
        if data.pooled is not None:
            write_qrels(place / "qrels-pooled" / f"{split}.tsv", data.pooled)
        rows = zip(data.queries.ids, data.queries.texts, data.queries.metadata, strict=True)
        queries.update({i: (text, metadata) for i, text, metadata in rows})
        excluded.update(data.excluded)
        judged[split] = len(data.qrels)
        for reason, count in data.left_out.items():
            provenance["dropped"][f"{name} {split}: {reason}"] = count
    assert first is not None
    write_corpus(place / "corpus.jsonl", first.corpus)
    write_queries(
        place / "queries.jsonl",
        Queries(list(queries), [t for t, _ in queries.values()], [m for _, m in queries.values()]),
    )
    if excluded:
        write_excluded(place / "excluded.json", excluded)
    provenance["tasks"][name] = {
        "documents": len(first.corpus),
        "groups": len(set(first.corpus.groups) - {None}),
        "fingerprint": first.corpus.fingerprint,
        "queries": judged,
    }
    logger.info("%s: %d documents, %s queries", name, len(first.corpus), judged)
    return len(first.corpus)

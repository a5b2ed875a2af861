"""A folder in BEIR's, OBLIQ-Bench's or this project's layout, as a corpus folder of ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_builders.corpora.layout import TaskFiles, write_folder
from obliq_hf.errors import DataError, nearest
from obliq_hf.files import hash_files, iter_jsonl, safe_name
from obliq_hf.records import Corpus, Qrels, Queries, clean_metadata, read_corpus
from obliq_hf.task_data import (
    available_splits,
    available_tasks,
    read_task_data,
    task_corpus_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obliq_hf.records import EmptyPolicy

__all__ = ["build"]


def build(
    out: str | Path,
    path: str | Path,
    *,
    task: str | None = None,
    name: str | None = None,
    group_field: str | None = None,
    metadata: str | Path | None = None,
    empty: EmptyPolicy = "error",
) -> Corpus:
    """Write a corpus folder of ours from another one.

    Args:
        out: The folder to write; an existing one is replaced.
        path: The folder to read: ``corpus.jsonl`` or ``corpus/corpus.jsonl``, with judgments or
            without.
        task: Which of several tasks to take; needed where they have corpora of their own.
        name: The task's name in the new folder; default as it was. Not with several tasks.
        group_field: The field that names a document's source, of the corpus or of ``metadata``.
        metadata: A JSON-lines file whose further fields are added to documents and queries of the
            same ``_id``, where the corpus does not carry them itself.
        empty: What to do with empty documents.

    Returns:
        The corpus.

    Raises:
        DataError: A file, row, field or task that is not as it must be.
    """
    source = Path(path)
    found = available_tasks(source)
    if task is not None and task not in found:
        raise DataError(f"{source} holds no task {task!r}{nearest(task, found)}")
    chosen = [task] if task is not None else found
    if name is not None and len(chosen) > 1:
        raise DataError(f"{source} holds {len(chosen)} tasks, so they cannot be named {name!r}")
    extra = _read_metadata(metadata) if metadata is not None else None
    own_group_field = group_field if extra is None else None
    corpus: Corpus | None = None
    files: list[TaskFiles] = []
    dropped: dict[str, int] = {}
    read: dict[Path, Corpus] = {}
    for each in chosen:
        file = task_corpus_file(source, task=each)
        gold: dict[str, Qrels] = {}
        pooled: dict[str, Qrels] = {}
        queries: dict[str, tuple[str, dict[str, Any]]] = {}
        excluded: dict[str, list[str]] = {}
        for split in available_splits(source, task=each):
            data = read_task_data(
                source,
                task=each,
                split=split,
                group_field=own_group_field,
                empty=empty,
                corpus=read.get(file),
            )
            read[file] = data.corpus
            if corpus is None:
                corpus = data.corpus
            elif corpus.fingerprint != data.corpus.fingerprint:
                raise DataError(f"{source}: tasks have corpora of their own; name one: {found}")
            gold[split] = data.qrels
            if data.pooled is not None:
                pooled[split] = data.pooled
            rows = zip(data.queries.ids, data.queries.texts, data.queries.metadata, strict=True)
            queries.update({i: (text, meta) for i, text, meta in rows})
            excluded.update(data.excluded)
            for reason, count in data.left_out.items():
                dropped[f"{each} {split}: {reason}"] = count
        if not gold:
            raise DataError(f"{source}: task {each!r} has no judgments")
        files.append(
            TaskFiles(
                safe_name(name or each, "task name"),
                Queries(
                    list(queries),
                    [text for text, _ in queries.values()],
                    [{**meta, **(extra or {}).get(i, {})} for i, (_, meta) in queries.items()],
                ),
                gold,
                excluded,
                pooled or None,
            )
        )
    if corpus is None:
        corpus = read_corpus(source, group_field=own_group_field, empty=empty)
    if extra is not None:
        corpus = _with_metadata(corpus, extra, group_field, str(metadata))
    write_folder(
        out,
        corpus,
        files,
        source={
            "builder": "beir",
            "sha256": hash_files(source),
            "group_field": group_field,
            "metadata_sha256": hash_files(metadata) if metadata is not None else None,
        },
        dropped=dropped,
    )
    return corpus


def _read_metadata(path: str | Path) -> dict[str, dict[str, Any]]:
    """Further fields of each id; text and title are left out."""
    rows: dict[str, dict[str, Any]] = {}
    for number, row in iter_jsonl(path):
        identifier = row.get("_id", row.get("id"))
        if not isinstance(identifier, str):
            raise DataError(f"{path}:{number} field '_id' must be a string, not {identifier!r:.60}")
        known = {"_id", "id", "text", "title", "metadata"}
        nested = row.get("metadata") or {}
        if not isinstance(nested, dict):
            raise DataError(
                f"{path}:{number} field 'metadata' must be an object, not {nested!r:.60}"
            )
        rest = {k: v for k, v in row.items() if k not in known}
        rows[identifier] = clean_metadata({**rest, **nested})
    if not rows:
        raise DataError(f"{path}: holds no rows")
    return rows


def _with_metadata(
    corpus: Corpus, extra: dict[str, dict[str, Any]], group_field: str | None, where: str
) -> Corpus:
    rows = [
        {**{k: column[i] for k, column in corpus.metadata.items()}, **extra.get(document, {})}
        for i, document in enumerate(corpus.ids)
    ]
    names: Sequence[str] = list(dict.fromkeys(k for row in rows for k in row if k != "group"))
    groups = corpus.groups
    if group_field is not None:
        if group_field not in names:
            raise DataError(f"{where} has no field {group_field!r}{nearest(group_field, names)}")
        groups = []
        for document, row in zip(corpus.ids, rows, strict=True):
            if row.get(group_field) is None:
                raise DataError(f"{where} has no {group_field!r} for document {document!r}")
            groups.append(str(row[group_field]))
    columns = {k: [row.get(k) for row in rows] for k in names}
    return Corpus(corpus.ids, corpus.texts, corpus.titles, groups, columns)

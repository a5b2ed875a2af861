"""Any JSON-lines file of texts as a corpus folder; a same-label task where labels are known."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from dataset_builders.corpora.label_task import same_label_task, split_labels
from dataset_builders.corpora.layout import TaskFiles, write_folder
from obliq_hf.errors import DataError, nearest
from obliq_hf.files import hash_files, iter_jsonl, safe_name
from obliq_hf.records import (
    Corpus,
    clean_id,
    clean_metadata,
    clean_text,
    read_qrels,
    read_queries,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from obliq_hf.records import EmptyPolicy

__all__ = ["build", "read_rows"]

logger = logging.getLogger(__name__)

_EMPTY = ("error", "keep", "drop")


def read_rows(
    path: str | Path,
    *,
    id_field: str = "_id",
    text_field: str = "text",
    title_field: str | None = None,
    group_field: str | None = None,
    where: Mapping[str, Any] | None = None,
    empty: EmptyPolicy = "error",
) -> tuple[Corpus, Counter[str]]:
    """Read documents from a JSON-lines file with fields of any name.

    Args:
        path: The file.
        id_field: The field with the id, a string.
        text_field: The field with the text.
        title_field: The field with the title; none by default.
        group_field: The field that names the source of a document; none by default.
        where: Field -> the value (or list of values) a row must have to be read.
        empty: What to do with a document without a visible character.

    Returns:
        The documents; all other fields become metadata. And rows left out by reason.

    Raises:
        DataError: A field that is missing or not as it must be (file, line and field are named),
            one id with two texts, or no documents.
    """
    if empty not in _EMPTY:
        raise DataError(f"empty is {empty!r}{nearest(str(empty), _EMPTY)}")
    wanted = {k: v if isinstance(v, list | tuple | set) else [v] for k, v in (where or {}).items()}
    ids: list[str] = []
    texts: list[str] = []
    titles: list[str] = []
    groups: list[str | None] = []
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    for number, row in iter_jsonl(path):
        at = f"{path}:{number}"
        row = {**row, **nested} if isinstance(nested := row.pop("metadata", None), dict) else row
        fields = (id_field, text_field, title_field, group_field, *wanted)
        for name in fields:
            if name is not None and name not in row:
                raise DataError(
                    f"{at} has no field {name!r}{nearest(name, row)}; say which fields hold what "
                    "(id_field, text_field; on the command line --id-field, --text-field)"
                )
        if any(row[name] not in values for name, values in wanted.items()):
            dropped["rows not asked for"] += 1
            continue
        identifier = clean_id(row[id_field], f"{at} field {id_field!r}")
        text = clean_text(row[text_field], f"{at} field {text_field!r}")
        title = (
            clean_text(row[title_field] or "", f"{at} field {title_field!r}") if title_field else ""
        )
        if identifier in seen:
            if texts[seen[identifier]] != text:
                raise DataError(f"{at}: id {identifier!r} stands for two different texts")
            dropped["rows that repeat an id and its text"] += 1
            continue
        if not (text.strip() or title.strip()):
            if empty == "error":
                raise DataError(f"{at} field {text_field!r} of document {identifier!r} is empty")
            if empty == "drop":
                dropped["empty documents"] += 1
                continue
        seen[identifier] = len(ids)
        ids.append(identifier)
        texts.append(text)
        titles.append(title)
        groups.append(_group(row[group_field], at, group_field) if group_field else None)
        used = {id_field, text_field, title_field}
        rows.append(clean_metadata({k: v for k, v in row.items() if k not in used}))
    if not ids:
        asked = f" with {dict(where)}" if where else ""
        raise DataError(f"{path}: the corpus holds no documents{asked}")
    for reason, count in dropped.items():
        logger.info("%s: %d %s", path, count, reason)
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name != "group"]
    metadata = {name: [row.get(name) for row in rows] for name in names}
    return Corpus(ids, texts, titles, groups, metadata), dropped


def _group(value: object, at: str, field: str) -> str:
    if value is None or isinstance(value, dict | list) or not str(value).strip():
        raise DataError(f"{at} field {field!r} must name a source, not {value!r:.60}")
    return clean_text(str(value), at)


def build(
    out: str | Path,
    path: str | Path,
    *,
    id_field: str = "_id",
    text_field: str = "text",
    title_field: str | None = None,
    group_field: str | None = None,
    where: Mapping[str, Any] | None = None,
    empty: EmptyPolicy = "error",
    task: str = "task",
    queries: str | Path | None = None,
    qrels: Mapping[str, str | Path] | None = None,
    label_field: str | None = None,
    splits: Sequence[str] = ("dev", "test"),
    per_label: int = 20,
) -> Corpus:
    """Write a corpus folder of ours from a JSON-lines file.

    A task comes with it where ``queries`` and ``qrels`` are given, or is derived from labels where
    ``label_field`` is: positives of a document are those with its label in other groups.

    Args:
        out: The folder to write; an existing one is replaced.
        path: The file with the documents; fields as for :func:`read_rows`.
        id_field: See :func:`read_rows`.
        text_field: See :func:`read_rows`.
        title_field: See :func:`read_rows`.
        group_field: See :func:`read_rows`; needed for a task from labels.
        where: See :func:`read_rows`.
        empty: See :func:`read_rows`.
        task: The task's name.
        queries: A ``queries.jsonl``.
        qrels: Split -> its judgments.
        label_field: The field with the label.
        splits: The splits labels are dealt to, so that no label is in two.
        per_label: Queries a label at most.

    Returns:
        The corpus.

    Raises:
        DataError: A file, row or field that is not as it must be, or judgments of which none fits.
    """
    if (queries is None) != (qrels is None):
        raise DataError("queries and qrels belong together: give both or neither")
    if queries is not None and label_field is not None:
        raise DataError("give queries with qrels, or label_field, not both")
    safe_name(task, "task name")
    corpus, dropped = read_rows(
        path,
        id_field=id_field,
        text_field=text_field,
        title_field=title_field,
        group_field=group_field,
        where=where,
        empty=empty,
    )
    files: list[TaskFiles] = []
    if label_field is not None:
        labels = split_labels(corpus, label_field, splits=tuple(splits))
        files.append(
            same_label_task(
                corpus, name=task, label_field=label_field, splits=labels, per_label=per_label
            )
        )
    elif queries is not None:
        files.append(_given_task(task, queries, qrels or {}, corpus, dropped))
    write_folder(
        out,
        corpus,
        files,
        source={
            "builder": "jsonl",
            "sha256": hash_files(path),
            "group_field": group_field,
            "where": {k: list(v) if isinstance(v, set | tuple) else v
                      for k, v in (where or {}).items()},
            "label_field": label_field,
        },
        dropped=dropped,
    )  # fmt: skip
    return corpus


def _given_task(
    name: str,
    queries: str | Path,
    qrels: Mapping[str, str | Path],
    corpus: Corpus,
    dropped: Counter[str],
) -> TaskFiles:
    asked = read_queries(queries)
    known = set(asked.ids)
    kept = {}
    for split, path in qrels.items():
        judged = read_qrels(path)
        fitting = {
            query: fit
            for query, documents in judged.items()
            if query in known and (fit := {d: g for d, g in documents.items() if d in corpus.row})
        }
        if not fitting:
            raise DataError(
                f"{path}: no judgment names both a query of {queries} and a document of the corpus "
                f"(first query there: {next(iter(judged), None)!r}; here: {asked.ids[0]!r})"
            )
        total = sum(map(len, judged.values()))
        left = sum(map(len, fitting.values()))
        if left < total:
            dropped[f"judgments of {split} that name nothing here"] = total - left
        kept[split] = fitting
    return TaskFiles(name, asked.keep({q for judged in kept.values() for q in judged}), kept, {})

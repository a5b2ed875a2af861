"""Queries that a language model wrote once and that the project carries.

They are the default where no language model is at hand. Every row names its passage by id and by
the first 16 hexadecimal digits of the SHA-256 of its text, so a changed corpus is noticed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from obliq_hf.errors import DataError, nearest
from obliq_hf.files import iter_jsonl, safe_name

if TYPE_CHECKING:
    from obliq_hf.records import Corpus

__all__ = ["SPLITS", "RecordedQuery", "load_recorded", "recorded_file", "text_fingerprint"]

SPLITS = ("train", "dev", "test")
_FIELDS = ("id", "split", "passage_id", "text_sha256", "stage_a", "query")


@dataclass(frozen=True)
class RecordedQuery:
    """One recorded query.

    Attributes:
        id: The query's id.
        split: ``train``, ``dev`` or ``test``.
        passage_id: The passage it was written from.
        text_sha256: First 16 hexadecimal digits of the SHA-256 of that passage's text.
        stage_a: What the first stage wrote about the passage.
        query: The query.
    """

    id: str
    split: str
    passage_id: str
    text_sha256: str
    stage_a: str
    query: str


def text_fingerprint(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def recorded_file(task: str) -> Path:
    """Where the recorded queries of a task are, or would be."""
    return Path(__file__).parent / "recorded" / f"{safe_name(task, 'task name')}.jsonl"


def load_recorded(
    task: str, corpus: Corpus, *, split: str | None = None, path: str | Path | None = None
) -> list[RecordedQuery]:
    """The recorded queries of a task, checked against a corpus.

    Args:
        task: The task's name, e.g. ``scene``.
        corpus: The corpus they were written on.
        split: Only this split; by default all.
        path: A file of the same form instead of the project's own.

    Raises:
        DataError: No such file or split, a bad row, an id given twice, or a passage that is
            missing from the corpus or has another text there.
    """
    if split is not None and split not in SPLITS:
        raise DataError(f"recorded queries have no split {split!r}{nearest(split, SPLITS)}")
    file = Path(path) if path is not None else recorded_file(task)
    if not file.is_file():
        have = sorted(p.stem for p in file.parent.glob("*.jsonl"))
        raise DataError(f"no queries are recorded for the task {task!r}; recorded: {have or None}")
    rows: list[RecordedQuery] = []
    seen: set[str] = set()
    for number, row in iter_jsonl(file):
        where = f"{file}:{number}"
        for name in _FIELDS:
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise DataError(f"{where} field {name!r} must be a string that is not empty")
        query = RecordedQuery(**{name: row[name] for name in _FIELDS})
        if query.split not in SPLITS:
            hint = nearest(query.split, SPLITS)
            raise DataError(f"{where} field 'split' is {query.split!r}{hint}")
        if query.id in seen:
            raise DataError(f"{where} field 'id' {query.id!r} was given before")
        seen.add(query.id)
        at = corpus.row.get(query.passage_id)
        if at is None:
            raise DataError(
                f"{where} field 'passage_id': the corpus has no passage {query.passage_id!r}; "
                "the queries were recorded on another corpus"
            )
        if text_fingerprint(corpus.texts[at]) != query.text_sha256:
            raise DataError(
                f"{where}: passage {query.passage_id!r} has another text than the one the query "
                "was written from; the corpus has changed"
            )
        if split is None or query.split == split:
            rows.append(query)
    return rows

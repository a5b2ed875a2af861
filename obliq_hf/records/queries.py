"""Queries, and their file."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError
from obliq_hf.files import iter_jsonl, write_jsonl
from obliq_hf.records.cleaning import clean_id, clean_metadata, clean_text, first_field

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Queries", "read_queries", "write_queries"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Queries:
    """Queries in order; row ``i`` of every list belongs to one query."""

    ids: list[str]
    texts: list[str]
    metadata: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.metadata:
            object.__setattr__(self, "metadata", [{} for _ in self.ids])
        if not len(self.ids) == len(self.texts) == len(self.metadata):
            raise DataError("queries need as many texts and metadata as ids")

    def __len__(self) -> int:
        return len(self.ids)

    def as_dict(self) -> dict[str, str]:
        """Query id -> text."""
        return dict(zip(self.ids, self.texts, strict=True))

    def keep(self, ids: Iterable[str]) -> Queries:
        """The queries with the given ids, in this object's order."""
        wanted = set(ids)
        rows = [i for i, query in enumerate(self.ids) if query in wanted]
        return Queries(
            ids=[self.ids[i] for i in rows],
            texts=[self.texts[i] for i in rows],
            metadata=[self.metadata[i] for i in rows],
        )


def read_queries(path: str | Path) -> Queries:
    """Read ``queries.jsonl``: ``_id`` (or ``id``), ``text``, and maybe ``metadata``.

    Raises:
        DataError: No queries, a bad row, an empty text, or one id with two texts.
    """
    ids: list[str] = []
    texts: list[str] = []
    metadata: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for number, row in iter_jsonl(path):
        where = f"{path}:{number}"
        identifier = clean_id(first_field(row, ("_id", "id"), where), f"{where} field '_id'")
        text = clean_text(first_field(row, ("text", "query"), where), f"{where} field 'text'")
        if not text.strip():
            raise DataError(f"{where} field 'text' of query {identifier!r} is empty")
        if identifier in seen:
            if texts[seen[identifier]] != text:
                raise DataError(f"{where}: query id {identifier!r} stands for two different texts")
            logger.warning(
                "%s: query id %r repeated with the same text; collapsed", where, identifier
            )
            continue
        extra = row.get("metadata") or {}
        if not isinstance(extra, dict):
            raise DataError(f"{where} field 'metadata' must be an object, not {extra!r:.60}")
        known = {"_id", "id", "text", "query", "metadata"}
        seen[identifier] = len(ids)
        ids.append(identifier)
        texts.append(text)
        rest = {k: v for k, v in row.items() if k not in known}
        metadata.append(clean_metadata({**rest, **extra}))
    if not ids:
        raise DataError(f"{path}: holds no queries")
    return Queries(ids, texts, metadata)


def write_queries(path: str | Path, queries: Queries) -> None:
    """Write queries as JSON lines."""
    write_jsonl(
        path,
        (
            {"_id": i, "text": t, "metadata": m}
            for i, t, m in zip(queries.ids, queries.texts, queries.metadata, strict=True)
        ),
    )

"""Documents, and the file of a corpus."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import DataError, nearest
from obliq_hf.files import content_hash, iter_jsonl, write_jsonl
from obliq_hf.records.cleaning import clean_id, clean_metadata, clean_text, first_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Corpus",
    "Document",
    "EmptyPolicy",
    "corpus_file",
    "iter_documents",
    "read_corpus",
    "write_corpus",
]

logger = logging.getLogger(__name__)

EmptyPolicy = Literal["error", "keep", "drop"]


@dataclass(frozen=True)
class Corpus:
    """Documents in order; row ``i`` of every list belongs to one document.

    Attributes:
        ids: Unique document ids.
        texts: Texts.
        titles: Titles, ``""`` where there is none.
        groups: The source a document was cut from (work, post, thread), or None.
        metadata: Further columns (author, work, ...), each as long as ``ids``.
    """

    ids: list[str]
    texts: list[str]
    titles: list[str] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    metadata: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.ids)
        if not self.titles:
            object.__setattr__(self, "titles", [""] * n)
        if not self.groups:
            object.__setattr__(self, "groups", [None] * n)
        columns: dict[str, list[Any]] = {
            "texts": self.texts,
            "titles": self.titles,
            "groups": self.groups,
        }
        for name, column in [*columns.items(), *self.metadata.items()]:
            if len(column) != n:
                raise DataError(f"corpus column {name!r} has {len(column)} rows for {n} ids")
        if len(self.row) != n:
            twice = [i for i, c in Counter(self.ids).items() if c > 1][:3]
            raise DataError(f"corpus ids must be unique; given twice: {twice}")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def row(self) -> dict[str, int]:
        """Document id -> row."""
        return {document: i for i, document in enumerate(self.ids)}

    @property
    def has_groups(self) -> bool:
        """Whether any document says which source it comes from."""
        return any(group is not None for group in self.groups)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, titles, texts and groups."""
        return content_hash(self.ids, self.titles, self.texts, self.groups)

    def full_texts(self) -> list[str]:
        """Title and text joined by a space, as mteb hands documents to a model."""
        return [
            f"{title} {text}".strip() if title else text
            for title, text in zip(self.titles, self.texts, strict=True)
        ]

    def select(self, rows: Sequence[int]) -> Corpus:
        """The documents of the given rows, in that order."""
        return Corpus(
            ids=[self.ids[i] for i in rows],
            texts=[self.texts[i] for i in rows],
            titles=[self.titles[i] for i in rows],
            groups=[self.groups[i] for i in rows],
            metadata={name: [column[i] for i in rows] for name, column in self.metadata.items()},
        )


def corpus_file(path: str | Path) -> Path:
    """The corpus file a path stands for: itself, ``corpus.jsonl`` or ``corpus/corpus.jsonl``.

    Raises:
        DataError: There is none; the message names the places looked at.
    """
    root = Path(path)
    if root.is_file():
        return root
    for candidate in (root / "corpus.jsonl", root / "corpus" / "corpus.jsonl"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{root}: neither a file nor a folder with corpus.jsonl or corpus/corpus.jsonl")


@dataclass(frozen=True)
class Document:
    """One row of a corpus file."""

    id: str
    text: str
    title: str
    group: str | None
    metadata: dict[str, Any]


def iter_documents(path: str | Path, *, group_field: str | None = None) -> Iterator[Document]:
    """Read a corpus file as a stream, row by row.

    Args:
        path: As for :func:`read_corpus`.
        group_field: The metadata or top-level field that names a document's source; by default
            ``group`` where there is one.

    Raises:
        DataError: A row that is not as it must be; file, line and field are named.
    """
    file = corpus_file(path)
    for number, row in iter_jsonl(file):
        where = f"{file}:{number}"
        identifier = clean_id(first_field(row, ("_id", "id"), where), f"{where} field '_id'")
        text = clean_text(first_field(row, ("text",), where), f"{where} field 'text'")
        title = clean_text(row.get("title") or "", f"{where} field 'title'")
        metadata = row.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise DataError(f"{where} field 'metadata' must be an object, not {metadata!r:.60}")
        known = {"_id", "id", "text", "title", "metadata"}
        metadata = clean_metadata({**{k: v for k, v in row.items() if k not in known}, **metadata})
        name = group_field or "group"
        if group_field and group_field not in metadata:
            raise DataError(f"{where} has no field {group_field!r}{nearest(group_field, metadata)}")
        group = metadata.get(name)
        yield Document(identifier, text, title, None if group is None else str(group), metadata)


def read_corpus(
    path: str | Path, *, group_field: str | None = None, empty: EmptyPolicy = "error"
) -> Corpus:
    """Read a corpus.

    Args:
        path: A ``corpus.jsonl``, or a folder that holds one (or ``corpus/corpus.jsonl``). Rows
            have ``_id`` (or ``id``), ``text``, and may have ``title`` and ``metadata``.
        group_field: The field that names a document's source; default ``group`` where present.
        empty: What to do with a document without a visible character: an error (default), keep
            it, or drop it (counted in the log).

    Returns:
        The corpus. The same id with the same text twice is collapsed with a warning.

    Raises:
        DataError: No documents, a bad row, or one id with two texts.
    """
    file = corpus_file(path)
    ids: list[str] = []
    texts: list[str] = []
    titles: list[str] = []
    groups: list[str | None] = []
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    repeated = dropped = 0
    for document in iter_documents(file, group_field=group_field):
        if document.id in seen:
            if texts[seen[document.id]] != document.text:
                raise DataError(f"{file}: id {document.id!r} stands for two different texts")
            repeated += 1
            continue
        if not (document.text.strip() or document.title.strip()):
            if empty == "error":
                raise DataError(
                    f"{file}: document {document.id!r} is empty; give it a text, remove it, or "
                    "read the corpus with empty='keep' or 'drop'"
                )
            if empty == "drop":
                dropped += 1
                continue
        seen[document.id] = len(ids)
        ids.append(document.id)
        texts.append(document.text)
        titles.append(document.title)
        groups.append(document.group)
        rows.append(document.metadata)
    if not ids:
        raise DataError(f"{file}: the corpus holds no documents")
    if repeated:
        logger.warning("%s: %d rows repeat an earlier id and text; collapsed", file, repeated)
    if dropped:
        logger.warning("%s: %d empty documents dropped", file, dropped)
    names = list(dict.fromkeys(name for row in rows for name in row if name != "group"))
    metadata = {name: [row.get(name) for row in rows] for name in names}
    return Corpus(ids, texts, titles, groups, metadata)


def write_corpus(path: str | Path, corpus: Corpus) -> None:
    """Write a corpus as JSON lines; ``path`` is the file."""

    def rows() -> Iterator[dict[str, Any]]:
        for i, identifier in enumerate(corpus.ids):
            metadata = {name: column[i] for name, column in corpus.metadata.items()}
            if corpus.groups[i] is not None:
                metadata["group"] = corpus.groups[i]
            yield {
                "_id": identifier,
                "title": corpus.titles[i],
                "text": corpus.texts[i],
                "metadata": metadata,
            }

    write_jsonl(path, rows())

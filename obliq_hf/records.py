"""The values that pass between stages: corpora, queries, judgments, and their files.

A corpus folder of this project holds::

    corpus.jsonl                        _id, title, text, metadata (metadata.group: same source)
    tasks/<task>/queries.jsonl          _id, text, metadata
    tasks/<task>/qrels/<split>.tsv      query-id, corpus-id, score: the gold judgments
    tasks/<task>/qrels-pooled/<split>.tsv
    tasks/<task>/excluded.json          {query id: [document ids]}

The layouts of BEIR and of OBLIQ-Bench are read as they are. Ids are strings everywhere.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import DataError, nearest
from obliq_hf.files import (
    atomic_path,
    content_hash,
    iter_jsonl,
    iter_lines,
    read_json,
    write_json,
    write_jsonl,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from datasets import Features

__all__ = [
    "Corpus",
    "Qrels",
    "Queries",
    "clean_metadata",
    "clean_text",
    "edge_features",
    "iter_documents",
    "read_corpus",
    "read_excluded",
    "read_qrels",
    "read_queries",
    "train_features",
    "write_corpus",
    "write_excluded",
    "write_qrels",
    "write_queries",
]

logger = logging.getLogger(__name__)

Qrels = dict[str, dict[str, int]]
"""Query id -> document id -> grade."""

EmptyPolicy = Literal["error", "keep", "drop"]

_UNSAFE = re.compile("[\x00\ud800-\udfff]")


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


def clean_text(value: object, where: str) -> str:
    """Check a text from outside and make it encodable.

    Args:
        value: The text.
        where: File, row and field, for the message.

    Returns:
        The text, with NUL and lone surrogates replaced by U+FFFD.

    Raises:
        DataError: ``value`` is None, NaN or anything but a string.
    """
    if not isinstance(value, str):
        raise DataError(f"{where} must be a string, not {type(value).__name__} ({value!r:.60})")
    return _UNSAFE.sub("�", value) if _UNSAFE.search(value) else value


def clean_metadata(value: Any) -> Any:
    """A value of JSON with every string in it, also every key, made encodable as a text is.

    Args:
        value: The value of a metadata field, or an object of fields.

    Returns:
        The value, with NUL and lone surrogates replaced by U+FFFD.
    """
    if isinstance(value, str):
        return _UNSAFE.sub("\ufffd", value) if _UNSAFE.search(value) else value
    if isinstance(value, list):
        return [clean_metadata(item) for item in value]
    if isinstance(value, dict):
        return {clean_metadata(key): clean_metadata(item) for key, item in value.items()}
    return value


def clean_id(value: object, where: str) -> str:
    """Check an id from outside: a non-empty string without tab, line break or NUL.

    Raises:
        DataError: It is none; integers are refused rather than guessed.
    """
    if not isinstance(value, str) or not value or re.search("[\t\r\n\x00\ud800-\udfff]", value):
        raise DataError(
            f"{where} must be a non-empty string without tabs or line breaks, not {value!r:.80}"
        )
    return value


def _first(row: dict[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise DataError(f"{where} has no field {names[0]!r} (fields: {', '.join(map(str, row))})")


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
        identifier = clean_id(_first(row, ("_id", "id"), where), f"{where} field '_id'")
        text = clean_text(_first(row, ("text",), where), f"{where} field 'text'")
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
        identifier = clean_id(_first(row, ("_id", "id"), where), f"{where} field '_id'")
        text = clean_text(_first(row, ("text", "query"), where), f"{where} field 'text'")
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


_HEADERS = {"query-id", "query_id", "qid", "queryid"}


def read_qrels(path: str | Path) -> Qrels:
    """Read judgments: tab-separated, with or without a header, or TREC's four columns.

    Fields are never quoted. Lines without a tab are split at white space. A repeated row with
    the same grade is collapsed.

    Raises:
        DataError: Wrong number of columns, a grade that is no integer, or two grades for one pair.
    """
    qrels: Qrels = {}
    first = True
    for number, line in iter_lines(path):
        if not line.strip():
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [f.strip(" ") for f in fields]
        if first:
            first = False
            if fields[0].lower() in _HEADERS:
                continue
        if len(fields) == 4:
            fields = [fields[0], fields[2], fields[3]]
        if len(fields) != 3:
            raise DataError(
                f"{path}:{number}: {len(fields)} columns; query id, document id and grade needed"
            )
        query = clean_id(fields[0], f"{path}:{number} query id")
        document = clean_id(fields[1], f"{path}:{number} document id")
        try:
            grade = int(fields[2])
        except ValueError:
            as_float = float(fields[2]) if re.fullmatch(r"-?\d+\.0*", fields[2]) else None
            if as_float is None:
                raise DataError(f"{path}:{number}: grade {fields[2]!r} is not an integer") from None
            grade = int(as_float)
        judged = qrels.setdefault(query, {})
        if judged.get(document, grade) != grade:
            raise DataError(
                f"{path}:{number}: query {query!r} and document {document!r} have two grades, "
                f"{judged[document]} and {grade}"
            )
        judged[document] = grade
    return qrels


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Write judgments as tab-separated text with the header ``query-id corpus-id score``."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as out:
        out.write("query-id\tcorpus-id\tscore\n")
        for query, judged in qrels.items():
            for document, grade in judged.items():
                out.write(f"{query}\t{document}\t{grade}\n")


def read_excluded(path: str | Path) -> dict[str, list[str]]:
    """Read per-query exclusions, ``{query id: [document ids]}``.

    Raises:
        DataError: Not an object of lists of strings; the query is named.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: an object {{query id: [document ids]}} is needed")
    for query, documents in value.items():
        if not isinstance(documents, list) or not all(isinstance(d, str) for d in documents):
            raise DataError(f"{path}: query {query!r} needs a list of document ids (strings)")
    return value


def write_excluded(path: str | Path, excluded: dict[str, list[str]]) -> None:
    """Write per-query exclusions."""
    write_json(path, excluded)


def train_features(negatives: int) -> Features:
    """Columns of a training dataset with the given number of hard negatives a row.

    ``blocked_ids`` lists the documents that must not be in one batch with the row: its anchor,
    its positive and their neighbours in the graph. ``negative_groups`` has the source of each of
    ``negative_ids``, null where it is not known.
    """
    from datasets import Features, List, Value

    string = Value("string")
    columns: dict[str, Any] = {"anchor": string, "positive": string}
    columns.update({f"negative_{i}": string for i in range(1, negatives + 1)})
    columns.update(
        anchor_id=string,
        positive_id=string,
        negative_ids=List(string),
        anchor_group=string,
        positive_group=string,
        negative_groups=List(string),
        blocked_ids=List(string),
    )
    return Features(columns)


def edge_features() -> Features:
    """Columns of a graph: one row a directed edge."""
    from datasets import Features, Value

    return Features(
        {
            "anchor_id": Value("string"),
            "positive_id": Value("string"),
            "anchor": Value("string"),
            "positive": Value("string"),
            "rank": Value("int32"),
            "similarity": Value("float32"),
        }
    )

"""Training queries in JSON lines, each with the documents it was written from or asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataset_builders.near_duplicates import text_key
from obliq_hf.errors import DataError
from obliq_hf.files import content_hash, iter_jsonl
from obliq_hf.records import Qrels, Queries, clean_id, clean_metadata, clean_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_training_queries"]

_ID = ("id", "_id", "query_id")
_TEXT = ("query", "text")
_ONE = ("passage_id", "doc_id", "positive_id", "document_id")
_MANY = ("positive_ids", "positives")


def _found(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in row), None)


def read_training_queries(path: str | Path, *, split: str | None = None) -> tuple[Queries, Qrels]:
    """Read training queries and the documents relevant to them.

    Args:
        path: A JSON-lines file. A row has the text (``query`` or ``text``), the id of its document
            (``passage_id``, ``doc_id``, ``positive_id`` or ``document_id``) or a list of ids
            (``positive_ids``), and maybe an ``id``; without one, it gets the hash of its text.
        split: Only rows whose ``split`` is this one.

    Returns:
        The queries, further fields as metadata, and their judgments, all of grade 1. Rows of one
        id and text are one query.

    Raises:
        DataError: A field is missing or not as it must be (file, line and field are named), one
            id stands for two texts, or no row is left.
    """
    texts: dict[str, str] = {}
    metadata: dict[str, dict[str, Any]] = {}
    qrels: Qrels = {}
    for number, row in iter_jsonl(path):
        where = f"{path}:{number}"
        if split is not None and row.get("split") != split:
            continue
        text_name, one, many = _found(row, _TEXT), _found(row, _ONE), _found(row, _MANY)
        if text_name is None or (one is None and many is None):
            missing = _TEXT if text_name is None else (*_ONE, *_MANY)
            raise DataError(
                f"{where} has no field {missing[0]!r} (nor {', '.join(missing[1:])}); fields: "
                f"{', '.join(row)}"
            )
        text = clean_text(row[text_name], f"{where} field {text_name!r}")
        if not text.strip():
            raise DataError(f"{where} field {text_name!r} is empty")
        id_name = _found(row, _ID)
        if id_name is not None:
            query = clean_id(row[id_name], f"{where} field {id_name!r}")
        else:
            query = f"q-{content_hash(text_key(text))[:16]}"
        if one is not None:
            documents = [clean_id(row[one], f"{where} field {one!r}")]
        elif many is not None:
            value = row[many]
            if not isinstance(value, list) or not value:
                raise DataError(
                    f"{where} field {many!r} must be a list of document ids, not {value!r:.60}"
                )
            documents = [clean_id(d, f"{where} field {many!r}") for d in value]
        if texts.setdefault(query, text) != text:
            raise DataError(f"{where}: query id {query!r} stands for two different texts")
        used = {text_name, id_name, one, many}
        rest = {k: v for k, v in row.items() if k not in used}
        metadata.setdefault(query, clean_metadata(rest))
        qrels.setdefault(query, {}).update(dict.fromkeys(documents, 1))
    if not texts:
        raise DataError(f"{path}: no queries" + (f" of split {split!r}" if split else ""))
    return Queries(list(texts), list(texts.values()), list(metadata.values())), qrels

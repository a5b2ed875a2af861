"""The identifiers in a JSON value that is a ranking, in whichever form a model writes it."""

from __future__ import annotations

import re
from typing import Any

from obliq_hf.reranking.other_lists import (
    DISMISSES,
    LABEL,
    LIST_KEYS,
    names_ranking,
    names_scores,
)

__all__ = ["identifiers_of"]

_ID_KEYS = (
    "id", "identifier", "document", "document_id", "doc", "doc_id", "docid", "passage",
    "passage_id", "index", "candidate", "number",
)  # fmt: skip
_IDENTIFIER = re.compile(
    rf"\s*\[?\s*(?:(?:{LABEL}|D)\s*[_\-:#]?\s*)?\[?\s*([0-9]{{1,9}})\s*\]?\s*\]?\s*", re.IGNORECASE
)


def identifiers_of(value: Any) -> list[int] | None:
    """The identifiers in a JSON value, or None where it is no ranking."""
    if isinstance(value, dict):
        lists = [value[k] for k in LIST_KEYS if isinstance(value.get(k), list)]
        if lists:
            return identifiers_of(lists[0])
        others = {
            key: v
            for key, v in value.items()
            if isinstance(v, list)
            and not DISMISSES.search(_said(key))
            and not names_scores(_said(key))
        }
        if len(others) != 1:
            return None
        ((key, items),) = others.items()
        return (
            identifiers_of(items)
            if names_ranking(_said(key)) or all(map(_written, items))
            else None
        )
    if not isinstance(value, list):
        return None
    numbers = [_identifier(item) for item in value]
    return None if any(n is None for n in numbers) else [n for n in numbers if n is not None]


def _said(key: Any) -> str:
    return str(key).replace("_", " ")


def _written(item: Any) -> bool:
    """Whether an item of a JSON list is written as an identifier: "[3]", "doc 3", an object."""
    if isinstance(item, str):
        return _identifier(item) is not None and not item.strip().isdecimal()
    return isinstance(item, dict) and _identifier(item) is not None


def _identifier(item: Any) -> int | None:
    if isinstance(item, bool):
        return None
    if isinstance(item, int):
        return item
    if isinstance(item, str):
        written = _IDENTIFIER.fullmatch(item)
        return int(written.group(1)) if written else None
    if isinstance(item, dict):
        keys = {str(key).lower(): value for key, value in item.items()}
        return next((_identifier(keys[k]) for k in _ID_KEYS if k in keys), None)
    if isinstance(item, list) and len(item) == 1:
        return _identifier(item[0])
    return None

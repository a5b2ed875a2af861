"""Columns with declared types for the free-form metadata of documents and queries."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MetadataColumns"]

logger = logging.getLogger(__name__)

_RESERVED = {
    "id", "_id", "title", "text", "group", "query", "instruction", "image", "audio", "video",
    "body", "conversation",
}  # fmt: skip
_INTEGERS = (-(2**63), 2**63 - 1)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and _INTEGERS[0] <= value <= _INTEGERS[1]:
        return "int64"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "strings"
    return "json"


@dataclass
class MetadataColumns:
    """The fields seen in all rows and the one type that fits each.

    A field of one kind (text, whole numbers, numbers, truth values, lists of texts) becomes a
    column of that type; one that is None everywhere becomes text; one of mixed or nested values
    becomes JSON text. A field with a name that loaders give a meaning gets the prefix
    ``metadata_``.
    """

    kinds: dict[str, set[str]] = field(default_factory=dict)

    def see(self, metadata: Mapping[str, Any]) -> None:
        """Take note of one row."""
        for name, value in metadata.items():
            known = self.kinds.setdefault(name, set())
            if value is not None:
                known.add(_kind(value))

    def column(self, name: str) -> str:
        """The column of a field."""
        column = f"metadata_{name}" if name in _RESERVED else name
        while column != name and column in self.kinds:
            column = f"{column}_"
        return column

    def type_of(self, name: str) -> str:
        """``string``, ``int64``, ``float64``, ``bool``, ``strings`` or ``json``."""
        kinds = self.kinds[name]
        if not kinds:
            return "string"
        if len(kinds) == 1:
            return next(iter(kinds))
        return "float64" if kinds == {"int64", "float64"} else "json"

    def features(self) -> dict[str, Any]:
        """Column -> feature."""
        from datasets import List, Value

        columns: dict[str, Any] = {}
        for name in self.kinds:
            kind = self.type_of(name)
            if kind == "json":
                logger.info("metadata field %r holds values of several kinds; kept as JSON", name)
            feature = List(Value("string")) if kind == "strings" else None
            plain = Value("string" if kind == "json" else kind) if feature is None else feature
            columns[self.column(name)] = plain
        return columns

    def row(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of one row."""
        values: dict[str, Any] = {}
        for name in self.kinds:
            value = metadata.get(name)
            if value is not None and self.type_of(name) == "json":
                value = json.dumps(value, ensure_ascii=False, sort_keys=True)
            values[self.column(name)] = value
        return values

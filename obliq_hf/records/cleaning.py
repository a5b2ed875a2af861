"""What is checked of every text, id and metadata value that comes from outside."""

from __future__ import annotations

import re
from typing import Any

from obliq_hf.errors import DataError

__all__ = ["clean_id", "clean_metadata", "clean_text", "first_field"]

_UNSAFE = re.compile("[\x00\ud800-\udfff]")


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
    return _encodable(value)


def _encodable(text: str) -> str:
    return _UNSAFE.sub("\ufffd", text) if _UNSAFE.search(text) else text


def clean_metadata(value: Any) -> Any:
    """A value of JSON with every string in it, also every key, made encodable as a text is.

    Args:
        value: The value of a metadata field, or an object of fields.

    Returns:
        The value, with NUL and lone surrogates replaced by U+FFFD.
    """
    if isinstance(value, str):
        return _encodable(value)
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


def first_field(row: dict[str, Any], names: tuple[str, ...], where: str) -> Any:
    """The first of the fields that a row has.

    Raises:
        DataError: It has none of them.
    """
    for name in names:
        if name in row:
            return row[name]
    raise DataError(f"{where} has no field {names[0]!r} (fields: {', '.join(map(str, row))})")

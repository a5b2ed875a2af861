"""Keeping tokens out of messages, logs, cards and saved arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["find_secret", "last_part", "redact", "without_places"]

_TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@")
_PLACE = re.compile(r"(?:/|~[\w.-]*/|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\)\S[^\r\n]*")
_NAMES_OF_MODELS = frozenset({"teacher", "model", "base"})


def redact(text: str, secrets: Iterable[str | None] = ()) -> str:
    """Replace access tokens, and user names and passwords inside addresses, by ``***``.

    Args:
        text: Any text on its way to a person or a file.
        secrets: Tokens in use, of whatever form.
    """
    for secret in secrets:
        if secret and len(secret) >= 4:
            text = text.replace(secret, "***")
    return _CREDENTIALS.sub("***@", _TOKEN.sub("***", text))


def find_secret(text: str, secrets: Iterable[str | None] = ()) -> bool:
    """Whether a text holds a token or an address with a password in it."""
    return redact(text, secrets) != text


def last_part(name: str) -> str:
    """The last part of a path; what is no path stays as it is."""
    if _PLACE.fullmatch(name) is None:
        return name
    return name.replace("\\", "/").rstrip("/").split("/")[-1]


def without_places(value: Any) -> Any:
    """JSON values in which every path of a machine is cut to its last part.

    A model that is named by a relative folder counts as one; a repository's name has one slash.

    Args:
        value: Anything that JSON holds; it is not changed.
    """
    if isinstance(value, dict):
        return {
            key: last_part(f"./{inner}")
            if key in _NAMES_OF_MODELS and isinstance(inner, str) and inner.count("/") > 1
            else without_places(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_places(inner) for inner in value]
    return last_part(value) if isinstance(value, str) else value


def check_endpoint(url: str) -> str:
    """Check the address of a Hub.

    Raises:
        ObliqError: It carries a user name or password; neither is repeated in the message.
    """
    if _CREDENTIALS.search(url):
        raise ObliqError(
            f"the Hub's address {redact(url)} holds a user name or password; "
            "give the token through HF_TOKEN or 'hf auth login'"
        )
    return url.rstrip("/")

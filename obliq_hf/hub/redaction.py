"""Keeping tokens out of messages, logs, cards and saved arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["find_secret", "redact"]

_TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@")


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

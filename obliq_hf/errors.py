"""The errors this project raises on purpose."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ObliqError(ValueError):
    """Base of every deliberate error; the command line prints its message without a traceback."""


class DataError(ObliqError):
    """A file, row or field that is not as it must be; the message names all three."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that names the valid choices closest to ``name``.

    Args:
        name: What was given.
        valid: What would have been accepted.

    Returns:
        ``"; did you mean 'x'?"`` with the closest names, else ``"; valid: a, b, c"``.
    """
    choices = sorted(str(v) for v in valid)
    close = get_close_matches(name, choices, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "; valid: " + ", ".join(choices)

"""A ranking from one token: the log-probabilities of the identifiers as the model's first choice.

Documents are offered as letters, so that an identifier is one token; the answer is one call with
one short output, whatever the number of documents (FIRST, arXiv 2406.15657).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST", "letter", "order_from_logprobs"]

MOST = 20
"""Most documents: servers return no more than 20 alternatives a token."""


def letter(position: int) -> str:
    """The identifier of a position: A for 0."""
    return chr(ord("A") + position)


def order_from_logprobs(tokens: Sequence[dict[str, Any]] | None, offered: int) -> list[int] | None:
    """The order in which a model would have named documents first.

    Args:
        tokens: The answer's log-probabilities, as in :class:`obliq_hf.llm.ChatAnswer`.
        offered: How many documents were offered, as A, B, C, ...

    Returns:
        Positions by the probability of their letter, summed over the spellings of a token, at the
        first token that is a letter offered; those outside the alternatives are left out. None
        where no token is a letter offered.
    """
    letters = {letter(i): i for i in range(offered)}
    for token in tokens or ():
        if _bare(token.get("token")) not in letters:
            continue
        mass: dict[int, float] = {}
        named = [(token.get("token"), token.get("logprob")), *(token.get("top") or [])]
        for spelling in dict((str(text), value) for text, value in named).items():
            position = letters.get(_bare(spelling[0]))
            if position is not None and isinstance(spelling[1], int | float):
                mass[position] = mass.get(position, 0.0) + math.exp(min(0.0, spelling[1]))
        return sorted(mass, key=lambda p: (-mass[p], p))
    return None


def _bare(token: Any) -> str:
    return str(token).strip(" \t\n\r\u0120\u2581[]()*\"'`:>.,") if token is not None else ""

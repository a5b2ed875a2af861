"""Near copies among many queries, found in the order of the queries and in little memory."""

from __future__ import annotations

import zlib
from collections import Counter
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from dataset_builders.near_duplicates import TextProfile, is_near_duplicate, text_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

__all__ = ["find_copies"]

_COMMON = 200
"""Of the queries with one run of words so many are compared, the first that are no copies."""
_FEWEST_SHARED = 3
_REMEMBERED = 1024


def find_copies(texts: Iterable[str], read: Callable[[int], str]) -> dict[int, int]:
    """Queries that are nearly an earlier one.

    A query counts as a copy of the first earlier one that is itself no copy and of which it is a
    near duplicate (:mod:`dataset_builders.near_duplicates`). About a kilobyte a query is held;
    texts are read again only to compare candidates.

    Args:
        texts: The queries in order, read once.
        read: Gives the text of the query at a place again.

    Returns:
        Place of a copy -> place of the earlier query.
    """
    grams: list[NDArray[np.uint32]] = []
    exact: dict[bytes, int] = {}
    same: dict[int, int] = {}
    for place, text in enumerate(texts):
        hashes = {zlib.crc32(" ".join(gram).encode()) for gram in TextProfile(text).shingles}
        grams.append(np.asarray(sorted(hashes), dtype=np.uint32))
        first = exact.setdefault(text_key(text), place)
        if first != place:
            same[place] = first
    if not grams:
        return {}
    values, counts = np.unique(np.concatenate(grams), return_counts=True)
    # run of words in several queries -> the first of them that are no copies
    owners: dict[int, list[int]] = {int(value): [] for value in values[counts > 1]}

    @lru_cache(maxsize=_REMEMBERED)
    def profile(place: int) -> TextProfile:
        return TextProfile(read(place))

    copies: dict[int, int] = {}
    for place, own in enumerate(grams):
        if place in same:
            copies[place] = copies.get(same[place], same[place])
            continue
        lists = [owners[gram] for gram in own.tolist() if gram in owners]
        shared = Counter(chain.from_iterable(lists))
        candidates = sorted(other for other, n in shared.items() if n >= _FEWEST_SHARED)
        asked = TextProfile(read(place)) if candidates else None
        for other in candidates:
            if asked is not None and is_near_duplicate(asked, profile(other)):
                copies[place] = other
                break
        else:
            for owning in lists:
                if len(owning) < _COMMON:
                    owning.append(place)
    return copies

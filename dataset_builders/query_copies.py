"""Near copies among many queries, found in the order of the queries and in little memory."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dataset_builders.near_duplicates import TextProfile, is_near_duplicate, text_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

__all__ = ["find_copies"]

_COMMON = 200
"""A run of words in more queries than this is a turn of phrase and no sign of a copy."""
_FEWEST_SHARED = 3


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
    copies: dict[int, int] = {}
    for place, text in enumerate(texts):
        profile = TextProfile(text)
        hashes = sorted({zlib.crc32(" ".join(gram).encode()) for gram in profile.shingles})
        grams.append(np.asarray(hashes, dtype=np.uint32))
        first = exact.setdefault(text_key(text), place)
        if first != place:
            copies[place] = first
    if not grams:
        return {}
    lengths = np.asarray([len(g) for g in grams])
    values = np.concatenate(grams)
    owners = np.repeat(np.arange(len(grams), dtype=np.int32), lengths)
    order = np.lexsort((owners, values))
    values, owners = values[order], owners[order]
    edges = np.flatnonzero(np.r_[True, values[1:] != values[:-1], True])
    shared: dict[int, NDArray[np.int32]] = {}
    for start, end in pairwise(edges.tolist()):
        if 1 < end - start <= _COMMON:
            shared[int(values[start])] = owners[start:end]
    for place, own in enumerate(grams):
        if place in copies:
            continue
        lists = [shared[g] for g in own.tolist() if g in shared]
        if not lists:
            continue
        others, counts = np.unique(np.concatenate(lists), return_counts=True)
        near = others[(counts >= _FEWEST_SHARED) & (others < place)]
        candidates = [other for other in near.tolist() if other not in copies]
        asked = TextProfile(read(place)) if candidates else None
        for other in candidates:
            if asked is not None and is_near_duplicate(asked, TextProfile(read(other))):
                copies[place] = other
                break
    return copies

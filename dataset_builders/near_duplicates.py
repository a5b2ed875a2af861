"""When two texts are the same, or nearly: one rule for graph, negatives, mixture and diagnostics.

*Same text*: equal after Unicode NFC, case folding and collapsing white space.

*Near duplicate*: of the shorter text's word 3-grams at least half, and at least five, stand in the
other (containment, which finds overlapping windows and quotations), or the two sets of words have
a Jaccard similarity of at least 0.6 (which finds light rewording). Unrelated passages of 200 to
400 words of novels stay below .02 and .25. Chinese and Japanese characters are words of their own.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "CONTAINMENT",
    "JACCARD",
    "NearDuplicateIndex",
    "TextProfile",
    "is_near_duplicate",
    "profile",
    "same_text_rows",
    "text_key",
]

CONTAINMENT = 0.5
"""Share of the shorter text's word 3-grams from which two texts are near duplicates."""

JACCARD = 0.6
"""Jaccard similarity of the word sets from which two texts are near duplicates."""

_SHINGLE = 3
_FEWEST = 5
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")


def text_key(text: str) -> bytes:
    """A 16-byte key that is equal for the same text (see the module's rule)."""
    plain = " ".join(unicodedata.normalize("NFC", text).casefold().split())
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def same_text_rows(texts: Sequence[str]) -> NDArray[np.int64]:
    """For every text the row of the first one that is the same.

    Args:
        texts: n texts.

    Returns:
        int64 array [n]; ``rows[i] == i`` where text i is new.
    """
    first: dict[bytes, int] = {}
    return np.fromiter(
        (first.setdefault(text_key(text), i) for i, text in enumerate(texts)),
        dtype=np.int64,
        count=len(texts),
    )


@dataclass(frozen=True)
class TextProfile:
    """The hashed words and word 3-grams of a text, each sorted and unique (uint64)."""

    words: NDArray[np.uint64]
    shingles: NDArray[np.uint64]


@lru_cache(maxsize=1 << 17)
def _hash_word(word: str) -> int:
    data = word.encode("utf-8", "surrogatepass")
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def profile(text: str) -> TextProfile:
    """The profile of a text; a text of fewer than three words has one n-gram, itself."""
    hashes = np.fromiter(map(_hash_word, _WORD.findall(text.casefold())), dtype=np.uint64)
    if len(hashes) >= _SHINGLE:
        grams = hashes[:-2] * np.uint64(0x9E3779B97F4A7C15)
        grams += hashes[1:-1] * np.uint64(0xC2B2AE3D27D4EB4F)
        grams += hashes[2:] * np.uint64(0x165667B19E3779F9)
    else:
        grams = hashes.sum(keepdims=True) if len(hashes) else hashes
    return TextProfile(np.unique(hashes), np.unique(grams))


def _shared(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """How many values two sorted arrays of unique values have in common."""
    if len(a) > len(b):
        a, b = b, a
    if not len(a):
        return 0
    found = np.searchsorted(b, a)
    found[found == len(b)] = 0
    return int(np.count_nonzero(b[found] == a))


def is_near_duplicate(
    a: TextProfile, b: TextProfile, *, containment: float = CONTAINMENT, jaccard: float = JACCARD
) -> bool:
    """Whether two profiles are those of near duplicates (see the module's rule).

    Args:
        a: One profile.
        b: The other; the relation is symmetric.
        containment: Threshold on the shared 3-grams; above 1 this part never holds.
        jaccard: Threshold on the shared words, likewise.
    """
    shorter = min(len(a.shingles), len(b.shingles))
    if not shorter:
        return len(a.shingles) == len(b.shingles)
    if shorter >= _FEWEST and containment <= 1:
        needed = max(containment * shorter, _FEWEST)
        if _shared(a.shingles, b.shingles) >= needed:
            return True
    few, many = sorted((len(a.words), len(b.words)))
    if few < jaccard * many:
        return False
    shared = _shared(a.words, b.words)
    return shared >= jaccard * (few + many - shared)


class NearDuplicateIndex:
    """Finds the near duplicates of a text among many, without comparing it with each.

    Candidates are the texts that share a word 3-gram with the one asked about. A 3-gram that
    stands in more than ``max_postings`` of the texts is no evidence and opens no candidate.

    Args:
        texts: The texts to search.
        max_postings: See above.
    """

    def __init__(self, texts: Sequence[str], *, max_postings: int = 1000) -> None:
        self.profiles = [profile(text) for text in texts]
        postings: dict[int, list[int]] = {}
        for row, entry in enumerate(self.profiles):
            for gram in entry.shingles.tolist():
                postings.setdefault(gram, []).append(row)
        self._postings = {g: rows for g, rows in postings.items() if len(rows) <= max_postings}

    def matches(self, text: str) -> list[int]:
        """Rows of the texts that are near duplicates of ``text``, in order."""
        asked = profile(text)
        seen: Counter[int] = Counter()
        for gram in asked.shingles.tolist():
            seen.update(self._postings.get(gram, ()))
        return [row for row in sorted(seen) if is_near_duplicate(asked, self.profiles[row])]

    def any_match(self, texts: Iterable[str]) -> list[bool]:
        """For every text whether it has a near duplicate."""
        return [bool(self.matches(text)) for text in texts]

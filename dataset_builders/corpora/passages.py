"""Cut sections into passages of a stated length that end where a sentence ends."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from dataset_builders.corpora.plain_text import count_words, split_sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataset_builders.corpora.sections import Section

_SENTENCE_END = re.compile(r"(?:[.!?][\"')]*|-[\"']+)$")

__all__ = ["cut_passages", "evenly", "share"]


def cut_passages(
    sections: Sequence[Section],
    *,
    shortest: int = 150,
    longest: int = 250,
    dropped: Counter[str] | None = None,
) -> list[str]:
    """Passages of ``shortest`` to ``longest`` words in reading order; none crosses a section.

    A passage ends with a paragraph where one ends near the middle of the range, else with the
    sentence nearest to the middle. A sentence that fits into no passage is skipped and what is left
    of a section is dropped; both are counted in words in ``dropped``.
    """
    dropped = Counter() if dropped is None else dropped
    middle = (shortest + longest) / 2
    passages = []
    for section in sections:
        sentences: list[tuple[str, int, bool]] = []
        for paragraph in section.paragraphs:
            parts = split_sentences(paragraph)
            sentences += [(s, count_words(s), i == len(parts) - 1) for i, s in enumerate(parts)]
        start = 0
        while start < len(sentences):
            words, cuts = 0, []
            for stop in range(start, len(sentences)):
                words += sentences[stop][1]
                if words > longest:
                    break
                if words >= shortest and _SENTENCE_END.search(sentences[stop][0]):
                    paragraph_end = sentences[stop][2]
                    distance = abs(words - middle)
                    near = paragraph_end and distance <= 0.7 * (longest - middle)
                    cuts.append((not near, distance, stop + 1))
            if not cuts:
                reason = "rest of a section" if words < shortest else "overlong sentences"
                if reason == "rest of a section":
                    dropped[reason] += words
                    break
                dropped[reason] += sentences[start][1]
                start += 1
                continue
            stop = min(cuts)[2]
            passages.append(" ".join(s for s, _, _ in sentences[start:stop]))
            start = stop
    return passages


def share(sizes: Sequence[int], total: int) -> list[int]:
    """How many of each group to take so that at most ``total`` are taken, as equally as possible.

    Small groups give all they have, the others the same number; what does not divide goes to the
    first ones.
    """
    taken = [0] * len(sizes)
    left = min(total, sum(sizes))
    while left:
        open_groups = [i for i, size in enumerate(sizes) if taken[i] < size]
        each = max(1, left // len(open_groups))
        for i in open_groups:
            step = min(each, sizes[i] - taken[i], left)
            taken[i] += step
            left -= step
    return taken


def evenly(n: int, k: int) -> list[int]:
    """``k`` of the indices ``0 .. n-1``, evenly spaced (all of them where ``k >= n``)."""
    if k >= n:
        return list(range(n))
    return [((2 * i + 1) * n) // (2 * k) for i in range(k)]

"""Which pairs of documents may become an edge; shared by the graph, its control and the screens.

A pair is admissible when the two documents have different texts and, where groups are excluded,
come from different sources. Texts that stand under several ids count as one document, the first:
a copy can be an anchor but never a neighbour, and a text that also stands in the anchor's own
source is as inadmissible as that source.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dataset_builders.near_duplicates import same_text_rows
from obliq_hf.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from obliq_hf.records import Corpus

__all__ = ["AdmissiblePairs"]


class AdmissiblePairs:
    """The admissible pairs of a corpus.

    Args:
        corpus: The documents.
        exclude_same_group: Leave out pairs from one source; no effect where the corpus has none.

    Attributes:
        first: int64 [n], the row of the first document with the same text.
        candidates: int64 [m], the rows that may be neighbours: those with ``first[i] == i``.
        exclude_same_group: Whether groups are in force.

    Raises:
        DataError: No pair is admissible.
    """

    def __init__(self, corpus: Corpus, *, exclude_same_group: bool = True) -> None:
        self.corpus = corpus
        self.exclude_same_group = bool(exclude_same_group and corpus.has_groups)
        self.first = same_text_rows(corpus.texts)
        self.candidates = np.flatnonzero(self.first == np.arange(len(corpus)))
        if len(self.candidates) < 2:
            raise DataError(
                f"the corpus of {len(corpus)} documents holds {len(self.candidates)} different "
                "text; at least two are needed for a pair"
            )
        if self.exclude_same_group and len(set(corpus.groups)) == 1:
            raise DataError(
                f"every document belongs to the one group {corpus.groups[0]!r}, so no pair of "
                "different groups exists; name another group field, or build with "
                "exclude_same_group=False"
            )

    @property
    def copies(self) -> int:
        """Number of documents whose text already stands under an earlier id."""
        return len(self.corpus) - len(self.candidates)

    @cached_property
    def _members(self) -> dict[str, NDArray[np.int64]]:
        """Group -> sorted candidate rows whose text stands in the group."""
        rows: dict[str, set[int]] = {}
        if self.exclude_same_group:
            for row, group in enumerate(self.corpus.groups):
                if group is not None:
                    rows.setdefault(group, set()).add(int(self.first[row]))
        return {group: np.array(sorted(members)) for group, members in rows.items()}

    def forbidden(self, row: int, also: Iterable[int] = ()) -> NDArray[np.int64]:
        """Candidate rows that may not be neighbours of a document, sorted.

        Args:
            row: The document.
            also: Further rows to forbid (with all copies of their texts).

        Returns:
            int64 array; one shared object for all documents of a group unless ``also`` is given.
        """
        group = self.corpus.groups[row]
        own = self._members.get(group) if group is not None else None
        if own is None:
            own = self.first[row : row + 1]
        extra = [int(self.first[i]) for i in also]
        return np.union1d(own, np.array(extra, dtype=np.int64)) if extra else own

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """int64 [n]: the place of a document's text among ``candidates``."""
        place = np.full(len(self.corpus), -1, dtype=np.int64)
        place[self.candidates] = np.arange(len(self.candidates))
        return place[self.first]

    def forbidden_positions(self, row: int) -> NDArray[np.int64]:
        """As :meth:`forbidden`, as places among ``candidates``; shared within a group."""
        group = self.corpus.groups[row]
        if group is not None and group in self._member_positions:
            return self._member_positions[group]
        return self.position[row : row + 1]

    @cached_property
    def _member_positions(self) -> dict[str, NDArray[np.int64]]:
        return {group: self.position[rows] for group, rows in self._members.items()}

    def draw(
        self, row: int, count: int, rng: np.random.Generator, *, also: Iterable[int] = ()
    ) -> NDArray[np.int64]:
        """Draw different admissible neighbours of a document, all equally likely.

        Args:
            row: The document.
            count: How many.
            rng: Source of randomness.
            also: Further rows that may not be drawn.

        Returns:
            int64 [min(count, admissible)] rows, in random order.
        """
        places = np.sort(self.position[self.forbidden(row, also)])
        free = len(self.candidates) - len(places)
        if free <= 0:
            return np.empty(0, dtype=np.int64)
        drawn: NDArray[np.int64] = rng.choice(free, size=min(count, free), replace=False)
        # The u-th free place lies behind all forbidden places p with p - (forbidden before p) <= u.
        gaps = places - np.arange(len(places))
        shift = np.searchsorted(gaps, drawn, side="right")
        return self.candidates[drawn + shift]

"""Which rows of a training dataset may not share a batch, read from its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dataset_builders.near_duplicates import text_key
from obliq_hf.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset

__all__ = ["Conflicts", "Kind", "read_conflicts", "row_negatives"]

Kind = Literal["graph", "queries"]


class _Entities:
    """Union-find over document ids, query ids and texts: same id or same text, same entity."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._number: dict[Any, int] = {}

    def number(self, key: Any) -> int:
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self._parent)
            self._parent.append(found)
        return found

    def root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def same(self, key: Any, text: str) -> int:
        number = self.number(key)
        a, b = self.root(number), self.root(self.number(text_key(text)))
        if a != b:
            self._parent[max(a, b)] = min(a, b)
        return number


@dataclass(frozen=True)
class Conflicts:
    """What each row of one dataset touches, blocks and uses as a negative, as numbers.

    Two rows conflict when what one touches or uses as a negative meets what the other blocks.
    Numbers that occur in one row only are left out.

    Attributes:
        name: Name of the dataset.
        touched: Per row, its anchor, its positive and (graph rows) their sources.
        blocked: Per row, what it touches and its documents' graph neighbours.
        negatives: Per row, its mined negatives and (graph rows) their sources.
        negative_counts: int64 [rows], how many mined negatives a row has.
    """

    name: str
    touched: list[list[int]]
    blocked: list[list[int]]
    negatives: list[list[int]]
    negative_counts: np.ndarray

    def __len__(self) -> int:
        return len(self.touched)

    def admits(self, a: int, b: int) -> bool:
        """Whether rows ``a`` and ``b`` may be in one batch."""
        blocked_a, blocked_b = set(self.blocked[a]), set(self.blocked[b])
        return (
            blocked_a.isdisjoint(self.touched[b])
            and blocked_b.isdisjoint(self.touched[a])
            and blocked_a.isdisjoint(self.negatives[b])
            and blocked_b.isdisjoint(self.negatives[a])
        )


def _column(dataset: Dataset, name: str) -> list[Any]:
    return dataset.with_format("arrow")[:].column(name).to_pylist() if len(dataset) else []


def row_negatives(columns: Sequence[str]) -> list[str]:
    """Names of the ``negative_<i>`` columns among ``columns``, in order of ``i``.

    ``negative_ids`` is not one of them.
    """
    numbered = [c for c in columns if c.startswith("negative_") and c[9:].isdigit()]
    return sorted(numbered, key=lambda c: int(c[9:]))


def read_conflicts(
    dataset: Dataset, *, name: str, kind: Kind, separate_groups: bool = True
) -> Conflicts:
    """Read what may not share a batch from the columns of a training dataset.

    Args:
        dataset: Columns ``anchor, positive, anchor_id, positive_id`` and, where there are any,
            ``negative_1..n, negative_ids, anchor_group, positive_group, negative_groups,
            blocked_ids``.
        name: The dataset's name.
        kind: ``graph`` rows hold two documents, ``queries`` rows a query and a document.
        separate_groups: Whether graph rows conflict that share a source, or of which one has a
            negative from a source of the other.

    Raises:
        DataError: A column is missing, a text is missing or empty, or the ids of a row's
            negatives are not as many as its negative texts; the message names dataset and row.
    """
    present = set(dataset.column_names)
    missing = [c for c in ("anchor", "positive", "anchor_id", "positive_id") if c not in present]
    if missing:
        raise DataError(f"dataset {name!r} has no column {', '.join(missing)}")
    anchor_ids, positive_ids = _column(dataset, "anchor_id"), _column(dataset, "positive_id")
    anchors, positives = _column(dataset, "anchor"), _column(dataset, "positive")
    negative_texts = [_column(dataset, c) for c in row_negatives(dataset.column_names)]
    rows = len(dataset)

    def lists(column: str) -> list[list[str]]:
        found = _column(dataset, column) if column in present else []
        return [value or [] for value in found] if found else [[] for _ in range(rows)]

    negative_ids, blocked_ids = lists("negative_ids"), lists("blocked_ids")
    entities = _Entities()
    anchor_kind = "document" if kind == "graph" else "query"
    anchor_numbers: list[int] = []
    positive_numbers: list[int] = []
    negative_numbers: list[list[int]] = []
    counts = np.zeros(rows, dtype=np.int64)
    for row in range(rows):
        for column, value in (("anchor", anchors[row]), ("positive", positives[row])):
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"dataset {name!r} row {row}: {column} is {value!r}, no text")
        texts = [column[row] for column in negative_texts]
        while texts and not texts[-1]:
            texts.pop()
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise DataError(f"dataset {name!r} row {row}: an empty negative before the last one")
        counts[row] = len(texts)
        ids = [i for i in negative_ids[row] if i]
        if ids and len(ids) != len(texts):
            raise DataError(
                f"dataset {name!r} row {row}: {len(ids)} negative_ids for {len(texts)} negatives"
            )
        anchor_numbers.append(entities.same((anchor_kind, anchor_ids[row]), anchors[row]))
        positive_numbers.append(entities.same(("document", positive_ids[row]), positives[row]))
        keys = [("document", i) for i in ids] or [("nameless", text) for text in texts]
        pairs = zip(keys, texts, strict=True)
        negative_numbers.append([entities.same(key, text) for key, text in pairs])
    blocked_numbers = [[entities.number(("document", i)) for i in ids] for ids in blocked_ids]

    grouped = kind == "graph" and separate_groups and {"anchor_group", "positive_group"} <= present
    groups: list[list[int]] = [[] for _ in range(rows)]
    if grouped:
        sources = (_column(dataset, "anchor_group"), _column(dataset, "positive_group"))
        groups = [
            [entities.number(("group", g)) for g in dict.fromkeys(pair) if g is not None]
            for pair in zip(*sources, strict=True)
        ]
    touched = [
        list(dict.fromkeys([entities.root(anchor_numbers[r]), entities.root(positive_numbers[r])]))
        + groups[r]
        for r in range(rows)
    ]
    blocked = [
        list(dict.fromkeys([*touched[r], *(entities.root(n) for n in blocked_numbers[r])]))
        for r in range(rows)
    ]
    negatives = [list(dict.fromkeys(map(entities.root, numbers))) for numbers in negative_numbers]
    for row in range(rows):
        if not set(negatives[row]).isdisjoint(touched[row]):
            raise DataError(f"dataset {name!r} row {row}: a negative is its own anchor or positive")
    if grouped:
        for row, sources_of_row in enumerate(lists("negative_groups")):
            known = dict.fromkeys(g for g in sources_of_row if g is not None)
            negatives[row].extend(entities.number(("group", g)) for g in known)
    touched, blocked, negatives = _shared(touched, blocked, negatives)
    return Conflicts(name, touched, blocked, negatives, counts)


def _shared(*columns: list[list[int]]) -> list[list[list[int]]]:
    """The columns with only those numbers that occur in more than one row, renumbered from 0."""
    seen: dict[int, int] = {}
    for row in zip(*columns, strict=True):
        for number in {n for numbers in row for n in numbers}:
            seen[number] = seen.get(number, 0) + 1
    kept = {number: i for i, number in enumerate(n for n, c in seen.items() if c > 1)}
    return [[[kept[n] for n in numbers if n in kept] for numbers in column] for column in columns]

"""How often the two ends of an edge share a value, and how often chance would have it.

Chance is the graph's own: for every anchor the share of *its* admissible documents (different
text, and another source where the graph excludes the anchor's own) that share the value, weighted
by the anchor's edges. That is what the random-neighbour control scores on average.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from obliq_hf.errors import DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dataset_builders.admissible import AdmissiblePairs
    from dataset_builders.graph import Graph
    from obliq_hf.records import Corpus

__all__ = ["PairSums", "ResampleUnit", "column_values", "interval", "pair_sums", "resampled_sums"]

ResampleUnit = Literal["anchor", "group"]
"""What a bootstrap draws: single anchors, or all anchors of a source together."""

_MISSING = -1


def column_values(corpus: Corpus, name: str) -> Sequence[Any]:
    """A metadata column of a corpus, or ``group``.

    Raises:
        DataError: There is none of that name.
    """
    if name in corpus.metadata:
        return corpus.metadata[name]
    if name == "group" and corpus.has_groups:
        return corpus.groups
    choices = [*corpus.metadata, *(["group"] if corpus.has_groups else [])]
    raise DataError(f"the corpus has no column {name!r}{nearest(name, choices)}")


def _codes(values: Sequence[Any]) -> NDArray[np.int64]:
    """A number for every different value, -1 for None, NaN and the empty string."""
    numbers: dict[str, int] = {}
    codes = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        missing = value is None or value == "" or (isinstance(value, float) and value != value)
        if missing:
            codes[row] = _MISSING
        else:
            key = json.dumps(value, sort_keys=True, default=str)
            codes[row] = numbers.setdefault(key, len(numbers))
    return codes


@dataclass(frozen=True)
class PairSums:
    """Sums over the labelled edges of each anchor; row i of every array is one anchor.

    Attributes:
        anchors: int64 [a], the anchors' rows in the corpus.
        shared: float64 [a, k], edges of rank <= k' whose ends share the value.
        edges: float64 [a, k], edges of rank <= k' whose ends both have a value.
        chance: float64 [a, k], how many of those edges would share it by chance.
        same: bool [e], per edge of the graph whether it shares the value.
        known: bool [e], per edge whether both ends have a value.
        distinct: Number of different values.
        missing: Number of documents without one.
    """

    anchors: NDArray[np.int64]
    shared: NDArray[np.float64]
    edges: NDArray[np.float64]
    chance: NDArray[np.float64]
    same: NDArray[np.bool_]
    known: NDArray[np.bool_]
    distinct: int
    missing: int


def _chance(
    rows: NDArray[np.int64], codes: NDArray[np.int64], admissible: AdmissiblePairs
) -> NDArray[np.float64]:
    """For every given row the share of its admissible documents that have its value."""
    labelled = codes[admissible.candidates]
    labelled = labelled[labelled != _MISSING]
    totals = np.bincount(labelled, minlength=1)
    groups = admissible.corpus.groups
    inside: dict[str, Counter[int]] = {}
    rates = np.zeros(len(rows))
    for place, row in enumerate(rows.tolist()):
        group = groups[row] if admissible.exclude_same_group else None
        if group is None:
            barred = Counter(codes[admissible.forbidden(row)].tolist())
        else:
            if group not in inside:
                inside[group] = Counter(codes[admissible.forbidden(row)].tolist())
            barred = inside[group]
        free = len(labelled) - (barred.total() - barred[_MISSING])
        code = int(codes[row])
        same = (int(totals[code]) if code < len(totals) else 0) - barred[code]
        rates[place] = same / free if free > 0 else 0.0
    return rates


def pair_sums(
    graph: Graph, corpus: Corpus, values: Sequence[Any], admissible: AdmissiblePairs
) -> PairSums:
    """Count, for every anchor, the edges that share a value and those that would by chance.

    Args:
        graph: The graph.
        corpus: The corpus it was built over.
        values: One value a document; None, NaN and ``""`` are no value.
        admissible: The pairs the graph could have joined.
    """
    codes = _codes(values)
    k = max(graph.k, 1)
    known = (codes[graph.anchor] != _MISSING) & (codes[graph.positive] != _MISSING)
    same = known & (codes[graph.anchor] == codes[graph.positive])
    anchors, place = np.unique(graph.anchor, return_inverse=True)
    counts = np.zeros((2, len(anchors), k))
    column = np.clip(graph.rank - 1, 0, k - 1)
    np.add.at(counts[0], (place, column), same)
    np.add.at(counts[1], (place, column), known)
    shared, edges = counts.cumsum(axis=2)
    rates = np.zeros(len(anchors))
    have = edges[:, -1] > 0
    rates[have] = _chance(anchors[have], codes, admissible)
    return PairSums(
        anchors=anchors,
        shared=shared,
        edges=edges,
        chance=edges * rates[:, None],
        same=same,
        known=known,
        distinct=len(set(codes.tolist()) - {_MISSING}),
        missing=int(np.count_nonzero(codes == _MISSING)),
    )


def resampled_sums(
    table: NDArray[np.float64],
    *,
    resamples: int,
    seed: int,
    units: Sequence[object] | None = None,
) -> NDArray[np.float64]:
    """Column sums of a table whose rows are drawn with replacement.

    Args:
        table: float64 [rows, columns].
        resamples: Number of draws.
        seed: Seed.
        units: For every row its cluster; clusters are then drawn instead of rows. Rows whose
            unit is None are clusters of their own.

    Returns:
        float64 [resamples, columns].
    """
    if units is not None:
        numbers: dict[object, int] = {}
        keys = [("row", i) if u is None else ("unit", u) for i, u in enumerate(units)]
        place = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
        clustered = np.zeros((len(numbers), table.shape[1]))
        np.add.at(clustered, place, table)
        table = clustered
    rng = np.random.default_rng(seed)
    n = len(table)
    sums = np.empty((resamples, table.shape[1]))
    for draw in range(resamples):
        weights = np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
        sums[draw] = weights @ table
    return sums


def interval(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64]
) -> tuple[float, float] | None:
    """The central 95 % of resampled ratios; None where the denominator is 0 in most."""
    usable = denominator > 0
    if usable.mean() < 0.5:
        return None
    low, high = np.percentile(numerator[usable] / denominator[usable], [2.5, 97.5])
    return float(low), float(high)

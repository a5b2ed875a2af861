"""What else a graph's neighbours share: the audit that a card of authorship data carries.

For every metadata column: how often the ends of an edge have the same value, against the rate of
random admissible pairs. A column far above 1 is something a retriever trained on the graph can
learn beside, or instead of, the attribute.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset_builders.admissible import AdmissiblePairs
from dataset_builders.diagnostics.pair_rates import (
    ResampleUnit,
    column_values,
    interval,
    pair_sums,
    resampled_sums,
)
from obliq_hf.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataset_builders.graph import Graph
    from obliq_hf.records import Corpus

__all__ = ["Audit", "ColumnAudit", "audit"]


@dataclass(frozen=True)
class ColumnAudit:
    """One column.

    Attributes:
        column: Its name.
        values: Number of different values.
        missing: Documents without a value.
        edges: Edges whose two ends have a value.
        share: Share of those edges whose ends have the same value; None where there are none.
        share_ci95: Its interval.
        random_rate: The same for random admissible neighbours of the same anchors.
        ratio: share / random_rate; None where chance never gives the same value.
        ratio_ci95: Its interval.
        note: Why the numbers say nothing, where they do not; else ``""``.
    """

    column: str
    values: int
    missing: int
    edges: int
    share: float | None
    share_ci95: tuple[float, float] | None
    random_rate: float | None
    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    note: str


@dataclass(frozen=True)
class Audit:
    """All columns of a corpus under one graph."""

    edges: int
    exclude_same_group: bool
    columns: list[ColumnAudit]

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON values."""
        return asdict(self)


def audit(
    graph: Graph,
    corpus: Corpus,
    columns: Sequence[str] | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
    by: ResampleUnit = "anchor",
) -> Audit:
    """Compare, column by column, the edges of a graph with random admissible pairs.

    Args:
        graph: The graph, or a dose of one.
        corpus: The corpus it was built over.
        columns: Metadata columns (or ``group``); default all of them.
        resamples: Bootstrap draws for the intervals.
        seed: Seed of the draws.
        by: Draw single anchors, or all anchors of a group together.

    Returns:
        The audit. A column with one value, with a value of its own for every document, without
        values or without a pair by construction has a note instead of a ratio that means
        something.

    Raises:
        DataError: The graph has no edges, belongs to another corpus, or lacks a named column.
    """
    if not len(graph):
        raise DataError("a graph without edges cannot be audited")
    if graph.ids != corpus.ids:
        raise DataError("the graph was built over another corpus; audit it with its own")
    if columns is None:
        groups = list(corpus.groups) if corpus.has_groups else None
        columns = [name for name, held in corpus.metadata.items() if list(held) != groups]
        columns += [] if groups is None else ["group"]  # its own field says nothing more
        columns = list(dict.fromkeys(columns))
    given = {name: column_values(corpus, name) for name in columns}
    if not given:
        return Audit(len(graph), graph.exclude_same_group, [])
    admissible = AdmissiblePairs(corpus, exclude_same_group=graph.exclude_same_group)
    sums = {name: pair_sums(graph, corpus, v, admissible) for name, v in given.items()}
    anchors = next(iter(sums.values())).anchors
    table = np.stack(
        [column[:, -1] for s in sums.values() for column in (s.shared, s.edges, s.chance)], axis=1
    )
    units = [corpus.groups[row] for row in anchors] if by == "group" else None
    drawn = resampled_sums(table, resamples=resamples, seed=seed, units=units)
    found = []
    for place, (name, s) in enumerate(sums.items()):
        shared, edges, chance = (float(x) for x in table[:, 3 * place : 3 * place + 3].sum(axis=0))
        shares, counts, chances = (drawn[:, 3 * place + i] for i in range(3))
        labelled = len(corpus) - s.missing
        note = ""
        if not edges:
            note = "no edge joins two documents that have a value"
        elif s.distinct == 1:
            note = "one value only: every pair shares it"
        elif s.distinct == labelled:
            note = "every document has a value of its own: no pair shares it"
        elif not chance:
            note = "no admissible pair shares a value"
            if name == "group" and graph.exclude_same_group:
                note = "left out by construction: neighbours come from other groups"
        found.append(
            ColumnAudit(
                column=name,
                values=s.distinct,
                missing=s.missing,
                edges=int(edges),
                share=shared / edges if edges else None,
                share_ci95=interval(shares, counts) if edges else None,
                random_rate=chance / edges if edges else None,
                ratio=shared / chance if chance else None,
                ratio_ci95=interval(shares, chances) if chance else None,
                note=note,
            )
        )
    return Audit(len(graph), graph.exclude_same_group, found)

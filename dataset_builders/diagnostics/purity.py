"""The purity screen: do a graph's neighbours share the attribute, or only something else?

Source: the purity screen of OBLIQ-IR (arXiv 2609.29649): a graph whose neighbours share the
attribute 1.8 % of the time collapses training, one with 45.2 % works. Purity alone depends on how
common the attribute is, so what decides here is the *lift*, purity over the rate of random
admissible pairs, and its interval.
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

    from numpy.typing import NDArray

    from dataset_builders.graph import Graph
    from obliq_hf.records import Corpus

__all__ = ["ConfidentPurity", "Purity", "PurityAt", "Structure", "purity"]

_SAMPLED_PAIRS = 5000


@dataclass(frozen=True)
class PurityAt:
    """Purity of the edges of rank <= k.

    Attributes:
        k: The cutoff.
        edges: Edges whose two ends are labelled.
        purity: Share of them whose ends have the same label.
        ci95: Interval of the purity.
        random_rate: The same share for random admissible neighbours of the same anchors.
        lift: purity / random_rate; None where chance never gives the same label.
        lift_ci95: Interval of the lift.
    """

    k: int
    edges: int
    purity: float
    ci95: tuple[float, float] | None
    random_rate: float
    lift: float | None
    lift_ci95: tuple[float, float] | None


@dataclass(frozen=True)
class ConfidentPurity:
    """Purity of the most confident edges: how good a dose of that size is."""

    edges: int
    purity: float
    least_similarity: float


@dataclass(frozen=True)
class Structure:
    """What a graph shows without labels.

    Attributes:
        edges: Number of edges.
        reciprocity: Share of edges whose reverse is an edge.
        reciprocity_random: The share expected of random neighbours.
        in_degree_gini: 0 where all documents are chosen equally often, near 1 where few take all.
        in_degree_gini_random: The value of random neighbours (one seeded draw).
        in_degree_max: Most edges that lead to one document.
        never_chosen: Share of the documents to which no edge leads.
        similarity: Mean cosine of the edges; None where unknown.
        similarity_random: Mean cosine of random admissible pairs; None without vectors.
        similarity_gap: Difference of the two in standard deviations of the random pairs.
    """

    edges: int
    reciprocity: float
    reciprocity_random: float
    in_degree_gini: float
    in_degree_gini_random: float
    in_degree_max: int
    never_chosen: float
    similarity: float | None
    similarity_random: float | None
    similarity_gap: float | None


@dataclass(frozen=True)
class Purity:
    """What the screen found.

    Attributes:
        label: The column that stands for the attribute; None where there is none.
        k: Neighbours a document.
        exclude_same_group: Whether neighbours from the anchor's source were left out.
        at: Purity at 1..k; empty without labels.
        confident: Purity of the most confident edges; empty without labels.
        unlabelled: Documents without a label.
        structure: What shows without labels.
        recommended: Whether the lift at k lies above 1 with its interval; None without labels.
        verdict: The same in words, with what cannot be told.
    """

    label: str | None
    k: int
    exclude_same_group: bool
    at: list[PurityAt]
    confident: list[ConfidentPurity]
    unlabelled: int
    structure: Structure
    recommended: bool | None
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def _gini(counts: NDArray[np.int64]) -> float:
    total = int(counts.sum())
    if not total:
        return 0.0
    ordered = np.sort(counts).astype(np.float64)
    n = len(ordered)
    return float(2 * (np.arange(1, n + 1) @ ordered) / (n * total) - (n + 1) / n)


def _structure(
    graph: Graph, admissible: AdmissiblePairs, vectors: NDArray[Any] | None, seed: int
) -> Structure:
    rng = np.random.default_rng(seed)
    n, edges = len(admissible.candidates), len(graph)
    degree = np.bincount(admissible.position[graph.positive], minlength=n)
    by_chance = np.bincount(rng.integers(n, size=edges), minlength=n)
    known = bool(edges) and bool(np.isfinite(graph.similarity).all())
    mean = float(graph.similarity.mean(dtype=np.float64)) if known else None
    random_mean = gap = None
    if vectors is not None:
        sample = rng.choice(graph.anchor, size=min(_SAMPLED_PAIRS, edges), replace=False)
        others = [admissible.draw(int(row), 1, rng) for row in sample]
        pairs = [(row, other[0]) for row, other in zip(sample, others, strict=True) if len(other)]
        a, b = (np.asarray(vectors[list(side)], np.float64) for side in zip(*pairs, strict=True))
        cosine = np.einsum("nd,nd->n", a, b)
        cosine /= np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        random_mean, spread = float(cosine.mean()), float(cosine.std())
        gap = (mean - random_mean) / spread if mean is not None and spread > 0 else None
    return Structure(
        edges=edges,
        reciprocity=float(graph.mutual().mean()),
        reciprocity_random=min(1.0, edges / max(1, len(np.unique(graph.anchor))) / max(1, n - 1)),
        in_degree_gini=_gini(degree),
        in_degree_gini_random=_gini(by_chance),
        in_degree_max=int(degree.max()),
        never_chosen=float((degree == 0).mean()),
        similarity=mean,
        similarity_random=random_mean,
        similarity_gap=gap,
    )


def _verdict(
    label: str | None, at: list[PurityAt], structure: Structure
) -> tuple[bool | None, str]:
    if label is None:
        gap = structure.similarity_gap
        shape = (
            f"{structure.reciprocity:.0%} of the edges are mutual "
            f"({structure.reciprocity_random:.1%} by chance); the Gini coefficient of how often a "
            f"document is chosen is {structure.in_degree_gini:.2f} "
            f"({structure.in_degree_gini_random:.2f} by chance)"
        )
        if gap is not None:
            shape += f"; neighbours are {gap:.1f} standard deviations closer than random pairs"
        return None, (
            f"No label, so no recommendation. What can be told: {shape}. What cannot: whether "
            "neighbours share the attribute or something else, such as topic, source or length. "
            "Name a metadata column that stands for the attribute, or label a sample of edges."
        )
    if not at or not at[-1].edges:
        return False, f"Not recommended: no edge joins two documents that have a {label!r}."
    last = at[-1]
    if last.lift is None or last.lift_ci95 is None:
        return False, (
            f"Not recommended: no admissible pair shares {label!r}, so neither chance nor the "
            "graph can be right; name another label or another group field."
        )
    low, high = last.lift_ci95
    numbers = (
        f"{last.purity:.1%} of neighbours share {label!r} against {last.random_rate:.1%} of random "
        f"admissible pairs: lift {last.lift:.2f} [{low:.2f}, {high:.2f}]"
    )
    if low > 1:
        return True, f"Recommended: {numbers}."
    why = "its interval holds 1" if high > 1 else "worse than chance"
    return False, f"Not recommended: {numbers}; {why}, and such a graph can undo a retriever."


def purity(
    graph: Graph,
    corpus: Corpus,
    label: str | None = None,
    *,
    vectors: NDArray[Any] | None = None,
    confident: Sequence[int] = (500, 1000, 2000),
    resamples: int = 2000,
    seed: int = 0,
    by: ResampleUnit = "anchor",
) -> Purity:
    """Screen a graph before anything is trained on it.

    Args:
        graph: The graph, or a dose of one.
        corpus: The corpus it was built over.
        label: Metadata column (or ``group``) that stands for the attribute; None where there is
            none.
        vectors: The teacher's vectors [n, d], for the similarity of random pairs.
        confident: Numbers of most confident edges to look at; those beyond the graph are left out.
        resamples: Bootstrap draws for the intervals.
        seed: Seed of the draws.
        by: Draw single anchors, or all anchors of a group together (wider where a source's
            passages resemble each other).

    Returns:
        The result; nothing but JSON values in :meth:`Purity.to_dict`.

    Raises:
        DataError: The graph has no edges, belongs to another corpus, or there is no such column.
    """
    if not len(graph):
        raise DataError("a graph without edges cannot be screened")
    if graph.ids != corpus.ids:
        raise DataError("the graph was built over another corpus; screen it with its own")
    values = None if label is None else column_values(corpus, label)
    admissible = AdmissiblePairs(corpus, exclude_same_group=graph.exclude_same_group)
    structure = _structure(graph, admissible, vectors, seed)
    at: list[PurityAt] = []
    doses: list[ConfidentPurity] = []
    unlabelled = 0
    if values is not None:
        sums = pair_sums(graph, corpus, values, admissible)
        unlabelled = sums.missing
        k = sums.edges.shape[1]
        units = [corpus.groups[row] for row in sums.anchors] if by == "group" else None
        table = np.concatenate([sums.shared, sums.edges, sums.chance], axis=1)
        drawn = resampled_sums(table, resamples=resamples, seed=seed, units=units)
        for c in range(k):
            edges = float(sums.edges[:, c].sum())
            shared, chance = float(sums.shared[:, c].sum()), float(sums.chance[:, c].sum())
            at.append(
                PurityAt(
                    k=c + 1,
                    edges=int(edges),
                    purity=shared / edges if edges else 0.0,
                    ci95=interval(drawn[:, c], drawn[:, k + c]),
                    random_rate=chance / edges if edges else 0.0,
                    lift=shared / chance if chance else None,
                    lift_ci95=interval(drawn[:, c], drawn[:, 2 * k + c]) if chance else None,
                )
            )
        if np.isfinite(graph.similarity).all():
            doses = _confident(graph, sums.same, sums.known, confident)
    recommended, verdict = _verdict(label, at, structure)
    return Purity(
        label=label,
        k=graph.k,
        exclude_same_group=graph.exclude_same_group,
        at=at,
        confident=doses,
        unlabelled=unlabelled,
        structure=structure,
        recommended=recommended,
        verdict=verdict,
    )


def _confident(
    graph: Graph, same: NDArray[np.bool_], known: NDArray[np.bool_], sizes: Sequence[int]
) -> list[ConfidentPurity]:
    order = np.lexsort((graph.rank, graph.anchor, -graph.similarity.astype(np.float64)))
    found = []
    for size in sizes:
        if not 0 < size <= len(graph):
            continue
        first = order[:size]
        labelled = int(known[first].sum())
        if labelled:
            share = float(same[first].sum()) / labelled
            found.append(ConfidentPurity(size, share, float(graph.similarity[first[-1]])))
    return found

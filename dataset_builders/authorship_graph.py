"""The kNN graph of a frozen teacher: whose neighbours become anchor -> positive pairs.

Source: the authorship-graph distillation of OBLIQ-IR (arXiv 2609.29649): each passage's k = 3
nearest neighbours under an authorship encoder, of which a *dose* joins the training mixture. The
graph supervises, never the teacher's scores. Unlike the paper, neighbours from the anchor's own
source (the corpus's groups) are left out unless ``exclude_same_group=False``: they share the
topic, not the hand.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from dataset_builders.admissible import AdmissiblePairs
from dataset_builders.graph import Graph, check_corpus, read_graph, write_graph
from obliq_hf.errors import DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from obliq_hf.records import Corpus
    from obliq_hf.search.sharded_vectors import ShardedVectors

    Vectors = NDArray[Any] | ShardedVectors

__all__ = [
    "Graph",
    "Selection",
    "build_graph",
    "random_neighbours",
    "read_graph",
    "take_dose",
    "write_graph",
]

logger = logging.getLogger(__name__)

Selection = Literal["confident", "random", "mutual"]
"""Which edges a dose takes first."""

_QUERY_BLOCK = 4096
_EXCLUSION_BLOCK = 10_000_000


def _unit_vectors(vectors: Vectors, corpus: Corpus) -> NDArray[np.float32] | ShardedVectors:
    """Check vectors and bring them to length 1; those that are so already are not copied.

    Raises:
        DataError: Wrong shape, or rows that are not finite or zero (their ids are named).
    """
    if vectors.ndim != 2 or len(vectors) != len(corpus):
        raise DataError(
            f"the teacher gave vectors of shape {tuple(vectors.shape)} for {len(corpus)} "
            "documents; [documents, dimensions] is needed"
        )
    norms = np.empty(len(vectors))
    for start in range(0, len(vectors), _QUERY_BLOCK):
        block = np.asarray(vectors[start : start + _QUERY_BLOCK], dtype=np.float64)
        norms[start : start + _QUERY_BLOCK] = np.sqrt(np.einsum("nd,nd->n", block, block))
    bad = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
    if len(bad):
        names = ", ".join(repr(corpus.ids[i]) for i in bad[:5])
        raise DataError(
            f"the teacher's vectors of {len(bad)} documents hold NaN or infinity, or are zero "
            f"({names}{', ...' if len(bad) > 5 else ''}); such documents have no neighbours"
        )
    if vectors.dtype == np.float32 and np.abs(norms - 1).max() < 1e-6:
        return vectors
    unit = np.empty(vectors.shape, dtype=np.float32)
    for start in range(0, len(vectors), _QUERY_BLOCK):
        block = np.asarray(vectors[start : start + _QUERY_BLOCK], dtype=np.float64)
        unit[start : start + _QUERY_BLOCK] = block / norms[start : start + _QUERY_BLOCK, None]
    return unit


def _query_blocks(admissible: AdmissiblePairs, n: int) -> Iterator[range]:
    """Rows in blocks small enough that their exclusions stay small too."""
    start = listed = 0
    for row in range(n):
        listed += len(admissible.forbidden_positions(row))
        if row + 1 - start == _QUERY_BLOCK or listed >= _EXCLUSION_BLOCK or row + 1 == n:
            yield range(start, row + 1)
            start, listed = row + 1, 0


def build_graph(
    corpus: Corpus,
    vectors: Vectors,
    *,
    k: int = 3,
    exclude_same_group: bool = True,
    info: Mapping[str, Any] | None = None,
    show_progress: bool = False,
) -> Graph:
    """Join every document to its k nearest admissible neighbours.

    Itself (by identity, not by position), copies of its text and, where asked, documents of its
    own source are left out before the k are taken, so k neighbours still come back. The search is
    exact and blockwise: no [n, n] matrix is held. Scaling the vectors changes nothing.

    Args:
        corpus: n documents.
        vectors: [n, d] vectors of the teacher, any floating type, memory-mapped or not; or those of
            an index, ``VectorIndex(folder).vectors(unit=True)``, which are read in blocks.
        k: Neighbours a document.
        exclude_same_group: Leave out pairs within a group; no effect on a corpus without groups.
            False, over the searched corpus, is the graph of the paper.
        info: Further provenance to keep with the graph (the teacher's name and fingerprint).
        show_progress: Show a bar.

    Returns:
        The graph, edges in order of anchor and rank. ``info`` counts the documents that have
        fewer than k admissible neighbours (``documents_short``, ``edges_missing``), and the
        copies left out as neighbours (``copies``).

    Raises:
        DataError: k below 1, vectors of the wrong shape, not finite or zero, or no admissible
            pair (one group only, one text only).
    """
    from tqdm.auto import tqdm

    from obliq_hf.search import dense

    if k < 1:
        raise DataError(f"k must be at least 1, not {k}")
    admissible = AdmissiblePairs(corpus, exclude_same_group=exclude_same_group)
    unit = _unit_vectors(vectors, corpus)
    documents = unit
    if admissible.copies:
        rows = admissible.candidates
        documents = unit[rows] if isinstance(unit, np.ndarray) else unit.select(rows)
    counts = np.zeros(len(corpus), dtype=np.int64)
    positives: list[NDArray[np.int64]] = []
    scores: list[NDArray[np.float32]] = []
    with tqdm(total=len(corpus), desc="neighbours", disable=not show_progress) as bar:
        for block in _query_blocks(admissible, len(corpus)):
            barred = [admissible.forbidden_positions(row) for row in block]
            found, similar, number = dense.top_k(
                unit[block.start : block.stop],
                documents,
                k,
                excluded=cast("Sequence[Sequence[int]]", barred),
            )
            counts[block.start : block.stop] = number
            real = np.arange(found.shape[1]) < number[:, None]
            positives.append(admissible.candidates[found[real]])
            scores.append(similar[real])
            bar.update(len(block))
    first_edge = np.cumsum(counts) - counts
    short = int(np.count_nonzero(counts < k))
    graph = Graph(
        ids=list(corpus.ids),
        anchor=np.repeat(np.arange(len(corpus)), counts),
        positive=np.concatenate(positives),
        rank=(np.arange(1, counts.sum() + 1) - np.repeat(first_edge, counts)).astype(np.int32),
        similarity=np.clip(np.concatenate(scores), -1, 1),
        info={
            **(info or {}),
            "k": k,
            "exclude_same_group": admissible.exclude_same_group,
            "documents": len(corpus),
            "groups": len(set(corpus.groups) - {None}),
            "copies": admissible.copies,
            "corpus_fingerprint": corpus.fingerprint,
        },
    )
    graph.info["edges"] = len(graph)
    graph.info["documents_short"] = short
    graph.info["edges_missing"] = k * len(corpus) - len(graph)
    if not len(graph):
        raise DataError("no pair of documents is admissible: every text stands in every group")
    if short:
        logger.warning(
            "%d documents have fewer than %d admissible neighbours; %d edges are missing",
            *(short, k, graph.info["edges_missing"]),
        )
    return graph


def take_dose(
    graph: Graph, n: int | None, *, selection: Selection = "confident", seed: int = 0
) -> Graph:
    """Take n edges of a graph. A smaller dose is the beginning of a larger one.

    Args:
        graph: The graph.
        n: Number of edges; None for all.
        selection: ``confident``: highest similarity first; ``random``: all edges equally likely;
            ``mutual``: edges whose reverse is in the graph first, by similarity, then the others,
            by similarity. Ties go to corpus order, then rank.
        seed: For ``random``.

    Returns:
        The edges in the order of the selection, with the graph as ``complete``.

    Raises:
        DataError: n is negative or larger than the graph, or the selection is unknown.
    """
    if selection not in get_args(Selection):
        raise DataError(f"no selection {selection!r}{nearest(str(selection), get_args(Selection))}")
    n = len(graph) if n is None else n
    if not 0 <= n <= len(graph):
        raise DataError(
            f"a dose of {n} edges cannot be taken from a graph of {len(graph)}; ask for 0 to "
            f"{len(graph)}, or build the graph with a larger k"
        )
    if selection == "random":
        order = np.random.default_rng(seed).permutation(len(graph))
    else:
        first = ~graph.mutual() if selection == "mutual" else np.zeros(len(graph), dtype=bool)
        order = np.lexsort((graph.rank, graph.anchor, -graph.similarity.astype(np.float64), first))
    dose = {"dose": n, "selection": selection, "neighbours": "teacher"}
    if selection == "random":
        dose["seed"] = seed
    if selection == "mutual":
        dose["mutual_edges"] = int(graph.mutual()[order[:n]].sum())
    return graph.take(order[:n], dose)


def random_neighbours(
    dosed: Graph,
    corpus: Corpus,
    *,
    seed: int,
    exclude_same_group: bool | None = None,
    avoid: Sequence[Iterable[int]] | None = None,
    vectors: NDArray[Any] | None = None,
) -> Graph:
    """The control: the same anchors, ranks and dose, with neighbours drawn at random.

    A neighbour is drawn from the documents admissible for the anchor (not itself, no copy of its
    text, not from its source where groups are excluded), all equally likely, never one joined
    to it in the teacher's graph, and no two the same for one anchor.

    Args:
        dosed: The edges whose neighbours are replaced.
        corpus: The corpus the graph was built over.
        seed: Seed of the draw.
        exclude_same_group: Default as the graph was built.
        avoid: For every edge, rows that must not be drawn: its hard negatives.
        vectors: Teacher vectors [n, d], to give the new edges their similarity; else NaN.

    Returns:
        A graph whose ``complete`` is still the teacher's.

    Raises:
        DataError: The corpus is another one, or an anchor has too few admissible documents.
    """
    check_corpus(dosed, corpus)
    if exclude_same_group is None:
        exclude_same_group = dosed.exclude_same_group
    if avoid is not None and len(avoid) != len(dosed):
        raise DataError(f"avoid has {len(avoid)} entries for {len(dosed)} edges")
    admissible = AdmissiblePairs(corpus, exclude_same_group=exclude_same_group)
    joined = (dosed.complete or dosed).neighbours(dosed.anchor.tolist())
    rng = np.random.default_rng(seed)
    drawn: dict[int, set[int]] = {}
    positive = np.empty_like(dosed.positive)
    for edge, anchor in enumerate(dosed.anchor.tolist()):
        taken = drawn.setdefault(anchor, set())
        barred = [*joined[anchor], *taken, *(avoid[edge] if avoid is not None else ())]
        choice = admissible.draw(anchor, 1, rng, also=barred)
        if not len(choice):
            raise DataError(
                f"document {corpus.ids[anchor]!r} has no admissible document left to draw as a "
                "random neighbour; the corpus is too small for the control"
            )
        positive[edge] = choice[0]
        taken.add(int(choice[0]))
    similarity = np.full(len(dosed), np.nan, dtype=np.float32)
    if vectors is not None:
        unit = _unit_vectors(vectors, corpus)
        for start in range(0, len(dosed), _QUERY_BLOCK):
            part = slice(start, start + _QUERY_BLOCK)
            similarity[part] = np.einsum("nd,nd->n", unit[dosed.anchor[part]], unit[positive[part]])
    return Graph(
        ids=dosed.ids,
        anchor=dosed.anchor,
        positive=positive,
        rank=dosed.rank,
        similarity=similarity,
        info={**dosed.info, "neighbours": "random", "neighbours_seed": seed},
        complete=dosed.complete or dosed,
    )

"""Exact inner-product search over document vectors in memory or in a memory-mapped file.

Engine: blocked matrix products, and a running threshold per query, so that almost no score of a
block needs to be looked at again. Single precision only nominates: whatever lies within the
rounding error of the k-th score is kept, and the final order comes from double-precision inner
products. The result is therefore the same for every block size and number of threads, and
documents with equal vectors really tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.search.candidates import CandidatePool
from obliq_hf.search.exclusions import flatten_exclusions
from obliq_hf.search.vectors import Block, as_source, check_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from obliq_hf.search.vectors import VectorSource

__all__ = ["Hits", "search", "top_k"]

_QUERY_ROWS = 512  # queries scored at once; with _TILE_ROWS the scores stay in the cache
_TILE_ROWS = 2048
_BLOCK_BYTES = 64 << 20  # single-precision bytes of documents read and cast at once


@dataclass(frozen=True)
class Hits:
    """The documents found for one query, best first.

    Attributes:
        rows: Row numbers in the corpus, int64 ``[m]``; each row once.
        scores: Their scores, float32 ``[m]``, descending; equal scores by ascending row.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)


def search(
    queries: ArrayLike,
    documents: ArrayLike | VectorSource,
    k: int,
    *,
    excluded: Sequence[Sequence[int]] | None = None,
    block_rows: int | None = None,
) -> list[Hits]:
    """Find the ``k`` documents of highest inner product with every query.

    Vectors are taken as they are: cosine similarity needs unit vectors.

    Args:
        queries: Float vectors ``[q, d]``.
        documents: Float vectors ``[n, d]``: an array, a memory map or another source, in single
            or half precision; other precisions are cast to single, block by block.
        k: Hits per query; when fewer documents are admissible, all of them are returned.
        excluded: For every query the document rows that may not be returned, in any order;
            they are removed before the best ``k`` are taken.
        block_rows: Document rows read and cast at once; by default about 64 MB of them. The
            result does not depend on it.

    Returns:
        One ``Hits`` per query with exactly ``min(k, n - excluded)`` entries, by descending
        score, then by ascending row. Scores are inner products in double precision, rounded
        to float32.

    Raises:
        ObliqError: There are no documents, the shapes do not fit, ``k`` or ``block_rows`` is
            below 1, a vector holds NaN or infinity (the message names the row), or an
            excluded row does not exist.
    """
    rows, scores, counts = top_k(queries, documents, k, excluded=excluded, block_rows=block_rows)
    return [
        Hits(found[:count], values[:count])
        for found, values, count in zip(rows, scores, counts.tolist(), strict=True)
    ]


def top_k(
    queries: ArrayLike,
    documents: ArrayLike | VectorSource,
    k: int,
    *,
    excluded: Sequence[Sequence[int]] | None = None,
    block_rows: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """``search`` as arrays, for many queries.

    Returns:
        ``rows`` int64 ``[q, w]``, ``scores`` float32 ``[q, w]`` and ``counts`` int64 ``[q]``
        with ``w = min(k, n)``. Only the first ``counts[i]`` entries of row i are hits; what
        follows them is row 0 with score ``-inf`` and must not be read.

    Raises:
        ObliqError: As ``search``.
    """
    questions = check_vectors(queries, "queries")
    corpus = as_source(documents)
    size, dimensions = corpus.shape
    if size == 0:
        raise ObliqError("there are no documents to search: documents has no rows")
    if questions.shape[1] != dimensions:
        raise ObliqError(
            f"queries have {questions.shape[1]} dimensions and documents {dimensions}; "
            "were they encoded by the same model?"
        )
    if k < 1:
        raise ObliqError(f"k must be at least 1, not {k}")
    if block_rows is None:
        block_rows = max(_TILE_ROWS, _BLOCK_BYTES // (4 * max(1, dimensions)))
    elif block_rows < 1:
        raise ObliqError(f"block_rows must be at least 1, not {block_rows}")
    width = min(k, size)
    hidden = flatten_exclusions(excluded, len(questions), size)
    rows = np.zeros((len(questions), width), dtype=np.int64)
    scores = np.full((len(questions), width), -np.inf, dtype=np.float32)
    counts = np.zeros(len(questions), dtype=np.int64)
    pools = []
    for start in range(0, len(questions), _QUERY_ROWS):
        stop = min(start + _QUERY_ROWS, len(questions))
        low, high = np.searchsorted(hidden[0], (start, stop))
        pool_hidden = (hidden[0][low:high] - start, hidden[1][low:high])
        pools.append(CandidatePool(questions[start:stop], corpus, width, pool_hidden, _TILE_ROWS))
    for block in corpus.blocks(block_rows):
        for pool in pools:
            for offset in range(0, len(block.vectors), _TILE_ROWS):
                pool.add(
                    Block(
                        block.first + offset,
                        block.vectors[offset : offset + _TILE_ROWS],
                        block.largest_norm,
                        block.residual,
                    )
                )
    start = 0
    while pools:
        pool = pools.pop(0)
        stop = start + pool.size
        pool.finish(rows[start:stop], scores[start:stop], counts[start:stop])
        start = stop
    return rows, scores, counts

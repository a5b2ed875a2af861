"""Exact inner-product search over document vectors in memory or in a memory-mapped file.

Engine: blocked matrix products, and a running threshold per query, so that almost no score of a
block needs to be looked at again. Single precision, or bfloat16 where the processor multiplies it
natively, only nominates: whatever lies within the rounding error of the k-th score is kept, and the
final order comes from double-precision inner products. The result is therefore the same for every
processor, block size and number of threads, and documents with equal vectors really tie.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.search.candidates import TILE_ROWS, CandidatePool
from obliq_hf.search.exclusions import flatten_exclusions
from obliq_hf.search.products import BFloat16Product, Float32Product, bfloat16_is_native
from obliq_hf.search.vectors import as_source, check_vectors, largest_norm_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from obliq_hf.search.vectors import VectorSource

__all__ = ["Hits", "search", "top_k"]

_QUERY_ROWS = 512  # queries scored at once; with TILE_ROWS the scores stay in the cache
_THREAD_QUERIES = 64  # with fewer, a thread of its own costs more than it saves
_NATIVE_QUERIES = 128  # with fewer, rounding the documents costs more than it saves
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

    Vectors are taken as they are: cosine similarity needs unit vectors. 128 queries or more are
    divided among threads, in a process that has loaded torch, on a processor that multiplies
    bfloat16 natively.

    Args:
        queries: Float vectors ``[q, d]``.
        documents: Float vectors ``[n, d]``: an array, a memory map or another source, in single
            or half precision; other precisions are cast to single, block by block. Several
            threads may call a source's ``take`` at once.
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
        block_rows = max(TILE_ROWS, _BLOCK_BYTES // (4 * max(1, dimensions)))
    elif block_rows < 1:
        raise ObliqError(f"block_rows must be at least 1, not {block_rows}")
    width = min(k, size)
    hidden = flatten_exclusions(excluded, len(questions), size)
    rows = np.zeros((len(questions), width), dtype=np.int64)
    scores = np.full((len(questions), width), -np.inf, dtype=np.float32)
    counts = np.zeros(len(questions), dtype=np.int64)
    product, threads, step = _plan(len(questions))
    parts = [slice(start, start + step) for start in range(0, len(questions), step)]

    def begin(part: slice) -> CandidatePool:
        low, high = np.searchsorted(hidden[0], (part.start, part.stop))
        own = (hidden[0][low:high] - part.start, hidden[1][low:high])
        return CandidatePool(questions[part], product(questions[part]), corpus, width, own)

    def finish(pool: CandidatePool, part: slice) -> None:
        pool.finish(rows[part], scores[part], counts[part])

    with _thread_map(threads) as each_of:
        pools = list(each_of(begin, parts))  # in the threads: torch's own stay unused here
        for block in corpus.blocks(block_rows):
            if block.largest_norm is None:
                norm = largest_norm_of(block.vectors, block.first, "documents")
                block = block._replace(largest_norm=norm)
            list(each_of(CandidatePool.add, pools, repeat(block)))  # raises what a thread raised
        list(each_of(finish, pools, parts))
    return rows, scores, counts


def _plan(queries: int) -> tuple[type[BFloat16Product | Float32Product], int, int]:
    """The product, the threads that work side by side, and the queries of one part of the work."""
    if queries < _NATIVE_QUERIES or not bfloat16_is_native():
        return Float32Product, 1, _QUERY_ROWS  # numpy's product has threads of its own
    import torch

    threads = max(1, min(torch.get_num_threads(), queries // _THREAD_QUERIES))
    rounds = -(-queries // (threads * _QUERY_ROWS))
    return BFloat16Product, threads, -(-queries // (threads * rounds))


@contextmanager
def _thread_map(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A ``map`` whose calls run in threads, each with its share of the cores.

    numpy sifts scores on one core; with one thread per part of the queries, all cores sift.
    """
    if threads == 1:
        yield map
        return
    import torch
    from threadpoolctl import ThreadpoolController

    share = torch.get_num_threads() // threads
    openmp = ThreadpoolController().select(user_api="openmp")

    def limit_openmp() -> None:
        torch.get_num_threads()  # its first call in a thread sets the number, which we then change
        openmp.limit(limits=share)  # of this thread alone

    with ThreadPoolExecutor(threads, initializer=limit_openmp) as executor:
        yield executor.map

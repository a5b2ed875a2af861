"""Exact inner-product search over document vectors in memory or in a memory-mapped file.

Engine: blocked matrix products, and a running threshold per query, so that almost no score of a
block needs to be looked at again. Single precision only nominates: whatever lies within the
rounding error of the k-th score is kept, and the final order comes from double-precision inner
products. The result is therefore the same for every block size and number of threads, and
documents with equal vectors really tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.search.exclusions import flatten_exclusions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Block", "Hits", "VectorSource", "cast_half", "check_vectors", "search", "top_k"]

_QUERY_ROWS = 512  # queries scored at once; with _TILE_ROWS the scores stay in the cache
_TILE_ROWS = 2048
_BLOCK_BYTES = 64 << 20  # single-precision bytes of documents read and cast at once
_PAIR_ROWS = 1024  # query-document pairs scored in double precision at once
_CAST_ELEMENTS = 32_768  # torch casts this many values without waking its thread pool
_UNIT = float(np.finfo(np.float32).eps) / 2
_TINY = float(np.finfo(np.float32).tiny)


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


class Block(NamedTuple):
    """Successive rows of a source of vectors.

    Attributes:
        first: Row number of the first.
        vectors: Float32 ``[rows, d]``, contiguous; may be overwritten by the next block.
        largest_norm: Largest norm of any row, where it is known; else it is computed.
        residual: Largest norm of the difference between a row here and as ``take`` gives it.
    """

    first: int
    vectors: NDArray[np.float32]
    largest_norm: float | None = None
    residual: float = 0.0


class VectorSource(Protocol):
    """Document vectors that are not one array: read in blocks, exact rows on demand."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and dimensions."""
        ...

    def blocks(self, rows: int) -> Iterator[Block]:
        """All rows in order, at most ``rows`` at a time."""
        ...

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The given rows, float32 ``[len(rows), d]``; their inner products decide the order."""
        ...


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
    corpus = _as_source(documents)
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
        pools.append(_Pool(questions[start:stop], corpus, width, pool_hidden))
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


def check_vectors(vectors: ArrayLike, name: str = "vectors") -> NDArray[np.float32]:
    """Vectors as a contiguous float32 matrix with finite values.

    Args:
        vectors: Numbers ``[n, d]``.
        name: What they are, for the message.

    Raises:
        ObliqError: Not a matrix of real numbers, or a row holds NaN or infinity; the message
            names the first such row.
    """
    matrix = _as_matrix(vectors, name)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(matrix, dtype=np.float32)
    _largest_norm(single, 0, name)
    return single


def _as_matrix(vectors: ArrayLike, name: str) -> NDArray:
    matrix = np.asarray(vectors) if not isinstance(vectors, np.ndarray) else vectors
    if matrix.ndim != 2:
        raise ObliqError(f"{name} must be a matrix [rows, dimensions], not of shape {matrix.shape}")
    if matrix.dtype.kind not in "fiu":
        raise ObliqError(f"{name} must hold real numbers, not {matrix.dtype}")
    return matrix


def _largest_norm(block: NDArray[np.float32], first: int, name: str) -> float:
    """The largest Euclidean norm of the rows; an error names a row that is not finite."""
    if block.size == 0:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.einsum("ij,ij->i", block, block).max())
    if not np.isfinite(largest):
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(bad):
            raise ObliqError(
                f"{name} row {first + int(bad[0])} holds NaN or infinity "
                f"({len(bad)} such rows in rows {first} to {first + len(block) - 1})"
            )
        raise ObliqError(f"{name} rows {first} to {first + len(block) - 1} overflow float32")
    return float(np.sqrt(largest))


class _ArraySource:
    """An array or a memory map as a source."""

    def __init__(self, matrix: NDArray) -> None:
        self.matrix = matrix
        self.shape = (matrix.shape[0], matrix.shape[1])

    def blocks(self, rows: int) -> Iterator[Block]:
        """Rows as contiguous float32, without a copy where they are that already."""
        buffer: NDArray[np.float32] | None = None
        size, dimensions = self.shape
        for first in range(0, size, rows):
            block = self.matrix[first : first + rows]
            if block.dtype == np.float32 and block.flags.c_contiguous:
                yield Block(first, np.asarray(block))
                continue
            if buffer is None:
                buffer = np.empty((min(rows, size), dimensions), np.float32)
            target = buffer[: len(block)]
            if block.dtype == np.float16 and block.flags.c_contiguous:
                cast_half(block, target)
            else:
                with np.errstate(over="ignore"):
                    np.copyto(target, block, casting="unsafe")
            yield Block(first, target)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Single rows as float32."""
        taken = np.asarray(self.matrix[rows])
        return taken if taken.dtype == np.float32 else taken.astype(np.float32)


def _as_source(documents: ArrayLike | VectorSource) -> VectorSource:
    if hasattr(documents, "blocks") and hasattr(documents, "take"):
        return cast("VectorSource", documents)
    return _ArraySource(_as_matrix(documents, "documents"))


def cast_half(source: NDArray[np.float16], target: NDArray[np.float32]) -> None:
    """Cast half to single precision with torch, twenty times as fast as numpy.

    Pieces stay below the size at which torch starts its own threads, which would compete with
    those of the matrix product.
    """
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        half = torch.from_numpy(np.asarray(source).reshape(-1))
    single = torch.from_numpy(target.reshape(-1))
    for start in range(0, len(half), _CAST_ELEMENTS):
        single[start : start + _CAST_ELEMENTS].copy_(half[start : start + _CAST_ELEMENTS])


class _Pool:
    """The candidates of up to ``_QUERY_ROWS`` queries while blocks of documents go by."""

    def __init__(
        self,
        queries: NDArray[np.float32],
        corpus: VectorSource,
        width: int,
        hidden: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        self.queries = queries
        self.corpus = corpus
        self.width = width
        self.size = len(queries)
        order = np.argsort(hidden[1], kind="stable")
        self.hidden_query, self.hidden_row = hidden[0][order], hidden[1][order]
        norms = np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64))
        self.norms = norms
        # |fl(x . y) - x . y| <= d u |x| |y| in any order of summation, for both sides of a
        # comparison; the last term covers products that underflow.
        dims = queries.shape[1]
        self.slack = 2.02 * (dims + 2) * _UNIT * norms
        self.floor = 2 * dims * _TINY
        self.longest = self.residual = 0.0
        self.kth = np.full(self.size, -np.inf, dtype=np.float32)
        self.bar = self.kth.copy()
        self.limit = 2 * self.size * width
        self.held = 0
        self.parts: list[tuple[NDArray, NDArray, NDArray]] = []
        self.columns = np.ascontiguousarray(queries.T)  # the layout BLAS multiplies fastest
        self.score_buffer = np.empty(self.size * _TILE_ROWS, dtype=np.float32)
        self.mask_buffer = np.empty(self.size * _TILE_ROWS, dtype=bool)

    def add(self, block: Block) -> None:
        """Score documents and keep what can still be among the best."""
        first, tile = block.first, block.vectors
        norm = block.largest_norm
        known = norm is not None
        if norm is None:
            norm = _largest_norm(tile, first, "documents")
        if norm > self.longest or block.residual > self.residual:
            self.longest = max(self.longest, norm)
            self.residual = max(self.residual, block.residual)
            self._set_bar()
        count = len(tile)
        scores = self.score_buffer[: self.size * count].reshape(count, self.size)
        np.matmul(tile, self.columns, out=scores)
        if known and not np.isfinite(scores[:, 0]).all():
            _largest_norm(tile, first, "documents")  # names the row
        low, high = np.searchsorted(self.hidden_row, (first, first + count))
        if high > low:
            scores[self.hidden_row[low:high] - first, self.hidden_query[low:high]] = -np.inf
        if not self.parts and count > self.width:
            cut = count - self.width
            self.kth = np.partition(scores.T.copy(), cut, axis=1)[:, cut].copy()
            self._set_bar()
        mask = self.mask_buffer[: self.size * count].reshape(count, self.size)
        np.greater(scores, self.bar, out=mask)
        found = np.flatnonzero(mask)
        if len(found) == 0:
            return
        place, query = np.divmod(found, self.size)
        self.parts.append((query.astype(np.uint16), place + first, scores.reshape(-1)[found]))
        self.held += len(found)
        if self.held > self.limit:
            self._shrink()

    def _set_bar(self) -> None:
        """A score must be above ``bar`` to be kept: the k-th best less twice the error."""
        margin = self.slack * self.longest + 2 * self.residual * self.norms + self.floor
        self.bar = np.nextafter((self.kth - margin).astype(np.float32), np.float32(-np.inf))

    def _collect(self) -> tuple[NDArray, NDArray, NDArray]:
        """All candidates by query, within a query by ascending row."""
        if not self.parts:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, np.empty(0, dtype=np.float32)
        query, row, score = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        order = np.argsort(query, kind="stable")
        return query[order].astype(np.int64), row[order], score[order]

    def _shrink(self) -> None:
        """Raise the bar to the k-th best of all candidates and drop what is below it."""
        query, row, score = self._collect()
        counts = np.bincount(query, minlength=self.size)
        place = np.arange(len(query)) - (np.cumsum(counts) - counts)[query]
        spread = np.full((self.size, max(int(counts.max()), self.width)), -np.inf, np.float32)
        spread[query, place] = score
        cut = spread.shape[1] - self.width
        self.kth = np.partition(spread, cut, axis=1)[:, cut].copy()
        self._set_bar()
        keep = score > self.bar[query]
        query, row, score = query[keep], row[keep], score[keep]
        counts = np.bincount(query, minlength=self.size)
        crowded = counts > 4 * self.width + 256
        if crowded.any():  # many ties at the k-th place: settle them now, exactly
            chosen = crowded[query]
            exact = self._exact(query[chosen], row[chosen])
            best = _best(query[chosen], exact, self.width)
            score[chosen] = exact
            keep = ~chosen
            keep[np.flatnonzero(chosen)[best]] = True
            query, row, score = query[keep], row[keep], score[keep]
        self.parts = [(query.astype(np.uint16), row, score)]
        self.held = len(query)
        self.limit = max(2 * self.size * self.width, 2 * self.held)

    def _exact(self, query: NDArray, row: NDArray) -> NDArray[np.float32]:
        """Inner products in double precision, one order of summation, rounded to float32."""
        exact = np.empty(len(query), dtype=np.float32)
        products = np.empty((min(_PAIR_ROWS, len(query)), self.queries.shape[1]))
        for start in range(0, len(query), _PAIR_ROWS):
            part = slice(start, start + _PAIR_ROWS)
            documents = self.corpus.take(row[part])
            out = products[: len(documents)]
            np.multiply(documents, self.queries[query[part]], out=out, dtype=np.float64)
            exact[part] = out.sum(axis=1)
        return exact

    def finish(
        self, rows: NDArray[np.int64], scores: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> None:
        """Write the best candidates in their final order into the given arrays."""
        if self.held > self.size * self.width:
            self._shrink()
        query, row, _ = self._collect()
        exact = self._exact(query, row)
        best = _best(query, exact, self.width)
        query, row, exact = query[best], row[best], exact[best]
        counts[:] = np.bincount(query, minlength=self.size)
        place = np.arange(len(query)) - (np.cumsum(counts) - counts)[query]
        rows[query, place] = row
        scores[query, place] = exact


def _best(query: NDArray, score: NDArray, width: int) -> NDArray[np.int64]:
    """Positions of the ``width`` best of each query, by query, then by descending score.

    Candidates come by ascending row within a query, and keep that order where scores are equal.
    """
    order = np.lexsort((-score, query))
    ordered = query[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    return order[np.arange(len(order)) - starts < width]

"""The documents that can still be among the best of some queries, while all documents go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.search.products import Float32Product
from obliq_hf.search.vectors import largest_norm_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from obliq_hf.search.products import Product
    from obliq_hf.search.vectors import Block, VectorSource

__all__ = ["TILE_ROWS", "CandidatePool"]

_PAIR_NUMBERS = 1 << 17  # multiplied in double precision at once; they stay in the cache
TILE_ROWS = 2048  # with so many documents at once the scores stay in the cache
_CROWD = (3, 64)  # that many times those wanted and more: scores lie too close for the product


class CandidatePool:
    """The candidates of some queries while blocks of documents go by.

    Args:
        queries: Float32 ``[q, d]``.
        product: Multiplies them with documents.
        corpus: Where the documents come from; gives the rows that decide the order.
        width: Documents to find for every query.
        hidden: Queries and rows of the pairs that may not be found.
    """

    def __init__(
        self,
        queries: NDArray[np.float32],
        product: Product,
        corpus: VectorSource,
        width: int,
        hidden: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        self.queries = queries
        self.product = product
        self.corpus = corpus
        self.width = width
        self.size = len(queries)
        order = np.argsort(hidden[1], kind="stable")
        self.hidden_query, self.hidden_row = hidden[0][order], hidden[1][order]
        self.longest = self.residual = 0.0
        self.kth = np.full(self.size, -np.inf, dtype=np.float32)
        self.bar = self.kth.copy()
        self.limit = 2 * self.size * width
        self.held = 0
        self.parts: list[tuple[NDArray, NDArray, NDArray]] = []

    def add(self, block: Block) -> None:
        """Score documents, whose largest norm is known, and keep what can be among the best."""
        rows = min(TILE_ROWS, len(block.vectors))
        scores = np.empty((rows, self.size), dtype=np.float32)
        mask = np.empty((rows, self.size), dtype=bool)
        for start in range(0, len(block.vectors), TILE_ROWS):
            tile = block.vectors[start : start + TILE_ROWS]
            part = block._replace(first=block.first + start, vectors=tile)
            self._add_tile(part, scores[: len(tile)], mask[: len(tile)])

    def _add_tile(self, block: Block, scores: NDArray[np.float32], mask: NDArray[np.bool_]) -> None:
        first, tile = block.first, block.vectors
        assert block.largest_norm is not None
        if block.largest_norm > self.longest or block.residual > self.residual:
            self.longest = max(self.longest, block.largest_norm)
            self.residual = max(self.residual, block.residual)
            if self.longest * self.product.norms.max() > self.product.largest:
                self._multiply_finely()
            else:
                self._set_bar()
        count = len(tile)
        self.product.multiply(tile, scores)
        if not np.isfinite(scores[:, 0]).all():  # a norm written down says nothing of damage since
            largest_norm_of(tile, first, "documents")  # names the row
        low, high = np.searchsorted(self.hidden_row, (first, first + count))
        if high > low:
            scores[self.hidden_row[low:high] - first, self.hidden_query[low:high]] = -np.inf
        opening = not self.parts and count > self.width
        if opening:
            cut = count - self.width
            self.kth = np.partition(scores.T.copy(), cut, axis=1)[:, cut].copy()
            self._set_bar()
        np.greater(scores, self.bar, out=mask)
        found = np.flatnonzero(mask)
        if opening and self._is_too_coarse(len(found)):
            self._multiply_finely()
            self._add_tile(block, scores, mask)
            return
        if len(found) == 0:
            return
        place, query = np.divmod(found, self.size)
        self.parts.append((query.astype(np.uint16), place + first, scores.reshape(-1)[found]))
        self.held += len(found)
        if self.held > self.limit:
            self._shrink()

    def _set_bar(self) -> None:
        """A score must be above ``bar`` to be kept: the k-th best less twice the error."""
        margin = self.product.margin(self.longest, self.residual, self.kth)
        with np.errstate(over="ignore"):
            bar = (self.kth - margin).astype(np.float32)
        self.bar = np.nextafter(bar, np.float32(-np.inf))

    def _is_too_coarse(self, candidates: int) -> bool:
        """Whether scores lie so close together that the product tells too few of them apart."""
        fine = isinstance(self.product, Float32Product)
        times, more = _CROWD
        return not fine and candidates > self.size * (times * self.width + more)

    def _multiply_finely(self) -> None:
        """Go on in single precision, with exact scores of all candidates so far."""
        self.product = Float32Product(self.queries)
        query, row, _ = self._collect()
        self._keep_best(query, row, self._exact(query, row))

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
        self._keep_best(*self._collect())
        if self._is_too_coarse(self.held):
            self._multiply_finely()

    def _keep_best(self, query: NDArray, row: NDArray, score: NDArray) -> None:
        """Set the bar by candidates that come by query and row, and keep those above it."""
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
        if crowded.any() and not self._is_too_coarse(
            len(query)
        ):  # many ties at the k-th place: settle them now, exactly
            chosen = crowded[query]
            exact = self._exact(query[chosen], row[chosen])
            best = _best(query[chosen], exact, self.width)
            score[chosen] = exact
            keep = ~chosen
            keep[np.flatnonzero(chosen)[best]] = True
            query, row, score = query[keep], row[keep], score[keep]
        self.parts = [(query.astype(np.uint16), row, score)] if len(query) else []
        self.held = len(query)
        self.limit = max(2 * self.size * self.width, 2 * self.held)

    def _exact(self, query: NDArray, row: NDArray) -> NDArray[np.float32]:
        """Inner products in double precision, one order of summation, rounded to float32."""
        exact = np.empty(len(query), dtype=np.float32)
        dims = self.queries.shape[1]
        rows = max(1, _PAIR_NUMBERS // max(1, dims))
        products = np.empty((min(rows, len(query)), dims))
        for start in range(0, len(query), rows):
            part = slice(start, start + rows)
            documents = self.corpus.take(row[part])
            out = products[: len(documents)]
            np.multiply(documents, self.queries[query[part]], out=out, dtype=np.float64)
            exact[part] = out.sum(axis=1)
        return exact

    def finish(
        self, rows: NDArray[np.int64], scores: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> None:
        """Write the best candidates in their final order into the given arrays, and let go."""
        if self.held > self.size * self.width:
            self._shrink()
        query, row, _ = self._collect()
        self.parts.clear()
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

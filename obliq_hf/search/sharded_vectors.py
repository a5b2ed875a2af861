"""The vectors of many shards as one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.search.vectors import Block, row_norms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from obliq_hf.search.shards import Shard

__all__ = ["ShardedVectors"]


class ShardedVectors:
    """The vectors of several shards as one matrix that is never in memory as a whole.

    Slices and lists of rows give float32 arrays; :func:`obliq_hf.search.dense.search` takes it as
    documents. Full vectors are given where they are kept.

    Args:
        shards: The shards in order.
        dimension: Dimension of the vectors.
        rows: Rows of the shards that this matrix consists of, in any order; None for all.
        unit: Whether vectors are brought to length 1, which rounding has changed.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(
        self,
        shards: Sequence[Shard],
        dimension: int,
        *,
        rows: NDArray[np.int64] | None = None,
        unit: bool = False,
    ) -> None:
        self.shards = list(shards)
        self.starts = np.array([s.record.first for s in self.shards], dtype=np.int64)
        self.rows = rows
        self.unit = unit
        size = sum(map(len, self.shards)) if rows is None else len(rows)
        self.shape = (size, dimension)

    def __len__(self) -> int:
        return self.shape[0]

    def select(self, rows: NDArray[np.int64]) -> ShardedVectors:
        """The matrix of some of the rows, without reading them."""
        chosen = np.asarray(rows) if self.rows is None else self.rows[rows]
        return ShardedVectors(self.shards, self.shape[1], rows=chosen, unit=self.unit)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            return self.take(np.arange(*rows.indices(len(self)), dtype=np.int64))
        wanted = np.asarray(rows)
        return self.take(wanted[None])[0] if wanted.ndim == 0 else self.take(wanted)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The given rows, float32 ``[len(rows), d]``.

        Raises:
            IndexError: There is no such row.
        """
        return self._finished(self._gathered(np.asarray(rows), exact=True))

    def _gathered(self, rows: NDArray[np.int64], *, exact: bool) -> NDArray[np.float32]:
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows lie between 0 and {len(self) - 1}")
        if self.rows is not None:
            rows = self.rows[rows]
        out = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owner):
            here = np.flatnonzero(owner == number)
            shard = self.shards[number]
            inside = rows[here] - self.starts[number]
            out[here] = shard.best(inside) if exact else shard.stored(inside)
        return out

    def _finished(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.unit:
            norms = row_norms(vectors)[:, None]
            vectors /= np.where(norms > 0, norms, 1)
        return vectors

    def blocks(self, rows: int) -> Iterator[Block]:
        """All rows in order, as float32 blocks of one reused buffer."""
        buffer = np.empty((min(rows, max(1, len(self))), self.shape[1]), dtype=np.float32)
        if self.rows is not None:
            longest = max((s.record.largest_norm for s in self.shards), default=0.0)
            residual = max((s.record.residual for s in self.shards), default=0.0)
            for first in range(0, len(self), rows):
                wanted = np.arange(first, min(first + rows, len(self)), dtype=np.int64)
                yield self._block(first, self._gathered(wanted, exact=False), (longest, residual))
            return
        for shard in self.shards:
            bounds = (shard.record.largest_norm, shard.record.residual)
            for start in range(0, len(shard), rows):
                stop = min(start + rows, len(shard))
                if shard.storage == "float32" and not self.unit:
                    block = np.asarray(shard.vectors[start:stop])
                else:
                    block = buffer[: stop - start]
                    shard.read(start, stop, block)
                yield self._block(shard.record.first + start, block, bounds)

    def _block(
        self, first: int, vectors: NDArray[np.float32], bounds: tuple[float, float]
    ) -> Block:
        longest, residual = bounds
        if self.unit:
            # of a unit vector x and its rounding y, |y / |y| - x| <= 2 |y - x|
            return Block(first, self._finished(vectors), 1.0 + 1e-6, 2.01 * residual)
        return Block(first, vectors, longest, residual)

"""Vectors as search reads them: checked matrices, and sources that give them block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.search.tensors import cast_half

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "ArraySource",
    "Block",
    "VectorSource",
    "as_source",
    "check_vectors",
    "largest_norm_of",
    "row_norms",
]
_SQUARES_UNDERFLOW = 1e-30  # below it, squares in single precision say little of a norm


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
        """The given rows, float32 ``[len(rows), d]``; their inner products decide the order.

        Several threads may call it at once.
        """
        ...


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
    largest_norm_of(single, 0, name)
    return single


def _as_matrix(vectors: ArrayLike, name: str) -> NDArray:
    matrix = np.asarray(vectors) if not isinstance(vectors, np.ndarray) else vectors
    if matrix.ndim != 2:
        raise ObliqError(f"{name} must be a matrix [rows, dimensions], not of shape {matrix.shape}")
    if matrix.dtype.kind not in "fiu":
        raise ObliqError(f"{name} must hold real numbers, not {matrix.dtype}")
    return matrix


def largest_norm_of(block: NDArray[np.float32], first: int, name: str) -> float:
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
    if largest < _SQUARES_UNDERFLOW:
        return float(row_norms(block).max())
    return float(np.sqrt(largest))


def row_norms(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """The Euclidean norm of every row, summed in double precision."""
    return np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))


class ArraySource:
    """An array or a memory map as a source.

    Args:
        matrix: Numbers ``[n, d]``.
    """

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


def as_source(documents: ArrayLike | VectorSource) -> VectorSource:
    """A source as it is, and anything else as an array.

    Raises:
        ObliqError: It is no matrix of real numbers.
    """
    if hasattr(documents, "blocks") and hasattr(documents, "take"):
        return cast("VectorSource", documents)
    return ArraySource(_as_matrix(documents, "documents"))

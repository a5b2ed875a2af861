"""What a teacher is, and the one place where its output is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Teacher", "embed", "rows_in_words", "unit_vectors"]


@runtime_checkable
class Teacher(Protocol):
    """A frozen encoder of texts."""

    @property
    def name(self) -> str:
        """Name for reports."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest of what determines its vectors."""
        ...

    def encode(
        self, texts: Sequence[str], *, batch_size: int = ..., show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Unit vectors ``[n, d]``, float32, one per text."""
        ...


def embed(
    teacher: Teacher, texts: Sequence[str], *, show_progress: bool = False, **options: Any
) -> NDArray[np.float32]:
    """Encode with any teacher and check what it gives.

    Args:
        teacher: The teacher.
        texts: The texts.
        show_progress: Whether to show a progress bar.
        options: Further options of the teacher's ``encode``.

    Returns:
        Unit vectors ``[n, d]``, float32.

    Raises:
        ObliqError: A text is not a string, or the teacher gives no vector, NaN, infinity or a
            zero vector for a row; the message names the teacher and the rows.
    """
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ObliqError(f"text {row} is {type(text).__name__}, not a string")
    vectors = teacher.encode(texts, show_progress=show_progress, **options)
    return unit_vectors(vectors, teacher.name, count=len(texts))


def unit_vectors(
    vectors: NDArray[Any], teacher: str, *, count: int | None = None, first: int = 0
) -> NDArray[np.float32]:
    """Vectors scaled to length 1, after checking that they can be.

    Args:
        vectors: ``[n, d]``.
        teacher: Name of the teacher that gave them, for the message.
        count: Number of rows there must be.
        first: Number of the first row, for the message.

    Returns:
        Float32 ``[n, d]``; rows that already have length 1 within 1e-6 are left as they are.

    Raises:
        ObliqError: Not a matrix of ``count`` rows, or rows hold NaN or infinity or are zero.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or (count is not None and len(vectors) != count):
        expected = "n" if count is None else count
        raise ObliqError(
            f"teacher {teacher!r} gave an array of shape {vectors.shape}, not [{expected}, d]"
        )
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        raise ObliqError(
            f"teacher {teacher!r} gave NaN or infinity for {rows_in_words(bad + first)}"
        )
    bad = np.flatnonzero(norms == 0)
    if len(bad):
        raise ObliqError(f"teacher {teacher!r} gave a zero vector for {rows_in_words(bad + first)}")
    off = np.abs(norms - 1) > 1e-6
    if off.any():
        vectors = vectors.copy()
        vectors[off] /= norms[off, None].astype(np.float32)
    return vectors


def rows_in_words(rows: Sequence[int] | NDArray[np.int64]) -> str:
    """Say how many rows and which: ``3 rows: 4, 8, 15``; at most ten are listed."""
    listed = ", ".join(str(int(row)) for row in rows[:10])
    more = ", ..." if len(rows) > 10 else ""
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''}: {listed}{more}"

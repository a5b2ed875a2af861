"""From sparse square-root frequencies to unit vectors: scaling and principal directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

__all__ = ["lengths", "principal_directions", "scaling", "unit_rows"]

_DENSE_ROWS = 512  # texts made dense at once
_ROUNDS = 6  # subspace iterations
_SPARE = 16  # directions carried along beyond those kept


def scaling(
    roots: csr_matrix, characters: int, *, power: float, word_weight: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean of every feature and the factor that a centred feature is multiplied by.

    Args:
        roots: Square-root frequencies ``[n, features]``.
        characters: Number of leading features that are character n-grams; the rest are words.
        power: A feature is divided by its standard deviation to this power.
        word_weight: Root mean square of a scaled word feature; that of a character feature is 1.

    Raises:
        ObliqError: No feature varies.
    """
    rows, features = roots.shape
    data = roots.data.astype(np.float64)
    mean = np.bincount(roots.indices, weights=data, minlength=features) / rows
    square = np.bincount(roots.indices, weights=data**2, minlength=features) / rows
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
    varies = deviation > 1e-6
    scale = np.zeros(features)
    scale[varies] = deviation[varies] ** -power
    for block, weight in (
        (slice(0, characters), 1.0),
        (slice(characters, features), word_weight),
    ):
        spread = np.sqrt(np.mean((deviation[block] * scale[block]) ** 2))
        if spread > 0:
            scale[block] *= weight / spread
    if not scale.any():
        raise ObliqError("the texts do not differ in any n-gram: there is no style to tell apart")
    return mean.astype(np.float32), scale.astype(np.float32)


def unit_rows(
    roots: csr_matrix, mean: NDArray[np.float32], scale: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Square-root frequencies centred, scaled and brought to length 1, dense ``[n, features]``."""
    rows = roots.toarray()
    rows -= mean
    rows *= scale
    rows /= lengths(rows)
    return rows


def lengths(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Euclidean lengths ``[n, 1]``, never zero."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.sqrt(np.maximum(squares, 1e-30)).astype(np.float32)[:, None]


def principal_directions(
    roots: csr_matrix, mean: NDArray[np.float32], scale: NDArray[np.float32], components: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Centre of the unit vectors and their leading principal directions, blockwise.

    Subspace iteration on the covariance, from a seeded start; no matrix of features by features
    and no dense matrix of all texts is held.
    """
    count, features = roots.shape

    def blocks() -> Iterator[NDArray[np.float32]]:
        for first in range(0, count, _DENSE_ROWS):
            yield unit_rows(roots[first : first + _DENSE_ROWS], mean, scale)

    centre = (sum(rows.sum(axis=0, dtype=np.float64) for rows in blocks()) / count).astype(
        np.float32
    )
    width = min(components + _SPARE, features, count)
    basis = np.random.default_rng(0).standard_normal((features, width)).astype(np.float32)
    for _ in range(_ROUNDS):
        basis = np.linalg.qr(basis)[0]
        image = np.zeros_like(basis)
        for rows in blocks():
            rows -= centre
            image += rows.T @ (rows @ basis)
        basis = image
    basis = np.linalg.qr(basis)[0]
    small = np.zeros((width, width))
    for rows in blocks():
        rows -= centre
        seen = (rows @ basis).astype(np.float64)
        small += seen.T @ seen
    _, rotation = np.linalg.eigh(small)
    leading = basis @ rotation[:, ::-1][:, :components].astype(np.float32)
    return centre, np.ascontiguousarray(leading.T)

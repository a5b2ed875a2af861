"""Inner products of queries with tiles of documents, and a bound on how far they may be off."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

import numpy as np

from obliq_hf.search.tensors import as_tensor
from obliq_hf.search.vectors import row_norms

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BFloat16Product", "Float32Product", "Product", "bfloat16_is_native"]

_U32 = float(np.finfo(np.float32).eps) / 2  # unit roundoff: half the distance from 1 to the next
_U16 = 2.0**-8  # of bfloat16, which has 8 significant bits
_TINY = float(np.finfo(np.float32).tiny)


class Product(Protocol):
    """Multiplies some queries with one tile of documents after another.

    Attributes:
        largest: Largest product of two norms for which no score overflows.
        norms: Norms of the queries, ``[q]``.
    """

    largest: float
    norms: NDArray[np.float64]

    def multiply(self, tile: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Write the scores of documents ``[n, d]`` for all queries into ``scores [n, q]``."""
        ...

    def margin(
        self, longest: float, residual: float, kth: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """How far below the k-th best score that of one of the true k best may lie, ``[q]``.

        Args:
            longest: Largest norm of any document seen so far.
            residual: Largest norm of the difference between a document as it is multiplied and
                as it is.
            kth: The k-th best score of every query so far.
        """
        ...


def _summing_error(
    dims: int, norms: NDArray[np.float64], longest: float, residual: float
) -> NDArray[np.float64]:
    """Bound on |fl(x . y) - x . y| in any order of summation, for d below 100,000.

    It is d u |x| |y|, and d times the smallest number for products that underflow; a document
    that is another than it should be adds its difference.
    """
    return 1.01 * (dims + 2) * _U32 * norms * longest + dims * _TINY + residual * norms


class Float32Product:
    """Products in single precision, by numpy's BLAS and its threads.

    Args:
        queries: Float32 ``[q, d]``.
    """

    largest = float("inf")

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self.norms = row_norms(queries)
        self.dims = queries.shape[1]
        self.columns = np.ascontiguousarray(queries.T)  # the layout BLAS multiplies fastest

    def multiply(self, tile: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """See :meth:`Product.multiply`."""
        np.matmul(tile, self.columns, out=scores)

    def margin(
        self, longest: float, residual: float, kth: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """See :meth:`Product.margin`: both sides of a comparison may be off."""
        return 2 * _summing_error(self.dims, self.norms, longest, residual)


class BFloat16Product:
    """Products of vectors rounded to bfloat16, which some processors multiply natively.

    There it is twice as fast as single precision with AVX-512, and more with AMX. Where scores
    are spread as those of most embeddings, about twice as many documents are nominated.

    Args:
        queries: Float32 ``[q, d]``.
    """

    largest = 1e38  # rounding up must not make an infinity of a score

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self.norms = row_norms(queries)
        self.dims = queries.shape[1]
        single = as_tensor(queries)
        rounded = single.bfloat16()
        self.columns = rounded.T.contiguous()
        self.rounding_norms = row_norms((single - rounded.float()).numpy())

    def multiply(self, tile: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """See :meth:`Product.multiply`."""
        import torch

        with torch.autocast("cpu", enabled=False):
            as_tensor(scores).copy_(as_tensor(tile).bfloat16() @ self.columns)

    def margin(
        self, longest: float, residual: float, kth: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """See :meth:`Product.margin`.

        Let every sum be within E of the true product. With x', y' for x, y rounded,
        |x'.y' - x.y| <= |x' - x| |y'| + |x| |y' - y|; the sum itself is as far off as in single
        precision, and numbers too small to be normal may count as zero. Let K be the k-th best
        *rounded* sum. k documents have true products of at least K - u|K| - E, hence so has each
        of the true k best; its sum is at least K - u|K| - 2E, and its rounded sum at least
        K - 2u|K| - 2E(1 + u). The factor 1.02 covers 1 + u.
        """
        known = np.where(np.isfinite(kth), np.abs(kth), 0.0)
        rounding = longest * (1.01 * _U16 * self.norms + self.rounding_norms)
        flushed = self.dims * _TINY * (longest + self.norms)
        summing = _summing_error(self.dims, self.norms, longest, residual)
        return 1.02 * 2 * (summing + rounding + flushed + _U16 * known)


def bfloat16_is_native() -> bool:
    """Whether torch is loaded, and multiplies bfloat16 by the processor's own instructions.

    A process that has no torch yet would wait longer for it than for most searches. Versions of
    torch that cannot tell what the processor does count as no.
    """
    torch = sys.modules.get("torch")
    capabilities = getattr(getattr(torch, "cpu", None), "get_capabilities", None)
    mkldnn = getattr(getattr(torch, "backends", None), "mkldnn", None)
    if capabilities is None or mkldnn is None:
        return False
    return bool(capabilities().get("avx512_bf16")) and mkldnn.is_available() and mkldnn.enabled

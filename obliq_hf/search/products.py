"""Inner products of queries with tiles of documents, and a bound on how far they may be off."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.search.vectors import as_tensor, row_norms

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BrainFloatProduct", "SingleProduct", "brain_floats_are_native"]

_SINGLE = float(np.finfo(np.float32).eps) / 2  # relative error of one rounding
_BRAIN = 2.0**-8
_TINY = float(np.finfo(np.float32).tiny)


class SingleProduct:
    """Products in single precision, by numpy's BLAS and its threads.

    Args:
        queries: Float32 ``[q, d]``.
    """

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self.norms = row_norms(queries)
        self.dims = queries.shape[1]
        self.columns = np.ascontiguousarray(queries.T)  # the layout BLAS multiplies fastest

    def multiply(self, tile: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Write the products of documents ``[n, d]`` with all queries into ``scores [n, q]``."""
        np.matmul(tile, self.columns, out=scores)

    def margin(self, longest: float, kth: NDArray[np.float32]) -> NDArray[np.float64]:
        """How far below the k-th best product one of the true k best may lie, ``[q]``.

        Args:
            longest: Largest norm of any document.
            kth: The k-th best product of every query so far.
        """
        # |fl(x . y) - x . y| <= d u |x| |y| in any order of summation, for both sides of a
        # comparison; the last term covers products that underflow.
        return 2.02 * (self.dims + 2) * _SINGLE * self.norms * longest + 2 * self.dims * _TINY


class BrainFloatProduct(SingleProduct):
    """Products of vectors rounded to bfloat16, where the processor multiplies those natively.

    Twice as fast as single precision with AVX-512, more with AMX, and off by as much as the bound
    says: about twice as many documents are nominated for the exact comparison.

    Args:
        queries: Float32 ``[q, d]``.
    """

    def __init__(self, queries: NDArray[np.float32]) -> None:
        self.norms = row_norms(queries)
        self.dims = queries.shape[1]
        single = as_tensor(queries)
        rounded = single.bfloat16()
        self.brain_columns = rounded.T.contiguous()
        self.rounding = row_norms((single - rounded.float()).numpy())

    def multiply(self, tile: NDArray[np.float32], scores: NDArray[np.float32]) -> None:
        """Write the products of documents ``[n, d]`` with all queries into ``scores [n, q]``."""
        as_tensor(scores).copy_(as_tensor(tile).bfloat16() @ self.brain_columns)

    def margin(self, longest: float, kth: NDArray[np.float32]) -> NDArray[np.float64]:
        """As of :class:`SingleProduct`, for vectors and products that were rounded.

        With x', y' for x, y rounded, |x'.y' - x.y| <= |x' - x| |y'| + |x| |y' - y|, and the sum
        in single precision is off by as little as above. A product that rounds to the k-th best
        K or more was at least K - u |K|, and one of the true k best rounds to no less than
        u times its own size below itself: together 2 u |K|. Numbers too small to be normal may
        count as zero.
        """
        known = np.where(np.isfinite(kth), np.abs(kth), 0.0)
        rounded = longest * (1.01 * _BRAIN * self.norms + self.rounding)
        tiny = 2 * self.dims * _TINY * (longest + self.norms)
        summed = super().margin(longest, kth)
        return 1.02 * (summed + 2 * rounded + 2 * _BRAIN * known) + tiny


def brain_floats_are_native() -> bool:
    """Whether torch is loaded and multiplies bfloat16 by instructions for it, with single sums.

    A process that has no torch yet would wait longer for it than for most searches.
    """
    torch = sys.modules.get("torch")
    capabilities = getattr(getattr(torch, "cpu", None), "get_capabilities", None)
    if torch is None or capabilities is None:
        return False
    return bool(capabilities().get("avx512_bf16")) and torch.backends.mkldnn.is_available()

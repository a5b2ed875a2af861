"""The paired bootstrap and the permutation test beside scipy's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.table import Row, by_size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["measure"]

_RESAMPLES = 10_000


def _scores(count: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    return {f"q{i}": float(v) for i, v in enumerate(rng.random(count))}


def _bootstrap_calls(count: int) -> dict[str, Callable[[], object]]:
    from scipy import stats

    from obliq_hf.statistics import paired_bootstrap

    a, b = _scores(count, 0), _scores(count, 1)
    difference = (np.array(list(a.values())) - np.array(list(b.values())),)
    rng = np.random.default_rng(0)
    return {
        "ours": lambda: paired_bootstrap(a, b, resamples=_RESAMPLES),
        "scipy.stats.bootstrap": lambda: stats.bootstrap(
            difference, np.mean, n_resamples=_RESAMPLES, method="percentile", rng=rng
        ),
    }


def _permutation_calls(count: int) -> dict[str, Callable[[], object]]:
    from scipy import stats

    from obliq_hf.statistics import permutation_test

    a, b = _scores(count, 0), _scores(count, 1)
    difference = (np.array(list(a.values())) - np.array(list(b.values())),)
    rng = np.random.default_rng(0)
    return {
        "ours": lambda: permutation_test(a, b, permutations=_RESAMPLES),
        "scipy.stats.permutation_test": lambda: stats.permutation_test(
            difference, np.mean, permutation_type="samples", n_resamples=_RESAMPLES,
            vectorized=True, rng=rng, batch=1000,
        ),
    }  # fmt: skip


def measure(*, scale: float = 1.0) -> list[Row]:
    """Two rows.

    Args:
        scale: Share of the usual sizes, for trials.
    """
    first = max(16, int(256 * scale))
    sizes = [first, 2 * first, 4 * first]
    return [
        by_size(
            "paired bootstrap, 10,000 resamples", sizes, _bootstrap_calls, unit="queries",
            aims={"scipy.stats.bootstrap": 1.0}, rounds=3,
        ),
        by_size(
            "permutation test, 10,000 permutations", sizes, _permutation_calls, unit="queries",
            aims={"scipy.stats.permutation_test": 1.0}, rounds=3,
        ),
    ]  # fmt: skip

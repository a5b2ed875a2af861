"""Intervals and tests over per-query scores: paired bootstrap, sign flips, Holm's correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "FEW_QUERIES",
    "Comparison",
    "bootstrap_ci",
    "compare_metrics",
    "holm",
    "paired_bootstrap",
    "permutation_test",
    "power_note",
]

FEW_QUERIES = 50
_EXACT_UNITS = 14  # up to 2 ** 14 sign patterns are enumerated
_CHUNK_VALUES = 100_000  # resampled indices, or signs, drawn at once: what a cache holds


@dataclass(frozen=True)
class Comparison:
    """The difference between two systems on the same queries.

    Attributes:
        delta: Mean of system a minus mean of system b.
        lo: Lower end of the percentile interval.
        hi: Upper end.
        p: Two-sided bootstrap p-value: twice the smaller share of resampled differences at or
            beyond zero, ``(count + 1) / (resamples + 1)``, at most 1.
        n: Number of queries.
        groups: Number of groups that were resampled, None where queries were.
    """

    delta: float
    lo: float
    hi: float
    p: float
    n: int
    groups: int | None = None


def bootstrap_ci(
    scores: Mapping[str, float],
    *,
    groups: Mapping[str, str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over queries.

    Args:
        scores: Query id -> value.
        groups: Query id -> group (an author, a source). Whole groups are resampled then, for
            queries of one group are not independent.
        resamples: Number of resamples.
        seed: Seed of the resampling.
        level: Coverage, between 0 and 1.

    Returns:
        ``(lo, hi)``. The order of the queries does not matter.

    Raises:
        ObliqError: No queries, a value that is not finite, a query without a group, fewer than
            one resample or a level outside of (0, 1).
    """
    queries = _aligned(scores)
    values = _matrix([scores], queries)
    means, _ = _resampled_means(values, queries, groups, resamples, seed)
    lo, hi = _percentiles(means, level)
    return float(lo[0]), float(hi[0])


def paired_bootstrap(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    groups: Mapping[str, str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Comparison:
    """Percentile bootstrap of the mean difference ``a - b``, resampling queries in pairs.

    Args:
        a: Query id -> value of one system.
        b: The same queries under the other system, in any order.
        groups: As in ``bootstrap_ci``.
        resamples: Number of resamples.
        seed: Seed of the resampling.
        level: Coverage, between 0 and 1.

    Returns:
        The comparison; identical systems give an interval of exactly [0, 0] and p = 1.

    Raises:
        ObliqError: The two do not have the same queries, or as ``bootstrap_ci``.
    """
    return compare_metrics(
        {"score": a}, {"score": b}, groups=groups, resamples=resamples, seed=seed, level=level
    )["score"]


def compare_metrics(
    a: Mapping[str, Mapping[str, float]],
    b: Mapping[str, Mapping[str, float]],
    *,
    groups: Mapping[str, str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Comparison]:
    """``paired_bootstrap`` of several metrics with the same resamples, in one pass.

    Args:
        a: Metric -> query id -> value of one system.
        b: The same metrics and queries under the other system.
        groups: As in ``bootstrap_ci``.
        resamples: Number of resamples.
        seed: Seed of the resampling.
        level: Coverage, between 0 and 1.

    Returns:
        Metric -> comparison, in the order of ``a``.

    Raises:
        ObliqError: Metrics or queries differ, or as ``bootstrap_ci``.
    """
    if not a or set(a) != set(b):
        raise ObliqError(f"both systems need the same metrics: {sorted(a)} and {sorted(b)}")
    metrics = list(a)
    queries = _aligned(*(a[metric] for metric in metrics), *(b[metric] for metric in metrics))
    differences = _matrix([a[m] for m in metrics], queries) - _matrix(
        [b[m] for m in metrics], queries
    )
    means, units = _resampled_means(differences, queries, groups, resamples, seed)
    lo, hi = _percentiles(means, level)
    below = (np.count_nonzero(means <= 0, axis=0) + 1) / (resamples + 1)
    above = (np.count_nonzero(means >= 0, axis=0) + 1) / (resamples + 1)
    p = np.minimum(1.0, 2 * np.minimum(below, above))
    delta = differences.mean(axis=0)
    return {
        metric: Comparison(
            delta=float(delta[i]),
            lo=float(lo[i]),
            hi=float(hi[i]),
            p=float(p[i]),
            n=len(queries),
            groups=None if groups is None else units,
        )
        for i, metric in enumerate(metrics)
    }


def permutation_test(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    groups: Mapping[str, str] | None = None,
    permutations: int = 10_000,
    seed: int = 0,
) -> float:
    """Two-sided paired permutation test: the signs of the differences are exchanged.

    Args:
        a: Query id -> value of one system.
        b: The same queries under the other system.
        groups: Query id -> group; the signs of a whole group are exchanged together.
        permutations: Random sign patterns, ``p = (count + 1) / (permutations + 1)``. With at
            most 14 queries (or groups) that differ, all patterns are enumerated instead and p
            is exact.
        seed: Seed of the random patterns.

    Returns:
        The p-value; 1 for identical systems.

    Raises:
        ObliqError: The two do not have the same queries, or a value is not finite.
    """
    if permutations < 1:
        raise ObliqError(f"permutations must be at least 1, not {permutations}")
    queries = _aligned(a, b)
    differences = (_matrix([a], queries) - _matrix([b], queries))[:, 0]
    sums = np.bincount(_codes(queries, groups), weights=differences)
    sums = sums[sums != 0]
    if len(sums) == 0:
        return 1.0
    observed = abs(float(sums.sum())) * (1 - 1e-12) - 1e-15
    if len(sums) <= _EXACT_UNITS:
        patterns = np.arange(1 << len(sums))[:, None] >> np.arange(len(sums)) & 1
        totals = np.abs((1 - 2 * patterns) @ sums)
        return float(np.count_nonzero(totals >= observed) / len(totals))
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK_VALUES // len(sums))
    count = 0
    for start in range(0, permutations, step):
        size = (min(step, permutations - start), len(sums))
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=size, dtype=np.int8)
        count += int(np.count_nonzero(np.abs(signs @ sums) >= observed))
    return (count + 1) / (permutations + 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction for several tests (Scand. J. Statist. 6, 1979).

    Args:
        ps: P-values, in any order.

    Returns:
        Adjusted p-values in the same order, at most 1, never below the given ones.

    Raises:
        ObliqError: A value is outside of [0, 1].
    """
    values = np.asarray(ps, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ObliqError(f"p-values lie between 0 and 1; given: {list(ps)}")
    order = np.argsort(values, kind="stable")
    steps = values[order] * (len(values) - np.arange(len(values)))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(values) else steps
    return adjusted.tolist()


def power_note(a: Mapping[str, float], b: Mapping[str, float]) -> str | None:
    """A sentence on what a comparison of few queries can show, or None from 50 queries on.

    It names the difference that a two-sided 5 % test finds four times out of five, from the
    spread of the per-query differences.

    Raises:
        ObliqError: The two do not have the same queries.
    """
    queries = _aligned(a, b)
    n = len(queries)
    if n >= FEW_QUERIES:
        return None
    differences = (_matrix([a], queries) - _matrix([b], queries))[:, 0]
    if n < 2:
        return f"only {n} query: nothing can be inferred from it"
    if not differences.any():
        return f"only {n} queries, and the two do not differ on any"
    detectable = 2.8 * float(differences.std(ddof=1)) / float(np.sqrt(n))
    return (
        f"only {n} queries: a true difference below about {detectable:.3f} would mostly be missed"
    )


def _aligned(first: Mapping[str, float], *others: Mapping[str, float]) -> list[str]:
    """The common queries in sorted order; an error where the sets differ."""
    if not first:
        raise ObliqError("there are no queries to compare")
    for other in others:
        if other.keys() != first.keys():
            only_first = sorted(map(str, first.keys() - other.keys()))
            only_other = sorted(map(str, other.keys() - first.keys()))
            raise ObliqError(
                "the two sides have different queries: "
                f"{len(only_first)} only on the first {only_first[:3]}, "
                f"{len(only_other)} only on the second {only_other[:3]}"
            )
    return sorted(first)


def _matrix(columns: Sequence[Mapping[str, float]], queries: Sequence[str]) -> NDArray[np.float64]:
    values = np.array([[column[query] for column in columns] for query in queries], np.float64)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise ObliqError(f"query {queries[int(bad[0][0])]!r} has a score that is not finite")
    return values


def _codes(queries: Sequence[str], groups: Mapping[str, str] | None) -> NDArray[np.int64]:
    """A number from 0 for every query: its own, or that of its group."""
    if groups is None:
        return np.arange(len(queries))
    missing = [query for query in queries if groups.get(query) is None]
    if missing:
        raise ObliqError(f"{len(missing)} queries have no group, for example {missing[:3]}")
    number = {group: i for i, group in enumerate(sorted({groups[query] for query in queries}))}
    return np.array([number[groups[query]] for query in queries], dtype=np.int64)


def _resampled_means(
    values: NDArray[np.float64],
    queries: Sequence[str],
    groups: Mapping[str, str] | None,
    resamples: int,
    seed: int,
) -> tuple[NDArray[np.float64], int]:
    """Means ``[resamples, columns]`` over resampled units, and the number of units."""
    if resamples < 1:
        raise ObliqError(f"resamples must be at least 1, not {resamples}")
    codes = _codes(queries, groups)
    units = int(codes.max()) + 1
    sums = np.zeros((units, values.shape[1]))
    np.add.at(sums, codes, values)
    sizes = np.bincount(codes, minlength=units).astype(np.float64)
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, _CHUNK_VALUES // units)
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        drawn = rng.integers(0, units, size=(count, units), dtype=np.int64)
        drawn += np.arange(count)[:, None] * units
        times = np.bincount(drawn.reshape(-1), minlength=count * units).reshape(count, units)
        weights = times.astype(np.float64)
        means[start : start + count] = (weights @ sums) / (weights @ sizes)[:, None]
    return means, units


def _percentiles(
    means: NDArray[np.float64], level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not 0 < level < 1:
        raise ObliqError(f"level must lie between 0 and 1, not {level}")
    tail = 50 * (1 - level)
    lo, hi = np.percentile(means, [tail, 100 - tail], axis=0)
    return lo, hi

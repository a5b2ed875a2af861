"""Paired differences between systems: intervals, permutation tests, Holm over tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.statistics import (
    bootstrap_ci,
    compare_metrics,
    holm,
    permutation_test,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eval_mteb.results import Scores, SystemResult, TaskResults

__all__ = [
    "METRICS",
    "compare_folders",
    "compare_systems",
    "default_pairs",
    "differences",
    "interval",
]

METRICS = ("ndcg_at_10", "ndcg_at_50", "recall_at_10", "recall_at_50", "recall_at_100")
"""The metrics reported."""

_PAIRS = (
    ("student", "base"),
    ("student", "teacher"),
    ("student", "bm25"),
    ("fusion", "student"),
    ("fusion", "teacher"),
    ("teacher", "base"),
)


def default_pairs(systems: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs worth comparing: those of a training run, else every pair.

    Returns:
        ``(a, b)``, read as a − b.
    """
    found = [(a, b) for a, b in _PAIRS if a in systems and b in systems]
    if found:
        return found
    names = list(systems)
    return [(b, a) for i, a in enumerate(names) for b in names[i + 1 :]]


def interval(
    scores: Scores, *, groups: Mapping[str, str] | None = None, resamples: int, seed: int
) -> list[float]:
    """The 95 % interval of a mean as ``[lo, hi]``."""
    low, high = bootstrap_ci(scores, groups=groups, resamples=resamples, seed=seed)
    return [round(float(low), 6), round(float(high), 6)]


def differences(
    a: SystemResult,
    b: SystemResult,
    metrics: Sequence[str],
    *,
    groups: Mapping[str, str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    permutation: bool = False,
) -> list[dict[str, Any]]:
    """The paired differences a − b with their 95 % intervals and bootstrap p.

    Args:
        a: One system.
        b: Another, measured on the same queries.
        metrics: Those of them that both have are compared, with the same resamples.
        groups: Query id -> group; whole groups are resampled.
        resamples: Bootstrap resamples, and random sign patterns of the permutation test.
        seed: Their seed.
        permutation: Add the p of a paired permutation test.

    Returns:
        One row a metric: ``metric``, ``delta``, ``ci95``, ``p``, ``n``, and ``permutation_p``
        where asked.

    Raises:
        ObliqError: The two were not measured on the same queries.
    """
    known = [m for m in metrics if m in a.per_query and m in b.per_query]
    if not known:
        return []
    left = {m: a.scores(m) for m in known}
    right = {m: b.scores(m) for m in known}
    rows = []
    for metric, found in compare_metrics(
        left, right, groups=groups, resamples=resamples, seed=seed
    ).items():
        row: dict[str, Any] = {
            "metric": metric,
            "delta": _rounded(found.delta),
            "ci95": [_rounded(found.lo), _rounded(found.hi)],
            "p": round(found.p, 6),
            "n": found.n,
        }
        if found.groups is not None:
            row["groups"] = found.groups
        if permutation:
            p = permutation_test(left[metric], right[metric], permutations=resamples, seed=seed)
            row["permutation_p"] = round(p, 6)
        rows.append(row)
    return rows


def _rounded(value: float) -> float:
    return round(float(value), 6) + 0.0


def compare_systems(
    results: Mapping[str, TaskResults],
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    metrics: Sequence[str] = METRICS,
    resamples: int = 10_000,
    seed: int = 0,
    permutation: bool = True,
) -> list[dict[str, Any]]:
    """Compare systems of one evaluation on every task.

    Args:
        results: From :func:`eval_mteb.results.read_results`.
        pairs: ``(a, b)`` for a − b; by default :func:`default_pairs`.
        metrics: The metrics.
        resamples: Bootstrap resamples.
        seed: Their seed.
        permutation: Add permutation tests, with Holm's correction over the tasks.

    Returns:
        Rows with ``task, a, b, metric, by, delta, ci95, p, n``; ``by`` is ``query``, or a column
        such as ``author`` whose groups were resampled as wholes.
    """
    rows: list[dict[str, Any]] = []
    for key, task in results.items():
        for a, b in pairs if pairs is not None else default_pairs(list(task.systems)):
            if a not in task.systems or b not in task.systems:
                continue
            rows += _rows(
                key, task, task.systems[a], task.systems[b], metrics, resamples, seed, permutation
            )
    if permutation:
        _correct(rows)
    return rows


def compare_folders(
    first: Mapping[str, TaskResults],
    second: Mapping[str, TaskResults],
    *,
    systems: tuple[str, str] | None = None,
    metrics: Sequence[str] = METRICS,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Compare two evaluations, first − second, system by system under the same name.

    Args:
        first: One evaluation.
        second: Another of the same tasks.
        systems: One system of each, where the names differ.
        metrics: The metrics.
        resamples: Bootstrap resamples.
        seed: Their seed.

    Returns:
        Rows as :func:`compare_systems` gives them.

    Raises:
        ObliqError: No task, or no system, in common; or a task that was not the same data.
    """
    common = [key for key in first if key in second]
    if not common:
        raise ObliqError(
            f"the two evaluations have no task in common: {', '.join(first)} and "
            f"{', '.join(second)}"
        )
    rows: list[dict[str, Any]] = []
    for key in common:
        one, two = first[key], second[key]
        revisions = one.info.get("revision"), two.info.get("revision")
        if revisions[0] != revisions[1]:
            raise ObliqError(
                f"task {key!r} was not the same data in both evaluations (revisions "
                f"{str(revisions[0])[:12]} and {str(revisions[1])[:12]})"
            )
        if systems is not None:
            pairs = [systems]
        else:
            pairs = [(name, name) for name in one.systems if name in two.systems]
        for a, b in pairs:
            if a not in one.systems or b not in two.systems:
                continue
            if one.systems[a].ceiling or two.systems[b].ceiling:
                if systems is not None:
                    raise ObliqError(
                        f"{a} − {b}: a ceiling that was made with the judgments is no result and "
                        "is not compared"
                    )
                continue
            left, right = one.systems[a], two.systems[b]
            rows += _rows(key, one, left, right, metrics, resamples, seed, True)
    if not rows:
        raise ObliqError("the two evaluations have no system in common; name one of each")
    _correct(rows)
    return rows


def _rows(
    key: str,
    task: TaskResults,
    a: SystemResult,
    b: SystemResult,
    metrics: Sequence[str],
    resamples: int,
    seed: int,
    permutation: bool,
) -> list[dict[str, Any]]:
    head = {"task": key, "a": a.name, "b": b.name}
    settings: dict[str, Any] = {"resamples": resamples, "seed": seed}
    rows = [
        {**head, "by": "query", **row}
        for row in differences(a, b, metrics, permutation=permutation, **settings)
    ]
    for column, groups in task.groups.items():
        rows += [
            {**head, "by": column, **row}
            for row in differences(a, b, metrics, groups=groups, **settings)
        ]
    return rows


def _correct(rows: list[dict[str, Any]]) -> None:
    """Add Holm's correction of the permutation p over the tasks of one pair and metric."""
    families: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["by"] == "query" and "permutation_p" in row:
            families.setdefault((row["a"], row["b"], row["metric"]), []).append(row)
    for family in families.values():
        for row, p in zip(family, holm([r["permutation_p"] for r in family]), strict=True):
            row["holm_p"] = round(float(p), 6)

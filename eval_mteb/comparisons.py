"""Paired differences between systems: intervals, permutation tests, Holm over tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.statistics import (
    bootstrap_ci,
    compare_metrics,
    holm,
    permutation_test,
    power_note,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eval_mteb.results import Scores, SystemResult, TaskResults

__all__ = [
    "METRICS",
    "FolderComparison",
    "compare_folders",
    "compare_systems",
    "default_pairs",
    "differences",
    "interval",
    "reported_metrics",
]

METRICS = ("ndcg_at_10", "ndcg_at_50", "recall_at_10", "recall_at_50", "recall_at_100")
"""The metrics reported where they were computed."""


def _computed(results: Iterable[TaskResults]) -> dict[str, None]:
    return dict.fromkeys(
        metric
        for task in results
        for system in task.systems.values()
        for metric in system.per_query
    )


def reported_metrics(
    results: Iterable[TaskResults], asked: Sequence[str] | None = None
) -> list[str]:
    """The metrics to report: those asked for, else those of :data:`METRICS` that were computed.

    Args:
        results: The tasks.
        asked: Metrics by name; None for the usual ones. Rankings so short that none of them was
            computed are reported by nDCG and recall at their largest cutoff.

    Returns:
        Names of metrics, each computed for some system.

    Raises:
        ObliqError: A metric that was asked for was computed for no system.
    """
    computed = _computed(results)
    if asked is not None:
        for metric in asked:
            if metric not in computed:
                raise ObliqError(f"metric {metric!r} was not computed{nearest(metric, computed)}")
        return list(asked)
    usual = [metric for metric in METRICS if metric in computed]
    if usual:
        return usual
    found = []
    for name in ("ndcg", "recall"):
        cutoffs = [int(m.rsplit("_", 1)[1]) for m in computed if m.startswith(f"{name}_at_")]
        found += [f"{name}_at_{max(cutoffs)}"] if cutoffs else []
    return found


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
        One row a metric: ``metric``, ``delta``, ``ci95``, ``p``, ``n``; ``permutation_p`` where
        asked; and ``power``, a note, where there are too few queries to tell much.

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
        elif (note := power_note(left[metric], right[metric])) is not None:
            row["power"] = note
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


@dataclass(frozen=True)
class FolderComparison:
    """Two evaluations compared.

    Attributes:
        rows: As :func:`compare_systems` gives them.
        notes: What was not compared, and what else to know before reading the rows: a sentence
            each.
    """

    rows: list[dict[str, Any]]
    notes: list[str]


def compare_folders(
    first: Mapping[str, TaskResults],
    second: Mapping[str, TaskResults],
    *,
    systems: tuple[str, str] | None = None,
    metrics: Sequence[str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> FolderComparison:
    """Compare two evaluations, first − second.

    Systems of the same name are compared with each other, and the one left over on either side,
    where there is just one, with its counterpart: two checkpoints have two names.

    Args:
        first: One evaluation.
        second: Another of the same tasks.
        systems: One system of each, where the names differ.
        metrics: The metrics; by default :func:`reported_metrics`.
        resamples: Bootstrap resamples.
        seed: Their seed.

    Returns:
        Rows, and notes on tasks and systems that have no counterpart, on ceilings, which are no
        results, on queries left out, and on tasks with few queries.

    Raises:
        ObliqError: No task, or no system, in common; a metric that was not computed; or a task
            that was not the same data.
    """
    common = [key for key in first if key in second]
    if not common:
        raise ObliqError(
            f"the two evaluations have no task in common: {', '.join(first)} and "
            f"{', '.join(second)}"
        )
    notes = [
        f"only in the {which} evaluation: task {key}"
        for which, one, other in (("first", first, second), ("second", second, first))
        for key in one
        if key not in other
    ]
    here, there = (reported_metrics([e[k] for k in common], metrics) for e in (first, second))
    shown = [metric for metric in here if metric in there]
    if not shown:
        raise ObliqError(
            "the two evaluations have no metric in common: "
            f"{', '.join(here)} and {', '.join(there)}"
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
        if systems is None:
            notes += _ceiling_notes(one, two)
        for a, b in _pairs(one, two, systems, notes):
            left, right = one.systems[a], two.systems[b]
            found = _rows(key, one, left, right, shown, resamples, seed, True)
            notes += [f"{key}, {a} − {b}: {row['power']}" for row in found[:1] if "power" in row]
            rows += found
        left_out = one.info.get("left_out") or {}
        notes += [f"{key}, left out: {count} {reason}" for reason, count in left_out.items()]
    if not rows:
        raise ObliqError(_nothing_compared(first, second, common))
    _correct(rows)
    return FolderComparison(rows, list(dict.fromkeys(notes)))


def _ceiling_notes(*sides: TaskResults) -> list[str]:
    found = dict.fromkeys(
        (side.key, name) for side in sides for name, s in side.systems.items() if s.ceiling
    )
    return [f"{key}, {name}: a ceiling, not compared" for key, name in found]


def _comparable(task: TaskResults) -> list[str]:
    return [name for name, system in task.systems.items() if not system.ceiling]


def _nothing_compared(
    first: Mapping[str, TaskResults], second: Mapping[str, TaskResults], tasks: Sequence[str]
) -> str:
    """Why no two systems were compared, and which could be."""
    names = []
    for which, results in (("first", first), ("second", second)):
        found = dict.fromkeys(name for key in tasks for name in _comparable(results[key]))
        if not found:
            why = _ceiling_notes(*(results[key] for key in tasks))
            return "; ".join([f"the {which} evaluation has no system to compare", *why])
        names.append(", ".join(found))
    return (
        "the two evaluations have no system in common; name one of each with --systems A,B: "
        f"{names[0]} and {names[1]}"
    )


def _pairs(
    one: TaskResults, two: TaskResults, systems: tuple[str, str] | None, notes: list[str]
) -> list[tuple[str, str]]:
    """The systems of one task to compare; what has no counterpart is noted."""
    if systems is not None:
        for side, name in zip((one, two), systems, strict=True):
            if name not in side.systems:
                notes.append(f"{one.key}, not compared: {side.folder.parent} has no {name}")
                return []
            if side.systems[name].ceiling:
                raise ObliqError(
                    f"{systems[0]} − {systems[1]}: a ceiling that was made with the judgments is "
                    "no result and is not compared"
                )
        return [systems]
    left, right = _comparable(one), _comparable(two)
    pairs = [(name, name) for name in left if name in right]
    only = [n for n in left if n not in right], [n for n in right if n not in left]
    if len(only[0]) == len(only[1]) == 1:
        return [*pairs, (only[0][0], only[1][0])]
    for which, names in zip(("first", "second"), only, strict=True):
        if names:
            notes.append(
                f"{one.key}, only in the {which} evaluation: {', '.join(names)} (--systems A,B "
                "compares systems of different names)"
            )
    return pairs


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

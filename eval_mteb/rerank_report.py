"""The report of a sweep over rerankers: tables, malformed answers, and nDCG against cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval_mteb.figures import save
from obliq_hf.files import write_json, write_text
from obliq_hf.reranking import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from eval_mteb.rerank_selection import TaskSweep
    from obliq_hf.reranking import Policy

__all__ = ["draw_depths", "draw_pareto", "draw_rounds", "pareto", "write_rerank_report"]

_COLOURS = {
    "identity": "#8c8c8c",
    "tourrank": "#0072b2",
    "listwise": "#e69f00",
    "cross-encoder": "#009e73",
}


def pareto(rows: Sequence[dict[str, Any]], *, cost: str, value: str) -> list[str]:
    """Labels that no other row beats: none costs less or as much and reaches more.

    Args:
        rows: Rows with ``label`` and the two columns; one without a cost is left out.
        cost: The column that should be low.
        value: The column that should be high.

    Returns:
        Labels, by rising cost.
    """
    best = float("-inf")
    front = []
    known = [row for row in rows if row.get(cost) is not None]
    for row in sorted(known, key=lambda r: (r[cost], -r[value])):
        if row[value] > best:
            best = row[value]
            front.append(row["label"])
    return front


def _number(value: Any, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def _section(sweep: TaskSweep) -> list[str]:
    chosen = sweep.evidence["chosen"]
    lines = [
        f"## {sweep.task}",
        "",
        f"{sweep.evidence['queries']} queries. Chosen: **{chosen}**. First stage: "
        + ", ".join(f"recall@{k} {v:.3f}" for k, v in sweep.recall.items() if k in (10, 100, 1000))
        + ".",
        "",
    ]
    rows = []
    for trial in sweep.evidence["trials"]:
        label = trial["label"]
        found, change = sweep.metrics[label], sweep.gains[label]
        low, high = trial["ci95"]
        rows.append(
            [
                f"**{label}**" if label == chosen else label,
                _number(found["ndcg_at_10"]),
                f"{trial['delta']:+.3f} [{low:+.3f}, {high:+.3f}]",
                _number(found["ndcg_at_50"]),
                _number(found["recall_at_100"]),
                f"{change['helped']} / {change['hurt']} / "
                f"{change['unchanged'] + change['zero_under_both']}",
                _number(trial["requests_per_query"], 1),
                str(trial.get("rounds") or ""),
                _number(trial.get("tokens_per_query"), 0),
                _number(trial.get("seconds_per_query"), 1),
                str(trial.get("failed_queries", 0)),
            ]
        )
    lines += _table(
        [
            "reranker",
            "nDCG@10",
            "gain [95 %]",
            "nDCG@50",
            "R@100",
            "helped / hurt / same",
            "calls a query",
            "rounds",
            "tokens a query",
            "seconds a query",
            "failed",
        ],
        rows,
    )
    front = pareto(_points(sweep), cost="requests_per_query", value="ndcg_at_10")
    lines += [
        "",
        "Rounds wait for one another; seconds are summed over calls, which run side by side.",
    ]
    lines += ["", f"Not beaten at their price in calls: {', '.join(front)}."]
    lines += _steps(sweep)
    return [*lines, "", *_malformed(sweep), ""]


def _steps(sweep: TaskSweep) -> list[str]:
    """What each step of the deep pools took, as a table."""
    rows = []
    for label, result in sweep.reranked.items():
        queries = max(1, len(result.orders))
        for name, tally in _parts(result).items():
            # answers from a cache took no time; the others stand for them
            paid = tally.requests - tally.cached
            share = tally.requests / paid if paid else 1.0
            known = paid or not tally.requests
            rows.append(
                [
                    label,
                    name,
                    str(tally.requests),
                    str(tally.prompt_tokens + tally.completion_tokens),
                    _seconds(tally.seconds * share / queries) if known else "",
                ]
            )
    if not rows:
        return []
    lines = ["", "Steps of deep pools:", ""]
    lines += _table(["reranker", "step", "calls", "tokens", "seconds a query"], rows)
    if sweep.second_seconds is not None:
        lines += ["", f"The run that is fused with took {sweep.second_seconds:.2f} s to search."]
    return lines


def _seconds(value: float) -> str:
    """Seconds to three significant digits, as small as they may be."""
    return f"{value:.3g}" if value >= 1e-6 else f"{value:.0e}"


def _parts(result: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for ranking in result.rankings.values():
        for name, tally in ranking.parts.items():
            if name in parts:
                parts[name].add(tally)
            else:
                parts[name] = type(tally)()
                parts[name].add(tally)
    return parts


def _malformed(sweep: TaskSweep) -> list[str]:
    """Answers by class of fault, as a table; only classes that occur."""
    tallies = {
        label: result.tally for label, result in sweep.reranked.items() if result.tally.requests
    }
    errors = sorted({kind for tally in tallies.values() for kind in tally.errors})
    classes = [c for c in FAULTS if any(tally.faults[c] for tally in tallies.values())]
    if not tallies:
        return ["No language model was asked."]
    if not classes and not errors:
        return ["Every answer was well formed."]
    head = [
        "reranker",
        "answers",
        *classes,
        *(f"failed: {kind}" for kind in errors),
        "places filled",
    ]
    rows = [
        [
            label,
            str(tally.requests),
            *(str(tally.faults[c]) for c in classes),
            *(str(tally.errors[kind]) for kind in errors),
            str(tally.filled),
        ]
        for label, tally in tallies.items()
    ]
    note = (
        "Malformed answers by class. One answer can be in several; places that it left open "
        "went to the first stage's order."
    )
    return [note, "", *_table(head, rows)]


def _points(sweep: TaskSweep) -> list[dict[str, Any]]:
    return [
        {**trial, "ndcg_at_10": sweep.metrics[trial["label"]]["ndcg_at_10"]}
        for trial in sweep.evidence["trials"]
    ]


def write_rerank_report(folder: Path, policy: Policy, sweeps: Sequence[TaskSweep]) -> Path:
    """Write tables and figures.

    Args:
        folder: Where to; ``report.md``, ``report.json`` and ``figures/`` are written.
        policy: What was chosen.
        sweeps: What was tried.

    Returns:
        The Markdown file.
    """
    drawn: list[str] = []
    figures: list[tuple[str, Callable[[Sequence[TaskSweep]], Figure | None]]] = [
        ("rounds", draw_rounds),
        ("depths", draw_depths),
        ("cost", draw_pareto),
    ]
    for name, draw in figures:
        figure = draw(sweeps)
        if figure is not None:
            save(figure, folder / "figures" / f"{name}.png")
            drawn.append(name)
    rule = policy.provenance.get("rule")
    rules = {
        "interval": "identity stands unless the 95 % interval of a gain lies above zero",
        "mean": "the best mean nDCG@10 is taken",
    }
    model = policy.provenance.get("llm")
    lines = [
        "# Choice of rerankers",
        "",
        f"Tried on split `{policy.provenance.get('split')}`; rule: {rules.get(str(rule), rule)}."
        + (f" Language model: `{model['model']}`." if isinstance(model, dict) else ""),
        "",
    ]
    for sweep in sweeps:
        lines += _section(sweep)
    captions = {
        "rounds": "nDCG@10 against the number of tournaments, all from the calls of the largest.",
        "depths": "nDCG@10 against the depth of listwise reranking.",
        "cost": "nDCG@10 against calls a query; the line joins what nothing cheaper beats.",
    }
    for name in drawn:
        lines += [captions[name], "", f"![{captions[name]}](figures/{name}.png)", ""]
    write_json(
        folder / "report.json",
        {
            "policy": policy.to_dict(),
            "tasks": {
                sweep.task: {
                    "metrics": sweep.metrics,
                    "gains": sweep.gains,
                    "recall": {str(k): v for k, v in sweep.recall.items()},
                    "costs": {label: r.costs() for label, r in sweep.reranked.items()},
                    "second_run_seconds": sweep.second_seconds,
                }
                for sweep in sweeps
            },
        },
    )
    write_text(folder / "report.md", "\n".join(lines).rstrip() + "\n")
    return folder / "report.md"


def _series(sweep: TaskSweep, kind: str, number: str) -> dict[str, list[tuple[int, float]]]:
    """Prompt and form -> points (number, nDCG@10) of one kind of reranker."""
    series: dict[str, list[tuple[int, float]]] = {}
    for trial in sweep.trials:
        settings = trial.settings
        if settings.reranker != kind or settings.preselect is not None:
            continue
        name = " ".join(filter(None, (settings.prompt, settings.fuse or "")))
        point = (getattr(settings, number), trial.mean)
        series.setdefault(name, []).append(point)
    return {name: sorted(points) for name, points in series.items() if len(points) > 1}


def _panels(count: int) -> tuple[Figure, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(4.6 * count, 22), 3.6), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axis.tick_params(labelsize=9)
    return figure, axes


def _draw_series(sweeps: Sequence[TaskSweep], kind: str, number: str, label: str) -> Figure | None:
    shown = [(sweep, _series(sweep, kind, number)) for sweep in sweeps]
    shown = [(sweep, series) for sweep, series in shown if series]
    if not shown:
        return None
    figure, axes = _panels(len(shown))
    for axis, (sweep, series) in zip(axes, shown, strict=True):
        for i, (name, points) in enumerate(series.items()):
            axis.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=_COLOURS[kind],
                linestyle=("-", "--", ":", "-.")[i % 4],
                marker="osD^"[i % 4],
                markersize=4,
                label=f"{kind} ({name} prompt)",
            )
        axis.axhline(
            sweep.evidence["identity"], color=_COLOURS["identity"], linewidth=1.2, label="identity"
        )
        axis.set_xticks(sorted({x for points in series.values() for x, _ in points}))
        axis.set_xlabel(label)
        axis.set_ylabel("nDCG@10")
        axis.set_title(sweep.task, fontsize=10)
        axis.legend(frameon=False, fontsize=8)
    return figure


def draw_rounds(sweeps: Sequence[TaskSweep]) -> Figure | None:
    """NDCG@10 against the number of tournaments, a panel a task; None without a sweep of them."""
    return _draw_series(sweeps, "tourrank", "rounds", "tournaments Y")


def draw_depths(sweeps: Sequence[TaskSweep]) -> Figure | None:
    """NDCG@10 against the depth of listwise reranking; None without a sweep of it."""
    return _draw_series(sweeps, "listwise", "listwise_depth", "depth K")


def draw_pareto(sweeps: Sequence[TaskSweep]) -> Figure | None:
    """NDCG@10 against calls a query, a panel a task, with the line of what nothing beats."""
    figure, axes = _panels(len(sweeps))
    for axis, sweep in zip(axes, sweeps, strict=True):
        points = {row["label"]: row for row in _points(sweep)}
        for trial in sweep.trials:
            row = points[trial.settings.label]
            axis.scatter(
                row["requests_per_query"],
                row["ndcg_at_10"],
                color=_COLOURS[trial.settings.reranker],
                s=22,
                zorder=3,
            )
        front = pareto(list(points.values()), cost="requests_per_query", value="ndcg_at_10")
        axis.plot(
            [points[label]["requests_per_query"] for label in front],
            [points[label]["ndcg_at_10"] for label in front],
            color="#333333",
            linewidth=1,
            zorder=2,
        )
        for label in front:
            axis.annotate(
                label,
                (points[label]["requests_per_query"], points[label]["ndcg_at_10"]),
                xytext=(4, -10),
                textcoords="offset points",
                fontsize=7.5,
            )
        axis.margins(y=0.12)
        axis.set_xlabel("calls a query")
        axis.set_ylabel("nDCG@10")
        axis.set_title(sweep.task, fontsize=10)
    return figure

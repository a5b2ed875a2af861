"""The report's figures, drawn from stored scores with matplotlib's file backend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from obliq_hf.files import atomic_path

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from eval_mteb.results import TaskResults

__all__ = [
    "LABELS",
    "as_svg",
    "draw_depth",
    "draw_gains",
    "draw_scatter",
    "draw_scores",
    "metric_label",
    "save",
    "system_colour",
]

LABELS = {
    "bm25": "BM25",
    "teacher": "teacher",
    "base": "base",
    "student": "student",
    "fusion": "fusion",
}

_COLOURS = {
    "bm25": "#8c8c8c",
    "teacher": "#e69f00",
    "base": "#56b4e9",
    "base-plain": "#9ecae9",
    "base-prompt": "#c6dcef",
    "student": "#0072b2",
    "fusion": "#009e73",
}
_MORE = ("#cc79a7", "#d55e00", "#b8a500", "#5b3a8c", "#3f6f5f", "#804040")
_MARKERS = "osD^vP*Xh<>"


def system_colour(name: str, position: int = 0) -> str:
    """The colour of a system, the same in every figure."""
    return _COLOURS.get(name, _MORE[position % len(_MORE)])


def metric_label(metric: str) -> str:
    """``ndcg_at_10`` as people write it: nDCG@10."""
    name, _, k = metric.rpartition("_at_")
    words = {"ndcg": "nDCG", "recall": "Recall", "map": "MAP", "precision": "P", "mrr": "MRR"}
    return f"{words.get(name, name)}@{k}" if name else metric


_COLUMNS = 3


def _figure(width: float, height: float, panels: int) -> tuple[Figure, list[Any]]:
    """A figure with a panel a task, at most three in a row; sizes are of one panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = max(panels, 1)
    columns = min(panels, _COLUMNS)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, list(axes[:panels])


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG without a date in it."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return path


def as_svg(figure: Figure) -> str:
    """A figure as an SVG element with real text, the same for the same figure."""
    from io import StringIO

    import matplotlib as mpl

    stream = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "obliq"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def draw_scores(report: dict[str, Any], systems: list[str], metric: str) -> Figure:
    """Bars with 95 % intervals, one panel a task.

    Args:
        report: What :func:`eval_mteb.report.gather` gives.
        systems: The systems to show, in order.
        metric: The metric.

    Returns:
        The figure.
    """
    tasks = list(report["systems"])
    figure, axes = _figure(max(4.2, 1.0 + 0.62 * len(systems)), 3.6, len(tasks))
    for axis, task in zip(axes, tasks, strict=True):
        shown = [s for s in systems if s in report["systems"][task]]
        shown = [s for s in shown if metric in report["systems"][task][s]]
        means = [report["systems"][task][s][metric] for s in shown]
        spans = [report["intervals"][task][s][metric] for s in shown]
        below = [max(0.0, m - lo) for m, (lo, _) in zip(means, spans, strict=True)]
        above = [max(0.0, hi - m) for m, (_, hi) in zip(means, spans, strict=True)]
        axis.bar(
            range(len(shown)),
            means,
            yerr=[below, above],
            capsize=3,
            color=[system_colour(s, i) for i, s in enumerate(shown)],
            error_kw={"elinewidth": 1.1, "ecolor": "#333333"},
        )
        top = max((hi for _, hi in spans), default=1.0) or 1.0
        for x, (mean, (_, hi)) in enumerate(zip(means, spans, strict=True)):
            axis.annotate(
                f"{mean:.3f}",
                (x, hi + 0.015 * top),
                ha="center",
                va="bottom",
                fontsize=8.5,
            )
        axis.set_ylim(0, 1.14 * top)
        names = [LABELS.get(s, s) for s in shown]
        slanted = sum(map(len, names)) > 34 or max(map(len, names), default=0) > 11
        axis.set_xticks(
            range(len(shown)),
            names,
            rotation=30 if slanted else 0,
            ha="right" if slanted else "center",
        )
        info = report["tasks"][task]
        axis.set_title(
            f"{task}: {info['queries']} queries, {info['documents']:,} documents", fontsize=10
        )
        axis.set_ylabel(metric_label(metric))
    return figure


def draw_depth(
    results: dict[str, TaskResults], systems: list[str], *, measure: str = "ndcg"
) -> Figure:
    """A metric against its cutoff, one line a system, one panel a task.

    Args:
        results: The evaluation folder's content.
        systems: The systems to show.
        measure: ``ndcg`` or ``recall``.

    Returns:
        The figure.
    """
    figure, axes = _figure(4.6, 3.6, len(results))
    pattern = re.compile(rf"{measure}_at_(\d+)$")
    for axis, (key, task) in zip(axes, results.items(), strict=True):
        for i, name in enumerate(s for s in systems if s in task.systems):
            system = task.systems[name]
            found = [m for m in map(pattern.match, system.per_query) if m is not None]
            cutoffs = sorted(int(m.group(1)) for m in found)
            axis.plot(
                cutoffs,
                [system.mean(f"{measure}_at_{k}") for k in cutoffs],
                color=system_colour(name, i),
                marker=_MARKERS[i % len(_MARKERS)],
                markersize=4,
                linewidth=1.6,
                label=LABELS.get(name, name),
            )
            axis.set_xscale("log")
            axis.set_xticks(cutoffs, [f"{k:,}" for k in cutoffs], fontsize=8)
            axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e5e5e5", linewidth=0.8)
        axis.set_title(key, fontsize=10)
        axis.set_xlabel("cutoff k")
        axis.set_ylabel(f"{metric_label(measure + '_at_k')}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure


def draw_gains(report: dict[str, Any], pairs: list[tuple[str, str]]) -> Figure:
    """Queries helped and hurt by a against b: bars to the right and to the left, per task."""
    tasks = list(report["analysis"])
    figure, axes = _figure(4.8, 0.5 * len(pairs) + 1.3, len(tasks))
    beside: list[str] = []
    for position, (axis, task) in enumerate(zip(axes, tasks, strict=False)):
        found = report["analysis"][task]["gains"]
        names = [f"{a} − {b}" for a, b in pairs if f"{a} − {b}" in found]
        rows = range(len(names))
        for sign, key, colour in ((1, "helped", "#0072b2"), (-1, "hurt", "#d55e00")):
            counts = [found[name][key] for name in names]
            bars = axis.barh(rows, [sign * c for c in counts], color=colour, label=key)
            axis.bar_label(bars, [str(c) if c else "" for c in counts], padding=3, fontsize=8)
        axis.axvline(0, color="#333333", linewidth=0.8)
        shown = [""] * len(names) if position % _COLUMNS and names == beside else names
        beside = names
        axis.set_yticks(rows, shown, fontsize=8.5)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.invert_yaxis()
        axis.margins(x=0.2)
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        axis.set_title(f"{task}: hurt and helped, nDCG@10", fontsize=10)
    return figure


def draw_scatter(
    results: dict[str, TaskResults], pair: tuple[str, str], metric: str = "ndcg_at_10"
) -> Figure:
    """The score of every query under b and under a; points above the diagonal gained."""
    shown = {
        key: task
        for key, task in results.items()
        if all(name in task.systems and metric in task.systems[name].per_query for name in pair)
    }
    figure, axes = _figure(3.9, 4.1, len(shown))
    a, b = pair
    for axis, (key, task) in zip(axes, shown.items(), strict=False):
        left, right = (task.systems[n].scores(metric) for n in (b, a))
        axis.plot([0, 1], [0, 1], color="#999999", linewidth=0.9, zorder=1)
        axis.scatter(
            [left[q] for q in left],
            [right[q] for q in left],
            s=16,
            alpha=0.45,
            color=system_colour(a),
            edgecolors="none",
            zorder=2,
        )
        axis.set_xlim(-0.03, 1.03)
        axis.set_ylim(-0.03, 1.03)
        axis.set_aspect("equal")
        axis.set_xlabel(f"{LABELS.get(b, b)}, {metric_label(metric)}")
        axis.set_ylabel(f"{LABELS.get(a, a)}, {metric_label(metric)}")
        axis.set_title(key, fontsize=10)
    return figure

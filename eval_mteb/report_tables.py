"""Numbers and tables of reports, and the table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval_mteb.figures import LABELS, metric_label

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "comparison_table",
    "differences_of",
    "label",
    "number",
    "score_rows",
    "signed",
    "signed_span",
    "span",
    "table",
    "terminal_table",
]


def number(value: float) -> str:
    """A score with three decimals, without the leading zero."""
    text = f"{value:.3f}"
    return text.removeprefix("0") if value >= 0 else "−" + text.removeprefix("-0")


def signed(value: float) -> str:
    """A difference with its sign."""
    shown = round(value, 3) + 0.0
    return ("+" if shown >= 0 else "−") + f"{abs(shown):.3f}".removeprefix("0")


def span(interval: Sequence[float]) -> str:
    """An interval in brackets."""
    return f"[{number(interval[0])}, {number(interval[1])}]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table; the first ``left`` columns are aligned left, the others right."""
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def label(name: str) -> str:
    """A system's name as tables show it."""
    return LABELS.get(name, name)


def score_rows(report: dict[str, Any], task: str, metrics: Sequence[str]) -> list[list[str]]:
    """A task's systems with their scores; the first metric with its interval."""
    rows = []
    for name in report["main_systems"]:
        if name not in report["systems"][task]:
            continue
        means = report["systems"][task][name]
        spans = report["intervals"][task][name]
        cells = [label(name)]
        chosen = report["base"].get(task)
        if name == "base" and chosen:
            kind = "with prompt" if chosen["chosen"] == "base-prompt" else "without prompt"
            cells[0] = f"base ({kind})"
        for metric in metrics:
            if metric not in means:
                cells.append("–")
            elif metric == metrics[0]:
                cells.append(f"{number(means[metric])} {span(spans[metric])}")
            else:
                cells.append(number(means[metric]))
        rows.append(cells)
    return rows


def differences_of(
    report: dict[str, Any], task: str, *, metric: str | None = None
) -> list[dict[str, Any]]:
    """A task's comparisons, of all metrics or one."""
    return [
        row
        for row in report["comparisons"]
        if row["task"] == task and (metric is None or row["metric"] == metric)
    ]


def signed_span(interval: Sequence[float]) -> str:
    """The interval of a difference in brackets."""
    return f"[{signed(interval[0])}, {signed(interval[1])}]"


def terminal_table(report: dict[str, Any]) -> str:
    """The scores and the difference student − base as plain text, aligned."""
    blocks = []
    for task in report["systems"]:
        metrics = report["metrics"]
        header = [task, *[metric_label(m) for m in metrics]]
        rows = score_rows(report, task, metrics)
        widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [header, ["─" * w for w in widths], *rows]
        ]
        for row in differences_of(report, task, metric=metrics[0]):
            if (row["a"], row["b"]) in {("student", "base"), ("student", "teacher")}:
                by = "" if row["by"] == "query" else f", by {row['by']}"
                lines.append(
                    f"{label(row['a'])} − {label(row['b'])}: {signed(row['delta'])} "
                    f"{metric_label(row['metric'])}, 95 % interval "
                    f"{signed_span(row['ci95'])}{by}"
                )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def comparison_table(rows: Sequence[dict[str, Any]]) -> str:
    """Paired differences as plain text, aligned."""
    header = ["task", "a", "b", "metric", "by", "n"]
    header += ["a − b", "95 % interval", "p", "perm. p", "Holm p"]
    cells = [
        [
            row["task"],
            row["a"],
            row["b"],
            metric_label(row["metric"]),
            row["by"],
            str(row["n"]),
            signed(row["delta"]),
            signed_span(row["ci95"]) if any(row["ci95"]) else "[0, 0]",
            f"{row['p']:.4f}",
            f"{row['permutation_p']:.4f}" if "permutation_p" in row else "–",
            f"{row['holm_p']:.4f}" if "holm_p" in row else "–",
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *cells]
    )

"""The report in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval_mteb.figures import metric_label
from eval_mteb.report_costs import costs_section
from eval_mteb.report_provenance import graph_section, training_section
from eval_mteb.report_tables import (
    differences_of,
    label,
    number,
    score_rows,
    signed,
    signed_span,
    table,
)
from obliq_hf.statistics import FEW_QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["markdown", "usage_lines"]


def _clear(interval: Sequence[float]) -> bool:
    return interval[0] > 0 or interval[1] < 0


def _headline(report: dict[str, Any], task: str) -> str:
    metric = report["metrics"][0]
    found = [
        row
        for row in differences_of(report, task, metric=metric)
        if (row["a"], row["b"], row["by"]) == ("student", "base", "query")
    ]
    if not found:
        return ""
    row = found[0]
    verdict = "" if _clear(row["ci95"]) else " (the interval includes 0: not shown to differ)"
    return (
        f"**{task}**: student − base {signed(row['delta'])} {metric_label(metric)}, 95 % interval "
        f"{signed_span(row['ci95'])}{verdict}."
    )


def _task_section(report: dict[str, Any], task: str) -> list[str]:
    info = report["tasks"][task]
    metrics = [m for m in report["metrics"]]
    title = info.get("title") or task
    lines = [f"## {title}" if title == task else f"## {task} — {title}", ""]
    if info.get("attribute"):
        lines += [f"Relevance is decided by: {info['attribute']} ({info['mechanism']}).", ""]
    lines += [
        table(
            ["system", *[metric_label(m) for m in metrics]],
            score_rows(report, task, metrics),
        ),
        "",
        f"In brackets: 95 % interval over {info['queries']} queries.",
        "",
    ]
    rows = differences_of(report, task)
    pairs = list(dict.fromkeys((row["a"], row["b"]) for row in rows))
    if pairs:
        shown = [m for m in metrics if any(row["metric"] == m for row in rows)]
        cells = []
        for a, b in pairs:
            for by in dict.fromkeys(row["by"] for row in rows):
                line = [f"{label(a)} − {label(b)}", by]
                for metric in shown:
                    match = [
                        row
                        for row in rows
                        if (row["a"], row["b"], row["by"], row["metric"]) == (a, b, by, metric)
                    ]
                    line.append(
                        f"{signed(match[0]['delta'])} {signed_span(match[0]['ci95'])}"
                        if match
                        else "–"
                    )
                cells.append(line)
        lines += [
            "Paired differences, with 95 % intervals (resampling single queries, or whole groups "
            "of them):",
            "",
            table(["difference", "by", *[metric_label(m) for m in shown]], cells, left=2),
            "",
        ]
        tests = [row for row in rows if "holm_p" in row]
        if tests:
            found = {(row["a"], row["b"], row["metric"]): row for row in tests}
            lines += [
                "p of the paired permutation test, and corrected for the number of tasks (Holm):",
                "",
                table(
                    ["difference", *[metric_label(m) for m in shown]],
                    [
                        [
                            f"{label(a)} − {label(b)}",
                            *[_tested(found.get((a, b, m))) for m in shown],
                        ]
                        for a, b in pairs
                    ],
                ),
                "",
            ]
    for name, ceiling in report["ceilings"].get(task, {}).items():
        values = ", ".join(f"{metric_label(m)} {number(v)}" for m, v in ceiling["scores"].items())
        lines += [f"Ceiling, not a result — {name}: {values} ({ceiling['about']}).", ""]
    if info["queries"] < FEW_QUERIES:
        lines += [
            f"Only {info['queries']} queries: differences of a few hundredths cannot be told from "
            "chance here, and an interval that includes 0 is no sign of equality.",
            "",
        ]
    chosen = report["base"].get(task)
    if chosen:
        scores = ", ".join(f"{k} {number(v)}" for k, v in chosen["scores"].items())
        lines += [
            f"`base` is the better of the two by {metric_label(chosen['metric'])} on these very "
            f"queries, a choice in the baseline's favour: {scores}.",
            "",
        ]
    return lines


def _tested(row: dict[str, Any] | None) -> str:
    return "–" if row is None else f"{row['permutation_p']:.4f}, {row['holm_p']:.4f}"


def _searched(report: dict[str, Any]) -> list[str]:
    rows = []
    for task, info in report["tasks"].items():
        left = "; ".join(f"{count} {reason}" for reason, count in info["left_out"].items())
        rows.append(
            [
                task,
                f"{info['documents']:,}",
                str(info["queries"]),
                f"{info['judged']:,}",
                f"{info['excluded']:,}",
                number(info["max_reachable_recall"]) if info["max_reachable_recall"] < 1 else "1",
                f"{info['split']}, {info['judgments']}",
                left or "nothing",
            ]
        )
    header = [
        "task",
        "documents searched",
        "queries",
        "judgments",
        "exclusions",
        "reachable recall",
        "split",
        "left out",
    ]
    lines = ["## What was searched", "", table(header, rows), ""]
    if report.get("corpus"):
        lines += [_corpus(report["corpus"]), ""]
    return lines


def _corpus(provenance: dict[str, Any]) -> str:
    """One line on what ``corpus.json`` says of a corpus."""
    source = provenance.get("source") or {}
    if isinstance(source, str):
        source = {"name": source}
    name = source.get("name") or source.get("builder") or "unnamed"
    facts = [
        f"{key.replace('_', ' ')} {str(value)[:12] if key.endswith('sha256') else value}"
        for key, value in source.items()
        if key not in {"name", "builder"} and isinstance(value, str | int)
    ]
    counts = [
        f"{provenance[key]:,} {key}" for key in ("documents", "groups") if provenance.get(key)
    ]
    return f"Corpus: {'; '.join([name, *filter(None, map(', '.join, (facts, counts)))])}."


def _examples(report: dict[str, Any]) -> list[str]:
    if not any(report["examples"].values()):
        return []
    lines = [
        "## Nearest neighbours in words",
        "",
        "For three queries a task, the first document that the base and the student find. The "
        "queries are those at the quartiles of the change in nDCG@10, not picked by hand.",
        "",
    ]
    for task, rows in report["examples"].items():
        lines += [f"### {task}", ""]
        for row in rows:
            lines += [f"**Query** ({signed(row['change'])} nDCG@10): {row['text']}", ""]
            for system in ("base", "student"):
                hit = row[system]
                if hit is None:
                    lines += [f"- {system}: nothing found"]
                    continue
                mark = "relevant" if hit["relevant"] else "not relevant"
                rank = hit["rank_of_first_relevant"]
                if not hit["relevant"]:
                    mark += (
                        f", first relevant at rank {rank}" if rank else ", no relevant one found"
                    )
                about = ", ".join(map(str, hit["about"].values()))
                source = f" *{about}*:" if about else ""
                lines += [f"- {system} ({mark}):{source} {hit['text']}"]
            lines += [""]
    return lines


def _published(report: dict[str, Any]) -> list[str]:
    from eval_mteb.published_rows import rows_for

    lines: list[str] = []
    for task, info in report["tasks"].items():
        rows = rows_for(info["name"], info["judgments"])
        if not rows:
            continue
        measured = [
            [label(name), "measured here", number(report["systems"][task][name]["ndcg_at_10"])]
            for name in report["main_systems"]
            if "ndcg_at_10" in report["systems"][task].get(name, {})
        ]
        lines += [
            f"### {task}, {info['judgments']} judgments",
            "",
            table(
                ["system", "source", "nDCG@10"],
                [
                    *measured,
                    *[
                        [
                            f"{row.system} (ceiling)" if row.ceiling else row.system,
                            f"published, {row.source}" + (f"; {row.note}" if row.note else ""),
                            row.text(info["name"], info["judgments"]),
                        ]
                        for row in rows
                    ],
                ],
                left=2,
            ),
            "",
        ]
    if not lines:
        return []
    same = all(i["mteb_name"].startswith("OBLIQBench") for i in report["tasks"].values())
    warning = (
        "Published, not measured here, apart from the rows that say so."
        if same
        else "Published, not measured here, and over the benchmark's own data: this run, in the "
        "rows marked as measured here, searched other data, so the figures show the scale and "
        "cannot be compared."
    )
    return ["## Published figures", "", warning, "", *lines]


def _analysis(report: dict[str, Any]) -> list[str]:
    if not report.get("analysis"):
        return []
    lines = ["## Beyond the mean", ""]
    for task, found in report["analysis"].items():
        lines += [f"### {task}", ""]
        depths = list(next(iter(found["recall"].values())))
        rows = [
            [
                label(name),
                *[number(found["recall"][name][depth]) for depth in depths],
                f"{found['hubs'][name]['distinct_top1']} of {found['hubs'][name]['queries']}",
                f"{found['hubs'][name]['largest_share']:.0%}",
                number(found["shuffled"][name]),
            ]
            for name in found["recall"]
        ]
        head = ["system", *[f"Recall@{int(d):,}" for d in depths]]
        head += ["distinct first hits", "most frequent first hit", "nDCG@10, shuffled judgments"]
        lines += [table(head, rows), ""]
        lines += [
            "One document coming first for many queries is the sign of a collapsed encoder; a "
            "score under shuffled judgments near the real one means that the ranking hardly "
            f"depends on the query. Ranking by how often other queries judge a document relevant "
            f"gives {number(found['gold_prior'])} nDCG@10.",
            "",
        ]
        rows = [
            [
                pair,
                *[str(gained[k]) for k in ("helped", "hurt", "unchanged", "zero_under_both")],
                signed(gained["median_gain"]),
                signed(gained["median_loss"]),
            ]
            for pair, gained in found["gains"].items()
        ]
        if rows:
            head = ["nDCG@10 by query", "helped", "hurt", "unchanged", "zero under both"]
            lines += [table([*head, "median gain", "median loss"], rows), ""]
    return lines


def _usage(report: dict[str, Any]) -> list[str]:
    if not report.get("checkpoint"):
        return []
    names = list(dict.fromkeys(info["name"] for info in report["tasks"].values()))
    prompts = " or ".join(f"`{name}`" for name in names)
    return [
        "## Using the checkpoint",
        "",
        f"Plain sentence-transformers, run from this folder; `prompt_name` is {prompts}:",
        "",
        "```python",
        *usage_lines(report["checkpoint"], names),
        "```",
        "",
    ]


def usage_lines(checkpoint: str, tasks: Sequence[str]) -> list[str]:
    """Three lines of code that use a checkpoint with plain sentence-transformers."""
    queries = f'model.encode_query(texts, prompt_name="{tasks[0]}")'
    return [
        "from sentence_transformers import SentenceTransformer",
        f'model = SentenceTransformer("{checkpoint}")',
        f"scores = model.similarity({queries}, model.encode_document(passages))",
    ]


def _method(report: dict[str, Any]) -> list[str]:
    facts = report["bootstrap"]
    return [
        "## How it was measured",
        "",
        "Every system went through `mteb.evaluate`. nDCG has linear gain, and a document counts "
        "as relevant from grade 1 on, as trec_eval has it. Means run over all queries with a "
        "positive judgment; a query for which nothing was found counts 0. Exclusions come off "
        "before the best k are taken, and ties go to corpus order. Intervals are percentiles of "
        f"{facts['resamples']:,} bootstrap resamples (seed {facts['seed']}), paired for "
        "differences. Per-query scores and rankings lie in `eval/<task>/<system>/`.",
        "",
    ]


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown.

    Args:
        report: From :func:`eval_mteb.report.gather`, with ``figures``.

    Returns:
        The text.
    """
    lines = [f"# {report['name']}", ""]
    headlines = [line for task in report["systems"] if (line := _headline(report, task))]
    lines += [f"- {line}" for line in headlines] + ([""] if headlines else [])
    figures = report.get("figures") or {}
    if "scores" in figures:
        shown = metric_label(report["metrics"][0])
        lines += [f"![{shown} with 95 % intervals]({figures['scores']})", ""]
    for task in report["systems"]:
        lines += _task_section(report, task)
    if "depth" in figures:
        lines += [
            "## Depth",
            "",
            f"![nDCG against the cutoff]({figures['depth']})",
            "",
            f"![Recall against the cutoff]({figures['recall']})",
            "",
        ]
    for name, title in (("gains", "Queries helped and hurt"), ("scatter", "Every query")):
        if name in figures:
            lines += [f"![{title}]({figures[name]})", ""]
    lines += _published(report) + _analysis(report)
    lines += (
        _searched(report) + graph_section(report) + training_section(report) + _examples(report)
    )
    lines += costs_section(report) + _usage(report) + _method(report)
    return "\n".join(lines).rstrip() + "\n"

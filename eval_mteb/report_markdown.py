"""The report in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval_mteb.figures import metric_label
from eval_mteb.report_tables import (
    differences_of,
    label,
    number,
    score_rows,
    signed,
    signed_span,
    span,
    table,
)
from obliq_hf.statistics import FEW_QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["markdown", "usage_lines"]

_SETTINGS = {
    "base": "base",
    "layers": "first layers kept",
    "template": "prompt template",
    "max_length": "longest input, tokens",
    "lora": "LoRA",
    "loss": "loss",
    "temperature": "temperature",
    "learning_rate": "learning rate",
    "batch_size": "batch size",
}


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
    corpus = report.get("corpus") or {}
    source = corpus.get("source") if isinstance(corpus, dict) else None
    if isinstance(source, str):
        lines += [f"Corpus: {source}.", ""]
    return lines


_OVER = {
    "searched": "Built over the searched corpus itself, as in the paper: the student has seen the "
    "documents it searches, though no query and no judgment.",
    "other": "Built over other texts than those searched: none of the documents searched was in "
    "the graph.",
    "named": "Built over a corpus that the recipe names, not over the one searched.",
}


def _graph(report: dict[str, Any]) -> list[str]:
    graph, purity = report.get("graph"), report.get("purity")
    if not graph and not purity:
        return []
    lines = ["## The graph", ""]
    if isinstance(graph, dict):
        if graph.get("corpus") in _OVER:
            lines += [_OVER[graph["corpus"]], ""]
        facts = [
            [key.replace("_", " "), _plain(value)]
            for key, value in graph.items()
            if isinstance(value, str | int | float | bool) and "fingerprint" not in key
        ]
        if facts:
            lines += [table(["setting", "value"], facts, left=2), ""]
    if isinstance(purity, dict):
        lines += _purity(purity, "all edges")
        dose = report.get("dose_purity")
        if isinstance(dose, dict):
            lines += _purity({**dose, "verdict": None}, "the edges trained on")
    lines += _audit(report.get("audit"))
    return lines


def _purity(purity: dict[str, Any], which: str) -> list[str]:
    lines = []
    if purity.get("at"):
        rows = [
            [
                str(row["k"]),
                f"{row['edges']:,}",
                _with_span(row["purity"], row.get("ci95")),
                number(row["random_rate"]),
                "–" if row.get("lift") is None else f"{row['lift']:.1f}",
                "–"
                if not row.get("lift_ci95")
                else f"[{row['lift_ci95'][0]:.1f}, {row['lift_ci95'][1]:.1f}]",
            ]
            for row in purity["at"]
        ]
        lines += [
            f"Share of {which} whose two ends have the same {purity.get('label')}, by rank:",
            "",
            table(["rank ≤", "edges", "purity", "by chance", "lift", "95 % interval"], rows),
            "",
        ]
    if purity.get("verdict"):
        lines += [str(purity["verdict"]), ""]
    return lines


def _with_span(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "–"
    return f"{number(value)} {span(interval)}" if interval else number(value)


def _audit(audit: Any) -> list[str]:
    columns = audit.get("columns") if isinstance(audit, dict) else None
    if not columns:
        return []
    rows = [
        [
            row["column"],
            _with_span(row.get("share"), row.get("share_ci95")),
            _with_span(row.get("random_rate"), None),
            "–" if row.get("ratio") is None else f"{row['ratio']:.1f}",
            row.get("note") or "",
        ]
        for row in columns
    ]
    return [
        "What else the ends of an edge share, for every metadata column:",
        "",
        table(["column", "same value", "by chance", "ratio", "note"], rows),
        "",
    ]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _training(report: dict[str, Any]) -> list[str]:
    facts = report.get("training")
    if not isinstance(facts, dict):
        return []
    settings: dict[str, Any] = facts.get("settings") or {}
    rows = [
        [label, _plain(settings[key])]
        for key, label in _SETTINGS.items()
        if settings.get(key) is not None
    ]
    base = facts.get("base")
    if isinstance(base, dict) and base.get("id"):
        rows.insert(0, ["base on the Hub", str(base["id"])])
    for dataset in (facts.get("batches") or {}).get("datasets", []):
        shown = {
            k.replace("_", " "): v
            for k, v in dataset.items()
            if isinstance(v, int | float) and not isinstance(v, bool)
        }
        rows.append([f"rows of {dataset.get('name')}", _plain(shown)])
    for key in ("steps", "parameters", "merge", "reloaded", "device", "seconds"):
        if facts.get(key) is not None:
            rows.append([key, _plain(facts[key])])
    return ["## Training", "", table(["", ""], rows, left=2), ""] if rows else []


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
        lines += [
            f"### {task}, {info['judgments']} judgments",
            "",
            table(
                ["published system", "nDCG@10", "source"],
                [
                    [
                        f"{row.system} (ceiling)" if row.ceiling else row.system,
                        row.text(info["name"], info["judgments"]),
                        row.source + (f"; {row.note}" if row.note else ""),
                    ]
                    for row in rows
                ],
            ),
            "",
        ]
    if not lines:
        return []
    same = all(i["mteb_name"].startswith("OBLIQBench") for i in report["tasks"].values())
    warning = (
        "Published, not measured here."
        if same
        else "Published, not measured here, and over the benchmark's own data: this run searched "
        "other data, so the figures show the scale and cannot be compared."
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
    return [
        "## Using the checkpoint",
        "",
        "Plain sentence-transformers, run from this folder:",
        "",
        "```python",
        *usage_lines(report["checkpoint"], names),
        "```",
        "",
    ]


def usage_lines(checkpoint: str, tasks: Sequence[str]) -> list[str]:
    """Three lines of code that use a checkpoint with plain sentence-transformers."""
    prompts = " or ".join(f'"{name}"' for name in tasks)
    return [
        "from sentence_transformers import SentenceTransformer",
        f'model = SentenceTransformer("{checkpoint}")',
        f'scores = model.similarity(model.encode_query(texts, prompt_name="{tasks[0]}"), '
        f"model.encode_document(passages))  # prompt_name: {prompts}",
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
        lines += [f"![nDCG@10 with 95 % intervals]({figures['scores']})", ""]
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
    lines += _searched(report) + _graph(report) + _training(report) + _examples(report)
    lines += _usage(report) + _method(report)
    return "\n".join(lines).rstrip() + "\n"

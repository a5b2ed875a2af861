"""The report's sections on where a checkpoint comes from: graph, purity, audit, training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval_mteb.report_tables import number, span, table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["graph_section", "training_section"]

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


_OVER = {
    "searched": "Built over the searched corpus itself, as in the paper: the student has seen the "
    "documents it searches, though no query and no judgment.",
    "other": "Built over other texts than those searched: none of the documents searched was in "
    "the graph.",
    "named": "Built over a corpus that the recipe names, not over the one searched.",
}


def graph_section(report: dict[str, Any]) -> list[str]:
    """What the graph was built over, how pure it is, and what else its edges share."""
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


def training_section(report: dict[str, Any]) -> list[str]:
    """Settings, rows, steps and seconds of the training."""
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

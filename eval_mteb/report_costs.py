"""What every system cost: encoding, search, and a language model's calls, tokens and seconds."""

from __future__ import annotations

from typing import Any

from eval_mteb.report_tables import label, table

__all__ = ["costs_section"]


def costs_section(report: dict[str, Any]) -> list[str]:
    """The table of costs; empty where nothing was counted."""
    rows = []
    undefined = []
    for task, systems in report["costs"].items():
        for name, cost in systems.items():
            if not cost:
                continue
            without = cost.get("texts_without_a_vector")
            if without:
                undefined.append(
                    f"{label(name)} has no vector for {without['queries']:,} queries and "
                    f"{without['documents']:,} documents of {task}."
                )
            seconds = cost.get("seconds", {})
            each = cost.get("milliseconds_per_query", {})
            encoded = seconds.get("encode documents")
            known = cost.get("document_vectors_reused")
            llm = cost.get("llm") or {}
            tokens = llm.get("prompt_tokens", 0) + llm.get("completion_tokens", 0)
            queries = cost.get("queries") or report["tasks"][task]["queries"]
            rows.append(
                [
                    task,
                    label(name),
                    "found" if known else "–" if encoded is None else f"{encoded:,.1f}",
                    *[
                        f"{each[k]:,.1f}" if k in each else "–"
                        for k in ("encode queries", "search", "total")
                    ],
                    f"{llm['calls']:,} ({llm['calls'] / queries:,.1f})" if llm else "–",
                    f"{tokens:,} ({tokens / queries:,.0f})" if llm else "–",
                    f"{llm['seconds']:,.1f} ({llm['seconds'] / queries:,.2f})" if llm else "–",
                ]
            )
    if not rows:
        return []
    head = ["task", "system", "documents encoded, s", "query encoded, ms", "search, ms per query"]
    head += ["all, ms per query", "calls (per query)", "tokens (per query)"]
    return [
        "## Cost",
        "",
        table([*head, "language model, s (per query)"], rows, left=2),
        "",
        "`found`: the vectors were there from another task or prompt of the same model. Seconds of "
        "a language model are summed over calls that ran side by side; answers that were there "
        "already cost nothing.",
        *undefined,
        "",
    ]

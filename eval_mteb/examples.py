"""Nearest neighbours in words: what two systems find first for the same query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from obliq_hf.task_data import read_task_data

if TYPE_CHECKING:
    from pathlib import Path

    from eval_mteb.results import TaskResults

__all__ = ["neighbour_examples", "snippet"]


def snippet(text: str, length: int = 170) -> str:
    """The beginning of a text on one line, cut at a word."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= length:
        return line
    return line[:length].rsplit(" ", 1)[0].rstrip(",;:") + " …"


def neighbour_examples(
    task: TaskResults, corpus: Path, *, systems: tuple[str, str], count: int = 3
) -> list[dict[str, Any]]:
    """The first hits of two systems for a few queries, with the beginnings of the texts.

    The queries are those of the upper quartile, the median and the lower quartile of the change
    in nDCG@10, so that neither only the best nor only the worst is shown.

    Args:
        task: The task's results.
        corpus: The corpus folder that was searched.
        systems: The two systems, such as ``("base", "student")``.
        count: How many queries.

    Returns:
        Rows with ``query``, ``text``, ``change`` and per system ``document``, ``text``,
        ``relevant``, ``rank_of_first_relevant``.
    """
    name = task.info["name"]
    data = read_task_data(corpus, task=name, split=task.info["split"])
    texts = data.queries.as_dict()
    before, after = (task.systems[s].scores("ndcg_at_10") for s in systems)
    order = sorted(before, key=lambda q: (after[q] - before[q], q), reverse=True)
    order = [q for q in order if q in texts]
    places = [int((i + 1) / (count + 1) * (len(order) - 1)) for i in range(count)]
    rows = []
    for query in dict.fromkeys(order[place] for place in places):
        found = {s: _first(task, s, query, data) for s in systems}
        rows.append(
            {
                "query": query,
                "text": snippet(texts[query], 260),
                "change": round(after[query] - before[query], 4),
                **found,
            }
        )
    return rows


def _first(task: TaskResults, system: str, query: str, data: Any) -> dict[str, Any] | None:
    ranked = list(task.systems[system].run.get(query, {}))
    if not ranked:
        return None
    judged = task.qrels.get(query, {})
    relevant = [rank for rank, d in enumerate(ranked, 1) if judged.get(d, 0) > 0]
    row = data.corpus.row[ranked[0]]
    about = {
        column: values[row]
        for column, values in data.corpus.metadata.items()
        if column in {"author", "work", "title", "hearing"} and values[row]
    }
    return {
        "document": ranked[0],
        "text": snippet(data.corpus.texts[row]),
        "about": about,
        "relevant": judged.get(ranked[0], 0) > 0,
        "rank_of_first_relevant": relevant[0] if relevant else None,
    }

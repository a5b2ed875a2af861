"""A corpus to write queries about, a scripted writer, and what its requests ask for."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from llm_server import oblique_reply, prompt_of

from obliq_hf.files import iter_jsonl
from obliq_hf.llm import RetryPolicy
from obliq_hf.records import Corpus
from obliq_hf.tasks import load_task

if TYPE_CHECKING:
    from pathlib import Path


TASK = load_task("twitter")


FAST = RetryPolicy(attempts=3, first_wait=0.01, max_wait=0.02, patience=3.0, first_patience=0.3)


PLACES = (
    "harbour",
    "market",
    "garden",
    "kitchen",
    "forest",
    "bridge",
    "tower",
    "school",
    "river",
    "castle",
)


def corpus_of(count: int) -> Corpus:
    texts = [
        f"On day {i} the people at the {PLACES[i % 10]} said that nothing would ever change, "
        f"and number {i} went home to write it down for the others."
        for i in range(count)
    ]
    return Corpus([f"d{i}" for i in range(count)], texts)


def writer(request) -> str:
    return oblique_reply({"messages": request.messages, "seed": request.seed})


def rows_of(path: Path) -> list[dict]:
    return [row for _, row in iter_jsonl(path)]


def stage_of(body: dict) -> str:
    return "b" if '"query"' in body["messages"][1]["content"] else "a"


def document_of(body: dict) -> str:
    match = re.search(r"On day (\d+) ", prompt_of(body))
    return match.group(1) if match else ""


def everything_is_accounted_for(out: Path, corpus: Corpus) -> None:
    """Each document asked about has one query of its own or one reason."""
    queries, failed = rows_of(out / "queries.jsonl"), rows_of(out / "failed.jsonl")
    ids = [q["doc_id"] for q in queries] + [f["doc_id"] for f in failed]
    assert len(set(ids)) == len(ids)
    info = json.loads((out / "queries.json").read_text(encoding="utf-8"))
    assert len(ids) == info["counts"]["asked"]
    assert all(f["reason"] for f in failed)
    assert set(ids) <= set(corpus.ids)

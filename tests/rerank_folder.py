"""A corpus folder large enough to rerank: 130 documents, a task with exclusions and two splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import yaml

from obliq_hf.files import write_json, write_jsonl
from obliq_hf.records import read_queries, write_qrels
from obliq_hf.reranking import Asking, Candidate, OracleClient, Pool
from obliq_hf.search.runs import write_run
from obliq_hf.task_data import read_task_data
from obliq_hf.tasks import ObliqTask

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = 130
HAND = ObliqTask(
    name="hand",
    mechanism="analogue",
    attribute="authorial style",
    instruction="Find passages by the same hand",
    lens="analogue",
    exclusion="listed",
    reranking={"reranker": "tourrank", "rounds": 2, "depth": 100},
    reranking_ignore="topic",
)
_WORDS = "sea ship night road king letter war horse fire window song river child"
WORDS = _WORDS.split()


def write_rerank_folder(folder: Path, *, queries: int = 8) -> Path:
    """Write the folder; queries ``q0``... are judged in ``dev`` and in ``test``, by halves."""
    rng = np.random.default_rng(0)
    texts = [f"text {i} " + " ".join(rng.choice(WORDS, 6).tolist()) for i in range(DOCUMENTS)]
    write_jsonl(
        folder / "corpus.jsonl",
        ({"_id": f"d{i}", "title": "", "text": t, "metadata": {}} for i, t in enumerate(texts)),
    )
    base = folder / "tasks" / "hand"
    names = [f"q{i}" for i in range(queries)]
    write_jsonl(
        base / "queries.jsonl",
        ({"_id": q, "text": f"query {i} {WORDS[i]}", "metadata": {}} for i, q in enumerate(names)),
    )
    judged = {
        q: {f"d{d}": 1 for d in rng.choice(DOCUMENTS, 4, replace=False).tolist()} for q in names
    }
    half = queries // 2
    write_qrels(base / "qrels" / "dev.tsv", {q: judged[q] for q in names[:half]})
    write_qrels(base / "qrels" / "test.tsv", {q: judged[q] for q in names[half:]})
    excluded = {q: [d for d in ("d7", "d64") if d not in judged[q]] for q in names}
    write_json(base / "excluded.json", excluded)
    (base / "task.yaml").write_text(
        yaml.safe_dump({k: v for k, v in HAND.to_dict().items() if v is not None}),
        encoding="utf-8",
    )
    return folder


def first_stage(folder: Path, split: str = "test", *, seed: int = 0) -> dict[str, dict[str, float]]:
    """A run that knows nothing of the judgments; excluded documents are not in it."""
    data = read_task_data(folder, task="hand", split=split)
    rng = np.random.default_rng(seed)
    run = {}
    for query in data.queries.ids:
        order = rng.permutation(DOCUMENTS).tolist()
        kept = [d for d in (f"d{i}" for i in order) if d not in data.excluded[query]]
        run[query] = {d: 1.0 - rank / 1000 for rank, d in enumerate(kept)}
    return run


def write_first_stage(path: Path, folder: Path, split: str = "test") -> Path:
    """The run as a file."""
    write_run(path, first_stage(folder, split), tag="dense")
    return path


def judge(folder: Path, asking: Asking | None = None, *, error_rate: float = 0.0) -> OracleClient:
    """A judge who knows the answers of all queries."""
    corpus = read_task_data(folder, task="hand", split="test").corpus
    queries = read_queries(folder / "tasks" / "hand" / "queries.jsonl")
    candidates = tuple(
        Candidate(i, t) for i, t in zip(corpus.ids, corpus.full_texts(), strict=True)
    )
    pools = [Pool(q, t, candidates) for q, t in zip(queries.ids, queries.texts, strict=True)]
    qrels = {
        split_query: grades
        for split in ("dev", "test")
        for split_query, grades in read_task_data(folder, task="hand", split=split).qrels.items()
    }
    return OracleClient(pools, qrels, asking=asking or Asking(), error_rate=error_rate)

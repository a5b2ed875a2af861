"""Small corpora in both layouts, and a task with an exclusion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from llm_server import ScriptedServer
from rerank_folder import judge, write_first_stage, write_rerank_folder
from scored_run import write_run_folder

from obliq_hf.files import write_json, write_jsonl
from obliq_hf.llm import ChatRequest
from obliq_hf.records import write_qrels
from obliq_hf.tasks import ObliqTask

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    ("d1", "the sea and the ship at night", "ann", "w1"),
    ("d2", "the road to the house of the king", "ann", "w2"),
    ("d3", "a letter from her sister", "ann", "w2"),
    ("d4", "the sea and the ship at night", "bob", "w3"),
    ("d5", "war and peace and the horse", "bob", "w3"),
    ("d6", "fire in the window of the old house", "bob", "w4"),
    ("d7", "the song of the river", "cid", "w5"),
    ("d8", "a child at the door", "cid", "w6"),
    ("0012", "stone and water and tree", "cid", "w6"),
    ("id with space", "the voice of the friend", "cid", "w6"),
]
QUERIES = [
    ("q1", "the ship on the sea", "ann"),
    ("q2", "the old house by the road", "bob"),
    ("NA", "the river and the child", "cid"),
    ("1e5", "love and death", "cid"),
    ("unjudged", "fear of the king", "ann"),
    ("zero", "the great horse", "bob"),
]
GOLD = {
    "q1": {"d1": 2, "d4": 1},
    "q2": {"d2": 1, "d6": 1},
    "NA": {"d7": 1, "d8": 1},
    "1e5": {"0012": 1, "id with space": 1},
    "zero": {"d5": 0},
}
POOLED = {"q1": {"d1": 1, "d4": 1, "d5": 1}, "zero": {"d5": 1}}
EXCLUDED = {"q1": ["d4"], "NA": ["0012", "d1"]}


def write_folder(folder: Path) -> Path:
    """A corpus folder of our layout with the tasks ``writing`` and ``scene``."""
    write_jsonl(
        folder / "corpus.jsonl",
        (
            {"_id": i, "title": "", "text": t, "metadata": {"author": a, "group": g}}
            for i, t, a, g in TEXTS
        ),
    )
    for task in ("writing", "scene"):
        base = folder / "tasks" / task
        write_jsonl(
            base / "queries.jsonl",
            ({"_id": i, "text": t, "metadata": {"author": a}} for i, t, a in QUERIES),
        )
        write_qrels(base / "qrels" / "test.tsv", GOLD)
        if task == "writing":
            write_qrels(base / "qrels-pooled" / "test.tsv", POOLED)
            write_json(base / "excluded.json", EXCLUDED)
    return folder


def write_bench(root: Path) -> Path:
    """A tree of OBLIQ-Bench's layout: math with gold, pooled and exclusions, twitter with both."""
    for config, excluded in (("analogues/math", EXCLUDED), ("descriptive/twitter", None)):
        base = root / config
        write_jsonl(
            base / "corpus" / "corpus.jsonl",
            ({"_id": i, "text": t, "metadata": {}} for i, t, _, _ in TEXTS),
        )
        inner = base / "queries+qrels"
        write_jsonl(
            inner / "queries.jsonl", ({"_id": i, "text": t, "metadata": {}} for i, t, _ in QUERIES)
        )
        for name, qrels in (("qrels.tsv", GOLD), ("qrels_pool.tsv", POOLED)):
            lines = ["query_id\tcorpus_id\tscore"]
            lines += [f"{q}\t{d}\t{g}" for q, judged in qrels.items() for d, g in judged.items()]
            (inner / name).write_text("\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")
        if excluded is not None:
            (inner / "per_query_excluded_ids.json").write_text(
                json.dumps(excluded), encoding="utf-8"
            )
    return root


def make_task(name: str, **changes: object) -> ObliqTask:
    """A task file's worth of values."""
    values = {
        "name": name,
        "mechanism": "analogue",
        "attribute": "authorial style",
        "instruction": f"find by {name}",
        "lens": "analogue",
        "exclusion": "listed",
        "reranking": {"reranker": "identity"},
        **changes,
    }
    return ObliqTask(**values)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "novels")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return write_bench(tmp_path / "bench")


@pytest.fixture
def writing() -> ObliqTask:
    return make_task("writing", mteb_name="OBLIQBenchWritingRetrieval")


@pytest.fixture
def scene() -> ObliqTask:
    return make_task("scene", exclusion="none")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run."""
    return write_run_folder(tmp_path / "run")


@pytest.fixture
def run_folder(tmp_path):
    """A run folder as recipes leave it: a corpus, and a first stage's runs."""
    folder = tmp_path / "runs" / "x"
    write_rerank_folder(folder / "corpus", queries=12)
    write_first_stage(folder / "eval" / "dense.trec", folder / "corpus")
    write_first_stage(folder / "dev" / "hand" / "dense" / "run.trec", folder / "corpus", "dev")
    return folder


@pytest.fixture
def server(run_folder):
    """A server behind which the judge sits who knows the answers."""
    client = judge(run_folder / "corpus")

    def script(body, number):
        return client.script(ChatRequest("r", body["messages"], body["max_tokens"]))

    with ScriptedServer(script) as running:
        yield running

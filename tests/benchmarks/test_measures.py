"""Every comparison of the table, at sizes at which its times say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LABELS = {
    "start": [
        ["python alone", "import numpy"],
        ["python alone", "import sentence_transformers"],
    ],
    "vectors": [
        [
            "torch matmul + topk", "faiss IndexFlatIP", "numpy argpartition", "semantic_search",
            "mteb",
        ],
        ["the bare engine", "faiss IndexFlatIP"],
        ["one read + matrix product"],
    ],
    "mining": [
        ["bare bm25s", "rank-bm25"],
        ["bare bm25s"],
        ["bare bm25s", "mine_hard_negatives"],
    ],
    "inference": [["scipy.stats.bootstrap"], ["scipy.stats.permutation_test"]],
    "encoding": [["batches in corpus order", "SentenceTransformer.encode"]],
    "training_step": [["plain script"]],
    "scheduling": [["bare asyncio loop"]],
    "reranking": [
        ["the same batches, bare", "one call after another"],
        ["the same batches, bare"],
        ["10 ms"],
    ],
}  # fmt: skip
ALONE = {"import obliq_hf", "obliq --help"}
SLOW = {"start", "training_step", "vectors"}


@pytest.mark.parametrize(
    "module",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in LABELS],
)
def test_every_comparison_runs_beside_what_it_names(load, monkeypatch, module):
    benchmark = load(f"benchmarks.{module}")
    for latency in ("LATENCY", "_LATENCY"):
        if hasattr(benchmark, latency):
            monkeypatch.setattr(benchmark, latency, 0.002)
    rows = benchmark.measure(scale=0.001)
    expected = LABELS[module]
    if module == "mining":
        pytest.importorskip("rank_bm25")
    assert [list(row.beside) for row in rows] == expected
    for row in rows:
        assert row.seconds > 0
        assert set(row.aims) <= set(row.beside)
        assert len(row.growth) == len(row.growth_beside)
        one_size = row.what in ALONE or row.size == "1 query"
        assert len(row.growth) == (0 if one_size else 2), row.what
        assert row.size[0].isdigit() or row.what in ALONE


def test_every_module_of_the_table_is_among_those_run_here(load):
    modules = load("benchmarks.__main__").MODULES
    assert {name.rpartition(".")[2] for name in modules.values()} == set(LABELS)


def test_the_large_index_is_searched_and_its_memory_measured(load, tmp_path):
    found = load("benchmarks.large_index").measure(tmp_path / "i", 64, queries=2, k=5, rounds=1)
    assert set(found) == {"seconds", "least", "ratio", "anonymous_bytes"}
    assert found["ratio"] == pytest.approx(found["seconds"] / found["least"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hard_negatives", "--documents", "300", "--queries", "10"], "mining"),
        (
            ["evaluation_harness", "--documents", "40", "--queries", "5", "--repeats", "1"],
            "harness",
        ),
        (["publish_corpus", "--rows", "120", "--characters", "60"], "Hub, again"),
    ],
)
def test_what_runs_alone_runs(words, said):
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]],
        cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout

from __future__ import annotations

from pathlib import Path

import evaluate
import numpy as np
import pytest
import pytrec_eval

import eval_mteb
from obliq_hf.errors import ObliqError

FOLDER = Path(eval_mteb.__file__).parent / "obliq_ndcg"


@pytest.fixture(scope="module")
def metric(tmp_path_factory):
    return evaluate.load(
        str(FOLDER), cache_dir=str(tmp_path_factory.mktemp("evaluate")), keep_in_memory=True
    )


def rows(table, column):
    return [
        {"query": q, "documents": list(values), column: list(values.values())}
        for q, values in table.items()
    ]


@pytest.mark.parametrize("seed", range(4))
def test_scores_equal_pytrec_eval_on_random_runs(metric, seed):
    rng = np.random.default_rng(seed)
    documents = [f"d{i}" for i in range(60)]
    run, qrels = {}, {}
    for i in range(25):
        found = rng.choice(documents, size=int(rng.integers(1, 60)), replace=False).tolist()
        scores = rng.permutation(len(found)).astype(float) - 20
        run[f"q{i}"] = dict(zip(found, scores.tolist(), strict=True))
        judged = rng.choice(documents, size=int(rng.integers(1, 12)), replace=False).tolist()
        grades = {d: int(g) for d, g in zip(judged, rng.integers(0, 3, len(judged)), strict=True)}
        qrels[f"q{i}"] = {**grades, judged[0]: 1}
    run["q0"] = {}
    found = metric.compute(
        predictions=rows(run, "scores"),
        references=rows(qrels, "grades"),
        ks=[1, 10, 50],
        per_query=True,
    )
    expected = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.1,10,50", "recall.1,10,50"})
    scores = expected.evaluate(run)
    for k in (1, 10, 50):
        for ours, theirs in (("ndcg_at", "ndcg_cut"), ("recall_at", "recall")):
            values = {q: scores[q][f"{theirs}_{k}"] for q in qrels}
            assert found["per_query"][f"{ours}_{k}"] == pytest.approx(values)
            assert found[f"{ours}_{k}"] == pytest.approx(sum(values.values()) / len(values))


def test_a_document_that_stands_twice_is_an_error(metric):
    with pytest.raises(ObliqError, match="a document twice"):
        metric.compute(
            predictions=[{"query": "q", "documents": ["d1", "d1"], "scores": [2.0, 1.0]}],
            references=[{"query": "q", "documents": ["d1"], "grades": [1]}],
        )


def test_the_readmes_example_gives_what_it_says(metric):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "0.6309297535714575" in text
    found = metric.compute(
        predictions=[{"query": "q1", "documents": ["d2", "d1"], "scores": [0.9, 0.1]}],
        references=[{"query": "q1", "documents": ["d1"], "grades": [1]}],
        ks=[10],
    )
    assert found == {"ndcg_at_10": pytest.approx(0.6309297535714575), "recall_at_10": 1.0}

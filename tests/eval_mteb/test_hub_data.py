from __future__ import annotations

import shutil

import pytest
from published_bench import publish

from eval_mteb.benchmark import OBLIQ_BENCH, bench_tasks
from eval_mteb.evaluation import evaluate_system
from eval_mteb.systems import bm25_system
from eval_mteb.tasks import folder_task
from obliq_hf.errors import DataError
from obliq_hf.files import read_json
from obliq_hf.hub import HubError


def two_texts(parts):
    parts["math-corpus"].append({"_id": "d1", "title": "", "text": "quite another"})


def two_query_texts(parts):
    parts["math-queries"].append({"_id": "q1", "text": "quite another"})


def no_text(parts):
    parts["math-corpus"][2]["text"] = None


def two_grades(parts):
    parts["math-qrels"].append({"query-id": "q1", "corpus-id": "d1", "score": 0})


def nothing_judged(parts):
    for row in parts["math-qrels"]:
        row["corpus-id"] = "0" + row["corpus-id"]


def other_queries(parts):
    for row in parts["math-qrels"]:
        row["query-id"] = "0" + row["query-id"]


def nothing_relevant(parts):
    for row in parts["math-qrels"]:
        row["score"] = 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (two_texts, "id 'd1' stands for two different texts"),
        (two_query_texts, "id 'q1' stands for two different texts"),
        (no_text, "text of 'd3' is None"),
        (two_grades, "query 'q1' and document 'd1' have two grades, 2 and 0"),
        (nothing_judged, "no judgment names both a query and a document"),
        (other_queries, "no judgment names both a query and a document"),
        (nothing_relevant, "no query has a positive judgment"),
    ],
)
def test_what_a_folder_of_files_is_refused_for_a_published_one_is_too(
    bench, tmp_path, hf_home, spoil, message
):
    hub = publish(bench, tmp_path / "hub", spoil)
    (task,) = bench_tasks(data=hub, judgments=["gold"])
    with pytest.raises(DataError, match=message):
        task.load_data()


def test_a_folder_published_again_is_read_again(bench, tmp_path, hf_home):
    def other_texts(parts):
        for row in parts["math-corpus"]:
            row["text"] = "another edition of " + row["text"]

    texts, revisions = [], []
    for spoil in (None, other_texts):
        if (tmp_path / "hub").exists():
            shutil.rmtree(tmp_path / "hub")
        (task,) = bench_tasks(data=publish(bench, tmp_path / "hub", spoil), judgments=["gold"])
        texts.append(task.part["corpus"]["text"][0])
        revisions.append(task.metadata.revision)
    assert texts[1] == "another edition of " + texts[0]
    assert revisions[0] != revisions[1]


def test_equal_rows_of_a_published_folder_are_collapsed_and_the_rest_is_counted(
    bench, tmp_path, hf_home
):
    def spoil(parts):
        parts["math-corpus"].append(dict(parts["math-corpus"][0]))
        parts["math-qrels"].append({"query-id": "gone", "corpus-id": "d1", "score": 1})

    hub = publish(bench, tmp_path / "hub", spoil)
    (task,) = bench_tasks(data=hub, judgments=["gold"])
    assert len(task.document_ids) == 10
    assert task.left_out["judged queries without a text"] == 1
    found = evaluate_system(bm25_system(), task, tmp_path / "a")
    expected = evaluate_system(bm25_system(), folder_task(bench, "math"), tmp_path / "b")
    assert read_json(found / "per_query.json") == read_json(expected / "per_query.json")


def test_a_benchmark_that_cannot_be_had_is_named(hf_home):
    with pytest.raises(
        HubError, match=r"Writing.*mteb/OBLIQBenchRetrieval, revision .*cannot be had"
    ):
        next(t for t in OBLIQ_BENCH.tasks if "Writing" in t.metadata.name).load_data()

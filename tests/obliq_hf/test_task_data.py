from __future__ import annotations

import json

import pytest

from obliq_hf.errors import DataError
from obliq_hf.records import Corpus, Queries
from obliq_hf.task_data import (
    TaskData,
    available_splits,
    available_tasks,
    read_task_data,
    task_corpus_file,
    with_group_exclusions,
)


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


DOCUMENTS = [{"_id": f"d{i}", "text": f"text {i}"} for i in range(4)]
QUERIES = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)]


@pytest.fixture
def ours(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", DOCUMENTS)
    base = tmp_path / "tasks" / "hand"
    write_rows(base / "queries.jsonl", QUERIES)
    write_text(base / "qrels" / "test.tsv", "q0\td0\t1\nq1\td1\t0\nq0\tgone\t1\nqx\td1\t1\n")
    write_text(base / "qrels" / "dev.tsv", "q2\td2\t1\n")
    write_text(base / "qrels-pooled" / "test.tsv", "q0\td0\t1\nq1\td2\t1\n")
    write_text(base / "excluded.json", json.dumps({"q0": ["d3", "nowhere"], "q2": ["d0"]}))
    return tmp_path


def test_queries_without_a_positive_are_left_out_and_dangling_judgments_kept_both_counted(ours):
    data = read_task_data(ours, task="hand")
    assert data.qrels == {"q0": {"d0": 1, "gone": 1}}
    assert data.pooled == {"q0": {"d0": 1}, "q1": {"d2": 1}}
    assert data.queries.ids == ["q0", "q1"]
    assert data.excluded == {"q0": ["d3"]}
    assert data.left_out == {
        "gold judgments of documents not in the corpus, kept as never found": 1,
        "gold judged queries without a text": 1,
        "queries without a judgment in this split": 1,
        "queries without a positive gold judgment": 1,
        "excluded documents not in the corpus": 1,
    }


@pytest.mark.parametrize("judgments", ["qrels", "qrels-pooled"])
@pytest.mark.parametrize(
    ("header", "message"),
    [("query-id\tcorpus-id\tscore\r", "end in CR alone"), ("", "5 columns")],
)
def test_judgments_whose_lines_end_in_cr_alone_are_refused(ours, judgments, header, message):
    file = ours / "tasks" / "hand" / judgments / "test.tsv"
    file.write_bytes(f"{header}q0\td0\t1\rq1\td1\t1\r".encode())
    with pytest.raises(DataError, match=message):
        read_task_data(ours, task="hand")


def test_a_missing_split_or_task_names_those_that_exist(ours):
    assert available_tasks(ours) == ["hand"]
    assert available_splits(ours) == ["dev", "test"]
    with pytest.raises(DataError, match="present: dev, test"):
        read_task_data(ours, split="train")
    with pytest.raises(DataError, match="did you mean 'hand'"):
        read_task_data(ours, task="hands")


def test_judgments_that_match_nothing_stop_before_anything_is_searched(ours):
    write_text(ours / "tasks" / "hand" / "qrels" / "test.tsv", "0\t1\t1\n")
    (ours / "tasks" / "hand" / "qrels-pooled" / "test.tsv").unlink()
    with pytest.raises(DataError, match="do the ids have one form"):
        read_task_data(ours)


def test_beir_folders_are_read_as_they_are(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", DOCUMENTS)
    write_rows(tmp_path / "queries.jsonl", QUERIES)
    write_text(tmp_path / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore\nq1\td3\t2\n")
    data = read_task_data(tmp_path, split="dev")
    assert (data.qrels, data.queries.ids, data.pooled) == ({"q1": {"d3": 2}}, ["q1"], None)


def test_the_benchmarks_own_layout_is_read_from_its_root_and_from_a_config(tmp_path):
    base = tmp_path / "analogues" / "math"
    write_rows(base / "corpus" / "corpus.jsonl", [*DOCUMENTS, {"_id": "imo 1", "text": "x"}])
    inner = base / "queries+qrels"
    write_rows(inner / "queries.jsonl", QUERIES)
    write_text(inner / "qrels.tsv", "query_id\tcorpus_id\tscore\r\nq0\timo 1\t2\r\n")
    write_text(inner / "qrels_pool.tsv", "query-id\tcorpus-id\tscore\nq0\timo 1\t1\nq1\td0\t1\n")
    write_text(inner / "per_query_excluded_ids.json", '{"q0": ["d0"]}')
    assert available_tasks(tmp_path) == ["math"]
    for folder, task in [(tmp_path, "math"), (tmp_path, None), (base, None)]:
        data = read_task_data(folder, task=task)
        assert data.qrels == {"q0": {"imo 1": 2}}
        assert data.pooled == {"q0": {"imo 1": 1}, "q1": {"d0": 1}}
        assert data.excluded == {"q0": ["d0"]}


def test_empty_documents_stay_where_judgments_may_name_them(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", [{"_id": "d0", "text": ""}, *DOCUMENTS[1:]])
    write_rows(tmp_path / "queries.jsonl", QUERIES)
    write_text(tmp_path / "qrels" / "test.tsv", "q0\td0\t1\n")
    assert len(read_task_data(tmp_path).corpus) == 4


def test_the_labelled_benchmark_copy_has_the_documented_sizes(shared_data):
    sizes = {
        task: (len(d.corpus), len(d.queries))
        for task in available_tasks(shared_data / "mini_obliq")
        for d in [read_task_data(shared_data / "mini_obliq", task=task)]
    }
    assert sizes == {
        "congress": (3072, 70),
        "math": (400, 75),
        "twitter": (8370, 249),
        "writing": (780, 120),
    }


def test_documents_of_a_querys_own_source_are_excluded_after_those_listed(caplog):
    corpus = Corpus(list("abcd"), list("abcd"), groups=["7", "7", "8", None])
    queries = Queries(["q1", "q2", "q3"], ["x", "y", "z"], [{"group": 7}, {"group": "9"}, {}])
    qrels = {query: {"d": 1} for query in queries.ids}
    data = TaskData("hand", "dev", corpus, queries, qrels, excluded={"q1": ["b"], "q3": ["d"]})
    assert with_group_exclusions(data).excluded == {"q1": ["b", "a"], "q3": ["d"]}
    assert data.excluded["q1"] == ["b"]
    assert not caplog.records
    nameless = TaskData("hand", "dev", corpus, Queries(["q3"], ["z"]), {"q3": {"d": 1}})
    assert with_group_exclusions(nameless).excluded == {}
    assert "0 of 1 queries have a source" in caplog.text


def test_tasks_search_the_corpus_they_share_or_one_of_their_own(ours):
    assert task_corpus_file(ours, task="hand") == ours / "corpus.jsonl"
    write_rows(ours / "tasks" / "hand" / "corpus.jsonl", DOCUMENTS)
    assert task_corpus_file(ours) == ours / "tasks" / "hand" / "corpus.jsonl"

"""Training queries in JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dataset_builders.query_files import read_training_queries
from obliq_hf.errors import DataError
from obliq_hf.records import read_queries, write_queries

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_queries_come_with_the_documents_they_ask_for(tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        {"id": "0012", "query": "one", "passage_id": "1e5", "split": "train", "stage_a": "x"},
        {"id": "NA", "query": "two", "passage_id": "a b", "split": "dev"},
    )
    queries, qrels = read_training_queries(file)
    assert queries.as_dict() == {"0012": "one", "NA": "two"}
    assert qrels == {"0012": {"1e5": 1}, "NA": {"a b": 1}}
    assert queries.metadata[0] == {"split": "train", "stage_a": "x"}
    assert read_training_queries(file, split="dev")[0].ids == ["NA"]
    with pytest.raises(DataError, match="no queries of split 'test'"):
        read_training_queries(file, split="test")


def test_further_fields_can_be_written_whatever_they_hold(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", {"query": "one", "doc_id": "d1", "by": ["\ud800"]})
    queries, _ = read_training_queries(file)
    write_queries(tmp_path / "queries.jsonl", queries)
    assert read_queries(tmp_path / "queries.jsonl").metadata == [{"by": ["\ufffd"]}]


def test_queries_without_an_id_are_named_by_their_text(tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        {"doc_id": "d1", "query": "one"},
        {"doc_id": "d2", "query": "one"},
        {"positive_ids": ["d3", "d4"], "text": "two"},
    )
    queries, qrels = read_training_queries(file)
    assert queries.texts == ["one", "two"]
    assert qrels[queries.ids[0]] == {"d1": 1, "d2": 1}
    assert qrels[queries.ids[1]] == {"d3": 1, "d4": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "a", "doc_id": "d"}, "no field 'query'"),
        ({"id": "a", "query": "q"}, "no field 'passage_id'"),
        ({"id": "a", "query": " ", "doc_id": "d"}, "'query' is empty"),
        ({"id": "a", "query": None, "doc_id": "d"}, "'query' must be a string"),
        ({"id": 3, "query": "q", "doc_id": "d"}, "'id' must be a non-empty string"),
        ({"id": "a", "query": "q", "doc_id": 7}, "'doc_id' must be a non-empty string"),
        ({"id": "a", "query": "q", "positive_ids": "abc"}, "'positive_ids' must be a list"),
        ({"id": "a", "query": "q", "positive_ids": []}, "'positive_ids' must be a list"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict, message: str) -> None:
    file = write(tmp_path / "q.jsonl", {"id": "x", "query": "q", "doc_id": "d"}, row)
    with pytest.raises(DataError, match=message) as error:
        read_training_queries(file)
    assert "q.jsonl:2" in str(error.value)


def test_one_id_with_two_texts_is_an_error(tmp_path: Path) -> None:
    rows = [{"id": "a", "query": text, "doc_id": "d"} for text in ("one", "two")]
    with pytest.raises(DataError, match="'a' stands for two different texts"):
        read_training_queries(write(tmp_path / "q.jsonl", *rows))

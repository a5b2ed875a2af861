from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from dataset_builders.foreign_rows import read_foreign_rows
from dataset_builders.mixture import build_mixture
from obliq_hf.errors import DataError


def write_lines(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_foreign_columns_are_mapped(tmp_path) -> None:
    rows = [
        {"query": "one", "pos": ["p1", "p2"], "neg": ["n1", "n2", "n3"], "score": 3},
        {"query": "two", "pos": ["p3"], "neg": ["n4", "n5"], "score": 3},
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    (tmp_path / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    columns = {"anchor": "query", "positive": "pos", "negatives": "neg"}
    for file, mapping in (("rows.jsonl", columns), ("rows.jsonl", None), ("rows.json", columns)):
        read = read_foreign_rows(tmp_path / file, task="scene", columns=mapping)
        assert read.anchors == ["one", "one", "two"]
        assert read.positives == ["p1", "p2", "p3"]
        assert read.negatives == [["n1", "n2"], ["n1", "n2"], ["n4", "n5"]]
        assert read.anchor_ids[0] == read.anchor_ids[1] != read.anchor_ids[2]
        assert set(read.blocked_ids[0]) == set(read.positive_ids[:2])
    build_mixture(tmp_path / "mixture", [read])


def test_foreign_parquet_is_read(tmp_path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"question": ["one"], "answer": ["p"]}), tmp_path / "rows.parquet")
    read = read_foreign_rows(tmp_path / "rows.parquet", task="scene")
    assert (read.anchors, read.positives) == (["one"], ["p"])


@pytest.mark.parametrize("name", ["positives", "pos"])
def test_a_bare_string_where_a_list_belongs_names_file_and_row(tmp_path, name: str) -> None:
    write_lines(tmp_path / "r.jsonl", [{"query": "a", name: ["b"]}, {"query": "q", name: "abc"}])
    with pytest.raises(DataError, match=rf"r.jsonl:2 column '{name}' must be a list .*'abc'"):
        read_foreign_rows(tmp_path / "r.jsonl", task="scene")


def test_a_single_positive_may_be_a_text_and_negatives_never(tmp_path) -> None:
    write_lines(tmp_path / "r.jsonl", [{"query": "q", "positive": "abc"}])
    assert read_foreign_rows(tmp_path / "r.jsonl", task="scene").positives == ["abc"]
    write_lines(tmp_path / "r.jsonl", [{"query": "q", "positive": "abc", "neg": "xyz"}])
    with pytest.raises(DataError, match="column 'neg' must be a list"):
        read_foreign_rows(tmp_path / "r.jsonl", task="scene")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q", "positives": []}, "empty list"),
        ({"query": "q", "positives": ["a", None]}, r"'positives'\[1\] must be a string"),
        ({"query": "  ", "positives": ["a"]}, "'query' is empty"),
        ({"query": None, "positives": ["a"]}, "'query' must be a string"),
        ({"text": "q", "label": "a"}, "which column is the anchor.*text, label"),
        ({"query": "q", "label": "a"}, "which column is the positive"),
        ({"query": "q", "question": "q", "pos": ["a"]}, "both of which could be the anchor"),
    ],
)
def test_bad_foreign_rows_are_named(tmp_path, row: dict, message: str) -> None:
    write_lines(tmp_path / "r.jsonl", [row])
    with pytest.raises(DataError, match=message) as error:
        read_foreign_rows(tmp_path / "r.jsonl", task="scene")
    assert "r.jsonl:1" in str(error.value)


def test_a_mapping_to_a_column_that_is_not_there_is_named(tmp_path) -> None:
    write_lines(tmp_path / "r.jsonl", [{"query": "q", "pos": ["a"]}])
    with pytest.raises(DataError, match="no column 'qery'; did you mean 'query'"):
        read_foreign_rows(
            tmp_path / "r.jsonl", task="scene", columns={"anchor": "qery", "positives": "pos"}
        )
    with pytest.raises(DataError, match=r"no role 'anchr'.*did you mean 'anchor'"):
        read_foreign_rows(tmp_path / "r.jsonl", task="scene", columns={"anchr": "query"})
    write_lines(tmp_path / "r.jsonl", [])
    with pytest.raises(DataError, match="holds no rows"):
        read_foreign_rows(tmp_path / "r.jsonl", task="scene")


def test_one_positive_of_several_queries_is_negative_of_none_that_it_answers(tmp_path) -> None:
    rows = [
        {"query": "capital of France", "positives": ["Paris"], "negatives": ["Lyon"]},
        {"query": "city of light", "positives": ["Paris"], "negatives": ["Rome"]},
        {"query": "Capital of france", "positives": ["paris, France"], "negatives": ["PARIS"]},
        {"query": "capital of Italy", "positives": ["Rome"], "negatives": ["Milan"]},
    ]
    write_lines(tmp_path / "r.jsonl", rows)
    read = read_foreign_rows(tmp_path / "r.jsonl", task="scene", negatives=1)
    assert read.negatives == [["Lyon"], ["Rome"], [], ["Milan"]]
    assert read.info["negatives_refused"] == 1
    assert read.positive_ids[0] == read.positive_ids[1]
    assert set(read.blocked_ids[0]) == set(read.blocked_ids[2])

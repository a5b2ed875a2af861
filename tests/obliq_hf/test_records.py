from __future__ import annotations

import json

import pytest

from obliq_hf.errors import DataError
from obliq_hf.records import (
    Corpus,
    Queries,
    read_corpus,
    read_excluded,
    read_qrels,
    read_queries,
    write_corpus,
    write_qrels,
    write_queries,
)

ODD_IDS = ["0012", "NA", "null", "1e5", "imo bench 1", 'd"1', "Ünï"]


def lines(path, *rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def test_odd_ids_survive_corpus_queries_and_judgments(tmp_path):
    corpus = Corpus(ODD_IDS, [f"text {i}" for i in range(len(ODD_IDS))], groups=list(ODD_IDS))
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    read = read_corpus(tmp_path)
    assert read.ids == ODD_IDS
    assert read.groups == ODD_IDS
    assert read.fingerprint == corpus.fingerprint
    queries = Queries(ODD_IDS, ["q"] * len(ODD_IDS))
    write_queries(tmp_path / "queries.jsonl", queries)
    assert read_queries(tmp_path / "queries.jsonl").ids == ODD_IDS
    qrels = {q: {d: i for i, d in enumerate(ODD_IDS)} for q in ODD_IDS}
    write_qrels(tmp_path / "qrels.tsv", qrels)
    assert read_qrels(tmp_path / "qrels.tsv") == qrels


@pytest.mark.parametrize("value", [None, 3, 2.5, float("nan"), ["a"], {"a": 1}])
def test_a_text_that_is_no_string_is_named_by_row_and_field(tmp_path, value):
    path = lines(tmp_path / "corpus.jsonl", {"_id": "a", "text": "x"}, {"_id": "b", "text": value})
    with pytest.raises(DataError, match=r"corpus\.jsonl:2 field 'text'"):
        read_corpus(path)


@pytest.mark.parametrize("value", [12, None, "", "a\tb", "a\nb"])
def test_an_id_that_is_no_plain_string_is_refused(tmp_path, value):
    path = lines(tmp_path / "corpus.jsonl", {"_id": value, "text": "x"})
    with pytest.raises(DataError, match=r"corpus\.jsonl:1 field '_id'"):
        read_corpus(path)


def test_nul_and_lone_surrogates_become_replacement_characters(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "a", "text": "x\\u0000y\\ud800z"}\n', encoding="utf-8"
    )
    assert read_corpus(tmp_path).texts == ["x\ufffdy\ufffdz"]


def test_metadata_and_groups_read_from_anywhere_can_be_written(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "a", "text": "x", "tags": ["\\ud800"], "metadata": {"group": "g\\udfff"}}\n',
        encoding="utf-8",
    )
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q", "text": "x", "metadata": {"by\\u0000": {"name": "y\\ud83d"}}}\n',
        encoding="utf-8",
    )
    corpus = read_corpus(tmp_path)
    assert corpus.groups == ["g\ufffd"]
    write_corpus(tmp_path / "out" / "corpus.jsonl", corpus)
    assert read_corpus(tmp_path / "out").metadata == {"tags": [["\ufffd"]]}
    queries = read_queries(tmp_path / "queries.jsonl")
    write_queries(tmp_path / "out" / "queries.jsonl", queries)
    assert queries.metadata == [{"by\ufffd": {"name": "y\ufffd"}}]


def test_an_empty_document_is_an_error_kept_or_dropped_as_asked(tmp_path):
    path = lines(tmp_path / "corpus.jsonl", {"_id": "a", "text": " \n"}, {"_id": "b", "text": "x"})
    with pytest.raises(DataError, match="'a' is empty"):
        read_corpus(path)
    assert read_corpus(path, empty="keep").ids == ["a", "b"]
    assert read_corpus(path, empty="drop").ids == ["b"]


def test_an_empty_corpus_is_an_error(tmp_path):
    path = lines(tmp_path / "corpus.jsonl")
    with pytest.raises(DataError, match="no documents"):
        read_corpus(path)


def test_a_repeated_document_is_collapsed_and_a_contradicting_one_refused(tmp_path, caplog):
    same = lines(tmp_path / "s.jsonl", {"_id": "a", "text": "x"}, {"_id": "a", "text": "x"})
    assert read_corpus(same).ids == ["a"]
    assert "collapsed" in caplog.text
    other = lines(tmp_path / "o.jsonl", {"_id": "a", "text": "x"}, {"_id": "a", "text": "y"})
    with pytest.raises(DataError, match="'a' stands for two different texts"):
        read_corpus(other)


def test_windows_line_ends_byte_order_mark_and_line_separators_are_read(tmp_path):
    row = json.dumps({"_id": "a", "text": "one\u2028two"}, ensure_ascii=False)
    (tmp_path / "corpus.jsonl").write_bytes(("\ufeff" + row + "\r\n").encode())
    assert read_corpus(tmp_path).texts == ["one\u2028two"]


def test_a_very_long_text_is_kept_whole(tmp_path):
    text = "word " * 100_000
    assert read_corpus(lines(tmp_path / "corpus.jsonl", {"_id": "a", "text": text})).texts == [text]


def test_a_group_field_that_is_missing_is_named_with_what_is_there(tmp_path):
    path = lines(tmp_path / "corpus.jsonl", {"_id": "a", "text": "x", "work": "w"})
    assert read_corpus(path, group_field="work").groups == ["w"]
    with pytest.raises(DataError, match="did you mean 'work'"):
        read_corpus(path, group_field="works")


def test_judgments_are_read_in_every_common_form(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_bytes('\ufeffquery_id\tcorpus_id\tscore\r\nq1\td"1\t1\r\nimo 1\td 2\t2\r\n'.encode())
    assert read_qrels(path) == {"q1": {'d"1': 1}, "imo 1": {"d 2": 2}}
    path.write_text("q1 0 d1 1\nq1 0 d2 0\n", encoding="utf-8")
    assert read_qrels(path) == {"q1": {"d1": 1, "d2": 0}}
    path.write_text("q1\td1\t1\nq1\td1\t1\n", encoding="utf-8")
    assert read_qrels(path) == {"q1": {"d1": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [("q1\td1\t1\nq1\td1\t2\n", "two grades"), ("q1\td1\n", "2 columns"), ("q1\td1\tx\n", "grade")],
)
def test_contradicting_or_malformed_judgments_are_named_by_line(tmp_path, text, message):
    path = tmp_path / "q.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_qrels(path)


def test_exclusions_must_be_lists_of_strings(tmp_path):
    path = tmp_path / "e.json"
    path.write_text('{"q1": ["a"], "q2": [3]}', encoding="utf-8")
    with pytest.raises(DataError, match="'q2'"):
        read_excluded(path)

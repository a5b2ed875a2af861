"""Corpus folders from BEIR, OBLIQ-Bench and JSON-lines sources, good and bad."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dataset_builders.corpora import beir, jsonl
from dataset_builders.corpora.label_task import same_label_task, split_labels
from dataset_builders.corpora.layout import write_folder
from obliq_hf.errors import DataError
from obliq_hf.files import hash_files
from obliq_hf.records import Corpus, read_corpus
from obliq_hf.task_data import read_task_data

if TYPE_CHECKING:
    from pathlib import Path


def _lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def _documents() -> list[dict[str, Any]]:
    return [
        {"_id": f"{author}-{work}-{i}", "text": f"{author} wrote {work} {i}", "author": author,
         "work": f"{author}-{work}", "split": "train" if author != "d" else "dev"}
        for author in "abcd"
        for work in (("one", "two") if author != "c" else ("only",))
        for i in range(4)
    ]  # fmt: skip


@pytest.fixture
def beir_folder(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    _lines(root / "corpus.jsonl", [{"_id": "0012", "title": "", "text": "x"},
                                   {"_id": "NA", "title": "t", "text": "y"}])  # fmt: skip
    _lines(root / "queries.jsonl", [{"_id": "1e5", "text": "which x?"}])
    qrels = "query-id\tcorpus-id\tscore\r\n1e5\t0012\t1\r\n1e5\tgone\t1\r\n"
    (root / "qrels").mkdir()
    (root / "qrels" / "dev.tsv").write_text(qrels, encoding="utf-8", newline="")
    return root


def test_a_beir_folder_keeps_ids_texts_and_judgments(beir_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    beir.build(out, beir_folder, name="lookup")
    data = read_task_data(out, task="lookup", split="dev")
    assert data.corpus.ids == ["0012", "NA"]
    assert data.qrels == {"1e5": {"0012": 1, "gone": 1}}
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    assert record["dropped"] == {
        "source dev: gold judgments of documents not in the corpus, kept as never found": 1
    }
    assert str(tmp_path) not in json.dumps(record)


def test_groups_come_from_a_file_beside_the_corpus(beir_folder: Path, tmp_path: Path) -> None:
    side = _lines(tmp_path / "side.jsonl", [
        {"_id": "0012", "text": "x", "work": "w1", "author": "a"},
        {"_id": "NA", "text": "y", "work": "w2", "author": "b"},
        {"_id": "1e5", "text": "q", "work": "w3", "author": "a"},
    ])  # fmt: skip
    corpus = beir.build(tmp_path / "out", beir_folder, group_field="work", metadata=side)
    assert corpus.groups == ["w1", "w2"]
    written = read_task_data(tmp_path / "out", split="dev")
    assert written.corpus.groups == ["w1", "w2"]
    assert written.corpus.metadata["author"] == ["a", "b"]
    assert written.queries.metadata[0]["author"] == "a"


def test_a_document_without_a_group_in_that_file_is_named(
    beir_folder: Path, tmp_path: Path
) -> None:
    side = _lines(tmp_path / "side.jsonl", [{"_id": "0012", "work": "w1"}])
    with pytest.raises(DataError, match=r"side\.jsonl has no 'work' for document 'NA'"):
        beir.build(tmp_path / "out", beir_folder, group_field="work", metadata=side)
    with pytest.raises(DataError, match="did you mean 'work'"):
        beir.build(tmp_path / "out", beir_folder, group_field="works", metadata=side)


def test_unknown_tasks_and_names_for_several_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "ours"
    rows = [{"_id": "d1", "text": "x"}]
    _lines(root / "corpus.jsonl", rows)
    for task in ("one", "two"):
        _lines(root / "tasks" / task / "queries.jsonl", [{"_id": f"q-{task}", "text": "?"}])
        _lines(root / "tasks" / task / "qrels" / "test.tsv", [f"q-{task}\td1\t1"])
    with pytest.raises(DataError, match="no task 'ones'; did you mean 'one'"):
        beir.build(tmp_path / "out", root, task="ones")
    with pytest.raises(DataError, match="cannot be named 'x'"):
        beir.build(tmp_path / "out", root, name="x")
    beir.build(tmp_path / "out", root)
    again = tmp_path / "again"
    beir.build(again, tmp_path / "out")
    ignore = ["corpus.json"]
    assert hash_files(again, ignore=ignore) == hash_files(tmp_path / "out", ignore=ignore)


def test_labelled_passages_of_novels_become_a_folder_with_groups(
    shared_data: Path, tmp_path: Path
) -> None:
    root = shared_data / "authorship"
    corpus = beir.build(
        tmp_path / "out", root / "dev", name="writing", group_field="work",
        metadata=root / "corpus.jsonl",
    )  # fmt: skip
    assert len(corpus) == 660
    assert len(set(corpus.groups)) == 22
    data = read_task_data(tmp_path / "out", task="writing", split="dev")
    for query, meta in zip(data.queries.ids, data.queries.metadata, strict=True):
        found = {corpus.metadata["author"][corpus.row[d]] for d in data.qrels[query]}
        assert found == {meta["author"]}


@pytest.mark.parametrize("task", ["writing", "math", "congress", "twitter"])
def test_obliq_bench_folders_are_read_task_by_task(
    task: str, shared_data: Path, tmp_path: Path
) -> None:
    beir.build(tmp_path / "out", shared_data / "mini_obliq", task=task)
    theirs = read_task_data(shared_data / "mini_obliq", task=task)
    ours = read_task_data(tmp_path / "out", task=task)
    assert ours.qrels == theirs.qrels
    assert ours.pooled == theirs.pooled
    assert ours.excluded == theirs.excluded
    assert ours.corpus.fingerprint == theirs.corpus.fingerprint


def test_rows_are_chosen_by_their_fields_and_a_task_comes_from_labels(tmp_path: Path) -> None:
    path = _lines(tmp_path / "all.jsonl", _documents())
    corpus = jsonl.build(
        tmp_path / "out", path, group_field="work", where={"split": "train"},
        label_field="author", task="hands", per_label=3,
    )  # fmt: skip
    assert set(corpus.metadata["author"]) == {"a", "b", "c"}
    asked = set()
    for split in ("dev", "test"):
        data = read_task_data(tmp_path / "out", task="hands", split=split)
        authors = {m["author"] for m in data.queries.metadata}
        assert not authors & asked
        asked |= authors
        for query in data.queries.ids:
            row = corpus.row[query.removeprefix("q-")]
            own = {d for d, g in zip(corpus.ids, corpus.groups, strict=True)
                   if g == corpus.groups[row]}  # fmt: skip
            assert set(data.excluded[query]) == own
            assert len(data.qrels[query]) == 4
            assert not own & set(data.qrels[query])
        assert len(data.queries) == 3
    assert asked == {"a", "b"}


def test_a_corpus_with_one_group_only_has_no_task_across_groups(tmp_path: Path) -> None:
    rows = [{**row, "work": "same"} for row in _documents()]
    path = _lines(tmp_path / "all.jsonl", rows)
    with pytest.raises(DataError, match="no value of 'author' occurs in two groups"):
        jsonl.build(tmp_path / "out", path, group_field="work", label_field="author")
    with pytest.raises(DataError, match="has no groups"):
        jsonl.build(tmp_path / "out", path, label_field="author")
    assert not (tmp_path / "out").exists()


def test_labels_nobody_has_twice_make_no_query() -> None:
    corpus = Corpus(["1", "2"], ["x", "y"], groups=["g", "h"], metadata={"author": ["a", "b"]})
    with pytest.raises(DataError, match="no query of task 't' has a positive"):
        same_label_task(corpus, name="t", label_field="author", splits={"a": "dev"}, per_label=2)
    with pytest.raises(DataError, match="did you mean 'author'"):
        split_labels(corpus, "autor")


def test_own_queries_and_judgments_go_with_the_corpus(tmp_path: Path) -> None:
    path = _lines(tmp_path / "c.jsonl", [{"key": "1", "body": "x"}, {"key": "2", "body": "y"}])
    queries = _lines(tmp_path / "q.jsonl", [{"_id": "q", "text": "?"}])
    good = _lines(tmp_path / "dev.tsv", ["q\t1\t1", "q\t9\t1"])
    jsonl.build(
        tmp_path / "out", path, id_field="key", text_field="body", task="t", queries=queries,
        qrels={"dev": good},
    )  # fmt: skip
    assert read_task_data(tmp_path / "out", task="t", split="dev").qrels == {"q": {"1": 1}}
    bad = _lines(tmp_path / "bad.tsv", ["other\t1\t1"])
    with pytest.raises(DataError, match=r"bad\.tsv: no judgment names both"):
        jsonl.build(
            tmp_path / "out2", path, id_field="key", text_field="body", queries=queries,
            qrels={"dev": bad},
        )  # fmt: skip
    with pytest.raises(DataError, match="belong together"):
        jsonl.build(tmp_path / "out2", path, id_field="key", text_field="body", queries=queries)
    assert not (tmp_path / "out2").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no documents"),
        (["not json"], r"c\.jsonl:1: not JSON"),
        ([{"_id": "1", "text": None}], r"c\.jsonl:1 field 'text' must be a string, not NoneType"),
        ([{"_id": "1", "text": 5}], r"c\.jsonl:1 field 'text' must be a string, not int"),
        ([{"_id": 12, "text": "x"}], r"c\.jsonl:1 field '_id' must be a non-empty string"),
        ([{"_id": "a\tb", "text": "x"}], r"field '_id' must be a non-empty string without tabs"),
        ([{"_id": "1", "txt": "x"}], r"c\.jsonl:1 has no field 'text'.*--text-field"),
        ([{"_id": "1", "text": "  \u2028 "}], r"field 'text' of document '1' is empty"),
        ([{"_id": "1", "text": "x"}, {"_id": "1", "text": "y"}], "stands for two different texts"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_written(
    rows: list[Any], message: str, tmp_path: Path
) -> None:
    path = _lines(tmp_path / "c.jsonl", rows)
    with pytest.raises(DataError, match=message):
        jsonl.build(tmp_path / "out", path)
    assert not (tmp_path / "out").exists()


def test_a_group_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    path = _lines(tmp_path / "c.jsonl", [{"_id": "1", "text": "x", "work": None}])
    with pytest.raises(DataError, match=r"c\.jsonl:1 field 'work' must name a source"):
        jsonl.build(tmp_path / "out", path, group_field="work")


def test_odd_texts_pass_by_the_stated_rules(tmp_path: Path) -> None:
    long = "word " * 100_000
    rows = [
        '\ufeff{"_id": "nul", "text": "a\\u0000b\\ud800c"}\r',
        json.dumps({"_id": "sep", "text": "one\u2028two"}, ensure_ascii=False),
        {"_id": "long", "text": long},
        {"_id": "long", "text": long},
        {"_id": "blank", "text": " \n"},
    ]
    path = _lines(tmp_path / "c.jsonl", rows)
    jsonl.build(tmp_path / "out", path, empty="drop")
    corpus = read_corpus(tmp_path / "out")
    assert corpus.ids == ["nul", "sep", "long"]
    assert corpus.texts[0] == "a\ufffdb\ufffdc"
    assert corpus.texts[1] == "one\u2028two"
    assert corpus.texts[2] == long
    record = json.loads((tmp_path / "out" / "corpus.json").read_text(encoding="utf-8"))
    assert record["dropped"] == {
        "rows that repeat an id and its text": 1,
        "empty documents": 1,
    }
    jsonl.build(tmp_path / "kept", path, empty="keep")
    assert len(read_corpus(tmp_path / "kept", empty="keep")) == 4
    with pytest.raises(DataError, match="did you mean 'drop'"):
        jsonl.build(tmp_path / "x", path, empty="dropp")  # type: ignore[arg-type]


def test_a_task_or_split_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    path = _lines(tmp_path / "c.jsonl", _documents())
    for bad in ("../up", "a/b", ""):
        with pytest.raises(ValueError, match="cannot be part of a path"):
            jsonl.build(tmp_path / "out", path, task=bad)
    with pytest.raises(ValueError, match="split"):
        jsonl.build(
            tmp_path / "out", path, group_field="work", label_field="author", splits=["../x"]
        )
    assert [p.name for p in tmp_path.iterdir()] == ["c.jsonl"]


def test_a_folder_without_documents_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no documents"):
        write_folder(tmp_path / "out", Corpus([], []), [], source={})
    assert not (tmp_path / "out").exists()


def test_the_corpus_of_several_splits_is_read_once(
    beir_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qrels = beir_folder / "qrels"
    for split in ("test", "train"):
        (qrels / f"{split}.tsv").write_bytes((qrels / "dev.tsv").read_bytes())
    files: list[Any] = []

    def counted(path: Any, **options: Any) -> Corpus:
        files.append(path)
        return read_corpus(path, **options)

    monkeypatch.setattr("obliq_hf.task_data.read_corpus", counted)
    beir.build(tmp_path / "out", beir_folder)
    assert files == [beir_folder / "corpus.jsonl"]


def test_metadata_that_no_file_can_hold_is_cleaned_in_every_source(
    beir_folder: Path, tmp_path: Path
) -> None:
    rows = '{"_id": "a", "text": "x", "work": "w\\ud800", "by": ["\\u0000"]}'
    made = jsonl.build(tmp_path / "one", _lines(tmp_path / "r.jsonl", [rows]), group_field="work")
    assert made.groups == ["w\ufffd"]
    assert read_corpus(tmp_path / "one").metadata["by"] == [["\ufffd"]]
    extra = _lines(
        tmp_path / "extra.jsonl",
        ['{"_id": "0012", "metadata": {"by": "\\udfff"}}', '{"_id": "1e5", "by": "\\udfff"}'],
    )
    beir.build(tmp_path / "two", beir_folder, metadata=extra)
    assert read_corpus(tmp_path / "two").metadata["by"] == ["\ufffd", None]


def test_further_metadata_must_be_an_object(beir_folder: Path, tmp_path: Path) -> None:
    extra = _lines(tmp_path / "extra.jsonl", [{"_id": "0012", "metadata": ["by"]}])
    with pytest.raises(DataError, match=r"extra\.jsonl:1 field 'metadata' must be an object"):
        beir.build(tmp_path / "out", beir_folder, metadata=extra)

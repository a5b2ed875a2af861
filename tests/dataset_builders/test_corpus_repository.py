from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from dataset_builders.corpora.repository import open_corpus
from obliq_hf.errors import DataError
from obliq_hf.records import Corpus, write_corpus
from obliq_hf.tasks import load_task

if TYPE_CHECKING:
    from pathlib import Path

TASK = load_task("writing")


def repository(folder: Path, config: str, rows: list[dict]) -> str:
    """A folder laid out as a dataset repository."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "corpus.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: corpus\n"
        "    path: data/corpus.jsonl\n---\n",
        encoding="utf-8",
    )
    return str(folder)


@pytest.mark.parametrize(
    ("config", "row"),
    [
        ("writing-corpus", {"id": "a", "title": "", "text": "some text", "group": "g1"}),
        ("writing", {"_id": "a", "text": "some text", "metadata": {"group": "g1"}}),
    ],
)
def test_our_layout_and_the_benchmarks_are_read(tmp_path: Path, hf_home, config, row):
    empty = {**row, "text": " "} | ({"id": "b"} if "id" in row else {"_id": "b"})
    corpus = open_corpus(repository(tmp_path / "repo", config, [row, empty]), TASK)
    assert (corpus.ids, corpus.texts, corpus.groups) == (["a"], ["some text"], ["g1"])


def test_a_folder_published_again_or_of_the_same_last_name_is_read_as_it_stands(
    tmp_path: Path, hf_home
):
    seen = []
    for place, text in (("a", "first"), ("a", "second"), ("b", "third")):
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        row = {"id": "a", "text": text}
        source = repository(tmp_path / place / "repo", "writing-corpus", [row])
        seen += open_corpus(source, TASK).texts
    assert seen == ["first", "second", "third"]


def test_a_corpus_folder_is_read_as_it_is(tmp_path: Path):
    write_corpus(tmp_path / "corpus.jsonl", Corpus(["a"], ["text"]))
    assert open_corpus(str(tmp_path), TASK).ids == ["a"]


def test_a_missing_configuration_field_or_place_is_told_by_name(tmp_path: Path, hf_home):
    source = repository(tmp_path / "repo", "math-corpus", [{"id": "a", "text": "t"}])
    with pytest.raises(DataError, match=r"writing-corpus.*math-corpus"):
        open_corpus(source, TASK)
    other = repository(tmp_path / "other", "writing-corpus", [{"id": "a", "text": "t"}])
    with pytest.raises(DataError, match="thread"):
        open_corpus(other, TASK, group_field="thread")
    with pytest.raises(DataError, match="nowhere"):
        open_corpus(str(tmp_path / "nowhere"), TASK)
    with pytest.raises(DataError, match="nobody/nothing"):
        open_corpus("nobody/nothing", TASK)

"""Queries the project carries: how they are read, and what they must be like."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dataset_builders.recorded_queries import (
    RecordedQuery,
    load_recorded,
    recorded_file,
    text_fingerprint,
)
from obliq_hf.errors import DataError
from obliq_hf.records import Corpus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def small() -> Corpus:
    return Corpus(["p1", "p2"], ["First text.", "Second text."], groups=["a", "b"])


def _write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8", newline="\n")
    return path


def _row(corpus: Corpus, i: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"s{i}",
        "split": "train",
        "passage_id": corpus.ids[i],
        "text_sha256": text_fingerprint(corpus.texts[i]),
        "stage_a": "a",
        "query": "q",
        **changes,
    }


def test_rows_that_fit_the_corpus_are_read_by_split(small: Corpus, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.jsonl", _row(small, 0), _row(small, 1, split="dev"))
    assert [r.id for r in load_recorded("x", small, path=path)] == ["s0", "s1"]
    assert [r.id for r in load_recorded("x", small, split="dev", path=path)] == ["s1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passage_id": "p9"}, r"x\.jsonl:1 field 'passage_id': the corpus has no passage 'p9'"),
        ({"text_sha256": "0" * 16}, r"x\.jsonl:1: passage 'p1' has another text"),
        ({"split": "tests"}, "did you mean 'test'"),
        ({"query": " "}, "field 'query' must be a string that is not empty"),
        ({"stage_a": None}, "field 'stage_a' must be a string"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    changes: dict[str, Any], message: str, small: Corpus, tmp_path: Path
) -> None:
    path = _write(tmp_path / "x.jsonl", _row(small, 0, **changes))
    with pytest.raises(DataError, match=message):
        load_recorded("x", small, path=path)


def test_an_id_given_twice_is_named(small: Corpus, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.jsonl", _row(small, 0), _row(small, 1, id="s0"))
    with pytest.raises(DataError, match=r"x\.jsonl:2 field 'id' 's0' was given before"):
        load_recorded("x", small, path=path)


def test_a_task_nobody_recorded_and_an_unknown_split_are_refused(small: Corpus) -> None:
    with pytest.raises(DataError, match="no queries are recorded for the task 'nothing-here'"):
        load_recorded("nothing-here", small)
    with pytest.raises(DataError, match="did you mean 'train'"):
        load_recorded("scene", small, split="trai")
    with pytest.raises(ValueError, match="task name"):
        recorded_file("../scene")


@pytest.fixture(scope="module")
def corpus(classics_corpus: Corpus) -> Corpus:
    return classics_corpus


@pytest.fixture(scope="module")
def scene(corpus: Corpus) -> list[RecordedQuery]:
    return load_recorded("scene", corpus)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("\u2019", "'"))


def _capitals(query: str) -> list[str]:
    """Words with a capital that neither begin a sentence nor are ``I``."""
    inside = re.sub(r"(^|[.!?:]\s+)\w+", r"\1", query)
    return [w for w in re.findall(r"[A-Z][\w']*", inside) if w.split("'")[0] != "I"]


def test_as_many_scene_queries_are_recorded_as_the_readme_says(scene: list[RecordedQuery]) -> None:
    readme = (recorded_file("scene").parent / "README.md").read_text(encoding="utf-8")
    said = {s: int(n) for s, n in re.findall(r"^\| `(\w+)` \| (\d+) \|", readme, re.MULTILINE)}
    counts = Counter(row.split for row in scene)
    assert counts == said
    assert counts["train"] >= 240
    assert counts["dev"] >= 60
    assert counts["test"] >= 60
    assert len({row.query for row in scene}) == len(scene)


def test_passages_of_scene_splits_are_disjoint_and_test_works_untouched(
    scene: list[RecordedQuery], corpus: Corpus
) -> None:
    passages = defaultdict(set)
    groups = defaultdict(set)
    for row in scene:
        passages[row.split].add(row.passage_id)
        groups[row.split].add(corpus.groups[corpus.row[row.passage_id]])
    assert not passages["train"] & (passages["dev"] | passages["test"])
    assert not passages["dev"] & passages["test"]
    assert not groups["test"] & (groups["train"] | groups["dev"])
    assert len(groups["test"]) == 10


def test_scene_queries_are_recollections_in_the_first_person_of_stated_length(
    scene: list[RecordedQuery],
) -> None:
    for row in scene:
        assert 40 <= len(row.query.split()) <= 110, row.id
        assert re.search(r"\b(I|me|my|mine)\b", row.query), row.id


def test_scene_queries_have_no_names_numbers_or_quotations(scene: list[RecordedQuery]) -> None:
    for row in scene:
        assert not re.search(r"[\d\"\u201c\u201d\u2018]", row.query), row.id
        assert not _capitals(row.query), row.id


def test_scene_queries_share_no_four_words_and_no_rare_stem_with_their_passage(
    scene: list[RecordedQuery], corpus: Corpus
) -> None:
    import Stemmer

    stem = Stemmer.Stemmer("english").stemWords
    passages = [_words(text) for text in corpus.texts]
    frequency = Counter(s for words in passages for s in set(stem(words)))
    for row in scene:
        mine, theirs = _words(row.query), passages[corpus.row[row.passage_id]]
        shared = set(stem(mine)).intersection(stem(theirs))
        assert {s for s in shared if frequency[s] < 13} == set(), row.id
        runs = [set(zip(w, w[1:], w[2:], w[3:], strict=False)) for w in (mine, theirs)]
        assert not runs[0] & runs[1], row.id


def test_the_check_for_names_sees_them_inside_sentences_only() -> None:
    assert _capitals("She left. I'd say Darcy: He came, I think.") == ["Darcy"]

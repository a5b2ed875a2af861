"""Training queries that a run had a language model write, published with their card."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from llm_server import oblique_reply

from dataset_builders.synthetic_queries import synthesize
from model_cards.publishing import PublishOptions, publish_dataset
from obliq_hf.errors import DataError
from obliq_hf.files import iter_jsonl, write_jsonl
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.records import Corpus, write_corpus
from obliq_hf.tasks import load_task

if TYPE_CHECKING:
    from pathlib import Path

NAME = "obliq-ir/queries"
TEXTS = {"d1": "The sea lay calm.", "d2": "They laughed at the landlord."}


@pytest.fixture
def to_folder(tmp_path: Path) -> PublishOptions:
    return PublishOptions(to=f"folder:{tmp_path / 'laid-out'}", licence="cc0-1.0")


def run_with(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run folder with a corpus and the training queries of one task."""
    write_corpus(folder / "corpus" / "corpus.jsonl", Corpus(list(TEXTS), list(TEXTS.values())))
    write_jsonl(folder / "queries" / "scene.jsonl", rows)
    return folder


@pytest.mark.parametrize("field", ["passage_id", "doc_id", "positive_id", "document_id"])
def test_queries_are_published_under_every_name_of_a_passage_that_training_reads(
    tmp_path: Path, to_folder: PublishOptions, field: str
) -> None:
    import pyarrow.parquet as pq

    rows = [
        {"_id": f"scene-{i}", "text": f"somebody recalls {i}", field: i, "metadata": {"calls": 2}}
        for i in TEXTS
    ]
    run = run_with(tmp_path / "run", rows)
    publish_dataset(run / "queries", NAME, to_folder)
    (file,) = (tmp_path / "laid-out" / NAME / "scene").glob("*.parquet")
    assert pq.read_table(file).to_pylist() == [
        {"anchor": f"somebody recalls {i}", "positive": text} for i, text in TEXTS.items()
    ]


def test_queries_without_a_passage_are_refused_by_line_with_the_names_to_choose_from(
    tmp_path: Path, to_folder: PublishOptions
) -> None:
    run = run_with(tmp_path / "run", [{"query": "somebody recalls", "passage": "d1"}])
    with pytest.raises(DataError, match=r"scene\.jsonl:1 has no field 'passage_id' \(nor doc_id"):
        publish_dataset(run / "queries", NAME, to_folder)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run whose queries a scripted model wrote: ``queries`` and ``synthesis/scene``."""
    texts = [f"On day {i} the planted raven said that nothing would ever change." for i in range(9)]
    corpus = Corpus([f"d{i}" for i in range(9)], texts)
    run = tmp_path / "run"
    write_corpus(run / "corpus" / "corpus.jsonl", corpus)
    model = ScriptedClient(lambda r: oblique_reply({"messages": r.messages, "seed": r.seed}))
    task = replace(load_task("twitter"), name="scene")
    synthesize(task, corpus, model, run / "synthesis" / "scene", sample=4)
    rows = [row for _, row in iter_jsonl(run / "synthesis" / "scene" / "queries.jsonl")]
    write_jsonl(run / "queries" / "scene.jsonl", rows)
    return run


@pytest.mark.parametrize("folder", ["queries", "synthesis/scene"])
def test_the_card_of_written_queries_tells_how_they_were_written_and_shows_examples(
    written: Path, tmp_path: Path, to_folder: PublishOptions, folder: str
) -> None:
    publish_dataset(written / folder, NAME, to_folder, corpus=written / "corpus")
    card = (tmp_path / "laid-out" / NAME / "README.md").read_text(encoding="utf-8")
    assert "| queries written / documents asked | 4 / 4 |" in card
    assert "| entity leakage | 0.0% |" in card
    rows = [row for _, row in iter_jsonl(written / "queries" / "scene.jsonl")]
    assert all(row["text"] in card for row in rows)
    assert "planted raven" not in card
    if folder == "queries":
        shutil.rmtree(written / "synthesis")
        publish_dataset(written / folder, NAME, to_folder)
        card = (tmp_path / "laid-out" / NAME / "README.md").read_text(encoding="utf-8")
        assert "How the queries were written" not in card

"""Training queries that a run had a language model write, published with their card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from model_cards.publishing import PublishOptions, publish_dataset
from obliq_hf.errors import DataError
from obliq_hf.files import write_jsonl
from obliq_hf.records import Corpus, write_corpus

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

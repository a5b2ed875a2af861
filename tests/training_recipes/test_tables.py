"""Development data of a recipe's tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from obliq_hf.files import write_json
from obliq_hf.records import Corpus, Queries, write_corpus, write_qrels, write_queries
from obliq_hf.tasks import load_task
from training_recipes.dev import DevEvaluator
from training_recipes.tables import read_dev

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks over three documents, of which two are from one work."""
    corpus = Corpus(["a", "b", "c"], ["the sea", "a letter", "the king"], groups=["w", "w", "v"])
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    for name in ("writing", "math"):
        task = tmp_path / "tasks" / name
        queries = Queries(["q"], ["the sea"], [{"group": "w"}])
        write_queries(task / "queries.jsonl", queries)
        write_qrels(task / "qrels" / "dev.tsv", {"q": {"c": 1}})
        write_json(task / "excluded.json", {})
    return tmp_path


def test_checkpoints_are_chosen_under_the_tasks_own_exclusions(
    folder: Path, tiny_model_dir: Path
) -> None:
    from obliq_hf.encoder import ObliqSentenceTransformer

    grouped = replace(load_task("writing"), exclusion="group")
    data = read_dev(folder, [grouped, load_task("math")], "dev")
    assert data["writing"].excluded == {"q": ["a", "b"]}
    assert data["math"].excluded == {}
    assert data["writing"].corpus is data["math"].corpus
    model = ObliqSentenceTransformer.from_base(
        str(tiny_model_dir), tasks=["writing", "math"], template="none", device="cpu"
    )
    scores = DevEvaluator(data)(model)
    assert scores["writing_ndcg_at_10"] == 1.0 > scores["math_ndcg_at_10"]

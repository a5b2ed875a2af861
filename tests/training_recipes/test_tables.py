"""Development data of a recipe's tasks, and what a training says it was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from obliq_hf.files import write_json
from obliq_hf.records import Corpus, Queries, write_corpus, write_qrels, write_queries
from obliq_hf.tasks import load_task
from training_recipes.dev import DevEvaluator
from training_recipes.sections import TrainingConfig
from training_recipes.tables import TrainingTable, read_dev, trained_mteb_tasks
from training_recipes.train import train

if TYPE_CHECKING:
    from collections.abc import Callable
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


@pytest.mark.parametrize("builder", ["beir", "classics"])
def test_a_student_says_which_tasks_data_it_was_trained_on(
    builder: str,
    folder: Path,
    tiny_model_dir: Path,
    make_mixture: Callable[..., Path],
    tmp_path: Path,
) -> None:
    from eval_mteb.evaluation import folder_tasks
    from eval_mteb.models import load_encoder

    run = tmp_path / "novels"
    write_json(folder / "corpus.json", {"source": {"builder": builder}})
    mixture = make_mixture(("w-queries", "queries", 8, 0))
    for name in ("corpus.jsonl", "corpus.json", "tasks"):
        (run / "corpus").mkdir(parents=True, exist_ok=True)
        (folder / name).rename(run / "corpus" / name)
    tasks = [load_task("writing"), load_task("math")]
    config = TrainingConfig(
        base=str(tiny_model_dir), batch_size=4, max_length=128, save_steps=100, max_steps=1
    )
    made = train(config, mixture, run, tasks=tasks, reload_check=False, show_progress=False)
    meta = load_encoder(made.model).mteb_model_meta
    trained, other = (
        folder_tasks(run / "corpus", task, split="dev")[0].metadata.name for task in tasks
    )
    assert meta.is_zero_shot_on([trained]) is False
    assert meta.is_zero_shot_on([other]) is True
    assert meta.is_zero_shot_on(["OBLIQBenchWritingRetrieval"]) is (builder == "classics")
    assert meta.is_zero_shot_on(["OBLIQBenchMathRetrieval"]) is True


def test_training_counts_as_seen_under_gold_and_pooled_judgments_alike(folder: Path) -> None:
    tables: list[TrainingTable] = [
        TrainingTable(name, name, "graph", rows=None)  # type: ignore[arg-type]
        for name in ("math", "writing")
    ]
    names = trained_mteb_tasks(tables, [load_task("math"), load_task("writing")], folder)
    assert {n for n in names if n.startswith("OBLIQBench")} == {
        "OBLIQBenchMathRetrieval",
        "OBLIQBenchMathGoldRetrieval",
        "OBLIQBenchWritingRetrieval",
    }
    own = [n for n in names if not n.startswith("OBLIQBench")]
    assert len(own) == 4
    assert sum(n.endswith("MathPooled") for n in own) == 1

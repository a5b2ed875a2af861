"""The target's architecture, very small, through every step a 3B training takes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tiny_llama import make_bidirectional_llama

from eval_mteb.evaluation import evaluate_folder
from model_cards.publishing import PublishOptions, publish_model
from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.encoder.text_encoder import load_text_encoder
from obliq_hf.files import read_json, write_json, write_jsonl
from obliq_hf.records import Corpus, write_qrels
from obliq_hf.search.encoding import encode_corpus
from obliq_hf.search.index import encode_queries
from obliq_hf.tasks import load_tasks
from training_recipes.recipe import load_recipe
from training_recipes.train import TrainResult, train
from training_recipes.trainer import ObliqTrainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from training_recipes.sections import TrainingConfig

TEXTS = [
    "the old man went down to the sea",
    "she had a letter from her brother in the war",
    "1, 2, 3.",
    "a green tree stood by the river in the field and nobody said a word about it",
]
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


class Stopped(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bidirectional_llama(tmp_path_factory.mktemp("llama") / "base")


@pytest.fixture(scope="module")
def settings(base: Path) -> TrainingConfig:
    """The 3B recipe's own training settings, with sizes cut down."""
    recipe = load_recipe("obliq_ir_3b")
    return replace(
        recipe.training,
        base=str(base), revision=None, max_length=96, lengths={}, batch_size=8, mini_batch_size=3,
        min_batch_size=None, repeat={}, save_steps=4, logging_steps=1, save_dtype="float32",
        learning_rate=3e-3, bf16="auto",
    )  # fmt: skip


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory, write_mixture: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("data") / "mixture"
    return write_mixture(folder, ("w-graph", "graph", 24, 0), ("w-queries", "queries", 24, 4))


def run(settings: TrainingConfig, mixture: Path, out: Path, **options: Any) -> TrainResult:
    defaults: dict[str, Any] = {"reload_check": False, "show_progress": False, "seed": 13}
    tasks = load_tasks(["writing", "congress"])
    return train(settings, mixture, out, tasks=tasks, **{**defaults, **options})


@pytest.fixture(scope="module")
def trained(
    settings: TrainingConfig, mixture: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainResult:
    return run(settings, mixture, tmp_path_factory.mktemp("run") / "llama")


def test_the_recipe_trains_adapters_on_all_seven_projections(trained, settings):
    assert settings.loss == "cached"
    assert settings.gradient_checkpointing
    assert settings.template == "reasonir"
    config = read_json(trained.adapter / "adapter_config.json")
    assert set(config["target_modules"]) == PROJECTIONS
    assert config["r"] == 16
    weights = load_file(trained.adapter / "adapter_model.safetensors")
    assert len(weights) == 2 * 2 * len(PROJECTIONS)
    assert all(bool(w.abs().sum() > 0) for n, w in weights.items() if "lora_B" in n)
    report = trained.report
    assert report["parameters"]["trained"] == sum(w.numel() for w in weights.values())
    assert report["base"]["converted"]


def test_stopped_and_resumed_it_ends_with_the_same_adapter(
    settings, mixture, trained, tmp_path, monkeypatch
):
    step = ObliqTrainer.training_step

    def stopping(self: ObliqTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 5:
            raise Stopped
        return step(self, *args, **kwargs)

    monkeypatch.setattr(ObliqTrainer, "training_step", stopping)
    with pytest.raises(Stopped):
        run(settings, mixture, tmp_path / "run")
    monkeypatch.undo()
    resumed = run(settings, mixture, tmp_path / "run")
    assert resumed.report["resumed_from"] == 4
    one = load_file(trained.adapter / "adapter_model.safetensors")
    two = load_file(resumed.adapter / "adapter_model.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_merged_model_is_a_stock_bidirectional_llama_with_the_adapters_vectors(trained, base):
    config = read_json(trained.model / "config.json")
    assert config["model_type"] == "llama"
    assert config["is_causal"] is False
    assert "auto_map" not in config
    stock = SentenceTransformer(str(trained.model), device="cpu")
    adapted = ObliqSentenceTransformer.from_adapter(trained.adapter, base=base, device="cpu")
    untrained = ObliqSentenceTransformer.from_base(
        base, tasks=["writing"], template="reasonir", device="cpu"
    )
    for prompt_name in ("writing", "congress", "query", "document"):
        merged = stock.encode(TEXTS, prompt_name=prompt_name)
        assert np.abs(merged - adapted.encode(TEXTS, prompt_name=prompt_name)).max() < 1e-5
    assert np.abs(stock.encode(TEXTS) - untrained.encode(TEXTS)).max() > 1e-3
    assert stock.prompts["writing"] == stock.prompts["OBLIQBenchWritingRetrieval-query"]
    first = stock.encode_query("the old man and the sea", prompt_name="writing")
    second = stock.encode_query("the old man and the sea", prompt_name="congress")
    assert np.abs(first - second).max() > 1e-4  # left out of the mean, but read


def test_it_is_encoded_into_an_index_and_searched(trained, tmp_path):
    encoder = load_text_encoder(trained.model, device="cpu", batch_size=2)
    corpus = Corpus([f"d{i}" for i in range(4)], TEXTS)
    index = encode_corpus(encoder, corpus, tmp_path / "index", shard_rows=3)
    queries = encode_queries(encoder, TEXTS[:1], prompt_name="writing")
    stock = SentenceTransformer(str(trained.model), device="cpu")
    scores = stock.encode_query(TEXTS[:1], prompt_name="writing") @ stock.encode_document(TEXTS).T
    (hits,) = index.search(queries, 4)
    assert np.abs(hits.scores - scores[0][hits.rows]).max() < 1e-3
    assert np.abs(index.vectors()[:] - stock.encode_document(TEXTS)).max() < 1e-3


def test_it_is_published_merged_and_loads_from_there(trained, tmp_path):
    options = PublishOptions(to=f"folder:{tmp_path}", licence="cc-by-nc-4.0")
    base = f"somebody/llama-bidirec@{'0' * 40}"
    with pytest.raises(ValueError, match="publish the merged model"):
        publish_model(
            trained.model, "obliq-ir/tiny", options, adapter_repo="obliq-ir/tiny-lora", base=base
        )
    publish_model(trained.model, "obliq-ir/tiny", options, base=base)
    published = SentenceTransformer(str(tmp_path / "obliq-ir" / "tiny"), device="cpu")
    local = SentenceTransformer(str(trained.model), device="cpu")
    names = ("writing", "document")
    for name in names:
        expected = local.encode(TEXTS, prompt_name=name)
        assert np.abs(published.encode(TEXTS, prompt_name=name) - expected).max() < 1e-6


def test_it_is_evaluated_through_the_harness(trained, base, tmp_path):
    folder = tmp_path / "corpus"
    documents = [*TEXTS, "the king was dead", "there is fire in the window"]
    write_jsonl(
        folder / "corpus.jsonl", ({"_id": f"d{i}", "text": t} for i, t in enumerate(documents))
    )
    place = folder / "tasks" / "writing"
    queries = [{"_id": "q0", "text": "the sea"}, {"_id": "q1", "text": "the king"}]
    write_jsonl(place / "queries.jsonl", queries)
    write_qrels(place / "qrels" / "test.tsv", {"q0": {"d0": 1}, "q1": {"d4": 1, "d5": 1}})
    evaluate_folder(
        folder, load_tasks(["writing"]), tmp_path / "eval", systems=["base", "student"],
        base=str(base), template="reasonir", include_prompt=False, max_length=96,
        student=trained.model, depth=10, device="cpu", show_progress=False,
    )  # fmt: skip
    scores = read_json(tmp_path / "eval" / "writing" / "student" / "per_query.json")
    assert set(scores["ndcg_at_10"]) == {"q0", "q1"}
    assert all(0 < value <= 1 for value in scores["recall_at_10"].values())


def test_a_base_without_the_named_projections_is_told_before_training(
    settings, mixture, tiny_model_dir, tmp_path
):
    with pytest.raises(ValueError, match=r"no projection 'q_proj'; it has: .*query"):
        run(replace(settings, base=str(tiny_model_dir)), mixture, tmp_path / "run")
    assert not list(Path(tmp_path / "run").rglob("checkpoint-*"))


def test_an_adapter_of_another_base_is_refused(trained, tmp_path):
    other = make_bidirectional_llama(tmp_path / "other", seed=3)
    narrower = _cut(other, tmp_path / "cut")
    for base in (other, narrower):
        with pytest.raises(ValueError, match="has other weights than the base"):
            ObliqSentenceTransformer.from_adapter(trained.adapter, base=base, device="cpu")
    shutil.copytree(trained.adapter, tmp_path / "unsigned")
    config = read_json(tmp_path / "unsigned" / "config_sentence_transformers.json")
    del config["base_model"]["weights"]
    write_json(tmp_path / "unsigned" / "config_sentence_transformers.json", config)
    with pytest.raises(ValueError, match="does not fit its base"):
        ObliqSentenceTransformer.from_adapter(tmp_path / "unsigned", base=narrower, device="cpu")


def _cut(folder: Path, out: Path) -> Path:
    """A checkpoint with a narrower feed-forward layer."""
    from transformers import LlamaConfig, LlamaModel

    shutil.copytree(folder, out)
    config = LlamaConfig(
        vocab_size=read_json(folder / "config.json")["vocab_size"], hidden_size=32,
        intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    LlamaModel(config).save_pretrained(str(out))
    return out

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import mteb
import pytest
from tiny_encoders import TEXTS, build, gap, put_in_cache, shake
from tiny_llama import make_bidirectional_llama

import eval_mteb
from eval_mteb.command import evaluate_command
from eval_mteb.models import load_encoder
from eval_mteb.results import read_results

if TYPE_CHECKING:
    from pathlib import Path


def trained_run(kind: str, tiny_model_dir: Path, folder: Path) -> Path:
    """A run's ``adapter`` and ``model`` on a base that stock libraries cannot load by name."""
    if kind == "converted":
        base, layers = make_bidirectional_llama(folder / "base"), None
    else:
        base, layers = tiny_model_dir, 1
    trained = build(base, lora={"r": 2}, layers=layers)
    shake(trained)
    trained.save_adapter(folder / "run" / "adapter")
    trained.merged().save(folder / "run" / "model")
    return folder / "run"


def test_published_checkpoints_say_what_they_were_trained_on():
    import eval_mteb.checkpoints as checkpoints

    for meta in checkpoints.CHECKPOINTS[:3]:
        assert mteb.get_model_meta(meta.name) == meta
        for task in eval_mteb.OBLIQ_BENCH:
            assert meta.is_zero_shot_on([task]) is False, task.metadata.name
        assert meta.adapted_from == checkpoints.BASE.name


def test_mteb_knows_our_tasks_and_checkpoints_after_one_call_and_nothing_before():
    code = """if True:
        import json, mteb, eval_mteb
        from mteb.get_tasks import _TASKS_REGISTRY
        from mteb.models.model_implementations import MODEL_REGISTRY
        names = ["OBLIQBenchMathGoldRetrieval", "DataScience-UIBK/OBLIQ-IR-3B-LoRA"]
        before = [names[0] in _TASKS_REGISTRY, names[1] in MODEL_REGISTRY]
        eval_mteb.register_all()
        eval_mteb.register_all()
        task = mteb.get_task(names[0])
        meta = mteb.get_model_meta(names[1])
        print(json.dumps([before, 50 in task.k_values, meta.is_zero_shot_on([task])]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[False, False], True, False]


def test_a_loaded_model_keeps_what_mteb_knows_of_it():
    known = mteb.get_model_meta("sentence-transformers/all-MiniLM-L6-v2")
    loaded = load_encoder("embedded", device="cpu").mteb_model_meta
    assert loaded.name == known.name
    assert loaded.training_datasets == known.training_datasets
    assert loaded.training_datasets
    assert loaded.license == known.license
    short = load_encoder("embedded", device="cpu", max_length=32).mteb_model_meta
    assert short.max_tokens == 32
    assert short.revision != loaded.revision


@pytest.mark.parametrize("kind", ["converted", "cut"])
def test_an_adapter_scores_as_its_merged_model_does(kind, folder, tiny_model_dir, tmp_path):
    run = trained_run(kind, tiny_model_dir, tmp_path)
    evaluate_command(
        data=folder, models=[str(run / "adapter"), str(run / "model")], tasks=["writing"],
        baselines=[], out=tmp_path / "eval", judgments=["gold"], device="cpu",
        show_progress=False,
    )  # fmt: skip
    task = read_results(tmp_path / "eval")["writing"]
    adapter, merged = task.systems["run"], task.systems["run-2"]
    assert adapter.about["fingerprint"] != merged.about["fingerprint"]
    assert adapter.per_query == merged.per_query
    for query, ranked in merged.run.items():
        assert adapter.run[query] == pytest.approx(ranked, abs=1e-4)


def test_mteb_loads_a_registered_adapter_on_its_recorded_base(
    tiny_model_dir, tmp_path, monkeypatch
):
    run = trained_run("converted", tiny_model_dir, tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    name = "DataScience-UIBK/OBLIQ-IR-3B-LoRA"
    put_in_cache(tmp_path / "hub", name, {"main": run / "adapter"})
    eval_mteb.register_all()
    loaded = mteb.get_model(name, device="cpu").model
    merged = load_encoder(run / "model", device="cpu").model
    assert loaded.prompts == merged.prompts
    assert gap(loaded.encode(TEXTS), merged.encode(TEXTS)) < 1e-4

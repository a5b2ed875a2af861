from __future__ import annotations

import json
import subprocess
import sys

import mteb

import eval_mteb
from eval_mteb.models import load_encoder


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

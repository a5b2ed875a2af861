from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tiny_training import LORA, PLANTED, Stopped, run, same, weights

from obliq_hf.errors import ObliqError
from obliq_hf.tasks import load_tasks
from training_recipes.checkpoint import last_complete, mark_complete
from training_recipes.reload_check import compare_vectors
from training_recipes.sections import LoraConfig, TrainingConfig
from training_recipes.trainer import ObliqTrainer, TaskCollator, load_weights

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_a_stopped_training_ends_with_the_same_weights_and_losses(
    lora: LoraConfig | None,
    settings: TrainingConfig,
    mixture: Path,
    tmp_path: Path,
    stop_at: Callable[[int | None], None],
) -> None:
    config = replace(settings, lora=lora, save_steps=5, dropout=0.1)
    straight = run(config, mixture, tmp_path / "straight")
    assert straight.report["steps"] == 10
    stop_at(7)
    with pytest.raises(Stopped):
        run(config, mixture, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "model").exists()
    (checkpoints,) = (tmp_path / "stopped" / "checkpoints").iterdir()

    # what a kill during saving leaves: a folder without its mark, one with a file cut short
    shutil.copytree(checkpoints / "checkpoint-5", checkpoints / "checkpoint-6")
    (checkpoints / "checkpoint-6" / "complete.json").unlink()
    shutil.copytree(checkpoints / "checkpoint-5", checkpoints / "checkpoint-7")
    (checkpoints / "checkpoint-7" / "optimizer.pt").write_bytes(b"short")

    stop_at(None)
    resumed = run(config, mixture, tmp_path / "stopped")
    assert resumed.report["resumed_from"] == 5
    assert straight.report["resumed_from"] is None
    assert same(weights(resumed.model), weights(straight.model))
    assert resumed.report["losses"] == straight.report["losses"]
    assert not (tmp_path / "stopped" / "checkpoints").exists()
    if lora is not None:
        assert resumed.adapter is not None
        assert straight.adapter is not None
        name = "adapter_model.safetensors"
        assert same(load_file(resumed.adapter / name), load_file(straight.adapter / name))


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_every_checkpoint_is_a_whole_model(
    lora: LoraConfig | None,
    settings: TrainingConfig,
    mixture: Path,
    tmp_path: Path,
    stop_at: Callable[[int | None], None],
) -> None:
    stop_at(2)
    with pytest.raises(Stopped):
        run(replace(settings, lora=lora, save_steps=2), mixture, tmp_path / "run")
    (checkpoints,) = (tmp_path / "run" / "checkpoints").iterdir()
    model = SentenceTransformer(str(checkpoints / "checkpoint-2"), device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", "Normalize"]
    assert model.prompts["writing"].startswith("Instruct: ")
    assert model[1].include_prompt is False
    assert not (checkpoints / "checkpoint-2" / "training_args.bin").exists()
    base = SentenceTransformer(settings.base, device="cpu")
    assert np.abs(model.encode("the sea") - base.encode("the sea")).max() > 1e-6


def test_the_tokenizer_sees_the_instruction_on_anchors_alone_and_no_ids(
    settings: TrainingConfig, mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    training = [False]
    original_step, original_load = ObliqTrainer.train, TaskCollator.__call__

    def collate(self: TaskCollator, features: list[dict[str, Any]]) -> dict[str, Any]:
        training[0] = True
        try:
            return original_load(self, features)
        finally:
            training[0] = False

    from transformers import PreTrainedTokenizerBase

    original_call = PreTrainedTokenizerBase.__call__

    def spy(self: Any, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        if training[0]:
            seen.append([text] if isinstance(text, str) else list(text))
        return original_call(self, text, *args, **kwargs)

    monkeypatch.setattr(TaskCollator, "__call__", collate)
    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", spy)
    assert original_step is ObliqTrainer.train
    run(replace(settings, max_steps=4), mixture, tmp_path / "run")
    instruction = "Instruct: Given a passage"
    columns = [texts for texts in seen if len(texts) > 1]
    texts = [text for column in columns for text in column]
    anchors = [t for t in texts if instruction in t]
    assert {t.count(instruction) for t in anchors} == {1}
    assert all(t.startswith(instruction) for t in anchors)
    assert len(anchors) == 4 * 8
    rest = [t for t in texts if instruction not in t]
    assert all(t.split()[-1][0] in "pn0123456789" for t in rest)
    assert not any("w-graph-" in t or "w-queries-" in t for t in texts)
    assert all(len({instruction in t for t in column}) == 1 for column in columns)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_training_and_encoding_give_one_vector(
    include_prompt: bool, settings: TrainingConfig, tmp_path: Path
) -> None:
    from obliq_hf.encoder import ObliqSentenceTransformer

    model = ObliqSentenceTransformer.from_base(
        settings.base, tasks=["writing"], include_prompt=include_prompt, device="cpu"
    )
    prompt = model.prompts["writing"]
    collator = TaskCollator(
        preprocess_fn=model.preprocess, prompts={"d": {"anchor": prompt, "positive": ""}}
    )
    texts = ["the sea was calm", "he went home and said no word to her"]
    batch = collator([{"anchor": t, "positive": t, "dataset_name": "d"} for t in texts])
    features = {k.removeprefix("anchor_"): v for k, v in batch.items() if k.startswith("anchor_")}
    with torch.no_grad():
        vectors = model(features)["sentence_embedding"].numpy()
    np.testing.assert_allclose(vectors, model.encode(texts, prompt_name="writing"), atol=1e-5)
    with pytest.raises(ObliqError, match="no prompts are set for the training dataset 'other'"):
        collator([{"anchor": "a", "positive": "b", "dataset_name": "other"}])


def test_the_result_is_reloaded_in_a_fresh_process_and_holds_no_training_text_or_path(
    settings: TrainingConfig, mixture: Path, tmp_path: Path
) -> None:
    config = replace(settings, lora=LORA, loss="cached", mini_batch_size=4)
    result = run(config, mixture, tmp_path / "run", reload_check=True, recipe_hash="abc")
    report = result.report
    assert report["reloaded"]["max_difference"] < 1e-5
    assert report["reloaded"]["max_change"] > 1e-5
    assert report["merge"]["max_difference"] < 1e-5
    assert report["recipe"] == "abc"
    assert report["parameters"]["trained"] < report["parameters"]["all"]
    last = report["losses"][-1]
    assert set(last["datasets"]) <= {"w-graph", "w-queries"}
    assert last["loss"] == pytest.approx(
        sum(last["datasets"].values()) / len(last["datasets"]), rel=0.5
    )
    used = {d["name"]: (d["used"], d["dropped"]) for d in report["batches"]["datasets"]}
    assert used == {"w-graph": (40, 0), "w-queries": (40, 0)}
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert {p.name for p in files} >= {"training.json", "adapter_model.safetensors", "README.md"}
    for file in files:
        content = file.read_bytes()
        assert PLANTED.encode() not in content, file
        if file.parent.name != "adapter":
            assert str(tmp_path).encode() not in content, file
            assert str(Path(settings.base).parent).encode() not in content, file


def test_a_finished_training_is_found_and_another_one_is_not_overwritten(
    settings: TrainingConfig, mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(replace(settings, max_steps=2), mixture, tmp_path / "run")
    monkeypatch.setattr(ObliqTrainer, "train", lambda *_, **__: pytest.fail("trained again"))
    again = run(replace(settings, max_steps=2, save_steps=7), mixture, tmp_path / "run")
    assert again.report == first.report
    with pytest.raises(ObliqError, match="trained otherwise"):
        run(replace(settings, max_steps=3), mixture, tmp_path / "run")


def test_the_cached_loss_trains_as_the_plain_one(
    settings: TrainingConfig, mixture: Path, tmp_path: Path
) -> None:
    config = replace(settings, dropout=0.0, max_steps=5)
    plain = weights(run(config, mixture, tmp_path / "plain").model)
    cached = replace(config, loss="cached", mini_batch_size=3)
    other = weights(run(cached, mixture, tmp_path / "cached").model)
    base = load_file(Path(settings.base) / "model.safetensors")
    assert max(float((plain[k] - base[k]).abs().max()) for k in plain) > 1e-4
    for key in plain:
        torch.testing.assert_close(other[key], plain[key], atol=2e-6, rtol=1e-4)


def test_gradient_checkpointing_reaches_every_adapter_weight_and_changes_nothing(
    settings: TrainingConfig, mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients: dict[str, bool] = {}
    original = ObliqTrainer.training_step

    def watched(self: ObliqTrainer, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        for name, parameter in self.model.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
            gradients[name] = gradients.get(name, False) or moved
        return loss

    monkeypatch.setattr(ObliqTrainer, "training_step", watched)
    config = replace(settings, lora=replace(LORA, dropout=0.0), dropout=0.0, max_steps=3)
    with_it = run(replace(config, gradient_checkpointing=True), mixture, tmp_path / "with")
    assert {name for name, moved in gradients.items() if moved} == {
        name for name in gradients if "lora_" in name
    }
    without = run(config, mixture, tmp_path / "without")
    for key, value in weights(without.model).items():
        torch.testing.assert_close(weights(with_it.model)[key], value, atol=1e-6, rtol=1e-5)


def test_lengths_of_single_tasks_cut_their_texts(
    settings: TrainingConfig, mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    original = TaskCollator.__call__

    def watch(self: TaskCollator, features: Any) -> Any:
        batch = original(self, features)
        widths.append(batch["positive_input_ids"].shape[1])
        return batch

    monkeypatch.setattr(TaskCollator, "__call__", watch)
    run(replace(settings, max_steps=2), mixture, tmp_path / "a")
    assert min(widths) > 16
    widths.clear()
    config = replace(settings, max_steps=2, lengths={"writing": 16}, template="none")
    run(config, mixture, tmp_path / "b")
    assert set(widths) == {16}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repeat": {"grap": 2}}, r"training.repeat: no dataset 'grap'.*'graph'"),
        ({"lengths": {"scene": 10}}, r"training.lengths: no task 'scene'.*writing"),
        ({"lengths": {"writing": 80}}, "above training.max_length 64"),
        ({"lengths": {"writing": 50}}, "takes 49 of 50 tokens"),
        ({"bf16": True}, "training.bf16: this device"),
        ({"base_dtype": "bfloat16"}, "training.base_dtype"),
        ({"layers": 9}, "layers must be between 1 and 2"),
        ({"lora": LoraConfig(targets=["q_proj"])}, r"no projection 'q_proj'.*query"),
        ({"repeat": {"graph": 0, "queries": 0}}, "no batch"),
    ],
)
def test_what_cannot_be_trained_is_said_before_training(
    changes: dict[str, Any],
    said: str,
    settings: TrainingConfig,
    mixture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ObliqTrainer, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ObliqError, match=said):
        run(replace(settings, **changes), mixture, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_a_dataset_without_its_task_is_refused(
    settings: TrainingConfig, mixture: Path, tmp_path: Path
) -> None:
    with pytest.raises(ObliqError, match=r"'w-graph' is for task 'writing'.*math"):
        run(settings, mixture, tmp_path / "run", tasks=load_tasks(["math"]))


def test_a_loss_that_is_not_finite_stops_the_training(
    settings: TrainingConfig, mixture: Path, tmp_path: Path
) -> None:
    config = replace(settings, learning_rate=1e38, max_grad_norm=0, logging_steps=1)
    with pytest.raises(ObliqError, match=r"the loss is nan by step \d+; lower"):
        run(config, mixture, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_fsdp_without_gpus_is_refused(
    settings: TrainingConfig, mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ObliqError, match="FSDP needs GPUs"):
        run(settings, mixture, tmp_path / "run")


def test_the_base_and_its_commit_are_recorded(
    settings: TrainingConfig, mixture: Path, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = Path(constants.HF_HUB_CACHE) / "models--someone--tiny"
    shutil.copytree(settings.base, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    config = replace(settings, base="someone/tiny", lora=LORA, max_steps=2)
    result = run(config, mixture, tmp_path / "run")
    assert result.adapter is not None
    adapter = json.loads((result.adapter / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("someone/tiny", commit)
    assert result.report["base"]["revision"] == commit
    loaded = SentenceTransformer(str(result.adapter), device="cpu")
    merged = SentenceTransformer(str(result.model), device="cpu")
    np.testing.assert_allclose(loaded.encode("the sea"), merged.encode("the sea"), atol=1e-5)


def test_first_layers_and_half_precision_are_saved(
    settings: TrainingConfig, mixture: Path, tmp_path: Path
) -> None:
    config = replace(settings, layers=1, save_dtype="bfloat16", max_steps=3)
    result = run(config, mixture, tmp_path / "run")
    saved = weights(result.model)
    assert not any("layer.1." in key for key in saved)
    assert {tensor.dtype for tensor in saved.values() if tensor.is_floating_point()} == {
        torch.bfloat16
    }
    assert len(SentenceTransformer(str(result.model), device="cpu")[0].model.encoder.layer) == 1


def test_weights_that_do_not_fit_are_refused(settings: TrainingConfig, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer

    model = ObliqSentenceTransformer.from_base(settings.base, lora=LoraSettings(r=2), device="cpu")
    model.save(tmp_path / "a")
    file = tmp_path / "a" / "adapter_model.safetensors"
    state = load_file(file)
    state.pop(next(key for key in state if "lora_B" in key))
    save_file(state, file)
    with pytest.raises(ObliqError, match="1 tensors missing"):
        load_weights(model, tmp_path / "a")
    other = ObliqSentenceTransformer.from_base(settings.base, layers=1, device="cpu")
    other.save(tmp_path / "b")
    whole = ObliqSentenceTransformer.from_base(settings.base, device="cpu")
    with pytest.raises(ObliqError, match="16 tensors missing"):
        load_weights(whole, tmp_path / "b")


def test_vectors_of_another_model_or_of_the_base_are_noticed() -> None:
    rng = np.random.default_rng(0)
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, 6, 8)))
    assert compare_vectors(a, trained=a, base=b, tolerance=1e-5).max_difference == 0
    with pytest.raises(ObliqError, match="not the trained one"):
        compare_vectors(a, trained=b, base=b, tolerance=1e-5)
    with pytest.raises(ObliqError, match="equals its base"):
        compare_vectors(a, trained=a, base=a, tolerance=1e-5)


def test_the_last_complete_checkpoint_is_the_highest_step(tmp_path: Path) -> None:
    assert last_complete(tmp_path / "nothing") is None
    for step in (2, 10, 9):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"12")
        mark_complete(folder, step=step)
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "notes").mkdir()
    assert last_complete(tmp_path) == tmp_path / "checkpoint-10"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint-10", "checkpoint-2", "checkpoint-9", "notes",
    ]  # fmt: skip

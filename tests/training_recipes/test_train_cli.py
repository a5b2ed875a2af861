from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tiny_training import same, weights

from training_recipes.checkpoint import mark_complete
from training_recipes.cli import train_main

if TYPE_CHECKING:
    from collections.abc import Callable

    from training_recipes.sections import TrainingConfig

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def write_recipe(settings: TrainingConfig, tmp_path: Path) -> Callable[..., Path]:
    """Write a recipe that trains the tiny model in ``out``, with more settings where given."""

    def write(more: str = "") -> Path:
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            f"tasks: [writing]\nout: {tmp_path / 'out'}\n"
            f"training: {{base: {settings.base}, batch_size: 8, max_length: 64{more}}}\n"
        )
        return recipe

    return write


def test_the_command_trains_a_recipe_and_says_what_is_wrong(
    write_recipe: Callable[..., Path],
    make_mixture: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training_recipes.reload_check._vectors_elsewhere", _here)
    make_mixture(("w-graph", "graph", 24, 0), name="out/mixture")
    recipe = write_recipe()
    assert train_main([str(recipe), "--learning_rate", "1e-3", "--max_steps=2"]) == 0
    said = capsys.readouterr().out
    assert "w-graph: 24 rows x 1 in 2 batches, 0 without a place" in said
    assert (tmp_path / "out" / "model" / "modules.json").is_file()
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["settings"]["learning_rate"] == 1e-3
    assert train_main([str(recipe), "--out", str(tmp_path / "empty")]) == 1
    assert "no mixture there" in capsys.readouterr().err
    assert train_main([str(recipe), "--learing_rate", "1"]) == 1
    assert "'learning_rate'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "last", "said"),
    [
        ("weights", 1, "checkpoint-2 cannot be saved"),
        ("optimizer", 1, "checkpoint-2 cannot be saved"),
        ("model", 3, "the model cannot be saved"),
    ],
)
def test_a_full_disk_is_told_in_one_line_and_training_goes_on_once_there_is_room(
    part: str,
    last: int,
    said: str,
    settings: TrainingConfig,
    write_recipe: Callable[..., Path],
    make_mixture: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("training_recipes.reload_check._vectors_elsewhere", _here)
    make_mixture(("w-graph", "graph", 24, 0), name="out/mixture")
    recipe = write_recipe(", save_steps: 1")
    held = (Path(settings.base) / "model.safetensors").stat().st_size
    limit = held + 20_000 if part == "optimizer" else held // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def then_full(folder: Path, **facts: Any) -> None:
        mark_complete(folder, **facts)
        if facts["step"] == last:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    monkeypatch.setattr("training_recipes.trainer.mark_complete", then_full)
    try:
        assert train_main([str(recipe)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "model").exists()
    assert not list((tmp_path / "out").glob(".*.tmp"))
    assert train_main([str(recipe)]) == 0
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["resumed_from"] == last
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def test_what_the_system_refuses_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr("training_recipes.train.train_recipe", full)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"tasks: [writing]\nout: {tmp_path / 'out'}\n")
    assert train_main([str(recipe)]) == 1
    assert "error: [Errno 28] No space left on device: 'x'; finished" in capsys.readouterr().err


def _here(folder: Path, prompts: list[str]) -> np.ndarray:
    from training_recipes.reload_check import PROBES

    model = SentenceTransformer(str(folder), device="cpu")
    return np.concatenate([model.encode(list(PROBES), prompt_name=name) for name in prompts])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_survives_kill_dash_nine(
    write_recipe: Callable[..., Path], make_mixture: Callable[..., Path], tmp_path: Path
) -> None:
    make_mixture(("w-graph", "graph", 400, 1), name="out/mixture")
    recipe = write_recipe(", save_steps: 3, dropout: 0.1")
    command = [sys.executable, "-m", "training_recipes.train", str(recipe)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not any((tmp_path / "out" / "checkpoints").glob("*/checkpoint-*/complete.json")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "out" / "model").exists()
    assert train_main([str(recipe)]) == 0
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["resumed_from"] >= 3
    straight = tmp_path / "straight"
    mixture = ["--mixture", str(tmp_path / "out" / "mixture")]
    assert train_main([str(recipe), *mixture, "--out", str(straight)]) == 0
    assert same(weights(tmp_path / "out" / "model"), weights(straight / "model"))

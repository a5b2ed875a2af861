from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(600)  # three processes start, on a machine that may be busy

WORKER = Path(__file__).with_name("two_ranks.py")
ACCELERATE = Path(__file__).parents[2] / "training_recipes" / "accelerate"
DDP, FSDP = ACCELERATE / "ddp.yaml", ACCELERATE / "fsdp.yaml"
LORA = {"r": 4, "alpha": 8, "dropout": 0.0}


def alone(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the cases in this process."""
    specification = importlib.util.spec_from_file_location("two_ranks", WORKER)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.run_cases({**request, "out": str(folder)})


def in_two_ranks(request: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Run the cases in two gloo ranks on the CPU; returns what each of them recorded."""
    folder.mkdir()
    file = folder / "request.json"
    file.write_text(json.dumps({**request, "out": str(folder)}), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [sys.executable, *launcher, str(WORKER), str(file)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )
    try:
        _, said = process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("the two ranks wait for each other")
    assert process.returncode == 0, said[-4000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def recorded(
    tiny_model_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    write_mixture: Callable[..., Path],
) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """The same cases in one process and in two ranks."""
    root = tmp_path_factory.mktemp("ranks")
    # uneven rows, and pairs beside rows of one and of four negatives, which hang a stock trainer
    mixture = write_mixture(
        root / "mixed", ("g", "graph", 21, 0), ("q", "queries", 11, 4), ("r", "queries", 8, 1)
    )
    common = {
        "base": str(tiny_model_dir), "batch_size": 8, "max_length": 64, "learning_rate": 1e-3,
        "dropout": 0.0, "save_steps": 3, "logging_steps": 1,
    }  # fmt: skip
    cached = {"loss": "cached", "mini_batch_size": 3, "gradient_checkpointing": True, "lora": LORA}
    cases: list[dict[str, Any]] = [
        {"name": "plain", "mixture": str(mixture), "settings": common},
        {"name": "cached", "mixture": str(mixture), "settings": {**common, **cached}},
    ]
    dropout = {**common, "dropout": 0.1, "lora": {**LORA, "dropout": 0.1}}
    straight = {"name": "straight", "mixture": str(mixture), "settings": dropout}
    resumed = {**straight, "name": "resumed"}
    stopped = {**resumed, "part": " until 5", "stop_at": 5}
    one = alone({"cases": cases}, root / "one")
    two = in_two_ranks({"cases": [*cases, straight, stopped, resumed]}, root / "two")
    return root, one, two


@pytest.mark.parametrize("case", ["plain", "cached"])
def test_two_ranks_take_the_steps_of_one_process(case: str, recorded: Any) -> None:
    root, alone, ranks = recorded
    one = alone[case]
    two = [rank["results"][case] for rank in ranks]
    assert len(one["steps"]) == len(two[0]["steps"]) == len(two[1]["steps"]) == 6
    assert {batch[0][2] for batch in one["rows"]} == {0, 1, 4}
    for whole, left, right in zip(one["rows"], two[0]["rows"], two[1]["rows"], strict=True):
        assert left + right == whole
        assert len(left) == len(right)
        assert len({(dataset, negatives) for dataset, _, negatives in whole}) == 1
    for whole, left, right in zip(one["steps"], two[0]["steps"], two[1]["steps"], strict=True):
        assert (left["loss"] + right["loss"]) / 2 == pytest.approx(whole["loss"], rel=1e-5)
        assert whole["gradients"].keys() == left["gradients"].keys()
        expected = torch.cat([g.flatten() for g in whole["gradients"].values()])
        given = torch.cat([left["gradients"][name].flatten() for name in whole["gradients"]])
        assert float((given - expected).norm() / expected.norm()) < 1e-4
        for name, gradient in left["gradients"].items():
            assert torch.equal(gradient, right["gradients"][name])
    weights = [load_file(root / n / case / "model" / "model.safetensors") for n in ("one", "two")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=5e-5, rtol=1e-3)


def test_every_row_is_seen_once_and_the_remainder_is_counted(recorded: Any) -> None:
    root, _, ranks = recorded
    seen = [
        tuple(row[:2]) for r in ranks for batch in r["results"]["plain"]["rows"] for row in batch
    ]
    assert len(seen) == len(set(seen))
    report = json.loads((root / "two" / "plain" / "training.json").read_text())
    datasets = report["batches"]["datasets"]
    assert [d["used"] + d["dropped"] for d in datasets] == [21, 11, 8]
    assert sum(d["used"] for d in datasets) == len(seen)
    assert report["processes"] == 2


def test_two_ranks_resume_to_the_weights_of_a_straight_run(recorded: Any) -> None:
    root, _, _ = recorded
    reports = [
        json.loads((root / "two" / n / "training.json").read_text())
        for n in ("straight", "resumed")
    ]
    assert [r["resumed_from"] for r in reports] == [None, 3]
    assert reports[0]["losses"] == reports[1]["losses"]
    a, b = (load_file(root / "two" / n / "model" / "model.safetensors")
            for n in ("straight", "resumed"))  # fmt: skip
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_only_the_first_rank_writes(recorded: Any) -> None:
    _, _, ranks = recorded
    assert any(Path(path).name == "modules.json" for path in ranks[0]["written"])
    assert ranks[0]["saved"] > 0
    assert ranks[1]["saved"] == 0
    others = {Path(path).name for path in ranks[1]["written"]}
    assert others <= {"rng_state_1.pth"} | {f"checkpoint-{n}" for n in range(20)}


def command_line(
    tiny_model_dir: Path, folder: Path, *launcher: str
) -> subprocess.CompletedProcess[str]:
    """``python -m training_recipes.train`` on a small recipe, through a launcher."""
    recipe = folder / "r.yaml"
    recipe.write_text(
        f"tasks: [writing]\nout: {folder / 'out'}\ntraining: {{base: {tiny_model_dir}, "
        "batch_size: 8, max_length: 64, learning_rate: 1e-3, dropout: 0}\n"
    )
    return subprocess.run(
        [*launcher, "-m", "training_recipes.train", str(recipe), "--max_steps", "4"],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.slow
def test_accelerate_launches_the_recipe_on_two_processes(
    tiny_model_dir: Path, tmp_path: Path, write_mixture: Callable[..., Path]
) -> None:
    mixture = write_mixture(tmp_path / "out" / "mixture", ("g", "graph", 40, 1))
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(DDP)]
    done = command_line(tiny_model_dir, tmp_path, *launcher, "--num_processes", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("steps: 4") == 1
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["processes"] == 2
    assert report["reloaded"]["max_difference"] < 1e-5
    (tmp_path / "alone" / "out").mkdir(parents=True)
    mixture.rename(tmp_path / "alone" / "out" / "mixture")
    done = command_line(tiny_model_dir, tmp_path / "alone", sys.executable)
    assert done.returncode == 0, done.stderr[-3000:]
    two, one = (
        load_file(tmp_path / n / "model" / "model.safetensors") for n in ("out", "alone/out")
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=5e-5, rtol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FSDP needs a GPU, and none is here")
def test_fsdp_with_one_rank_trains_as_one_process(
    tiny_model_dir: Path, tmp_path: Path, write_mixture: Callable[..., Path]
) -> None:
    mixture = write_mixture(tmp_path / "out" / "mixture", ("g", "graph", 40, 1))
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(FSDP)]
    layer = ["--fsdp_transformer_layer_cls_to_wrap", "BertLayer"]
    done = command_line(tiny_model_dir, tmp_path, *launcher, "--num_processes", "1", *layer)
    assert done.returncode == 0, done.stderr[-3000:]
    (tmp_path / "alone" / "out").mkdir(parents=True)
    mixture.rename(tmp_path / "alone" / "out" / "mixture")
    done = command_line(tiny_model_dir, tmp_path / "alone", sys.executable)
    assert done.returncode == 0, done.stderr[-3000:]
    two, one = (
        load_file(tmp_path / n / "model" / "model.safetensors") for n in ("out", "alone/out")
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-3, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_accelerate_with_fsdp_on_the_cpu_is_refused(
    tiny_model_dir: Path, tmp_path: Path, write_mixture: Callable[..., Path]
) -> None:
    write_mixture(tmp_path / "out" / "mixture", ("g", "graph", 40, 1))
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(FSDP)]
    done = command_line(tiny_model_dir, tmp_path, *launcher, "--num_processes", "1")
    assert done.returncode != 0
    assert "FSDP needs GPUs" in done.stderr
    assert not (tmp_path / "out" / "model").exists()

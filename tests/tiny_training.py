"""One training on a small mixture, and its weights compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from obliq_hf.tasks import load_tasks
from training_recipes.sections import LoraConfig, TrainingConfig
from training_recipes.train import TrainResult, train

if TYPE_CHECKING:
    from pathlib import Path

    pass


PLANTED = "planted secret 31415926"


LORA = LoraConfig(r=4, alpha=8, dropout=0.1)


def run(config: TrainingConfig, mixture: Path, out: Path, **options: Any) -> TrainResult:
    defaults: dict[str, Any] = {
        "tasks": load_tasks(["writing"]), "reload_check": False, "show_progress": False,
    }  # fmt: skip
    return train(config, mixture, out, **{**defaults, **options})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Stopped(Exception):
    """Stands for a kill."""

"""Small encoders with prompts: built, shaken, put into a cache, compared."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import torch

from obliq_hf.encoder import ObliqSentenceTransformer

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["the old man said no", "she loved the sea", "a letter, by night!", "war and peace " * 9]


SHA = {"main": "a" * 40, "older": "b" * 40, "v1": "c" * 40}


def build(base: Path, **options: object) -> ObliqSentenceTransformer:
    return ObliqSentenceTransformer.from_base(
        base, **{"tasks": ["writing"], "device": "cpu", **options}
    )


def shake(model: ObliqSentenceTransformer, *, seed: int = 0, scale: float = 0.3) -> None:
    """Give the adapters weights as after training."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.data.copy_(noise)


def put_in_cache(cache: Path, repo: str, folders: dict[str, Path]) -> None:
    """Lay a model out as a download would have: one snapshot a revision."""
    root = cache / f"models--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        shutil.copytree(folder, root / "snapshots" / SHA[name])
        (root / "refs" / name).write_text(SHA[name])


def gap(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())

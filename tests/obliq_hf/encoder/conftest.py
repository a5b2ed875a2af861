from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny_encoders import build, shake

from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def plain(tiny_model_dir: Path) -> ObliqSentenceTransformer:
    return build(tiny_model_dir)


@pytest.fixture(scope="module")
def trained(tiny_model_dir: Path) -> ObliqSentenceTransformer:
    model = build(tiny_model_dir, lora=LoraSettings(r=4))
    shake(model)
    return model

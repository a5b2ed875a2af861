"""A model that pushes itself: whole, with our card, on a base that others can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hub_fixtures import BASE, NAME, copy_of, hub, on_the_hub, online, waits
from hub_state import OWNER

from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer
from obliq_hf.encoder.publishing import push_encoder
from obliq_hf.encoder.sources import BaseRecord
from obliq_hf.errors import ObliqError
from obliq_hf.hub import HubError

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub

__all__ = ["hub", "on_the_hub", "online", "waits"]

PLANTED = "planted secret 31415926"

pytestmark = pytest.mark.usefixtures("online", "waits")


@pytest.fixture
def model(tiny_model_dir: Path) -> ObliqSentenceTransformer:
    encoder = ObliqSentenceTransformer.from_base(tiny_model_dir, tasks=["writing"], device="cpu")
    encoder.base = BaseRecord(id="acme/base", revision=BASE.split("@")[1])
    return encoder


def test_a_model_pushes_itself_and_loads_again(
    on_the_hub: LocalHub, model: ObliqSentenceTransformer, tmp_path: Path
) -> None:
    url = model.push_to_hub(NAME, private=True, commit_message="first")
    commit = on_the_hub.repo(NAME, "model").history()[0]
    assert url == f"{on_the_hub.url}/{NAME}/commit/{commit.oid}"
    assert commit.title == "first"
    assert on_the_hub.repo(NAME, "model").private
    again = ObliqSentenceTransformer(str(copy_of(on_the_hub, NAME, "main", tmp_path)))
    np.testing.assert_allclose(again.encode("the sea"), model.encode("the sea"), atol=1e-6)
    assert again.base.revision == BASE.split("@")[1]
    with pytest.raises(HubError, match="exist_ok=True"):
        model.push_to_hub(NAME)
    model.push_to_hub(NAME, exist_ok=True)
    model.push_to_hub(NAME, revision="dev", exist_ok=True, commit_message="on a branch")
    assert "refs/heads/dev" in on_the_hub.repo(NAME, "model").refs
    with pytest.raises(ObliqError, match="pickled"):
        model.push_to_hub(NAME, safe_serialization=False)


def test_a_loaded_model_keeps_its_card_and_another_models_card_is_not_taken_over(
    on_the_hub: LocalHub, model: ObliqSentenceTransformer, tmp_path: Path
) -> None:
    model.card = "---\ntags: [obliq]\n---\n# Mine\n"
    model.save(tmp_path / "m", create_model_card=True)
    ObliqSentenceTransformer(tmp_path / "m").push_to_hub("acme/kept")
    assert "# Mine" in on_the_hub.content("acme/kept", "README.md", "model").decode()
    stock = f"---\ntags: [sentence-transformers]\nwidget:\n- text: {PLANTED}\n---\n# Stock\n"
    (tmp_path / "m" / "README.md").write_text(stock, encoding="utf-8")
    ObliqSentenceTransformer(tmp_path / "m").push_to_hub("acme/stock")
    text = on_the_hub.content("acme/stock", "README.md", "model").decode()
    assert PLANTED not in text
    assert 'prompt_name="writing"' in text


def test_a_model_on_a_local_base_says_what_to_do(
    on_the_hub: LocalHub, tiny_model_dir: Path, tmp_path: Path
) -> None:
    local = ObliqSentenceTransformer.from_base(
        tiny_model_dir, tasks=["writing"], lora=LoraSettings(r=2), device="cpu"
    )
    for name, parameter in local.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn_like(parameter)
    with pytest.raises(HubError, match="--base organisation/name@revision") as caught:
        local.push_to_hub(NAME)
    assert not on_the_hub.repos
    assert OWNER not in str(caught.value)
    pushed = push_encoder(local, NAME, base=BASE)
    adapter = copy_of(on_the_hub, NAME, pushed.revision, tmp_path)
    loaded = ObliqSentenceTransformer.from_adapter(adapter, base=tiny_model_dir)
    np.testing.assert_allclose(loaded.encode("the sea"), local.encode("the sea"), atol=1e-5)
    assert str(tiny_model_dir).encode() not in b"".join(
        f.read_bytes() for f in adapter.rglob("*.json")
    )

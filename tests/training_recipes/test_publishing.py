"""Publishing while a recipe trains: every revision loads by itself, with our card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hub_fixtures import hub, online, waits
from hub_state import OWNER, READER
from sentence_transformers import SentenceTransformer

from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer
from obliq_hf.encoder.publishing import push_encoder
from obliq_hf.encoder.sources import BaseRecord
from obliq_hf.errors import ObliqError
from obliq_hf.hub import HubError
from training_recipes.publishing import check_publishing, publish_run
from training_recipes.recipe import Recipe
from training_recipes.sections import HubConfig, LoraConfig, TrainingConfig
from training_recipes.train import train_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub_server import LocalHub

__all__ = ["hub", "online", "waits"]

BASE = "acme/base@0123456789abcdef0123456789abcdef01234567"
NAME = "acme/student"
PLANTED = "planted secret 31415926"

pytestmark = pytest.mark.usefixtures("online", "waits")


@pytest.fixture
def on_the_hub(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """The Hub of the tests as the one that the environment names."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", OWNER)
    return hub


@pytest.fixture
def recipe(
    tmp_path: Path, tiny_model_dir: Path, write_mixture: Callable[..., Path]
) -> Callable[..., Recipe]:
    write_mixture(tmp_path / "run" / "mixture", ("w-graph", "graph", 32, 0))

    def make(lora: bool = False, **hub_settings: Any) -> Recipe:
        return Recipe(
            name="tiny",
            out=str(tmp_path / "run"),
            tasks=["writing"],
            training=TrainingConfig(
                base=str(tiny_model_dir), batch_size=8, max_length=64, learning_rate=1e-2,
                save_steps=2, lora=LoraConfig(r=2) if lora else None,
            ),
            hub=HubConfig(
                push_to_hub=True, repo_id=NAME, base=BASE, licence="apache-2.0", private=False,
                **hub_settings,
            ),
        )  # fmt: skip

    return make


def copy_of(hub: LocalHub, name: str, revision: str, folder: Path) -> Path:
    """A revision of a model repository as a folder."""
    place = folder / revision[:12].replace("/", "-")
    for path in hub.repo(name, "model").files(revision):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(hub.content(name, path, "model", revision))
    return place


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_every_checkpoint_and_the_end_are_whole_models_with_our_card(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe], tmp_path: Path, lora: bool
) -> None:
    settings = recipe(lora, hub_strategy="every_save", adapter_repo_id=f"{NAME}-lora")
    check_publishing(settings)
    train_recipe(settings)
    publish_run(settings, results=False)
    history = on_the_hub.repo(NAME, "model").history()[:-1][::-1]
    assert [commit.title for commit in history] == [
        "Training in progress, step 2",
        "Training in progress, step 4",
        history[-1].title,
    ]
    vectors = []
    for commit in history:
        folder = copy_of(on_the_hub, NAME, commit.oid, tmp_path)
        model = SentenceTransformer(str(folder), device="cpu")
        vectors.append(model.encode_query(["the sea was calm"], prompt_name="writing"))
        assert abs(np.linalg.norm(vectors[-1]) - 1) < 1e-5, "its Normalize is there"
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "This is about who wrote what." in card
        assert "| learning_rate | 0.01 |" in card
        for file in folder.rglob("*"):
            if file.is_file():
                data = file.read_bytes()
                assert PLANTED.encode() not in data
                assert str(tmp_path).encode() not in data
                assert not file.name.endswith((".bin", ".pt", ".pth"))
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-6
    whole = SentenceTransformer(str(Path(settings.out) / "model"), device="cpu")
    given = whole.encode_query(["the sea was calm"], prompt_name="writing")
    np.testing.assert_allclose(vectors[-1], given, atol=1e-6)
    assert list(on_the_hub.repo(NAME, "model").refs) != ["refs/heads/main"], "the end is tagged"
    if lora:
        adapter = on_the_hub.content(f"{NAME}-lora", "adapter_config.json", "model")
        assert json.loads(adapter)["revision"] == BASE.split("@")[1]


def test_a_push_that_fails_at_a_checkpoint_does_not_stop_the_training(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe], caplog: pytest.LogCaptureFixture
) -> None:
    on_the_hub.fail("POST", "/commit/", times=99, status=403)
    result = train_recipe(recipe(hub_strategy="every_save"))
    assert result.model.is_dir()
    assert "was not published" in caplog.text
    assert OWNER not in caplog.text


def test_nothing_is_pushed_before_the_end_unless_asked(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe]
) -> None:
    train_recipe(recipe())
    assert not on_the_hub.repos
    publish_run(recipe(), results=False)
    assert len(on_the_hub.repo(NAME, "model").history()) == 2


def test_what_publishing_needs_is_checked_before_the_run(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    settings = recipe()
    with pytest.raises(ObliqError, match=r"hub\.repo_id"):
        check_publishing(replace(settings, hub=replace(settings.hub, repo_id=None)))
    with pytest.raises(ObliqError, match="organisation/name"):
        check_publishing(replace(settings, hub=replace(settings.hub, repo_id="student")))
    monkeypatch.setenv("HF_TOKEN", READER)
    with pytest.raises(HubError, match="may only read"):
        check_publishing(settings)


# --------------------------------------------------------------------------- the model itself


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


def test_a_trainers_token_is_in_no_saved_argument(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    from training_recipes import session as session_module

    secret = "hf_" + "x" * 34
    on_the_hub.users[secret] = on_the_hub.users[OWNER]
    monkeypatch.delenv("HF_TOKEN")
    original = session_module.TrainingSession._arguments

    def with_token(self: Any) -> Any:
        arguments = original(self)
        arguments.push_to_hub, arguments.hub_token = True, secret
        arguments.hub_model_id = NAME
        return arguments

    monkeypatch.setattr(session_module.TrainingSession, "_arguments", with_token)
    settings = recipe()
    monkeypatch.setattr(session_module.TrainingSession, "clean", lambda self: None)
    from dataclasses import replace

    train_recipe(replace(settings, hub=replace(settings.hub, push_to_hub=False)))
    kept = list((Path(settings.out) / "checkpoints").rglob("*.*"))
    assert any(file.name == "trainer_state.json" for file in kept)
    for file in [*kept, *Path(settings.out).rglob("*.json")]:
        assert secret.encode() not in file.read_bytes(), file
    shutil.rmtree(Path(settings.out) / "checkpoints")

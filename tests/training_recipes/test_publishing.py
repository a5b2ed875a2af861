"""Publishing while a recipe trains: every revision loads by itself, with our card."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from echo_task import ECHO
from hub_fixtures import BASE, NAME, copy_of, hub, on_the_hub, online, waits
from hub_state import OWNER, READER
from sentence_transformers import SentenceTransformer

from obliq_hf.cli import main
from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.encoder.sources import BaseRecord
from obliq_hf.errors import ObliqError
from obliq_hf.files import hash_files, write_json, write_jsonl
from obliq_hf.hub import HubError
from obliq_hf.records import write_qrels
from obliq_hf.tasks import load_tasks
from training_recipes.publishing import check_publishing, publish_run
from training_recipes.recipe import Recipe
from training_recipes.sections import HubConfig, LoraConfig, TrainingConfig
from training_recipes.train import train, train_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub_server import LocalHub
__all__ = ["hub", "on_the_hub", "online", "waits"]
pytestmark = pytest.mark.usefixtures("online", "waits")

PLANTED = "planted secret 31415926"


@pytest.fixture
def recipe(
    tmp_path: Path, tiny_model_dir: Path, write_mixture: Callable[..., Path]
) -> Callable[..., Recipe]:
    write_mixture(tmp_path / "run" / "mixture", ("w-graph", "graph", 32, 0))

    def make(lora: bool = False, **hub_settings: Any) -> Recipe:
        settings = {"repo_id": NAME, "base": BASE, "licence": "apache-2.0", "private": False}
        return Recipe(
            name="tiny",
            out=str(tmp_path / "run"),
            tasks=["writing"],
            training=TrainingConfig(
                base=str(tiny_model_dir), batch_size=8, max_length=64, learning_rate=1e-2,
                save_steps=2, lora=LoraConfig(r=2) if lora else None,
            ),
            hub=HubConfig(push_to_hub=True, **(settings | hub_settings)),
        )  # fmt: skip

    return make


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_every_checkpoint_and_the_end_are_whole_models_with_our_card(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe], tmp_path: Path, lora: bool
) -> None:
    adapter_name = f"{NAME}-lora" if lora else None
    settings = recipe(lora, hub_strategy="every_save", adapter_repo_id=adapter_name)
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
    settings = recipe()
    with pytest.raises(ObliqError, match=r"hub\.repo_id"):
        check_publishing(replace(settings, hub=replace(settings.hub, repo_id=None)))
    with pytest.raises(ObliqError, match="organisation/name"):
        check_publishing(replace(settings, hub=replace(settings.hub, repo_id="student")))
    monkeypatch.setenv("HF_TOKEN", READER)
    with pytest.raises(HubError, match="may only read"):
        check_publishing(settings)


@pytest.mark.parametrize(
    ("lora", "changed", "message"),
    [
        (False, {"repo_id": "acme/../x"}, r"^hub\.repo_id: .*organisation/name"),
        (True, {"adapter_repo_id": "acme/a b"}, r"^hub\.adapter_repo_id: .*ASCII letters"),
        (True, {"adapter_repo_id": NAME}, r"^hub\.adapter_repo_id: .*repository of its own"),
        (False, {"adapter_repo_id": f"{NAME}-lora"}, r"^hub\.adapter_repo_id: training\.lora is"),
        (False, {"to": "ftp://x"}, r"^hub\.to 'ftp://x': 'hub' or 'folder:PATH'"),
        (False, {"version": "main"}, r"^hub\.version: .*taken for a commit or branch"),
        (False, {"licence": "free"}, r"^hub\.licence: .*none that the Hub knows"),
        (False, {"licence": None}, r"^hub\.licence: .*acme/base is not known.*with hub\.licence"),
        (False, {"corpus_repo_id": "corpus"}, r"^hub\.corpus_repo_id: .*organisation/name"),
        (False, {"base": "../base"}, r"^hub\.base: .*no '\.\.'"),
        (False, {"base": None}, r"^hub\.base: training\.base .* is a folder of this machine"),
        (
            True,
            {"base": "acme/base", "adapter_repo_id": f"{NAME}-lora"},
            r"^hub\.base: the commit of the base acme/base is not known",
        ),
    ],
)  # fmt: skip
def test_every_key_of_a_recipes_hub_is_checked_before_the_run(
    recipe: Callable[..., Recipe], tmp_path: Path, lora: bool, changed: dict[str, Any], message: str
) -> None:
    place = {"to": f"folder:{tmp_path / 'laid-out'}"}
    check_publishing(recipe(True, **place, adapter_repo_id=f"{NAME}-lora", version="v1"))
    with pytest.raises(ObliqError, match=message) as caught:
        check_publishing(recipe(lora, **(place | changed)))
    assert " --" not in str(caught.value), "a recipe has keys, not options"
    assert not (tmp_path / "laid-out").exists()


def test_an_adapter_of_a_cut_base_is_refused_before_the_run(
    recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    settings = recipe(True, to=f"folder:{tmp_path / 'x'}", adapter_repo_id=f"{NAME}-lora")
    cut = replace(settings, training=replace(settings.training, layers=1))
    with pytest.raises(ObliqError, match=r"^hub\.adapter_repo_id: training\.layers"):
        check_publishing(cut)


def test_what_the_repositories_say_is_heard_before_the_run(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe]
) -> None:
    commit = on_the_hub.put(NAME, {"notes.md": b"x"}, kind="model")
    check_publishing(recipe())
    with pytest.raises(HubError, match=r"public already.*set hub\.private to false"):
        check_publishing(recipe(private=True))
    on_the_hub.repo(NAME, "model").refs["refs/tags/v1"] = commit
    with pytest.raises(ObliqError, match=r"^hub\.version: .*'v1' already"):
        check_publishing(recipe(version="v1"))
    finished = recipe(version="v1")
    (Path(finished.out) / "model").mkdir()
    write_json(Path(finished.out) / "training.json", {"recipe": finished.hash()})
    check_publishing(finished)
    base, revision = BASE.split("@")
    card = b"---\nlicense: cc-by-nc-4.0\n---\n"
    licensed = on_the_hub.put(base, {"README.md": card}, kind="model")
    repo = on_the_hub.repo(base, "model")
    repo.commits[revision] = repo.commits[licensed]
    with pytest.raises(ObliqError, match=r"^hub\.licence: .*allows more than that of the base"):
        check_publishing(recipe())
    check_publishing(recipe(licence=None))
    on_the_hub.put("acme/whole", {"model.safetensors": b"x"}, kind="model")
    with pytest.raises(HubError, match="holds whole weights"):
        check_publishing(recipe(True, licence=None, adapter_repo_id="acme/whole"))


def test_a_refusal_at_the_end_names_keys_of_the_recipe(
    recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    settings = recipe(to=f"folder:{tmp_path / 'x'}", base=None)
    base = settings.training.base
    model = ObliqSentenceTransformer.from_base(base, tasks=["writing"], device="cpu")
    model.save(Path(settings.out) / "model")
    with pytest.raises(HubError, match=r"with hub\.base: organisation/name@revision"):
        publish_run(settings, results=False)


def test_a_trainer_asked_to_push_publishes_the_whole_model_without_training_texts(
    on_the_hub: LocalHub, recipe: Callable[..., Recipe], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from training_recipes.trainer import ObliqTrainer

    original, pushed = ObliqTrainer.final_model, []

    def push_first(self: Any) -> Any:
        self.model.base = BaseRecord(id="acme/base", revision=BASE.split("@")[1])
        self.args.hub_model_id = NAME
        pushed.append(self.push_to_hub())
        return original(self)

    monkeypatch.setattr(ObliqTrainer, "final_model", push_first)
    settings = recipe()
    out, tasks = Path(settings.out), load_tasks(["writing"])
    train(settings.training, out / "mixture", out, tasks=tasks, reload_check=False)
    commit = on_the_hub.repo(NAME, "model").history()[0]
    assert pushed == [f"{on_the_hub.url}/{NAME}/commit/{commit.oid}"]
    assert commit.title == "End of training"
    folder = copy_of(on_the_hub, NAME, "main", tmp_path)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert 'prompt_name="writing"' in text
    assert "find the person behind an anonymous" in text.replace("\n", " ")
    for file in folder.rglob("*"):
        assert file.suffix not in {".bin", ".pt", ".pth"}
        assert file.is_dir() or PLANTED.encode() not in file.read_bytes()
    again = SentenceTransformer(str(folder), device="cpu")
    whole = SentenceTransformer(str(out / "model"), device="cpu")
    np.testing.assert_allclose(
        again.encode_query(["the sea"], prompt_name="writing"),
        whole.encode_query(["the sea"], prompt_name="writing"),
        atol=1e-6,
    )


SMALL = """\
name: small
tasks: [echo.yaml]
corpus: {{source: beir, path: source}}
queries: {{source: path, path: source/echo.jsonl, tasks: [echo]}}
graph: {{task: null}}
training: {{base: {base}, max_length: 64, batch_size: 4, max_steps: 2}}
evaluation: {{systems: [student], depth: 10}}
"""


def write_small_recipe(folder: Path, base: Path) -> Path:
    """A recipe over sixteen passages, with training queries of its own and no graph."""
    words = "old king sea red fire war peace son love fear door horse green field river".split()
    rows = [
        {"_id": f"p{i}", "text": f"day {i} " + " ".join(words[(i * k) % 15] for k in range(1, 13))}
        for i in range(16)
    ]
    write_jsonl(folder / "source" / "corpus.jsonl", rows)
    queries = [{"_id": f"q{i}", "text": f"the {words[i]} of day {i}"} for i in range(4)]
    task = folder / "source" / "tasks" / "echo"
    write_jsonl(task / "queries.jsonl", queries)
    write_qrels(task / "qrels" / "test.tsv", {f"q{i}": {f"p{i}": 1} for i in range(4)})
    training = [
        {"query": f"who can find the {words[i % 15]} {i}", "passage_id": f"p{i}"}
        for i in range(4, 16)
    ]
    write_jsonl(folder / "source" / "echo.jsonl", training)
    (folder / "echo.yaml").write_text(ECHO, encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL.format(base=base), encoding="utf-8")
    return folder / "small.yaml"


def test_obliq_run_publishes_into_a_folder_and_again_changes_nothing(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run", str(write_small_recipe(tmp_path, tiny_model_dir)), "--out", str(tmp_path / "run"),
        "--push_to_hub", "--repo_id", NAME, "--to", f"folder:{tmp_path / 'laid-out'}",
        "--hub.base", BASE, "--licence", "apache-2.0", "--corpus_repo_id", "acme/echoes",
    ]  # fmt: skip
    assert main(words) == 0
    assert f"{tmp_path / 'laid-out' / NAME}: published, version model-" in capsys.readouterr().out
    folder = tmp_path / "laid-out" / NAME
    published = hash_files(folder)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| echo | **this model** |" in text
    assert (folder / ".eval_results" / "echo.yaml").is_file()
    model = SentenceTransformer(str(folder), device="cpu")
    assert model.encode_query(["who can find the sea"], prompt_name="echo").shape == (1, 32)
    assert main(words) == 0
    assert "holds it already" in capsys.readouterr().out
    assert hash_files(folder) == published


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
    train_recipe(replace(settings, hub=replace(settings.hub, push_to_hub=False)))
    kept = list((Path(settings.out) / "checkpoints").rglob("*.*"))
    assert any(file.name == "trainer_state.json" for file in kept)
    for file in [*kept, *Path(settings.out).rglob("*.json")]:
        assert secret.encode() not in file.read_bytes(), file
    shutil.rmtree(Path(settings.out) / "checkpoints")

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hub_state import OWNER
from published import ADAPTER, CORPUS, GRAPH, MODEL, files, header, put_base, repository
from run_folder import BASE, COMMIT, PLANTED

from model_cards.publishing import PublishOptions, publish_dataset, publish_model
from obliq_hf.errors import ObliqError
from obliq_hf.hub.card_header import split_card

if TYPE_CHECKING:
    from hub_server import LocalHub

pytestmark = pytest.mark.usefixtures("online")


def test_a_graph_card_carries_purity_audit_and_the_warning(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    publish_dataset(run / "graph", GRAPH, to_folder)
    text = (repository(tmp_path, GRAPH) / "README.md").read_text(encoding="utf-8")
    assert "| author | 0.500 | [0.400, 0.600] | 0.100 | 5.00 | [4.000, 6.000] |" in text
    assert "find the person behind an anonymous" in text
    assert "dialect, age, gender, native language" in text
    assert "| 1 | 4 | 0.500 | [0.400, 0.600] | 0.100 | 5.00 | [4.000, 6.000] |" in text


def test_a_model_card_carries_results_data_prompts_and_settings(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    publish_model(run / "model", MODEL, to_folder, datasets=(f"{GRAPH}@v1",), adapter_repo=ADAPTER)
    folder = repository(tmp_path, MODEL)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| writing | **this model** | 0.412 [0.390, 0.430] |" in text
    assert "this model − untrained base | +0.101 | [+0.080, +0.120] | < .001 |" in text
    assert f"| base revision | {COMMIT} |" in text
    assert "| recipe hash | " + "c" * 64 in text
    assert "| learning_rate | 0.0001 |" in text
    assert "| writing-graph | writing | graph | 3 | 0 |" in text
    assert f"| {GRAPH} |  | published data |  |  | v1 |" in text
    assert "| writing | `Instruct: Given a passage" in text
    assert "anchor is an evaluation query (found, kept) | 1 |" in text
    assert "find the person behind an anonymous" in text
    found = header(folder)
    assert found["base_model"] == BASE
    assert found["base_model_relation"] == "finetune"
    assert found["datasets"] == [GRAPH]
    adapter = header(repository(tmp_path, ADAPTER))
    assert adapter["base_model_relation"] == "adapter"
    assert "lora" in adapter["tags"]


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_the_header_is_valid_for_the_hub(
    run: Path, options: PublishOptions, tmp_path: Path, hub: LocalHub, kind: str
) -> None:
    from huggingface_hub import DatasetCard, ModelCard

    if kind == "dataset":
        publish_dataset(run / "graph", GRAPH, options)
    else:
        publish_dataset(run / "corpus", CORPUS, options)
        publish_model(run / "model", MODEL, options)
    name = GRAPH if kind == "dataset" else MODEL
    text = (
        hub.content(name, "README.md", kind).decode()
        if options.to == "hub"
        else (repository(tmp_path, name) / "README.md").read_text(encoding="utf-8")
    )
    card = DatasetCard(text) if kind == "dataset" else ModelCard(text)
    assert card.data.license == "apache-2.0"
    if kind == "model":
        assert card.data.eval_results[0].metric_value == 0.412


def test_no_training_text_path_user_or_token_is_published(
    run: Path, options: PublishOptions, hub: LocalHub, tmp_path: Path
) -> None:
    publish_model(run / "model", MODEL, options, adapter_repo=ADAPTER)
    if options.to == "hub":
        published = {
            (name, path): hub.content(name, path, "model")
            for name in (MODEL, ADAPTER)
            for path in hub.repo(name, "model").files()
        }
    else:
        published = {
            (name, path): data
            for name in (MODEL, ADAPTER)
            for path, data in files(repository(tmp_path, name)).items()
        }
    assert any(path == "model.safetensors" for _, path in published)
    for data in published.values():
        for forbidden in (PLANTED, str(tmp_path), str(Path.home()) + "/", OWNER, "12.5"):
            assert forbidden.encode() not in data


def test_cards_of_datasets_hold_no_text_of_the_data(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    name = "obliq-ir/training"
    for part in ("corpus", "graph", "mixture", "queries"):
        publish_dataset(run / part, name, to_folder)
    text = (repository(tmp_path, name) / "README.md").read_text(encoding="utf-8")
    assert PLANTED not in text
    assert "passage 3" not in text


def test_a_non_commercial_base_gives_a_non_commercial_checkpoint(
    run: Path, hub: LocalHub, tiny_model_dir: Path
) -> None:
    put_base(hub, tiny_model_dir)
    hub.put(BASE, {"README.md": b"---\nlicense: cc-by-nc-4.0\n---\nbase\n"}, kind="model")
    repo = hub.repo(BASE, "model")
    repo.commits[COMMIT] = repo.find("main")  # type: ignore[assignment]
    online = PublishOptions(endpoint=hub.url, token=OWNER)
    publish_model(run / "model", MODEL, online)
    text = hub.content(MODEL, "README.md", "model").decode()
    assert yaml.safe_load(split_card(text)[1])["license"] == "cc-by-nc-4.0"
    with pytest.raises(ObliqError, match="allows more than that of the base"):
        publish_model(
            run / "model", MODEL, PublishOptions(endpoint=hub.url, token=OWNER, licence="mit")
        )


def test_an_unknown_licence_of_the_base_is_asked_for(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ObliqError, match="--licence"):
        publish_model(run / "model", MODEL, PublishOptions(to=f"folder:{tmp_path / 'x'}"))
    with pytest.raises(ObliqError, match=r"licence 'cc-by-40'.*did you mean 'cc-by-4\.0'"):
        publish_model(
            run / "model", MODEL, PublishOptions(to=f"folder:{tmp_path / 'x'}", licence="cc-by-40")
        )


def test_results_of_other_tasks_are_kept(
    run: Path, options: PublishOptions, hub: LocalHub, tmp_path: Path
) -> None:
    publish_dataset(run / "corpus", CORPUS, options)
    publish_model(run / "model", MODEL, options)
    other = {"dataset": {"id": "other/data", "task_id": "x"}, "value": 0.5}
    read = (
        (lambda path: hub.content(MODEL, path, "model").decode())
        if options.to == "hub"
        else (lambda path: (repository(tmp_path, MODEL) / path).read_text(encoding="utf-8"))
    )
    mine = yaml.safe_load(read(".eval_results/writing.yaml"))
    assert mine[0]["dataset"] == {"id": CORPUS, "task_id": "writing.ndcg_at_10"}
    assert mine[0]["value"] == 0.412
    result = {
        "task": {"type": "STS"},
        "dataset": {"type": "other/data", "name": "other"},
        "metrics": [{"type": "spearman", "value": 1.0}],
    }
    card = read("README.md").replace(
        "  results:\n", "  results:\n  - " + json.dumps(result) + "\n", 1
    )
    changed = {
        ".eval_results/writing.yaml": yaml.safe_dump([other, *mine]).encode(),
        ".eval_results/other.yaml": yaml.safe_dump([other]).encode(),
        "README.md": card.encode(),
    }
    if options.to == "hub":
        hub.put(MODEL, changed, kind="model")
    else:
        for path, data in changed.items():
            (repository(tmp_path, MODEL) / path).write_bytes(data)
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    report["systems"]["writing"]["student"]["ndcg_at_10"] = 0.5
    (run / "report.json").write_text(json.dumps(report), encoding="utf-8")
    publish_model(run / "model", MODEL, replace(options, replace_card=True))
    entries = yaml.safe_load(read(".eval_results/writing.yaml"))
    assert [entry["value"] for entry in entries] == [0.5, 0.5]
    assert entries[0] == other
    assert yaml.safe_load(read(".eval_results/other.yaml")) == [other]
    index = yaml.safe_load(split_card(read("README.md"))[1])["model-index"][0]["results"]
    assert [r["dataset"]["type"] for r in index] == ["other/data", CORPUS]
    assert index[1]["metrics"][0]["value"] == 0.5


def test_results_name_no_data_that_are_not_published(
    run: Path, options: PublishOptions, hub: LocalHub, tmp_path: Path
) -> None:
    (pushed,) = publish_model(run / "model", MODEL, options)
    assert any("give it with --corpus-repo" in note for note in pushed.notes)
    if options.to == "hub":
        text = hub.content(MODEL, "README.md", "model").decode()
    else:
        text = (repository(tmp_path, MODEL) / "README.md").read_text(encoding="utf-8")
    assert "model-index" not in yaml.safe_load(split_card(text)[1])
    assert "| writing | **this model** | 0.412" in text

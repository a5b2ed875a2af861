"""A run published whole: what the three lines of the command leave, and how it loads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hub_state import OWNER
from published import ADAPTER, CORPUS, GRAPH, MODEL, files, header, repository, usage
from run_folder import BASE, COMMIT

from model_cards.publishing import PublishOptions, publish_dataset, publish_model
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.hub import HubError, open_repository

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub_server import LocalHub

pytestmark = pytest.mark.usefixtures("online")


# --------------------------------------------------------------------------- the three lines


def test_a_folder_is_the_same_tree_and_its_card_runs_offline(
    run: Path, to_folder: PublishOptions, hub: LocalHub, tmp_path: Path,
    fresh_process: Callable[..., str],
) -> None:  # fmt: skip
    online = PublishOptions(endpoint=hub.url, token=OWNER, licence="apache-2.0")
    for given in (to_folder, online):
        publish_dataset(run / "corpus", CORPUS, given)
        publish_dataset(run / "graph", GRAPH, given)
    for name in (CORPUS, GRAPH):
        there = {
            path: hub.content(name, path)
            for path in hub.repo(name).files()
            if path != ".gitattributes"
        }
        assert files(repository(tmp_path, name)) == there
    code = "\n".join(b for name in (CORPUS, GRAPH) for b in usage(repository(tmp_path, name)))
    fresh_process(code + "\nassert len(train) == 2", cwd=tmp_path / "laid-out")


# --------------------------------------------------------------------------- datasets


def test_a_corpus_has_the_configs_that_mteb_reads_and_the_rest_beside(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    from datasets import load_dataset

    publish_dataset(run / "corpus", CORPUS, to_folder)
    folder = repository(tmp_path, CORPUS)
    configs = {c["config_name"]: c for c in header(folder)["configs"]}
    assert list(configs) == [
        "scene-corpus", "scene-queries", "scene-qrels", "writing-corpus", "writing-queries",
        "writing-qrels", "writing-qrels-pooled", "writing-top_ranked", "writing-excluded",
    ]  # fmt: skip
    assert configs["scene-corpus"]["data_files"] == configs["writing-corpus"]["data_files"]
    assert len([p for p in files(folder) if "/corpus-0" in p]) == 1

    def rows(config: str, split: str) -> list[dict[str, Any]]:
        cache = str(tmp_path / "cache")
        return list(load_dataset(str(folder), config, split=split, cache_dir=cache))

    documents = rows("writing-corpus", "corpus")
    assert [d["id"] for d in documents] == ["0012", "NA", "null", "1e5", "a b", "d5", "d6", "d7"]
    assert documents[1] | {"text": ""} == {
        "id": "NA", "title": "", "text": "", "group": "work 0", "author": "writer-1",
        "year": 1801, "translator": None, "metadata_title": "T", "places": ["sea"], "mixed": "1",
    }  # fmt: skip
    assert rows("writing-qrels", "test") == [
        {"query-id": "w1", "corpus-id": "a b", "score": 1},
        {"query-id": "w2", "corpus-id": "NA", "score": 2},
    ]
    assert [d["split"] for d in configs["writing-qrels"]["data_files"]] == ["dev", "test"]
    assert rows("writing-excluded", "test") == [{"query-id": "w1", "corpus-ids": ["0012", "NA"]}]
    ranked = {r["query-id"]: r["corpus-ids"] for r in rows("writing-top_ranked", "test")}
    assert [len(ranked[q]) for q in ("w1", "w2")] == [6, 8]


def test_an_exclusion_that_is_gone_takes_its_configs_with_it(
    run: Path, options: PublishOptions
) -> None:
    publish_dataset(run / "corpus", CORPUS, options)
    (run / "corpus" / "tasks" / "writing" / "excluded.json").unlink()
    pushed = publish_dataset(run / "corpus", CORPUS, options)
    assert {path.split("/")[0] for path in pushed.deleted} == {
        "writing-top_ranked", "writing-excluded",
    }  # fmt: skip


def test_a_graph_a_mixture_and_queries_publish_with_ids_beside_texts(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    from datasets import load_dataset

    name = "obliq-ir/training"
    for part in ("graph", "mixture", "queries"):
        publish_dataset(run / part, name, to_folder)
    folder = repository(tmp_path, name)

    def loaded(config: str) -> Any:
        cache = str(tmp_path / "cache")
        return load_dataset(str(folder), config, split="train", cache_dir=cache)

    assert loaded("writing-k3").column_names == [
        "anchor_id", "positive_id", "anchor", "positive", "rank", "similarity",
    ]  # fmt: skip
    assert (len(loaded("writing-k3")), len(loaded("writing-k3-complete"))) == (2, 4)
    assert loaded("writing-k3-purity")[0]["lift"] == 5.0
    assert loaded("writing-graph").column_names == ["anchor", "positive"]
    assert loaded("writing-graph-ids")["anchor_id"][0] == "a0"
    assert loaded("scene-provenance")["stage_a"][1] == "about 1"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert all(words in text for words in ("authorship encoder", "training mixture", "two stages"))


def test_a_second_teacher_and_the_control_have_configs_of_their_own(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    for change, expected in (
        ({"teacher": "rrivera1849/LUAR-MUD"}, "writing-luar-mud-k3"),
        ({"neighbours": "random"}, "writing-random-k3"),
        ({"task": "hands"}, "hands-k3"),
    ):
        info = json.loads((run / "graph" / "graph.json").read_text(encoding="utf-8"))
        changed = shutil.copytree(run / "graph", tmp_path / expected)
        (changed / "graph.json").write_text(json.dumps(info | change), encoding="utf-8")
        publish_dataset(changed, GRAPH, to_folder)
        names = [c["config_name"] for c in header(repository(tmp_path, GRAPH))["configs"]]
        assert expected in names


def test_queries_need_the_corpus_they_were_written_from(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    alone = Path(shutil.copytree(run / "queries", tmp_path / "alone" / "queries"))
    with pytest.raises(DataError, match="--corpus"):
        publish_dataset(alone, "obliq-ir/queries", to_folder)
    publish_dataset(alone, "obliq-ir/queries", to_folder, corpus=run / "corpus")


def test_a_folder_that_is_no_artefact_names_what_was_looked_for(
    tmp_path: Path, to_folder: PublishOptions
) -> None:
    with pytest.raises(DataError, match=r"graph\.json"):
        publish_dataset(tmp_path, CORPUS, to_folder)
    with pytest.raises(DataError, match="no such folder"):
        publish_dataset(tmp_path / "nowhere", CORPUS, to_folder)


def test_tasks_with_corpora_of_their_own_are_published_each_with_its_own(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    for task in ("scene", "writing"):
        shutil.copy(run / "corpus" / "corpus.jsonl", run / "corpus" / "tasks" / task)
    (run / "corpus" / "corpus.jsonl").unlink()
    publish_dataset(run / "corpus", CORPUS, to_folder)
    paths = [path for path in files(repository(tmp_path, CORPUS)) if "/corpus-0" in path]
    assert [path.split("/")[0] for path in paths] == ["scene-corpus", "writing-corpus"]


def test_publishing_leaves_the_run_as_it_is(run: Path, options: PublishOptions) -> None:
    from obliq_hf.files import hash_files

    before = hash_files(run)
    for part in ("corpus", "graph", "mixture", "queries"):
        publish_dataset(run / part, "obliq-ir/training", options)
    publish_model(run / "model", MODEL, options, adapter_repo=ADAPTER)
    assert hash_files(run) == before


def test_further_layers_are_published_with_the_rest(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    stock = SentenceTransformer(str(run / "model"), device="cpu")
    stock.insert(2, Dense(32, 16))
    stock.save_pretrained(str(run / "dense"), create_model_card=False)
    publish_model(run / "dense", MODEL, to_folder, base=f"{BASE}@{COMMIT}")
    again = SentenceTransformer(str(repository(tmp_path, MODEL)), device="cpu")
    np.testing.assert_allclose(again.encode("the sea"), stock.encode("the sea"), atol=1e-6)


# --------------------------------------------------------------------------- cards


# --------------------------------------------------------------------------- results


def test_the_same_checkpoint_again_makes_no_commit(run: Path, options: PublishOptions) -> None:
    first = publish_model(run / "model", MODEL, options, adapter_repo=ADAPTER)
    again = publish_model(run / "model", MODEL, options, adapter_repo=ADAPTER)
    assert [p.changed for p in first] == [True, True]
    assert [p.changed for p in again] == [False, False]


# --------------------------------------------------------------------------- what is refused


def test_an_adapter_on_a_local_or_unknown_base_is_refused(
    run: Path, to_folder: PublishOptions, tiny_model_dir: Path, tmp_path: Path
) -> None:
    config_file = run / "adapter" / "adapter_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    for name in (str(tiny_model_dir), "", None, "../base", "C:\\models\\base"):
        config_file.write_text(
            json.dumps(config | {"base_model_name_or_path": name}), encoding="utf-8"
        )
        with pytest.raises(HubError, match="--base organisation/name@revision"):
            publish_model(run / "model", MODEL, to_folder, adapter_repo=ADAPTER)
    assert not (tmp_path / "laid-out").exists(), "the model alone is not published either"
    config_file.write_text(json.dumps(config | {"revision": None}), encoding="utf-8")
    saved = run / "adapter" / "config_sentence_transformers.json"
    recorded = json.loads(saved.read_text(encoding="utf-8"))
    recorded["base_model"] |= {"revision": None, "path": str(tiny_model_dir)}
    saved.write_text(json.dumps(recorded), encoding="utf-8")
    with pytest.raises(HubError, match="the commit of its base acme/base is not recorded"):
        publish_model(run / "model", MODEL, to_folder, adapter_repo=ADAPTER)
    publish_model(run / "model", MODEL, to_folder, adapter_repo=ADAPTER, base=f"{BASE}@{COMMIT}")
    published = files(repository(tmp_path, ADAPTER))
    assert json.loads(published["adapter_config.json"])["revision"] == COMMIT
    inner = json.loads(published["config_sentence_transformers.json"])["base_model"]
    assert inner["revision"] == COMMIT
    assert "path" not in inner


def test_a_cut_base_is_published_merged_only(run: Path, to_folder: PublishOptions) -> None:
    saved = run / "adapter" / "config_sentence_transformers.json"
    recorded = json.loads(saved.read_text(encoding="utf-8"))
    recorded["base_model"]["layers"] = 1
    saved.write_text(json.dumps(recorded), encoding="utf-8")
    with pytest.raises(HubError, match="publish the merged model"):
        publish_model(run / "model", MODEL, to_folder, adapter_repo=ADAPTER)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("pickle", "pickled weights are not published"),
        ("no modules", r"no modules\.json"),
        ("remote code", "without remote code"),
        ("no pooling", "1_Pooling.*missing"),
        ("truncated", "not a whole safetensors file"),
        ("no weights", "only safetensors"),
    ],
)
def test_a_checkpoint_that_would_not_load_is_refused(
    run: Path, to_folder: PublishOptions, tmp_path: Path, damage: str, message: str
) -> None:
    model = run / "model"
    weights = model / "model.safetensors"
    if damage == "pickle":
        weights.rename(model / "pytorch_model.bin")
    elif damage == "no modules":
        (model / "modules.json").unlink()
    elif damage == "remote code":
        text = (model / "modules.json").read_text(encoding="utf-8")
        text = text.replace("sentence_transformers.", "my_code.", 1)
        (model / "modules.json").write_text(text, encoding="utf-8")
    elif damage == "no pooling":
        shutil.rmtree(model / "1_Pooling")
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-8])
    else:
        weights.unlink()
    with pytest.raises(HubError, match=message):
        publish_model(model, MODEL, to_folder)
    assert not (tmp_path / "laid-out").exists()


def test_state_of_the_training_stays_where_it_is(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "trainer_state.json"):
        (run / "model" / name).write_bytes(b"state")
    publish_model(run / "model", MODEL, to_folder)
    names = {Path(path).name for path in files(repository(tmp_path, MODEL))}
    assert not names & {"training_args.bin", "optimizer.pt", "rng_state.pth", "trainer_state.json"}


def test_weights_of_an_earlier_push_are_removed_and_other_files_kept(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    publish_model(run / "model", MODEL, to_folder)
    folder = repository(tmp_path, MODEL)
    for name in ("model-00001-of-00002.safetensors", "pytorch_model.bin", "notes.md", "x.png"):
        (folder / name).write_bytes(b"old")
    pushed = publish_model(run / "model", MODEL, to_folder)
    assert pushed[0].deleted == ["model-00001-of-00002.safetensors", "pytorch_model.bin"]
    assert (folder / "notes.md").exists()


def test_adapters_and_whole_weights_do_not_share_a_repository(
    run: Path, to_folder: PublishOptions
) -> None:
    publish_model(run / "model", MODEL, to_folder)
    publish_model(run / "adapter", ADAPTER, to_folder)
    with pytest.raises(HubError, match="holds whole weights"):
        publish_model(run / "adapter", MODEL, to_folder)
    with pytest.raises(HubError, match="holds an adapter"):
        publish_model(run / "model", ADAPTER, to_folder)
    with pytest.raises(ObliqError, match="repository of its own"):
        publish_model(run / "model", MODEL, to_folder, adapter_repo=MODEL)


def test_nothing_is_published_before_both_checkpoints_are_found_fit(
    run: Path, options: PublishOptions, hub: LocalHub, tmp_path: Path
) -> None:
    def published() -> bool:
        return ("model", MODEL) in hub.repos or repository(tmp_path, MODEL).exists()

    whole = f"{ADAPTER}-whole"
    publish_model(run / "model", whole, options)
    with pytest.raises(HubError, match="holds whole weights"):
        publish_model(run / "model", MODEL, options, adapter_repo=whole)
    assert not published()
    shutil.copy(run / "model" / "model.safetensors", run / "adapter")
    with pytest.raises(HubError, match="holds whole weights beside the adapter's own"):
        publish_model(run / "model", MODEL, options, adapter_repo=ADAPTER)
    assert not published()
    (run / "adapter" / "model.safetensors").unlink()
    publish_model(run / "adapter", ADAPTER, replace(options, version="v1"))
    config = run / "adapter" / "adapter_config.json"
    changed = json.loads(config.read_text(encoding="utf-8")) | {"lora_alpha": 7}
    config.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(HubError, match="version 'v1' is published already"):
        publish_model(run / "model", MODEL, replace(options, version="v1"), adapter_repo=ADAPTER)
    assert not published()


def test_a_branch_that_is_missing_is_not_taken_for_a_missing_repository(
    run: Path, hub: LocalHub
) -> None:
    hub.put(MODEL, {"notes.md": b"x"}, kind="model")
    branch = open_repository(MODEL, "model", token=OWNER, endpoint=hub.url, branch="dev")
    with pytest.raises(HubError, match="no branch 'dev' to open a pull request for"):
        branch.check_access(create_pr=True)
    branch.check_access(create_pr=False)


def test_a_pull_request_and_a_dry_run_leave_main_alone(run: Path, hub: LocalHub) -> None:
    online = {"endpoint": hub.url, "token": OWNER, "licence": "apache-2.0"}
    dry = publish_model(run / "model", MODEL, PublishOptions(**online, dry_run=True))  # type: ignore[arg-type]
    assert dry[0].dry_run
    assert "model.safetensors" in dry[0].added
    assert ("model", MODEL) not in hub.repos
    with pytest.raises(HubError, match="no repository to open a pull request in"):
        publish_model(run / "model", MODEL, PublishOptions(**online, create_pr=True))  # type: ignore[arg-type]
    hub.put(MODEL, {"notes.md": b"x"}, kind="model")
    pull = publish_model(run / "model", MODEL, PublishOptions(**online, create_pr=True))  # type: ignore[arg-type]
    assert pull[0].revision == "refs/pr/1"
    assert "model.safetensors" not in hub.repo(MODEL, "model").files()
    assert "model.safetensors" in hub.repo(MODEL, "model").files("refs/pr/1")

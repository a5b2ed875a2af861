"""What cards and published files say of where data are from: places, licences, audits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from published import files, header, repository
from run_folder import BASE, COMMIT, PLANTED

from dataset_builders.query_dataset import NegativeSettings, write_query_folder
from dataset_builders.query_flow import Outcome
from model_cards.publishing import publish_dataset, publish_model
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json, write_json
from obliq_hf.records import read_corpus
from obliq_hf.tasks import load_task

if TYPE_CHECKING:
    from model_cards.publishing import PublishOptions

GRAPH, MIXTURE, MODEL = "obliq-ir/authorship-graph", "obliq-ir/mixture", "obliq-ir/obliq-ir-mini"


def change(file: Path, **values: Any) -> None:
    """Change keys of a JSON file."""
    write_json(file, read_json(file) | values)


def card(tmp_path: Path, name: str) -> str:
    """The text of a card, with line ends as spaces."""
    text = (repository(tmp_path, name) / "README.md").read_text(encoding="utf-8")
    return " ".join(text.split())


# --------------------------------------------------------------------------- places


@pytest.mark.parametrize(
    "teacher",
    ["/mnt/alice/luar", "~alice/luar", "C:\\alice\\luar", "../alice/luar", "a/alice/luar"],
)
def test_a_teacher_in_a_folder_is_published_by_its_last_name(
    run: Path, to_folder: PublishOptions, tmp_path: Path, teacher: str
) -> None:
    change(run / "graph" / "graph.json", teacher=teacher)
    mixture = read_json(run / "mixture" / "mixture.json")
    mixture["datasets"][0]["source"]["graph"] = {"teacher": teacher}
    write_json(run / "mixture" / "mixture.json", mixture)
    publish_dataset(run / "graph", GRAPH, to_folder)
    publish_dataset(run / "mixture", MIXTURE, to_folder)
    publish_model(run / "model", MODEL, to_folder)
    published = files(tmp_path / "laid-out")
    assert not any(b"alice" in data for data in published.values())
    info = json.loads(published[f"{GRAPH}/writing-luar-k3/graph.json"])
    assert info["teacher"] == "luar"
    assert info["teacher_fingerprint"] == "t" * 64
    assert "| frozen authorship encoder | luar |" in card(tmp_path, GRAPH)


def test_a_teachers_name_on_the_hub_is_published_whole(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    change(run / "graph" / "graph.json", teacher="rrivera1849/LUAR-MUD")
    publish_dataset(run / "graph", GRAPH, to_folder)
    published = repository(tmp_path, GRAPH) / "writing-luar-mud-k3" / "graph.json"
    assert published.read_bytes() == (run / "graph" / "graph.json").read_bytes()


# --------------------------------------------------------------------------- licences


def test_a_licence_may_not_allow_more_than_the_data_do(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    source = {"builder": "obliq-bench", "license": "cc-by-nc-4.0"}
    change(run / "corpus" / "corpus.json", source=source)
    with pytest.raises(ObliqError, match=r"allows more than that of the data, 'cc-by-nc-4\.0'"):
        publish_model(run / "model", MODEL, to_folder)
    with pytest.raises(ObliqError, match=r"allows more than that of the data, 'cc-by-nc-4\.0'"):
        publish_dataset(run / "graph", GRAPH, to_folder)
    assert not (tmp_path / "laid-out").exists()
    publish_model(run / "model", MODEL, replace(to_folder, licence="cc-by-nc-sa-4.0"))
    assert header(repository(tmp_path, MODEL))["license"] == "cc-by-nc-sa-4.0"


def test_the_licence_of_published_training_data_is_read_where_it_can_be(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    base = tmp_path / "laid-out" / BASE
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    publish_dataset(run / "graph", GRAPH, replace(to_folder, licence="cc-by-nc-4.0"))
    for place in ("named", "recorded"):
        named: tuple[str, ...] = (f"{GRAPH}@v1",)
        if place == "recorded":
            named = ()
            mixture = read_json(run / "mixture" / "mixture.json")
            mixture["datasets"][1]["source"] = {"dataset": GRAPH, "revision": None}
            write_json(run / "mixture" / "mixture.json", mixture)
        with pytest.raises(ObliqError, match="allows more than that of the data"):
            publish_model(run / "model", MODEL, to_folder, datasets=named)
        publish_model(run / "model", MODEL, replace(to_folder, licence=None), datasets=named)
        assert header(repository(tmp_path, MODEL))["license"] == "cc-by-nc-4.0"
    pushed = publish_model(
        run / "model", MODEL, replace(to_folder, licence="cc-by-nc-4.0"), datasets=("acme/gone",)
    )
    assert "the licence of dataset acme/gone could not be read" in pushed[0].notes


# --------------------------------------------------------------------------- audits


def test_a_mixture_with_graph_pairs_carries_the_audit_and_purity_of_the_graph_beside_it(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    publish_dataset(run / "mixture", MIXTURE, to_folder)
    text = card(tmp_path, MIXTURE)
    assert "| author | 0.500 | [0.400, 0.600] | 0.100 | 5.00 | [4.000, 6.000] |" in text
    assert "| 1 | 4 | 0.500 | [0.400, 0.600] | 0.100 | 5.00 | [4.000, 6.000] |" in text
    assert "find the person behind an anonymous" in text
    names = {Path(path).name for path in files(repository(tmp_path, MIXTURE))}
    assert "audit.json" not in names, "it is the graph's, and goes with the graph"


@pytest.mark.parametrize("place", ["none beside it", "another graph"])
def test_pairs_without_an_audit_of_their_own_say_so(
    run: Path, to_folder: PublishOptions, tmp_path: Path, place: str
) -> None:
    if place == "none beside it":
        shutil.rmtree(run / "graph")
    else:
        mixture = read_json(run / "mixture" / "mixture.json")
        mixture["datasets"][0]["source"]["graph"] = {"k": 5}
        write_json(run / "mixture" / "mixture.json", mixture)
    publish_dataset(run / "mixture", MIXTURE, to_folder)
    text = card(tmp_path, MIXTURE)
    assert "## Audit Not audited: what else the pairs share" in text
    assert "## Purity Not measured" in text
    assert "| author |" not in text


def test_a_model_on_unaudited_pairs_says_so(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    shutil.rmtree(run / "graph")
    publish_model(run / "model", MODEL, to_folder, base=f"{BASE}@{COMMIT}")
    assert "## Audit Not audited" in card(tmp_path, MODEL)


def test_queries_alone_need_no_audit(run: Path, to_folder: PublishOptions, tmp_path: Path) -> None:
    mixture = read_json(run / "mixture" / "mixture.json")
    change(run / "mixture" / "mixture.json", datasets=mixture["datasets"][1:])
    publish_dataset(run / "mixture", MIXTURE, to_folder)
    assert "## Audit" not in card(tmp_path, MIXTURE)


# --------------------------------------------------------------------------- synthetic queries


def test_written_queries_publish_with_their_negatives_and_provenance_and_no_text_in_the_card(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    from datasets import load_dataset

    corpus = read_corpus(run / "corpus")
    outcomes = [
        Outcome(
            row=row,
            query=f"the old man of the sea, number {row}",
            stage_a={"scene": f"a hidden scene {row}"},
            calls={"a": 1, "b": 2},
        )
        for row in range(4)
    ]
    outcomes.append(Outcome(row=4, reason="refused", detail="no", calls={"a": 1}))
    info = {
        "task": load_task("writing").to_dict(), "corpus": corpus.fingerprint,
        "lens": {"name": "tip-of-the-tongue", "version": 1}, "model": "/mnt/alice/Qwen",
        "counts": {"written": 4}, "leakage": {"bm25_recall_at_10": 0.25},
    }  # fmt: skip
    written = run / "synthesis" / "writing"
    settings = NegativeSettings(count=4, first_rank=1, last_rank=8)
    write_query_folder(written, load_task("writing"), corpus, outcomes, info, settings)
    name = "obliq-ir/queries"
    publish_dataset(written, name, to_folder)
    folder = repository(tmp_path, name)

    def loaded(config: str) -> Any:
        cache = str(tmp_path / "cache")
        return load_dataset(str(folder), config, split="train", cache_dir=cache)

    texts, provenance = loaded("writing"), loaded("writing-provenance")
    assert texts.column_names == ["anchor", "positive", *(f"negative_{n}" for n in range(1, 5))]
    assert texts["anchor"][0] == provenance_query(written, 0)
    assert texts["positive"][3] == corpus.texts[3]
    assert all(row[f"negative_{n}"] != row["positive"] for row in texts for n in range(1, 5))
    assert provenance["query_id"] == [f"writing-{corpus.ids[row]}" for row in range(4)]
    assert provenance["doc_id"] == corpus.ids[:4]
    assert provenance["stage_a_scene"][0] == "a hidden scene 0"
    text = card(tmp_path, name)
    assert "| model | Qwen |" in text
    assert "| bm25 recall at 10 | 0.25 |" in text
    for hidden in (PLANTED, "the old man of the sea", "a hidden scene", "alice"):
        assert hidden not in text
    assert not any(b"alice" in data for data in files(folder).values())


def provenance_query(folder: Path, row: int) -> str:
    """The text of a written query, as the folder has it."""
    line = (folder / "queries.jsonl").read_text(encoding="utf-8").split("\n")[row]
    return str(json.loads(line)["text"])

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from eval_mteb import evaluation
from eval_mteb.evaluation import evaluate_folder, evaluate_system
from eval_mteb.models import load_encoder
from eval_mteb.results import read_results
from eval_mteb.systems import System, bm25_system, encoder_system, fusion_system
from eval_mteb.tasks import folder_task
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from pathlib import Path


class LetterTeacher:
    """Counts letters: a teacher that needs no fitting."""

    name = "letters"
    fingerprint = hashlib.sha256(b"letters").hexdigest()

    def encode(self, texts, *, batch_size=32, show_progress=False):
        counts = np.array([[t.count(c) for c in "abcdefghijklmnop"] for t in texts], np.float32)
        norms = np.linalg.norm(counts, axis=1, keepdims=True)
        return counts / np.where(norms == 0, 1, norms)


def run_all(folder, tasks, out, model, **changes):
    settings = {"base": model, "student": model, "teacher": LetterTeacher(), "show_progress": False}
    return evaluate_folder(folder, tasks, out, **{**settings, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in {"cost.json", "result.json"}
    }


def test_all_systems_leave_their_files_and_agree_with_mtebs_own(
    folder, writing, scene, tiny_model_dir, tmp_path
):
    out = tmp_path / "run" / "eval"
    run_all(folder, [writing, scene], out, tiny_model_dir)
    results = read_results(out)
    assert set(results) == {"writing", "writing-pooled", "scene"}
    for task in results.values():
        assert list(task.systems) == [
            "bm25",
            "teacher",
            "base",
            "base-plain",
            "base-prompt",
            "student",
            "fusion",
        ]
        for system in task.systems.values():
            scores = read_json(system.folder / "result.json")["scores"]["test"][0]
            for metric in ("ndcg_at_10", "ndcg_at_50", "recall_at_100"):
                assert system.mean(metric) == pytest.approx(scores[metric], abs=6e-6)
            assert system.cost["queries"] == task.info["queries"]
    assert results["writing"].info["documents"] == 10
    assert results["writing"].systems["base"].chosen["chosen"] in {"base-plain", "base-prompt"}
    # both bases and the student have the same weights: documents were encoded once
    assert len(list((tmp_path / "run" / "vectors").glob("*.npy"))) == 2


def test_every_metric_that_was_computed_is_kept_query_by_query(folder, writing, tmp_path):
    found = evaluate_system(bm25_system(), folder_task(folder, writing), tmp_path)
    kept = read_json(found / "per_query.json")
    scores = read_json(found / "result.json")["scores"]["test"][0]
    for metric in ("map_at_10", "precision_at_10", "ndcg_at_10", "recall_at_10"):
        assert set(kept[metric]) == {"q1", "q2", "NA", "1e5"}
        assert sum(kept[metric].values()) / 4 == pytest.approx(scores[metric], abs=6e-6)


def test_a_model_is_loaded_once_for_all_tasks_of_a_run(
    folder, writing, scene, tiny_model_dir, tmp_path, monkeypatch
):
    from eval_mteb import models

    loaded = []
    load = models.load_model
    monkeypatch.setattr(
        models, "load_model", lambda *a, **k: loaded.append(k["name"]) or load(*a, **k)
    )
    run_all(folder, [writing, scene], tmp_path / "eval", tiny_model_dir)
    assert sorted(loaded) == ["base-plain", "base-prompt", "student"]


def test_base_is_the_better_of_the_two_with_both_kept(folder, writing, tiny_model_dir, tmp_path):
    run_all(folder, [writing], tmp_path / "eval", tiny_model_dir, systems=["base"])
    task = read_results(tmp_path / "eval")["writing"]
    plain, prompt, base = (
        task.systems[n].mean("ndcg_at_10") for n in ("base-plain", "base-prompt", "base")
    )
    assert base == max(plain, prompt)
    assert task.systems["base-plain"].run != task.systems["base-prompt"].run


def test_a_finished_system_is_not_measured_again(
    folder, writing, tiny_model_dir, tmp_path, monkeypatch
):
    run_all(folder, [writing], tmp_path / "eval", tiny_model_dir)
    before = contents(tmp_path / "eval")

    def refuse(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr(evaluation.mteb, "evaluate", refuse)
    run_all(folder, [writing], tmp_path / "eval", tiny_model_dir)
    assert contents(tmp_path / "eval") == before


def test_a_task_described_otherwise_is_measured_anew(folder, scene, tiny_model_dir, tmp_path):
    system, measured = encoder_system("tiny", tiny_model_dir), []
    for task in ("scene", scene, scene, replace(scene, instruction="Another one")):
        record = evaluate_system(system, folder_task(folder, task), tmp_path) / "system.json"
        measured.append(record.stat().st_mtime_ns)
    assert measured[0] < measured[1] == measured[2] < measured[3]


def test_what_is_being_measured_is_said_where_bars_are_shown(
    folder, writing, tiny_model_dir, tmp_path, capsys
):
    task = folder_task(folder, writing)
    system = encoder_system("tiny", tiny_model_dir)
    evaluate_system(system, task, tmp_path / "a", show_progress=False)
    assert "writing: tiny" not in capsys.readouterr().err
    evaluate_system(system, task, tmp_path / "b")
    assert "writing: tiny" in capsys.readouterr().err


def test_a_run_interrupted_between_systems_ends_with_the_same_files(
    folder, writing, tiny_model_dir, tmp_path
):
    run_all(folder, [writing], tmp_path / "whole", tiny_model_dir)
    run_all(folder, [writing], tmp_path / "cut", tiny_model_dir)
    shutil.rmtree(tmp_path / "cut" / "writing" / "student")
    shutil.rmtree(tmp_path / "cut" / "writing" / "fusion")
    run_all(folder, [writing], tmp_path / "cut", tiny_model_dir)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_changed_judgments_are_measured_anew(folder, writing, tmp_path):
    system = bm25_system()
    first = evaluate_system(system, folder_task(folder, writing), tmp_path)
    before = read_json(first / "per_query.json")
    qrels = folder / "tasks" / "writing" / "qrels" / "test.tsv"
    qrels.write_text(
        qrels.read_text(encoding="utf-8") + "q2\td8\t1\n", encoding="utf-8", newline="\n"
    )
    evaluate_system(system, folder_task(folder, writing), tmp_path)
    assert read_json(first / "per_query.json") != before


def test_nothing_is_left_behind_when_a_model_fails(folder, writing, tmp_path):
    class Broken:
        mteb_model_meta = load_meta = None

    def load(task):
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        evaluate_system(System("broken", "f", load), folder_task(folder, writing), tmp_path)
    assert [p.name for p in (tmp_path / "writing").iterdir() if p.is_dir()] == []


def test_two_checkpoints_have_two_names_and_the_same_weights_one_fingerprint(
    tiny_model_dir, tmp_path
):
    import torch

    one = load_encoder(tiny_model_dir)
    shutil.copytree(tiny_model_dir, tmp_path / "copy" / "model")
    copied = load_encoder(tmp_path / "copy" / "model")
    assert one.vector_fingerprint == copied.vector_fingerprint
    assert one.mteb_model_meta.revision == copied.mteb_model_meta.revision
    assert copied.mteb_model_meta.name == "local/copy"
    prompted = load_encoder(tiny_model_dir, prompts={"query": "the "})
    assert prompted.vector_fingerprint == one.vector_fingerprint
    assert prompted.mteb_model_meta.revision != one.mteb_model_meta.revision
    with torch.no_grad():
        next(copied.model.parameters()).add_(1e-3)
    copied.model.save(str(tmp_path / "changed"))
    assert load_encoder(tmp_path / "changed").vector_fingerprint != one.vector_fingerprint
    shorter = load_encoder(tiny_model_dir, max_length=8)
    assert shorter.vector_fingerprint != one.vector_fingerprint


@pytest.mark.parametrize(("prompt", "encoded"), [("", 1), ("text: ", 2)])
def test_documents_are_encoded_anew_where_pooling_their_prompt_makes_a_difference(
    folder, writing, tiny_model_dir, tmp_path, prompt, encoded
):
    task = folder_task(folder, writing, vectors=tmp_path / "vectors")
    prompts = {"document": prompt}
    for include in (True, False):
        system = encoder_system(
            f"pools-{include}", tiny_model_dir, prompts=prompts, include_prompt=include
        )
        evaluate_system(system, task, tmp_path / "eval", show_progress=False)
    assert len(list((tmp_path / "vectors").glob("*.npy"))) == encoded


def test_a_fusion_is_made_of_runs_on_disk_and_strict(folder, writing, tiny_model_dir, tmp_path):
    task = folder_task(folder, writing)
    evaluate_system(bm25_system(), task, tmp_path)
    evaluate_system(encoder_system("tiny", tiny_model_dir), task, tmp_path, show_progress=False)
    for method in ("zscore", "rrf"):
        system = fusion_system(tmp_path, task, ["bm25", "tiny"], name=method, method=method)
        run = read_run(evaluate_system(system, task, tmp_path) / "run.trec")
        assert set(run) == set(task.query_texts)
        for ranked in run.values():
            scores = np.array(list(ranked.values()), dtype=np.float32)
            assert (np.diff(scores) < 0).all()
    with pytest.raises(ObliqError, match=r"needs .*nowhere.run\.trec"):
        fusion_system(tmp_path, task, ["bm25", "nowhere"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": ["bm52"]}, "did you mean 'bm25'"),
        ({"student": None}, "no student was given"),
        ({"systems": ["student", "fusion"]}, "needs both"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_runs(
    folder, writing, tiny_model_dir, tmp_path, changes, message
):
    with pytest.raises(ObliqError, match=message):
        run_all(folder, [writing], tmp_path / "eval", tiny_model_dir, **changes)
    assert not (tmp_path / "eval").exists()


def test_a_task_the_folder_lacks_is_named(folder, writing, scene, tiny_model_dir, tmp_path):
    from dataclasses import replace

    with pytest.raises(ObliqError, match="did you mean 'writing'"):
        run_all(folder, [replace(writing, name="writting")], tmp_path / "eval", tiny_model_dir)

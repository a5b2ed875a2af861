"""The whole pipeline on a small corpus with a task of the user's own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from training_recipes.recipe import load_recipe
from training_recipes.run import RecipeRun, run_recipe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def finished(recipe_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "small"
    said: list[str] = []
    ran = run_recipe(load_recipe(recipe_file, ["--out", str(out)]), say=said.append)
    return out, ran, said


def load(out: Path) -> dict:
    return json.loads((out / "report.json").read_text(encoding="utf-8"))


def test_a_recipe_runs_from_source_to_report(finished):
    out, ran, said = finished
    written = (out / "queries" / "echo.jsonl").read_text(encoding="utf-8").count("\n")
    assert any(line.endswith(f" s: {written} echo queries") for line in said)
    assert any(line.endswith("40 rows of echo-graph") for line in said)
    assert ran == [
        "corpus", "queries", "teacher", "graph", "mixture", "train", "evaluate", "report",
    ]  # fmt: skip
    for name in ("corpus", "graph", "model", "report.md", "report.json", "figures"):
        assert (out / name).exists(), name
    report = load(out)
    systems = report["systems"]["echo"]
    assert {"bm25", "teacher", "base", "student", "fusion"} <= set(systems)
    assert all(0 <= systems[s]["ndcg_at_10"] <= 1 for s in systems)
    rows = [
        c
        for c in report["comparisons"]
        if (c["task"], c["a"], c["b"], c["metric"]) == ("echo", "student", "base", "ndcg_at_10")
    ]
    delta = systems["student"]["ndcg_at_10"] - systems["base"]["ndcg_at_10"]
    assert rows[0]["delta"] == pytest.approx(delta, abs=1e-5)
    low, high = rows[0]["ci95"]
    assert low <= rows[0]["delta"] <= high
    assert any('prompt_name="echo"' in line for line in said)


def test_the_checkpoint_works_with_the_stock_library_alone(finished):
    out, _, _ = finished
    code = (
        "import sys; from sentence_transformers import SentenceTransformer\n"
        "m = SentenceTransformer(sys.argv[1], device='cpu')\n"
        "q = m.encode_query(['who can find the old king'], prompt_name='echo')\n"
        "p = m.encode_query(['who can find the old king'])\n"
        "assert abs(q - p).max() > 1e-4 and 'obliq_hf' not in sys.modules\n"
        "print(q.shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(out / "model")],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_second_run_finds_everything_and_says_the_same(finished, recipe_file):
    out, _, _ = finished
    before = (out / "report.json").read_bytes()
    assert run_recipe(load_recipe(recipe_file, ["--out", str(out)])) == []
    assert (out / "report.json").read_bytes() == before


def test_a_model_trained_by_its_own_command_is_found_by_the_run(finished, recipe_file, tmp_path):
    from obliq_hf.cli import main

    out, _, _ = finished
    target = tmp_path / "alone"
    shutil.copytree(out, target)
    shutil.rmtree(target / "model")
    (target / "training.json").unlink()
    recipe = load_recipe(recipe_file, ["--out", str(target)])
    said: list[str] = []
    run_recipe(recipe, until="mixture", say=said.append)
    assert said[-1] == "stopped after mixture; without --until the run goes on from here"
    assert main(["train", str(recipe_file), "--out", str(target)]) == 0
    weights = target / "model" / "model.safetensors"
    before = (weights.stat().st_mtime_ns, weights.read_bytes())
    assert run_recipe(recipe) == ["train", "evaluate", "report"]
    assert (weights.stat().st_mtime_ns, weights.read_bytes()) == before


def test_queries_that_a_language_model_has_written_are_trained_on_without_it(
    recipe_file, tmp_path, monkeypatch, capsys
):
    from obliq_hf.cli import main

    out = tmp_path / "written"
    words = [str(recipe_file), "--out", str(out), "--queries.source", "llm", "--queries.path"]
    words += ["null", "--graph.task", "null", "--evaluation.systems", "[base, student]"]
    assert main(["run", *words]) == 1
    assert "llm.endpoint: source 'llm' needs" in capsys.readouterr().err
    assert not (out / "corpus").exists()
    keyed = ["--llm.endpoint", "http://127.0.0.1:1/v1", "--llm.api_key_env", "OBLIQ_NO_SUCH_KEY"]
    assert main(["run", *words, *keyed]) == 1
    assert "OBLIQ_NO_SUCH_KEY is not set" in capsys.readouterr().err
    assert not (out / "corpus").exists()

    rows = (recipe_file.parent / "source" / "echo.jsonl").read_text(encoding="utf-8").splitlines()
    monkeypatch.setattr(
        "training_recipes.steps.RunSteps._synthesize",
        lambda self, name, corpus: [json.loads(row) for row in rows],
    )
    assert main(["run", *words, "--until", "mixture", *keyed[:2]]) == 0
    monkeypatch.undo()
    assert main(["train", *words]) == 0
    assert main(["run", *words]) == 0
    assert load(out)["systems"]["echo"]["student"]


def test_another_base_of_the_same_name_is_trained_anew(
    finished, recipe_file, tmp_path, tiny_model_dir
):
    out, _, _ = finished
    target = tmp_path / "other"
    shutil.copytree(out, target)
    base = tmp_path / "elsewhere" / tiny_model_dir.name
    shutil.copytree(tiny_model_dir, base)
    settings = json.loads((base / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    settings["similarity_fn_name"] = "dot"
    (base / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    recipe = load_recipe(recipe_file, ["--out", str(target), "--training.base", str(base)])
    assert run_recipe(recipe, until="train") == ["train"]


def test_a_training_query_whose_passage_is_scored_is_dropped(finished):
    out, _, _ = finished
    about = json.loads((out / "mixture" / "mixture.json").read_text(encoding="utf-8"))
    rows = next(d for d in about["datasets"] if d["kind"] == "queries")
    judged = (out / "corpus" / "tasks" / "echo" / "qrels" / "test.tsv").read_text(encoding="utf-8")
    asked = {line.split("\t")[1] for line in judged.splitlines()[1:]}
    import pyarrow.parquet as pq

    trained = pq.read_table(out / "mixture" / rows["path"]).to_pydict()["positive_id"]
    assert not asked & set(trained)
    assert rows["rows"] == len(trained)


def test_deleting_the_graph_runs_it_and_what_stands_on_it(finished, recipe_file, tmp_path):
    out, _, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "graph")
    ran = run_recipe(load_recipe(recipe_file, ["--out", str(copy)]))
    assert ran == ["graph", "mixture", "train", "evaluate", "report"]
    assert load(copy)["systems"] == load(out)["systems"]


def test_a_run_killed_in_training_resumes_and_ends_with_the_same_numbers(
    finished, recipe_file, tmp_path
):
    out, _, _ = finished
    target = tmp_path / "killed"
    command = [sys.executable, "-m", "obliq_hf.cli", "run", str(recipe_file), "--out", str(target)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list(target.glob("checkpoints/*/checkpoint-*")) and time.monotonic() < deadline:
        assert process.poll() is None or (target / "model").exists()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    ran = run_recipe(load_recipe(recipe_file, ["--out", str(target)]))
    assert "report" in ran
    assert "graph" not in ran
    assert load(target)["systems"] == load(out)["systems"]


def test_the_random_control_keeps_anchors_and_dose(finished, recipe_file, tmp_path):
    import pyarrow.parquet as pq

    out, _, _ = finished
    control = tmp_path / "control"
    shutil.copytree(out, control)
    options = ["--out", str(control), "--graph.neighbours", "random"]
    run_recipe(load_recipe(recipe_file, options), until="mixture")
    ours = pq.read_table(out / "graph" / "edges.parquet").to_pydict()
    random = pq.read_table(control / "graph" / "edges.parquet").to_pydict()
    assert random["anchor_id"] == ours["anchor_id"]
    assert random["rank"] == ours["rank"]
    assert not set(zip(random["anchor_id"], random["positive_id"], strict=True)) & set(
        zip(ours["anchor_id"], ours["positive_id"], strict=True)
    )


def test_nothing_published_names_a_place_of_this_machine(finished):
    out, _, _ = finished
    for file in [
        out / "report.json",
        out / "report.md",
        out / "recipe.yaml",
        out / "training.json",
    ]:
        assert str(out.parent) not in file.read_text(encoding="utf-8"), file
        assert os.environ.get("HOME", "/root") + "/" not in file.read_text(encoding="utf-8"), file


def test_a_teachers_revision_and_trust_reach_it_and_another_revision_is_another_teacher(
    recipe_file, tmp_path, monkeypatch
):
    out = ["--out", str(tmp_path / "x"), "--graph.teacher", "me/LUAR-MUD"]
    trusting = [*out, "--graph.trust_remote_code", "true"]
    runs = {
        revision: RecipeRun(load_recipe(recipe_file, [*trusting, "--teacher_revision", revision]))
        for revision in ("null", "v1", "v2")
    }
    keys = [s.config for run in runs.values() for s in run.stages() if s.name == "teacher"]
    assert len(keys) == 3
    assert all(a != b for a, b in itertools.combinations(keys, 2))
    asked = {}
    monkeypatch.setattr(
        "obliq_hf.teachers.load_teacher", lambda *_, **options: asked.update(options)
    )
    runs["v1"].teacher()
    assert (asked["revision"], asked["trust_remote_code"]) == ("v1", True)


def test_a_corpus_without_judgments_is_trained_on_and_not_scored(recipe_file, tmp_path, capsys):
    from obliq_hf.cli import main

    source = tmp_path / "plain"
    shutil.copytree(recipe_file.parent / "source", source)
    shutil.rmtree(source / "tasks")
    out = tmp_path / "out"
    words = [str(recipe_file), "--out", str(out), "--corpus.path", str(source)]
    words += ["--queries.path", str(source / "echo.jsonl")]
    assert main(["run", *words]) == 1
    said = capsys.readouterr().err
    assert "no judgments of task 'echo'" in said
    assert "evaluation.split: null" in said
    assert not (out / "queries").exists()
    assert main(["run", *words, "--evaluation.split", "null"]) == 0
    said = capsys.readouterr().out
    assert "[6/6] train: done" in said
    assert str(out / "model") in said
    assert (out / "model" / "model.safetensors").is_file()
    assert not (out / "eval").exists()

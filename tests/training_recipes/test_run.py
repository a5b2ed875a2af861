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
from pathlib import Path

import numpy as np
import pytest
from echo_task import ECHO

from obliq_hf.errors import ObliqError
from training_recipes.recipe import load_recipe
from training_recipes.run import RecipeRun, run_recipe

HABITS = {
    "ann": "the old king said upon the night that he would then come home and it was cold",
    "ben": "we saw red fire over the blue sea while they sang a song of war and peace",
    "cat": "my little son my dear daughter there is no love without fear in this house",
    "dan": "who would open the door when the horse is gone from the green field by the river",
}


def write_source(folder: Path) -> Path:
    """A labelled folder: 4 hands x 4 works x 5 passages, queries of the user's own task."""
    rng = np.random.default_rng(5)
    words = " ".join(HABITS.values()).split()
    rows, qrels, queries = [], [], []
    for author, habit in HABITS.items():
        own = habit.split()
        for work in range(4):
            for i in range(5):
                picked = [str(rng.choice(own if rng.random() < 0.7 else words)) for _ in range(40)]
                rows.append(
                    {
                        "_id": f"{author} {work}-{i}",
                        "text": " ".join(picked),
                        "metadata": {"author": author, "group": f"{author}-{work}", "one": "same"},
                    }
                )
    for i, row in enumerate(rows[::8]):
        half = row["text"].split()[5:20]
        queries.append({"_id": f"q{i}", "text": "i remember " + " ".join(half), "metadata": {}})
        qrels.append(f"q{i}\t{row['_id']}\t1")
    base = folder / "tasks" / "echo"
    (base / "qrels").mkdir(parents=True)
    for name, lines in (("corpus.jsonl", rows), ("tasks/echo/queries.jsonl", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    (base / "qrels" / "test.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    training = [
        {"query": "who can find " + " ".join(r["text"].split()[20:30]), "passage_id": r["_id"]}
        for r in rows[1::4]
    ]
    (folder / "echo.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in training), encoding="utf-8", newline="\n"
    )
    return folder


RECIPE = """\
name: small
seed: 3
tasks: [echo.yaml]
corpus: {{source: beir, path: {source}}}
queries: {{source: path, path: {source}/echo.jsonl, tasks: [echo]}}
graph: {{task: echo, k: 2, dose: 40, label: author}}
training:
  base: {base}
  max_length: 96
  learning_rate: 1.0e-3
  batch_size: 8
  repeat: {{queries: 2}}
  save_steps: 2
evaluation: {{depth: 50}}
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory, tiny_model_dir):
    folder = tmp_path_factory.mktemp("recipe")
    source = write_source(folder / "source")
    (folder / "echo.yaml").write_text(ECHO, encoding="utf-8")
    text = RECIPE.format(source=source, base=tiny_model_dir)
    (folder / "small.yaml").write_text(text, encoding="utf-8")
    return folder / "small.yaml"


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--graph.task", "writing"], "graph.task: 'writing' is not among the recipe's tasks"),
        (["--queries.source", "none", "--graph.task", "null"], "nothing to train on"),
        (["--corpus.path", "nowhere"], "nowhere does not exist"),
        (["--evaluation.corpus", "other"], "corpus.other_path"),
        (["--graph.nieghbours", "random"], "did you mean"),
        (["--evaluation.systems", "[bm52]"], "did you mean 'bm25'"),
        (["--evaluation.systems", "[student, fusion]"], "fusion needs student and teacher"),
        (["--queries.count", "3"], "goes with queries.source llm"),
        (["--queries.path", "/nowhere.jsonl"], "queries.path: /nowhere.jsonl does not exist"),
        (["--corpus.source", "classics"], "corpus.path: goes with corpus.source beir"),
        (["--graph.teacher", "/nowhere"], "graph.teacher: teacher /nowhere: no such folder"),
        (["--graph.teacher", "luar:/nowhere"], "graph.teacher: teacher /nowhere: no such folder"),
        (["--graph.teacher", "rrivera1849/LUAR-MUD"], "graph.trust_remote_code: true"),
        (["--graph.corpus", "/nowhere"], "graph.corpus: /nowhere is neither"),
        (["--training.base", "/nowhere/x"], "training.base: '/nowhere/x'"),
        (["--training.template", "instrct"], "training.template: .* mean 'instruct'"),
        (["--training.lengths", "{ehco: 96}"], "training.lengths: no task 'ehco'; .* 'echo'"),
        (["--training.lengths", "{echo: 200}"], "above training.max_length 96"),
        (["--training.repeat", "{querys: 3}"], "training.repeat: .*'querys'; .* 'queries'"),
        (["--training.repeat", "{echo-rows: 3}"], "training.repeat: no dataset 'echo-rows'"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused_before_anything_runs(
    recipe_file, tmp_path, options, message
):
    with pytest.raises(ObliqError, match=message):
        run_recipe(load_recipe(recipe_file, ["--out", str(tmp_path / "x"), *options]))
    assert not (tmp_path / "x" / "corpus").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--evaluation.split", "tset"], "evaluation.split: .* no split 'tset'; .* 'test'"),
        (["--training.dev_split", "tst"], "training.dev_split: .* split 'tst'; .* 'test'"),
        (["--graph.label", "auhtor"], "graph.label: .*'auhtor'; did you mean 'author'"),
        (["--graph.dose", "9999"], "graph.dose: 9999 pairs are more than 2 for each of 80"),
        (["--corpus.group_field", "wrk"], "no field 'wrk'"),
        (["--corpus.group_field", "one"], "every document belongs to the one group 'same'"),
    ],
)
def test_what_only_the_corpus_can_contradict_is_told_before_any_other_stage(
    recipe_file, tmp_path, monkeypatch, options, message
):
    monkeypatch.setattr(
        "obliq_hf.teachers.load_teacher", lambda *_, **__: pytest.fail("a teacher was loaded")
    )
    out = tmp_path / "x"
    for until in ("corpus", None):  # the corpus made now, and found
        with pytest.raises(ObliqError, match=message):
            assert run_recipe(load_recipe(recipe_file, ["--out", str(out), *options])) == until
        assert not (out / "queries").exists()


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("corpus.path", "corpus"),
        ("corpus.path", "corpus/deeper"),
        ("corpus.path", "."),
        ("queries.path", "queries/echo.jsonl"),
        ("queries.path", "synthesis/echo/queries.jsonl"),
        ("rows.path", "mixture/rows.parquet"),
        ("graph.corpus", "corpus"),
        ("graph.teacher", "teacher"),
        ("training.base", "model"),
    ],
)
def test_a_run_that_would_write_where_it_reads_is_refused_and_removes_nothing(
    recipe_file, tmp_path, tiny_model_dir, key, place
):
    out = tmp_path / "mine"
    shutil.copytree(recipe_file.parent / "source", out / "corpus")
    shutil.copytree(recipe_file.parent / "source", out / "corpus" / "deeper")
    for name in ("model", "teacher"):
        shutil.copytree(tiny_model_dir, out / name)
    for name in ("queries/echo.jsonl", "synthesis/echo/queries.jsonl", "mixture/rows.parquet"):
        (out / name).parent.mkdir(parents=True)
        shutil.copy(out / "corpus" / "echo.jsonl", out / name)
    before = sorted(out.rglob("*"))
    options = ["--out", str(out), f"--{key}", str(out / place)]
    if key == "rows.path":
        options += ["--rows.task", "echo"]
    message = f"{key}: the run reads .* its stage .* writes .*/mine/"
    with pytest.raises(ObliqError, match=message):
        run_recipe(load_recipe(recipe_file, options))
    assert [p for p in sorted(out.rglob("*")) if p.name != ".lock"] == before


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


def test_no_recipe_that_ships_runs_code_of_others():
    from training_recipes import recipe as module

    shipped = Path(module.__file__).parent
    files = [f for f in shipped.rglob("*.yaml") if "accelerate" not in f.parts]
    assert len(files) > 10
    for file in files:
        assert "trust_remote_code" not in file.read_text(encoding="utf-8"), file


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

"""What a recipe contradicts is told before any stage runs, and nothing is written or removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from obliq_hf.errors import ObliqError
from training_recipes.recipe import load_recipe
from training_recipes.run import run_recipe


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


def test_no_recipe_that_ships_runs_code_of_others():
    from training_recipes import recipe as module

    shipped = Path(module.__file__).parent
    files = [f for f in shipped.rglob("*.yaml") if "accelerate" not in f.parts]
    assert len(files) > 10
    for file in files:
        assert "trust_remote_code" not in file.read_text(encoding="utf-8"), file

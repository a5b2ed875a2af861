"""Runs over tasks with corpora of their own, and sweeps of several recipes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench_folder import write_bench

from dataset_builders.corpora import several
from dataset_builders.mixture import read_mixture
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json
from obliq_hf.task_data import read_task_data
from training_recipes.plan import plan_recipe
from training_recipes.recipe import load_recipe
from training_recipes.sweep import gather, main, sweep_table, variants

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = """\
name: full
tasks: [congress, writing, topical.yaml]
corpus: {{source: bench, group_fields: {{congress: hearing, writing: work}}}}
queries: {{source: path, tasks: [congress]}}
graph: {{task: writing, k: 2, dose: 24, selection: random}}
negatives: {{queries: 2, first_rank: 1, last_rank: 20}}
training: {{base: {base}, max_length: 120, learning_rate: 1.0e-3, batch_size: 8, save_steps: 50}}
evaluation: {{systems: [bm25, student], depth: 20}}
"""
SHIPPED = Path(load_recipe.__code__.co_filename).parent


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    topical = (SHIPPED / "mixture_sweep" / "topical.yaml").read_text(encoding="utf-8")
    (folder / "topical.yaml").write_text(topical, encoding="utf-8")
    (folder / "full.yaml").write_text(FULL.format(base=tiny_model_dir), encoding="utf-8")
    child = "extends: full.yaml\ngraph: {task: null}\nevaluation: {systems: [student]}\n"
    (folder / "alone.yaml").write_text(child, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def swept(
    recipes: Path, bench: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    out = tmp_path_factory.mktemp("sweep")
    words = [str(recipes), "--out", str(out), "--corpus.path", str(bench)]
    words += ["--queries.path", str(bench / "synthetic")]
    words += ["--corpus.folders.topical", str(bench / "plain")]
    assert main(words) == 0
    return out, words


def test_every_task_gets_its_own_corpus_with_groups_and_exclusions(bench, tmp_path):
    counts = several.build(
        tmp_path / "c", bench, tasks=["congress", "writing", "topical"],
        folders={"topical": bench / "plain"}, group_fields={"writing": "work"},
    )  # fmt: skip
    assert counts == {"congress": 40, "writing": 48, "topical": 12}
    for task in ("congress", "writing"):
        ours = read_task_data(tmp_path / "c", task=task)
        original = read_task_data(bench, task=task)
        assert ours.corpus.ids == original.corpus.ids
        assert ours.qrels == original.qrels
        assert ours.excluded == original.excluded
    assert ours.corpus.groups[:5] == ["ann-0"] * 4 + ["ann-1"]
    assert read_task_data(tmp_path / "c", task="topical").queries.ids == ["t0", "t1", "t2", "t3"]


def test_tasks_and_fields_that_are_not_there_are_named(bench, tmp_path):
    build = several.build
    with pytest.raises(DataError, match="no task 'math'"):
        build(tmp_path / "c", bench, tasks=["math"])
    with pytest.raises(
        DataError, match=r"group_fields: no task 'writting'; did you mean 'writing'"
    ):
        build(tmp_path / "c", bench, tasks=["writing"], group_fields={"writting": "work"})
    with pytest.raises(DataError, match="'wrok'"):
        build(tmp_path / "c", bench, tasks=["writing"], group_fields={"writing": "wrok"})
    with pytest.raises(ObliqError, match="cannot be had"):
        build(tmp_path / "c", None, tasks=["writing"])  # offline, and nothing in the cache
    assert not (tmp_path / "c").exists()


def test_a_sweep_trains_every_variant_and_compares_them_per_task(swept):
    out, _ = swept
    result = read_json(out / "sweep.json")
    assert result["reference"] == "full"
    assert result["tasks"] == ["congress", "topical", "writing"]
    assert [row["name"] for row in result["rows"]] == ["bm25", "full", "alone"]
    full, alone = result["rows"][1], result["rows"][2]
    for task in result["tasks"]:
        assert "delta" not in full["tasks"][task]
        cell = alone["tasks"][task]
        assert cell["delta"] == pytest.approx(cell["mean"] - full["tasks"][task]["mean"])
        assert cell["delta_ci95"][0] <= cell["delta"] <= cell["delta_ci95"][1]
    assert set(result["training"]["full"]["rows"]) == {"congress-queries", "writing-graph"}
    assert set(result["training"]["alone"]["rows"]) == {"congress-queries"}
    table = (out / "sweep.md").read_text(encoding="utf-8")
    assert "| `alone` |" in table
    assert str(out) not in table


def test_a_finished_sweep_is_found_and_one_variant_can_be_run_alone(swept, capsys, tmp_path):
    out, words = swept
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    assert main([*words, "--only", "alone"]) == 0
    shown = capsys.readouterr().out
    assert "train: found" in shown
    assert "(1/1) alone" in shown
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")} == before
    assert main([*words, "--only", "aolne"]) == 1
    assert "did you mean 'alone'" in capsys.readouterr().err
    assert main([str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "needs recipes" in capsys.readouterr().err


def test_negatives_and_rows_come_from_the_tasks_own_corpus(swept, bench):
    out, _ = swept
    queries, graph = read_mixture(out / "full" / "mixture")
    assert (queries.name, queries.task, queries.negatives) == ("congress-queries", "congress", 2)
    assert (graph.name, graph.task, graph.rows) == ("writing-graph", "writing", 24)
    import pyarrow.parquet as pq

    rows = pq.read_table(queries.path).to_pylist()
    assert {row["positive_id"][:2] for row in rows} == {"c "}
    assert {i[:2] for row in rows for i in row["negative_ids"]} == {"c "}
    edges = pq.read_table(graph.path).to_pylist()
    assert all(row["anchor_group"] != row["positive_group"] for row in edges)
    assert not {row["positive_id"] for row in rows} & {f"c {i}" for i in range(0, 12, 3)}


def test_a_dry_run_knows_the_sizes_before_and_after_the_mixture_is_built(
    swept, recipes, bench, tmp_path
):
    out, words = swept
    settings = words[3:]
    before = plan_recipe(load_recipe(recipes / "full.yaml", ["--out", str(tmp_path), *settings]))
    after = plan_recipe(load_recipe(recipes / "full.yaml", ["--out", str(out / "full"), *settings]))
    assert {d.name: d.rows for d in before.datasets} == {
        "congress-queries": 25,
        "writing-graph": 24,
    }
    assert (before.exact, after.exact) == (False, True)
    assert {d.name for d in after.datasets} == {d.name for d in before.datasets}
    assert after.steps == read_json(out / "full" / "training.json")["steps"]
    assert before.documents == after.documents == 100
    assert list(tmp_path.iterdir()) == []


def test_the_table_leaves_out_what_a_variant_has_not(swept, tmp_path):
    out, _ = swept
    result = gather({"alone": out / "alone", "full": out / "full"}, resamples=100)
    assert [row["name"] for row in result["rows"]] == ["alone", "full"]
    del result["rows"][1]["tasks"]["topical"]
    assert sweep_table(result).splitlines()[-1].count("–") == 1
    with pytest.raises(ObliqError, match="holds no evaluation"):
        gather({"x": tmp_path})


def test_the_table_gives_the_interval_of_every_mean_also_of_the_reference():
    full = {"mean": 0.4, "ci95": [0.31, 0.5], "queries": 9}
    other = {"mean": 0.3, "ci95": [0.21, 0.4], "delta": -0.1, "delta_ci95": [-0.2, 0.01], "p": 0.1}
    rows = [
        {"name": "full", "kind": "student", "tasks": {"echo": full}},
        {"name": "alone", "kind": "student", "tasks": {"echo": other}},
    ]
    result = {
        "metric": "ndcg_at_10", "reference": "full", "tasks": ["echo"], "rows": rows,
        "training": {},
    }  # fmt: skip
    first, second = sweep_table(result).splitlines()[-2:]
    assert first.endswith("| 0.400 [0.310, 0.500] |")
    assert second.endswith("| 0.300 [0.210, 0.400]<br>-0.100 [-0.200, +0.010] |")


@pytest.mark.parametrize("folder", ["mixture_sweep", "obliq_ir_3b"])
def test_recipes_that_ship_are_valid_and_each_has_a_folder_of_its_own(
    folder: str, tmp_path: Path
) -> None:
    found = variants([SHIPPED / folder], tmp_path)
    assert len({v.recipe.out for v in found}) == len(found)
    assert len({v.recipe.hash() for v in found}) == len(found)
    named: Callable[[str], Path] = lambda name: Path(load_recipe(f"{folder}/{name}").out)  # noqa: E731
    assert all(named(v.name).name == v.name for v in found)


def test_settings_of_bench_are_refused_elsewhere(tmp_path):
    from training_recipes.run import open_run

    recipe = load_recipe("quickstart", ["--corpus.group_fields", "{writing: work}"])
    with pytest.raises(ObliqError, match=r"corpus\.group_fields: goes with corpus\.source bench"):
        open_run(recipe)

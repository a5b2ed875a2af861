"""Comparing two evaluations: paired, corrected, and only where they can be compared."""

from __future__ import annotations

import shutil

import pytest
from scored_run import write_run_folder

from eval_mteb.comparisons import compare_folders, compare_systems
from eval_mteb.report import write_report
from eval_mteb.report_tables import comparison_table
from eval_mteb.results import read_results
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json, write_json


def test_identical_runs_compare_to_nothing_and_other_queries_are_an_error(tmp_path):
    first = read_results(write_run_folder(tmp_path / "a") / "eval")
    second = read_results(write_run_folder(tmp_path / "b") / "eval")
    rows = compare_folders(first, second, resamples=300).rows
    assert {tuple(r["ci95"]) for r in rows} == {(0.0, 0.0)}
    assert {r["n"] for r in rows} == {60}
    assert {r["p"] for r in rows} == {1.0}
    assert {r["holm_p"] for r in rows if r["by"] == "query"} == {1.0}
    assert "[0, 0]" in comparison_table(rows)
    fewer = read_results(write_run_folder(tmp_path / "c", queries=50) / "eval")
    with pytest.raises(ObliqError, match="quer"):
        compare_folders(first, fewer, resamples=300)


def test_a_runs_folder_stands_for_its_evaluation(run):
    assert set(read_results(run)) == set(read_results(run / "eval"))


def test_other_data_under_the_same_task_name_is_refused(tmp_path):
    first = read_results(write_run_folder(tmp_path / "a") / "eval")
    other = write_run_folder(tmp_path / "b")
    for task in ("writing", "scene"):
        info = read_json(other / "eval" / task / "task.json")
        write_json(other / "eval" / task / "task.json", {**info, "revision": "r2"})
    with pytest.raises(ObliqError, match="not the same data"):
        compare_folders(first, read_results(other / "eval"))


def test_systems_and_tasks_without_a_counterpart_are_paired_or_named(tmp_path):
    one, two = (
        write_run_folder(tmp_path / name, queries=12, shift=shift) / "eval"
        for name, shift in (("one", 0.1), ("two", 0.2))
    )
    for root, name in ((one, "a"), (two, "b")):
        for task in ("writing", "scene"):
            (root / task / "student").rename(root / task / name)
    (two / "scene").rename(two / "other")
    found = compare_folders(read_results(one), read_results(two), resamples=200)
    assert ("a", "b") in {(r["a"], r["b"]) for r in found.rows}
    assert {r["task"] for r in found.rows} == {"writing"}
    assert "only in the first evaluation: task scene" in found.notes
    assert "only in the second evaluation: task other" in found.notes
    assert "writing, left out: 3 queries without a judgment in this split" in found.notes
    assert "writing, a − b: only 12 queries: a true difference" in "\n".join(found.notes)
    (two / "writing" / "bm25").rename(two / "writing" / "c")
    found = compare_folders(read_results(one), read_results(two), resamples=200)
    assert ("a", "b") not in {(r["a"], r["b"]) for r in found.rows}
    assert any("only in the second evaluation: b, c (--systems A,B" in n for n in found.notes)
    for name in ("base", "base-plain", "base-prompt"):
        shutil.rmtree(two / "writing" / name)
    with pytest.raises(ObliqError, match=r"--systems A,B: .*a.* and b, c"):
        compare_folders(read_results(one), read_results(two))


def test_a_metric_that_was_not_computed_is_named_with_its_nearest(run):
    results = read_results(run)
    with pytest.raises(ObliqError, match=r"did you mean .*'ndcg_at_10'"):
        compare_folders(results, results, metrics=["ndgc_at_10"])
    for file in run.glob("eval/*/*/per_query.json"):
        kept = {m: v for m, v in read_json(file).items() if int(m.rsplit("_", 1)[1]) <= 5}
        write_json(file, kept)
    with pytest.raises(ObliqError, match=r"'ndcg_at_10' was not computed"):
        compare_folders(results, read_results(run), metrics=["ndcg_at_10"])
    with pytest.raises(ObliqError, match="no metric in common"):
        compare_folders(results, read_results(run))


def test_holm_corrects_over_the_tasks(run):
    rows = compare_systems(read_results(run / "eval"), pairs=[("student", "base")], resamples=300)
    for row in rows:
        if row["by"] == "query":
            assert row["holm_p"] >= row["permutation_p"]


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no results"):
        write_report(tmp_path / "empty")


def test_a_ceiling_is_named_as_not_compared_and_never_offered(tmp_path):
    roots = [write_run_folder(tmp_path / name, queries=12) / "eval" for name in ("one", "two")]
    for root in roots:
        shutil.copytree(root / "writing" / "student", root / "writing" / "oracle")
        write_json(root / "writing" / "oracle" / "system.json", {"ceiling": True})
    one, two = map(read_results, roots)
    found = compare_folders(one, two, resamples=200)
    assert found.notes.count("writing, oracle: a ceiling, not compared") == 1
    assert "oracle" not in {row["a"] for row in found.rows}
    shutil.rmtree(roots[1] / "scene")
    for system in ("bm25", "base", "base-plain", "base-prompt", "student"):
        shutil.rmtree(roots[1] / "writing" / system)
    with pytest.raises(ObliqError) as refused:
        compare_folders(one, read_results(roots[1]), resamples=200)
    assert "the second evaluation has no system to compare" in str(refused.value)
    assert "writing, oracle: a ceiling, not compared" in str(refused.value)
    for system in ("bm25", "base", "base-plain", "base-prompt"):
        shutil.rmtree(roots[0] / "writing" / system)
    (roots[0] / "writing" / "student").rename(roots[0] / "writing" / "a")
    for system in ("b", "c"):
        shutil.copytree(roots[0] / "writing" / "a", roots[1] / "writing" / system)
    with pytest.raises(ObliqError, match=r"with --systems A,B: a and b, c$"):
        compare_folders(*map(read_results, roots), resamples=200)

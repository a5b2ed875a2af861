from __future__ import annotations

import json
import subprocess
import sys

import mteb
import pytest
from datasets import Dataset
from published_bench import publish

import eval_mteb
from eval_mteb import benchmark
from eval_mteb.benchmark import bench_tasks, published_tasks
from eval_mteb.evaluation import evaluate_system
from eval_mteb.systems import bm25_system
from eval_mteb.tasks import folder_task
from obliq_hf.cli import main
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json


def test_the_benchmarks_hold_gold_and_pooled_tasks_under_mtebs_names_and_ours():
    whole = {task.metadata.name: task for task in eval_mteb.OBLIQ_BENCH}
    assert {t.key for t in whole.values()} == {
        "twitter",
        "twitter-pooled",
        "math",
        "math-pooled",
        "writing",
        "congress",
        "wildchat",
        "wildchat-pooled",
    }
    assert [t.key for t in eval_mteb.OBLIQ_BENCH_PAPER] == [
        "twitter",
        "math",
        "writing",
        "congress",
    ]
    assert all(50 in task.k_values for task in whole.values())
    for name, task in whole.items():
        shipped = mteb.get_task(name.replace("Gold", ""))
        assert task.metadata.revision == shipped.metadata.revision
        assert 50 not in shipped.k_values, "mteb's own task is as it was"
    with pytest.raises(ObliqError, match="did you mean 'congress'"):
        bench_tasks(["congres"])


def test_a_small_tree_is_never_taken_for_the_benchmark_itself(bench, monkeypatch):
    names = {t.metadata.name for t in bench_tasks(data=bench)}
    assert names == {
        "ObliqBenchMath",
        "ObliqBenchMathPooled",
        "ObliqBenchTwitter",
        "ObliqBenchTwitterPooled",
    }
    # a copy of the benchmark's own size is the benchmark
    monkeypatch.setitem(benchmark.PUBLISHED_SIZES, "math", (10, 5))
    tasks = [t for t in bench_tasks(data=bench) if t.short_name == "math"]
    assert [t.metadata.name for t in tasks] == [
        "OBLIQBenchMathGoldRetrieval",
        "OBLIQBenchMathRetrieval",
    ]
    assert {t.place for t in tasks} == {("math", "test")}


def test_a_published_folder_gives_the_scores_of_the_tree_it_was_made_from(bench, tmp_path, hf_home):
    hub = publish(bench, tmp_path / "hub")
    tasks = {t.key: t for t in published_tasks(hub)}
    assert set(tasks) == {"math", "math-pooled"}
    for judgments in ("gold", "pooled"):
        tree = folder_task(bench, "math", judgments=judgments)
        task = tasks[tree.key]
        first = evaluate_system(bm25_system(), tree, tmp_path / "tree")
        second = evaluate_system(bm25_system(), task, tmp_path / "hub-eval")
        assert read_json(first / "per_query.json") == read_json(second / "per_query.json")
        assert (first / "run.trec").read_bytes() == (second / "run.trec").read_bytes()
    assert {q: sorted(d) for q, d in tasks["math"].excluded.items() if d} == {
        "q1": ["d4"],
        "NA": ["0012", "d1"],
    }
    assert [t.key for t in bench_tasks(data=hub, judgments=["gold"])] == ["math"]


def test_a_published_folder_is_evaluated_on_the_command_line_at_the_depth_asked(
    bench, tmp_path, hf_home, capsys
):
    hub = publish(bench, tmp_path / "hub")
    words = ["evaluate", "--data", str(hub), "--baseline", "bm25", "--depth", "4"]
    assert main([*words, "--out", str(tmp_path / "eval")]) == 0
    assert main([*words, "--out", str(tmp_path / "other"), "--tasks", "maths"]) == 1
    assert "did you mean 'math'" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "other"), "--split", "dev"]) == 1
    assert "no split 'dev'; present: test" in capsys.readouterr().err
    for judgments, key in (("gold", "math"), ("pooled", "math-pooled")):
        tree = folder_task(bench, "math", judgments=judgments, depth=4)
        expected = evaluate_system(bm25_system(), tree, tmp_path / "tree")
        found = tmp_path / "eval" / key / "bm25"
        assert (found / "run.trec").read_bytes() == (expected / "run.trec").read_bytes()
        scores = read_json(found / "per_query.json")
        assert scores == read_json(expected / "per_query.json")
        assert "ndcg_at_3" in scores
        assert "ndcg_at_5" not in scores


def test_without_data_another_split_is_refused(tmp_path, capsys):
    words = ["evaluate", "--baseline", "bm25", "--split", "dev", "--out", str(tmp_path / "e")]
    assert main(words) == 1
    assert "no split 'dev'" in capsys.readouterr().err
    assert [t._top_k for t in bench_tasks(["writing"], depth=7)] == [7]
    with pytest.raises(ObliqError, match="group_field can be set for a folder"):
        bench_tasks(["writing"], group_field="work")


def test_a_folder_whose_card_declares_other_configs_is_read_by_its_files(bench):
    for configs in ("- config_name: math", "- config_name: other-queries", "[broken"):
        (bench / "README.md").write_text(f"---\nconfigs:\n{configs}\n---\n", encoding="utf-8")
        assert {t.short_name for t in bench_tasks(data=bench)} == {"math", "twitter"}


def test_a_full_copy_of_the_benchmark_is_the_benchmark_on_the_command_line(
    bench, tmp_path, monkeypatch
):
    monkeypatch.setitem(benchmark.PUBLISHED_SIZES, "math", (10, 5))
    words = ["evaluate", "--data", str(bench), "--tasks", "math", "--baseline", "bm25"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    for key, name in (("math", "GoldRetrieval"), ("math-pooled", "Retrieval")):
        result = read_json(tmp_path / key / "bm25" / "result.json")
        assert result["task_name"] == f"OBLIQBenchMath{name}"
        assert result["scores"]["test"][0]["hf_subset"] == "math"


def test_a_published_folder_without_a_task_is_an_error(tmp_path, hf_home):
    (tmp_path / "x").mkdir()
    Dataset.from_list([{"a": 1}]).to_parquet(str(tmp_path / "x" / "d.parquet"))
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: x\n  data_files: x/d.parquet\n---\n", encoding="utf-8"
    )
    with pytest.raises(DataError, match="no configuration"):
        published_tasks(tmp_path)


HUB_SCRIPT = """
import json, os, sys
from pathlib import Path
from huggingface_hub import HfApi
from datasets import load_dataset
import eval_mteb.benchmark as benchmark
from eval_mteb.command import evaluate_command

published, bench, out = map(Path, sys.argv[1:4])
api = HfApi()
tasks = benchmark.bench_tasks(["math"])
revision = tasks[0].metadata.revision
pooled_first = published / "README.md"
text = pooled_first.read_text()
# in mteb's copy the pooled judgments stand where the gold ones do in ours
pooled_first.write_text(text.replace("path: math-qrels/", "path: math-qrels-pooled/"))
for name, folder in (("mteb/OBLIQBenchRetrieval", published), ("dianetc/OBLIQ-Bench", bench)):
    api.create_repo(name, repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id=name, folder_path=str(folder), repo_type="dataset")
api.create_tag("mteb/OBLIQBenchRetrieval", tag=revision, repo_type="dataset")
evaluate_command(data=None, models=[], tasks=["math"], baselines=["bm25"], out=out)
tasks[0].load_data()
print(json.dumps([t.metadata.name for t in tasks] + [tasks[0].gold_commit]))
"""


def test_the_hubs_copy_and_its_gold_judgments_are_read_through_a_hub(bench, tmp_path):
    import os

    from hub_server import running_hub
    from hub_state import OWNER, User

    published = publish(bench, tmp_path / "published")
    with running_hub(tmp_path / "store") as hub:
        hub.users[OWNER] = User("olga", ("mteb", "dianetc"))
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": OWNER,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", HUB_SCRIPT, str(published), str(bench), str(tmp_path / "eval")],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    *names, commit = json.loads(done.stdout.splitlines()[-1])
    assert names == ["OBLIQBenchMathGoldRetrieval", "OBLIQBenchMathRetrieval"]
    assert len(commit) == 40
    gold, pooled = (read_json(tmp_path / "eval" / k / "task.json") for k in ("math", "math-pooled"))
    assert (gold["gold_repository"], gold["gold_commit"]) == ("dianetc/OBLIQ-Bench", commit)
    assert not {"gold_repository", "gold_commit"} & set(pooled)
    for judgments, key in (("gold", "math"), ("pooled", "math-pooled")):
        tree = folder_task(bench, "math", judgments=judgments)
        expected = evaluate_system(bm25_system(), tree, tmp_path / "tree")
        found = tmp_path / "eval" / key / "bm25"
        assert read_json(found / "per_query.json") == read_json(expected / "per_query.json")
    stored = read_json(tmp_path / "eval" / "math-pooled" / "bm25" / "result.json")
    assert stored["task_name"] == "OBLIQBenchMathRetrieval"
    assert stored["scores"]["test"][0]["hf_subset"] == "math"

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import mteb
import pytest
from datasets import Dataset
from mteb.cache import ResultCache
from sentence_transformers import SentenceTransformer

import eval_mteb
from eval_mteb import benchmark
from eval_mteb.benchmark import bench_tasks, published_tasks
from eval_mteb.evaluation import evaluate_system
from eval_mteb.models import wrap_encoder
from eval_mteb.systems import bm25_system
from eval_mteb.tasks import folder_task
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json

if TYPE_CHECKING:
    from pathlib import Path


def publish(bench: Path, out: Path) -> Path:
    """The math task of a benchmark tree as a folder laid out like a published repository."""
    inner = bench / "analogues" / "math"
    corpus = [
        {"_id": row["_id"], "title": "", "text": row["text"]}
        for row in map(json.loads, (inner / "corpus/corpus.jsonl").read_text().splitlines())
    ]
    queries = [
        {"_id": row["_id"], "text": row["text"]}
        for row in map(json.loads, (inner / "queries+qrels/queries.jsonl").read_text().splitlines())
    ]
    excluded = read_json(inner / "queries+qrels/per_query_excluded_ids.json")
    parts = {"math-corpus": corpus, "math-queries": queries}
    for config, file in (("math-qrels", "qrels.tsv"), ("math-qrels-pooled", "qrels_pool.tsv")):
        lines = (inner / "queries+qrels" / file).read_text().split("\n")[1:]
        rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
        parts[config] = [{"query-id": q, "corpus-id": d, "score": int(s)} for q, d, s in rows]
    parts["math-top_ranked"] = [
        {
            "query-id": q["_id"],
            "corpus-ids": [d["_id"] for d in corpus if d["_id"] not in excluded.get(q["_id"], [])],
        }
        for q in queries
    ]
    yaml = ["---", "configs:"]
    for config, rows in parts.items():
        (out / config).mkdir(parents=True)
        Dataset.from_list(rows).to_parquet(str(out / config / "test-00000-of-00001.parquet"))
        yaml += [f"- config_name: {config}", "  data_files:", "  - split: test"]
        yaml += [f"    path: {config}/test-*.parquet"]
    (out / "README.md").write_text("\n".join([*yaml, "---", ""]), encoding="utf-8")
    return out


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


def test_a_published_folder_without_a_task_is_an_error(tmp_path, hf_home):
    (tmp_path / "x").mkdir()
    Dataset.from_list([{"a": 1}]).to_parquet(str(tmp_path / "x" / "d.parquet"))
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: x\n  data_files: x/d.parquet\n---\n", encoding="utf-8"
    )
    with pytest.raises(DataError, match="no configuration"):
        published_tasks(tmp_path)


def run_twice(model, task, cache):
    done = mteb.evaluate(
        model,
        task,
        cache=cache,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": 8, "show_progress_bar": False},
    )
    assert len(done.task_results) == 1
    return done.task_results[0]


def test_results_in_mtebs_cache_are_used_again_only_for_the_same_data_and_cutoffs(
    folder, writing, tiny_model_dir, tmp_path
):
    cache = ResultCache(tmp_path / "cache")
    model = wrap_encoder(SentenceTransformer(str(tiny_model_dir), device="cpu"), name="tiny")
    task = folder_task(folder, writing)
    first = run_twice(model, task, cache)
    assert task.outcomes
    task.outcomes.clear()
    again = run_twice(model, task, cache)
    assert not task.outcomes, "the second result comes from the cache"
    assert again.get_score() == first.get_score()
    # a cached result without k = 50, as a stock task leaves it
    path = cache.get_task_result_path(task.metadata.name, model.mteb_model_meta)
    stored = json.loads(path.read_text())
    for scores in stored["scores"]["test"]:
        del scores["ndcg_at_50"]
    path.write_text(json.dumps(stored))
    assert "ndcg_at_50" in run_twice(model, task, cache).scores["test"][0]
    assert task.outcomes
    # another revision of the data
    qrels = folder / "tasks" / "writing" / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text(encoding="utf-8") + "q2\td8\t1\n", encoding="utf-8")
    changed = folder_task(folder, writing)
    assert changed.metadata.name == task.metadata.name
    result = run_twice(model, changed, cache)
    assert result.dataset_revision == changed.metadata.revision
    assert changed.outcomes


def test_published_checkpoints_say_what_they_were_trained_on():
    import eval_mteb.checkpoints as checkpoints

    for meta in checkpoints.CHECKPOINTS[:3]:
        assert mteb.get_model_meta(meta.name) == meta
        assert meta.is_zero_shot_on(["OBLIQBenchWritingRetrieval"]) is False
        assert meta.adapted_from == checkpoints.BASE.name


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
print(json.dumps([t.metadata.name for t in tasks] + [len(tasks[0].gold_commit or "")]))
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
    assert json.loads(done.stdout.splitlines()[-1]) == [
        "OBLIQBenchMathGoldRetrieval",
        "OBLIQBenchMathRetrieval",
        40,
    ]
    for judgments, key in (("gold", "math"), ("pooled", "math-pooled")):
        tree = folder_task(bench, "math", judgments=judgments)
        expected = evaluate_system(bm25_system(), tree, tmp_path / "tree")
        found = tmp_path / "eval" / key / "bm25"
        assert read_json(found / "per_query.json") == read_json(expected / "per_query.json")
    stored = read_json(tmp_path / "eval" / "math-pooled" / "bm25" / "result.json")
    assert stored["task_name"] == "OBLIQBenchMathRetrieval"
    assert stored["scores"]["test"][0]["hf_subset"] == "math"

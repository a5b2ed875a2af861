from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import mteb
import pytest
import torch
from datasets import Dataset
from mteb.cache import ResultCache
from sentence_transformers import SentenceTransformer

import eval_mteb
from eval_mteb import benchmark
from eval_mteb.baselines.bm25 import BM25Search
from eval_mteb.benchmark import bench_tasks, published_tasks
from eval_mteb.comparisons import compare_folders
from eval_mteb.evaluation import evaluate_system
from eval_mteb.models import load_encoder, wrap_encoder
from eval_mteb.results import read_results
from eval_mteb.systems import bm25_system
from eval_mteb.tasks import folder_task
from obliq_hf.cli import main
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def publish(bench: Path, out: Path, spoil: Callable[[dict], None] | None = None) -> Path:
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
    if spoil is not None:
        spoil(parts)
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


def two_texts(parts):
    parts["math-corpus"].append({"_id": "d1", "title": "", "text": "quite another"})


def two_query_texts(parts):
    parts["math-queries"].append({"_id": "q1", "text": "quite another"})


def no_text(parts):
    parts["math-corpus"][2]["text"] = None


def two_grades(parts):
    parts["math-qrels"].append({"query-id": "q1", "corpus-id": "d1", "score": 0})


def nothing_judged(parts):
    for row in parts["math-qrels"]:
        row["corpus-id"] = "0" + row["corpus-id"]


def other_queries(parts):
    for row in parts["math-qrels"]:
        row["query-id"] = "0" + row["query-id"]


def nothing_relevant(parts):
    for row in parts["math-qrels"]:
        row["score"] = 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (two_texts, "id 'd1' stands for two different texts"),
        (two_query_texts, "id 'q1' stands for two different texts"),
        (no_text, "text of 'd3' is None"),
        (two_grades, "query 'q1' and document 'd1' have two grades, 2 and 0"),
        (nothing_judged, "no judgment names both a query and a document"),
        (other_queries, "no judgment names both a query and a document"),
        (nothing_relevant, "no query has a positive judgment"),
    ],
)
def test_what_a_folder_of_files_is_refused_for_a_published_one_is_too(
    bench, tmp_path, hf_home, spoil, message
):
    hub = publish(bench, tmp_path / "hub", spoil)
    (task,) = bench_tasks(data=hub, judgments=["gold"])
    with pytest.raises(DataError, match=message):
        task.load_data()


def test_a_folder_published_again_is_read_again(bench, tmp_path, hf_home):
    def other_texts(parts):
        for row in parts["math-corpus"]:
            row["text"] = "another edition of " + row["text"]

    texts, revisions = [], []
    for spoil in (None, other_texts):
        if (tmp_path / "hub").exists():
            shutil.rmtree(tmp_path / "hub")
        (task,) = bench_tasks(data=publish(bench, tmp_path / "hub", spoil), judgments=["gold"])
        texts.append(task.part["corpus"]["text"][0])
        revisions.append(task.metadata.revision)
    assert texts[1] == "another edition of " + texts[0]
    assert revisions[0] != revisions[1]


def test_equal_rows_of_a_published_folder_are_collapsed_and_the_rest_is_counted(
    bench, tmp_path, hf_home
):
    def spoil(parts):
        parts["math-corpus"].append(dict(parts["math-corpus"][0]))
        parts["math-qrels"].append({"query-id": "gone", "corpus-id": "d1", "score": 1})

    hub = publish(bench, tmp_path / "hub", spoil)
    (task,) = bench_tasks(data=hub, judgments=["gold"])
    assert len(task.document_ids) == 10
    assert task.left_out["judged queries without a text"] == 1
    found = evaluate_system(bm25_system(), task, tmp_path / "a")
    expected = evaluate_system(bm25_system(), folder_task(bench, "math"), tmp_path / "b")
    assert read_json(found / "per_query.json") == read_json(expected / "per_query.json")


def test_results_under_other_gold_judgments_are_measured_anew_and_not_compared(
    bench, tmp_path, hf_home, monkeypatch
):
    import huggingface_hub

    gold = {"one": "q1\td1\t1\nq2\td2\t1\n", "two": "q1\td5\t1\nq2\td2\t1\n"}
    for revision, text in gold.items():
        (tmp_path / f"{revision}.tsv").write_text(text, encoding="utf-8", newline="\n")
    monkeypatch.setattr(
        huggingface_hub,
        "hf_hub_download",
        lambda *args, revision, **kwargs: str(tmp_path / f"{revision}.tsv"),
    )
    hub = publish(bench, tmp_path / "hub")

    def task(revision):
        (made,) = bench_tasks(["math"], judgments=["gold"], gold_revision=revision)
        cls = type(made)
        source = {"path": str(hub), "revision": hub.parent.name}
        cls.metadata = cls.metadata.model_copy(update={"dataset": source})
        return cls()

    folders = [evaluate_system(bm25_system(), task(r), tmp_path / "eval") for r in gold]
    assert folders[0] == folders[1]
    again = evaluate_system(bm25_system(), task("one"), tmp_path / "one")
    scores = [read_json(f / "per_query.json") for f in (again, folders[1])]
    assert scores[0]["ndcg_at_10"]["q1"] != scores[1]["ndcg_at_10"]["q1"]
    revisions = [read_json(f / "result.json")["dataset_revision"] for f in (again, folders[1])]
    assert revisions[0] != revisions[1]
    with pytest.raises(ObliqError, match="not the same data"):
        compare_folders(read_results(tmp_path / "one"), read_results(tmp_path / "eval"))
    # and so it is with the results that mteb keeps
    cache = ResultCache(tmp_path / "cache")
    model = BM25Search()
    first = run_twice(model, task("one"), cache)
    kept = task("one")
    assert run_twice(model, kept, cache).get_score() == first.get_score()
    assert not kept.outcomes, "the second result comes from the cache"
    changed = task("two")
    run_twice(model, changed, cache)
    assert changed.outcomes


def test_two_models_without_a_name_never_share_a_result_in_mtebs_cache(
    folder, writing, tiny_model_dir, tmp_path
):
    cache = ResultCache(tmp_path / "cache")
    other = SentenceTransformer(str(tiny_model_dir), device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in other.parameters():
            weights.add_(torch.randn_like(weights))
    other.save_pretrained(str(tmp_path / "b" / "model"), create_model_card=False)
    task = folder_task(folder, writing)
    runs = []
    for path in (tiny_model_dir, tmp_path / "b" / "model"):
        task.outcomes.clear()
        run_twice(SentenceTransformer(str(path), device="cpu"), task, cache)
        runs.append(task.outcome.run)
    assert runs[0] != runs[1]


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
        for task in eval_mteb.OBLIQ_BENCH:
            assert meta.is_zero_shot_on([task]) is False, task.metadata.name
        assert meta.adapted_from == checkpoints.BASE.name


def test_mteb_knows_our_tasks_and_checkpoints_after_one_call_and_nothing_before():
    code = """if True:
        import json, mteb, eval_mteb
        from mteb.get_tasks import _TASKS_REGISTRY
        from mteb.models.model_implementations import MODEL_REGISTRY
        names = ["OBLIQBenchMathGoldRetrieval", "DataScience-UIBK/OBLIQ-IR-3B-LoRA"]
        before = [names[0] in _TASKS_REGISTRY, names[1] in MODEL_REGISTRY]
        eval_mteb.register_all()
        eval_mteb.register_all()
        task = mteb.get_task(names[0])
        meta = mteb.get_model_meta(names[1])
        print(json.dumps([before, 50 in task.k_values, meta.is_zero_shot_on([task])]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[False, False], True, False]


def test_a_loaded_model_keeps_what_mteb_knows_of_it():
    known = mteb.get_model_meta("sentence-transformers/all-MiniLM-L6-v2")
    loaded = load_encoder("embedded", device="cpu").mteb_model_meta
    assert loaded.name == known.name
    assert loaded.training_datasets == known.training_datasets
    assert loaded.training_datasets
    assert loaded.license == known.license
    short = load_encoder("embedded", device="cpu", max_length=32).mteb_model_meta
    assert short.max_tokens == 32
    assert short.revision != loaded.revision


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

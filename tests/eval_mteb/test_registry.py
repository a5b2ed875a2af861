from __future__ import annotations

import json

import mteb
import pytest
import torch
from mteb.cache import ResultCache
from published_bench import publish
from sentence_transformers import SentenceTransformer

from eval_mteb.baselines.bm25 import BM25Search
from eval_mteb.benchmark import bench_tasks
from eval_mteb.comparisons import compare_folders
from eval_mteb.evaluation import evaluate_system
from eval_mteb.models import wrap_encoder
from eval_mteb.results import read_results
from eval_mteb.systems import bm25_system
from eval_mteb.tasks import folder_task
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json


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

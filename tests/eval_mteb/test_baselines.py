from __future__ import annotations

import json

import numpy as np
import pytest

from eval_mteb.baselines.bm25 import BM25Search
from eval_mteb.baselines.listwise import LLMOrder, sliding_order
from eval_mteb.baselines.oracle import OracleSearch, oracle_plan
from eval_mteb.comparisons import compare_folders
from eval_mteb.evaluation import evaluate_system
from eval_mteb.report import write_report
from eval_mteb.results import read_results
from eval_mteb.systems import (
    System,
    bm25_system,
    encoder_system,
    multihop_system,
    oracle_system,
    rewriter_system,
    teacher_system,
)
from eval_mteb.tasks import folder_task
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.search.runs import read_run
from obliq_hf.teachers import StylometricProfile


def user(request) -> str:
    return request.messages[-1]["content"]


def numbered(request) -> list[tuple[int, str]]:
    lines = [line for line in user(request).splitlines() if line.startswith("[")]
    return [(int(line[1:].split("]")[0]), line.split("] ", 1)[1]) for line in lines]


class KnowsGold:
    """Answers listwise calls from the judgments, so that what an algorithm adds can be told."""

    name = "knows-gold"

    def __init__(self, qrels) -> None:
        self.qrels = qrels
        self.sizes: list[int] = []

    def order(self, lists):
        found = []
        for query, _, documents in lists:
            self.sizes.append(len(documents))
            ids = [d for d, _ in documents]
            grade = self.qrels.get(query, {})
            found.append(sorted(ids, key=lambda d: -grade.get(d, 0)))
        return found


def test_a_text_that_the_stylometric_teacher_cannot_judge_is_counted_and_stops_nothing(
    folder, writing, tmp_path
):
    queries = folder / "tasks" / "writing" / "queries.jsonl"
    lines = queries.read_text(encoding="utf-8").replace("love and death", "любовь")
    queries.write_text(lines, encoding="utf-8", newline="\n")
    corpus = folder / "corpus.jsonl"
    rows = corpus.read_text(encoding="utf-8").replace("a letter from her sister", " ")
    corpus.write_text(rows, encoding="utf-8", newline="\n")
    task = folder_task(folder, writing)
    profile = StylometricProfile.fit([text for text in task.data.corpus.texts if text.strip()])
    evaluate_system(teacher_system(profile), task, tmp_path / "eval")
    write_report(tmp_path / "eval", figures=False, resamples=100)
    costs = read_results(tmp_path / "eval")["writing"].systems["teacher"].cost
    assert costs["texts_without_a_vector"] == {"documents": 1, "queries": 1}
    report = (tmp_path / "eval" / "report.md").read_text(encoding="utf-8")
    assert "no vector for 1 queries and 1 documents of writing" in report


def test_a_rewriting_is_what_is_searched_with_and_failures_keep_the_query(
    folder, writing, tmp_path
):
    task = folder_task(folder, writing)

    def script(request):
        if "the ship on the sea" in user(request):
            return json.dumps({"attribute": "horses", "search_text": "war and the horse"})
        return "I cannot help with that. Score: 5"

    client = ScriptedClient(script)
    plain = evaluate_system(bm25_system(), task, tmp_path)
    rewritten = evaluate_system(rewriter_system(bm25_system(), client), task, tmp_path)
    before, after = (read_run(f / "run.trec") for f in (plain, rewritten))
    assert next(iter(before["q1"])) == "d1"
    assert next(iter(after["q1"])) == "d5"
    assert {q: r for q, r in after.items() if q != "q1"} == {
        q: r for q, r in before.items() if q != "q1"
    }
    cost = read_json(rewritten / "cost.json")
    assert cost["llm"]["calls"] == 4
    assert {"search", "rewrite"} <= set(cost["seconds"])
    assert sum(cost["not_rewritten"].values()) == 3


def test_a_rewriting_can_be_appended_to_the_query(folder, writing, tmp_path):
    task = folder_task(folder, writing)
    answer = json.dumps({"attribute": "x", "search_text": "war horse"})
    client = ScriptedClient(lambda request: answer)
    system = rewriter_system(bm25_system(), client, mode="append")
    run = read_run(evaluate_system(system, task, tmp_path) / "run.trec")
    assert {"d1", "d5"} <= set(list(run["q1"])[:2])


def test_an_agent_takes_its_hops_reranks_and_leaves_the_first_stage_behind(
    folder, writing, tmp_path
):
    task = folder_task(folder, writing)
    purposes = []

    def script(request):
        purposes.append(request.purpose)
        if request.purpose == "listwise":
            # last shown first
            return json.dumps({"order": [n for n, _ in reversed(numbered(request))]})
        return json.dumps({"notes": "seen", "search_text": "war and the horse"})

    system = multihop_system(bm25_system(), ScriptedClient(script), hops=2, per_hop=2)
    folder_out = evaluate_system(system, task, tmp_path)
    run = read_run(folder_out / "run.trec")
    assert purposes.count("multihop_first") == 4
    assert purposes.count("multihop_next") == 4
    for query, ranked in run.items():
        assert len(ranked) == len(task.document_ids) - len(task.excluded.get(query, ()))
        assert not set(ranked) & set(task.excluded.get(query, ()))
    # d5 was found first and the rerank turned the gathered documents round
    assert list(run["q2"]).index("d5") == 3
    assert read_json(folder_out / "cost.json")["listwise_answers"]["complete"] == 4


def test_an_agent_whose_calls_all_fail_is_the_first_stage(folder, writing, tmp_path):
    task = folder_task(folder, writing)
    plain = read_run(evaluate_system(bm25_system(), task, tmp_path) / "run.trec")
    system = multihop_system(bm25_system(), ScriptedClient(lambda request: "great!"))
    found = evaluate_system(system, task, tmp_path)
    assert {q: list(r) for q, r in read_run(found / "run.trec").items()} == {
        q: list(r) for q, r in plain.items()
    }
    assert read_json(found / "cost.json")["unusable_answers"] == {"no-object": 16}


@pytest.mark.parametrize(
    ("answer", "expected", "counted"),
    [
        ('{"order": [3, 1, 2]}', "cab", "complete"),
        ('{"order": [3]}', "cab", "short"),
        ('{"order": [9, 2, 2, 1]}', "bac", "out-of-range"),
        ('{"order": [true, "2", 1.5]}', "abc", "unreadable"),
        ('{"order": "3 > 1"}', "cab", "short"),
        ("The best is [3], for query 2019.", "abc", "unreadable"),
    ],
)
def test_an_order_is_a_permutation_whatever_the_model_says(writing, answer, expected, counted):
    orderer = LLMOrder(ScriptedClient(lambda request: answer), writing)
    documents = [("a", "one"), ("b", "two"), ("c", "three")]
    assert orderer.order([("q", "query", documents)]) == [list(expected)]
    assert orderer.counts[counted] > 0


@pytest.mark.parametrize("size", [0, 1, 2, 19, 20, 21, 45])
def test_windows_from_the_back_bring_the_best_to_the_front(size):
    documents = [(f"d{i}", "") for i in range(size)]
    best = f"d{size - 1}"
    orderer = KnowsGold({"q": {best: 1}})
    (order,) = sliding_order(orderer, [("q", "", documents)], window=20, step=10)
    assert sorted(order) == sorted(d for d, _ in documents)
    if size:
        assert order[0] == best
    assert max(orderer.sizes, default=0) <= 20


def test_the_oracle_is_a_ceiling_with_every_gold_document_in_its_pool(folder, writing, tmp_path):
    task = folder_task(folder, writing)
    gold_texts = {
        query: {task.data.corpus.texts[task.data.corpus.row[d]] for d in judged}
        for query, judged in task.qrels.items()
    }
    by_text = {text: q for q, text in task.query_texts.items()}

    def script(request):
        query = next(q for text, q in by_text.items() if text in user(request))
        order = sorted(numbered(request), key=lambda e: e[1] not in gold_texts[query])
        return json.dumps({"order": [n for n, _ in order]})

    system = oracle_system(bm25_system(), ScriptedClient(script), pool=8)
    found = evaluate_system(system, task, tmp_path / "eval")
    assert not (found / "result.json").exists()
    assert (found / "ceiling.json").is_file()
    cost = read_json(found / "cost.json")
    assert cost["llm"]["calls"] == 8, "a batch and a final for each of four queries"
    assert cost["listwise_answers"] == {"complete": 8}
    assert {"search", "tournament"} <= set(cost["seconds"])
    evaluate_system(bm25_system(), task, tmp_path / "eval")
    results = read_results(tmp_path / "eval")
    oracle = results["writing"].systems["oracle"]
    assert oracle.ceiling
    assert oracle.scores("ndcg_at_10")["q2"] == pytest.approx(1.0)
    assert "d4" not in oracle.run["q1"], "an excluded gold document is not injected"
    report = write_report(tmp_path, resamples=100, figures=False)
    assert "oracle" not in report["systems"]["writing"]
    assert "oracle" in report["ceilings"]["writing"]
    assert "Ceiling, not a result" in (tmp_path / "report.md").read_text(encoding="utf-8")
    with pytest.raises(ObliqError, match="ceiling"):
        compare_folders(results, results, systems=("oracle", "bm25"))
    rows = compare_folders(results, results).rows
    assert all("oracle" not in (r["a"], r["b"]) for r in rows)


def test_a_ceiling_is_one_whatever_it_is_measured_as(folder, writing, tmp_path):
    task = folder_task(folder, writing)

    def load(task):
        first = task.search_model(BM25Search())
        return OracleSearch(first, KnowsGold(task.qrels), task.qrels)

    found = evaluate_system(System("mine", "f", load), task, tmp_path)
    assert not (found / "result.json").exists()
    assert (found / "ceiling.json").is_file()
    assert read_results(tmp_path)["writing"].systems["mine"].ceiling


def test_oracle_plans_are_the_papers():
    assert oracle_plan("math") == (6, 2)
    assert oracle_plan("congress") == oracle_plan("a task of one's own") == (20, 4)


def test_a_baseline_that_asks_needs_a_described_task(folder, tmp_path):
    client = ScriptedClient(lambda request: "{}")
    with pytest.raises(ObliqError, match="give a task file"):
        evaluate_system(
            rewriter_system(bm25_system(), client), folder_task(folder, "scene"), tmp_path
        )


def test_bm25_scores_depend_on_the_setting_and_so_do_the_names(folder, writing, tmp_path):
    task = folder_task(folder, writing)
    names = set()
    for setting in ("english", "plain"):
        system = bm25_system(setting, name=f"bm25-{setting}")
        names.add(read_json(evaluate_system(system, task, tmp_path) / "system.json")["model"])
    assert names == {"local/bm25-english", "local/bm25-plain"}


def test_a_late_interaction_model_is_told_by_its_checkpoint(
    folder, writing, tiny_model_dir, tmp_path
):
    from sentence_transformers import MultiVectorEncoder

    made = MultiVectorEncoder(str(tiny_model_dir.parent / "transformer"), device="cpu")
    path = tmp_path / "colbert"
    made.save_pretrained(str(path), create_model_card=False)
    task = folder_task(folder, writing)
    found = evaluate_system(
        encoder_system("late", path), task, tmp_path / "eval", show_progress=False
    )
    run = read_run(found / "run.trec")
    queries = made.encode_query([task.query_texts["q2"]])
    documents = made.encode_document(task.data.corpus.texts)
    scores = np.asarray(made.similarity(queries, documents))[0]
    assert next(iter(run["q2"])) == task.document_ids[int(scores.argmax())]
    assert "d4" not in run["q1"]
    assert read_json(found / "system.json")["model"] == "local/late"

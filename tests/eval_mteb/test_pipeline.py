from __future__ import annotations

from dataclasses import replace

import mteb
import numpy as np
import pytest
from rerank_folder import HAND, first_stage, judge, write_rerank_folder

import eval_mteb
from eval_mteb.baselines.bm25 import BM25Search
from eval_mteb.baselines.fusion import RunSearch
from eval_mteb.benchmark import obliq_bench
from eval_mteb.models import load_encoder
from eval_mteb.pipeline import RetrieveAndRerank, described_task
from eval_mteb.tasks import folder_task
from obliq_hf.errors import ObliqError
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import (
    CrossEncoderReranker,
    IdentityReranker,
    Listwise,
    Policy,
    RerankSettings,
    TourRank,
    write_policy,
)
from obliq_hf.tasks import load_task

SILENT = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
TOUR = RerankSettings("tourrank", rounds=2)


def evaluate(model, task):
    result = mteb.evaluate(
        model, task, encode_kwargs={"batch_size": 8, "show_progress_bar": False}, **SILENT
    )
    return result.task_results[0].scores[task.place[1]][0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rerank_folder(tmp_path_factory.mktemp("hand"))


@pytest.fixture
def task(data):
    return folder_task(data, HAND)


@pytest.fixture(scope="module")
def dense(data):
    return RunSearch(first_stage(data), name="dense")


def figures(scores):
    return {k: v for k, v in scores.items() if isinstance(v, float)}


def test_reranking_by_identity_gives_the_dense_run_to_the_last_digit(data, task, tiny_model_dir):
    encoder = load_encoder(tiny_model_dir)
    alone = figures(evaluate(encoder, task))
    run = task.outcome.run
    piped = figures(evaluate(RetrieveAndRerank(encoder, IdentityReranker()), task))
    assert piped == alone
    assert task.outcome.run == run
    assert "ndcg_at_50" in piped


def test_a_judge_who_knows_brings_what_the_pool_holds_to_the_front(data, task, dense):
    before = evaluate(dense, task)
    first = task.outcome.run
    pipeline = RetrieveAndRerank(dense, TOUR, llm=judge(data))
    after = evaluate(pipeline, task)
    assert after["ndcg_at_10"] > before["ndcg_at_10"] + 0.3
    assert after["recall_at_100"] == before["recall_at_100"]
    assert after["recall_at_1000"] == before["recall_at_1000"]
    for query, ranked in task.outcome.run.items():
        assert set(ranked) == set(first[query])
        assert list(ranked)[100:] == list(first[query])[100:]
        assert list(ranked.values()) == list(first[query].values())
        assert not set(ranked) & set(task.excluded[query])
    cost = task.outcome.costs
    assert cost["reranking"]["requests"] == len(first) * 26
    assert cost["reranking"]["failed_queries"] == []
    assert cost["seconds"]["rerank"] > 0


def test_depth_one_changes_nothing_and_depth_two_only_swaps(data, task, dense):
    evaluate(dense, task)
    first = task.outcome.run
    worst = ScriptedClient(lambda request: "[2] > [1]")
    one, two = (RerankSettings("listwise", depth=d, listwise_depth=d) for d in (1, 2))
    evaluate(RetrieveAndRerank(dense, one, llm=worst), task)
    assert task.outcome.run == first
    assert worst.accounting.total.calls == 0
    evaluate(RetrieveAndRerank(dense, two, llm=worst), task)
    for query, ranked in task.outcome.run.items():
        a, b, *rest = first[query]
        assert list(ranked) == [b, a, *rest]


def test_a_relevant_document_at_rank_60_of_the_pool_is_still_counted(data, task):
    run = first_stage(data)
    for query, gold in task.qrels.items():
        others = [d for d in run[query] if d not in gold]
        placed = list(gold)
        order = [*others[:14], placed[0], *others[14:58], *placed[1:], *others[58:]]
        run[query] = {d: 1.0 - rank / 1000 for rank, d in enumerate(order)}
    for policy in (IdentityReranker(), Listwise(100), TourRank(1)):
        pipeline = RetrieveAndRerank(RunSearch(run, name="r"), policy, llm=judge(data))
        scores = evaluate(pipeline, task)
        assert scores["recall_at_100"] == 1.0, policy.name
    assert scores["ndcg_at_10"] > 0.9


def test_a_server_that_never_answers_leaves_every_figure_and_lists_the_queries(
    data, task, dense, caplog
):
    before = figures(evaluate(dense, task))
    pipeline = RetrieveAndRerank(dense, TOUR, llm=ScriptedClient(lambda request: "I cannot."))
    assert figures(evaluate(pipeline, task)) == before
    assert pipeline.reranked.failed == tuple(task.qrels)
    assert "keep the first stage's order" in caplog.text


def test_a_policy_file_is_applied_task_by_task(data, task, dense, tmp_path):
    path = write_policy(
        tmp_path / "policy.yaml",
        Policy({"hand": RerankSettings("listwise", listwise_depth=10), "math": TOUR}),
    )
    pipeline = eval_mteb.RetrieveAndRerank(dense, policy=path, llm=judge(data))
    evaluate(pipeline, task)
    assert pipeline.reranked.tally.requests == len(task.qrels)
    other = write_policy(tmp_path / "other.yaml", Policy({"math": TOUR}))
    with pytest.raises(ObliqError, match="no task 'hand'"):
        evaluate(RetrieveAndRerank(dense, other, llm=judge(data)), task)


def test_without_a_policy_each_task_is_reranked_as_its_own_file_says(data, task, dense):
    pipeline = RetrieveAndRerank(dense, llm=judge(data))
    evaluate(pipeline, task)
    assert pipeline.reranked.tally.requests == len(task.qrels) * 26


def test_a_missing_language_model_is_told_before_anything_is_encoded(task, tiny_model_dir):
    class Encoder:
        def __init__(self, inner):
            self.inner, self.mteb_model_meta = inner, inner.mteb_model_meta

        def encode(self, *args, **kwargs):
            raise AssertionError("encoded")

        def similarity(self, a, b):
            raise AssertionError("compared")

        similarity_pairwise = similarity

    pipeline = RetrieveAndRerank(Encoder(load_encoder(tiny_model_dir)), TOUR)
    with pytest.raises(ObliqError, match="asks a language model: give llm="):
        evaluate(pipeline, task)


def test_what_cannot_retrieve_or_rerank_is_refused(dense, tmp_path):
    with pytest.raises(ObliqError, match="a dict cannot retrieve"):
        RetrieveAndRerank({}, IdentityReranker())
    with pytest.raises(ObliqError, match="a dict is no policy"):
        RetrieveAndRerank(dense, {})
    with pytest.raises(ObliqError, match="no such policy file"):
        RetrieveAndRerank(dense, tmp_path / "none.yaml")
    with pytest.raises(ObliqError, match="first stage of another"):
        RetrieveAndRerank(RetrieveAndRerank(dense), IdentityReranker())


def test_no_two_pipelines_that_differ_share_a_name_and_revision(data, dense, tmp_path):
    other = RunSearch(first_stage(data, seed=1), name="dense")
    deep = RerankSettings("identity", depth=20, preselect="fusion", first_stage_depth=120)
    made = [
        RetrieveAndRerank(dense, TOUR, llm=judge(data)),
        RetrieveAndRerank(other, TOUR, llm=judge(data)),
        RetrieveAndRerank(dense, RerankSettings("tourrank", rounds=3), llm=judge(data)),
        RetrieveAndRerank(dense, RerankSettings("tourrank", rounds=2, prompt="generic")),
        RetrieveAndRerank(dense, TOUR, llm=judge(data, error_rate=0.5)),
        RetrieveAndRerank(dense, TOUR, llm=judge(data), seed=1),
        RetrieveAndRerank(dense, IdentityReranker()),
        RetrieveAndRerank(dense),
        RetrieveAndRerank(dense, TOUR, llm=judge(data), tasks=[HAND]),
        RetrieveAndRerank(dense, TOUR, llm=judge(data), tasks=[replace(HAND, attribute="rhythm")]),
        RetrieveAndRerank(dense, Policy({"hand": TOUR}), tasks=[HAND]),
        RetrieveAndRerank(dense, Policy({"hand": TOUR}), tasks=[replace(HAND, attribute="x")]),
        *(
            RetrieveAndRerank(dense, deep, second=second)
            for second in (None, BM25Search(), RunSearch(first_stage(data, seed=2), name="other"))
        ),
    ]
    metas = {(m.mteb_model_meta.name, m.mteb_model_meta.revision) for m in made}
    assert len(metas) == len(made)
    again = RetrieveAndRerank(dense, TOUR, llm=judge(data)).mteb_model_meta
    assert (again.name, again.revision) in metas


def test_a_cross_encoder_that_is_trained_further_in_its_folder_has_another_revision(
    dense, tmp_path
):
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path / "scorer"
    BertTokenizer(
        vocab={w: i for i, w in enumerate("[PAD] [UNK] [CLS] [SEP] [MASK] a".split())}
    ).save_pretrained(str(folder))
    config = BertConfig(
        vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(str(folder))
    named = RerankSettings("cross-encoder", cross_encoder=str(folder))
    model = CrossEncoder(str(folder), device="cpu")

    def revisions():
        given = (named, Policy({"hand": named}), CrossEncoderReranker(str(folder)), model)
        return [RetrieveAndRerank(dense, policy).mteb_model_meta.revision for policy in given]

    before = revisions()
    assert revisions() == before
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(str(folder))
    assert not set(revisions()) & set(before)


def test_a_scorer_of_pairs_can_stand_for_a_policy(data, task, dense):
    class Scorer:
        def predict(self, pairs, **options):
            return np.array([float(text.split()[1]) for _, text in pairs])

    evaluate(RetrieveAndRerank(dense, Scorer()), task)
    for ranked in task.outcome.run.values():
        numbers = [int(d[1:]) for d in list(ranked)[:100]]
        assert numbers == sorted(numbers, reverse=True)


def test_a_deep_pool_is_fused_with_bm25_before_the_tournament(data, task, dense):
    settings = RerankSettings(
        "tourrank", rounds=1, depth=20, preselect="fusion", first_stage_depth=120
    )
    pipeline = RetrieveAndRerank(dense, settings, llm=judge(data))
    evaluate(pipeline, task)
    parts = pipeline.costs()["reranking"]["parts"]
    assert sorted(parts) == ["scores:local/bm25-english+zscore", "tourrank:1"]
    evaluate(BM25Search(), task)
    lexical = task.outcome.run
    evaluate(dense, task)
    first = task.outcome.run
    evaluate(pipeline, task)
    for query, ranked in task.outcome.run.items():
        head = set(list(ranked)[:20])
        assert head & set(list(lexical[query])[:10])
        assert head != set(list(first[query])[:20])
        assert set(ranked) == set(first[query])


def test_the_whole_benchmark_runs_in_one_call(bench, tiny_model_dir):
    client = ScriptedClient(lambda request: "[2] > [1]")
    pipeline = RetrieveAndRerank(load_encoder(tiny_model_dir), llm=client)
    benchmark = obliq_bench(bench)
    results = mteb.evaluate(
        pipeline, benchmark, encode_kwargs={"batch_size": 8, "show_progress_bar": False}, **SILENT
    )
    assert len(results.task_results) == len(benchmark.tasks)
    assert client.accounting.by_purpose["tourrank"].calls > 0
    assert {load_task(n).attribute for n in ("math", "twitter")} == {
        described_task(t.metadata).attribute for t in benchmark.tasks
    }


def test_a_folders_task_with_the_name_of_a_built_in_one_is_described_by_it(tmp_path):
    folder = write_rerank_folder(tmp_path / "mine", queries=2)
    (folder / "tasks" / "hand").rename(folder / "tasks" / "math")
    assert described_task(folder_task(folder, "math").metadata) == load_task("math")


def test_tasks_without_a_description_are_asked_about_relevance(data, dense):
    plain = folder_task(data, "hand")
    about = described_task(plain.metadata)
    assert (about.name, about.attribute) == ("hand", "relevance to the query")
    assert described_task(plain.metadata, [HAND]) is HAND
    pipeline = RetrieveAndRerank(dense, TourRank(1), llm=judge(data))
    assert evaluate(pipeline, plain)["ndcg_at_10"] > 0.3

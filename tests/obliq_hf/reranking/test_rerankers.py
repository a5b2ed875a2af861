from __future__ import annotations

import numpy as np
import pytest
from rerank_pools import BARE, ids, last_of_the_list, make_pool

from obliq_hf.errors import ObliqError
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import (
    Candidate,
    Cascade,
    CrossEncoderReranker,
    Fused,
    IdentityReranker,
    Listwise,
    Pool,
    Reranker,
    StoredScores,
    TourRank,
    rerank,
)
from obliq_hf.reranking.values import Ranking, permutation


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A tiny random cross-encoder, saved and loaded as any other."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path_factory.mktemp("cross-encoder")
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g text of what looks for query"
    BertTokenizer(
        vocab={w: i for i, w in enumerate(words.split())}, model_max_length=64
    ).save_pretrained(str(folder))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=18, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(str(folder))
    return CrossEncoder(str(folder), device="cpu"), folder


def letters_pool() -> Pool:
    texts = ["a b c", "d e f", "", "g g g", "a b c", "c " * 500, "f a d"]
    return Pool("q", "what looks for a b", tuple(
        Candidate(f"d{i}", t, 1 - i / 10) for i, t in enumerate(texts)))  # fmt: skip


def test_a_cross_encoder_gives_what_the_library_gives_and_ties_keep_their_order(
    cross_encoder, task
):
    model, folder = cross_encoder
    pool = letters_pool()
    done = rerank(CrossEncoderReranker(model), [pool], task)
    texts = [c.text for c in pool.candidates]
    scores = model.predict([(pool.query, t) for t in texts], show_progress_bar=False)
    assert scores[0] == pytest.approx(scores[4], abs=1e-6)
    expected = np.argsort(-scores, kind="stable").tolist()
    assert list(done.rankings["q"].order) == expected
    assert done.rankings["q"].scores == pytest.approx(scores.tolist())
    by_name = rerank(CrossEncoderReranker(str(folder), device="cpu"), [pool], task)
    assert by_name.orders == done.orders
    by_path = CrossEncoderReranker(folder, device="cpu")
    assert rerank(by_path, [pool], task).orders == done.orders
    assert by_path.name == CrossEncoderReranker(str(folder)).name
    assert by_path.identity == CrossEncoderReranker(str(folder)).identity


def test_a_scorer_that_knows_the_last_document_best_brings_it_to_the_front(task):
    class Scorer:
        prompts = {}  # noqa: RUF012

        def predict(self, pairs, **options):
            return np.array([float(text.split()[1]) for _, text in pairs])

    done = rerank(CrossEncoderReranker(Scorer()), [make_pool(30)], task)
    assert done.orders["q1"] == tuple(reversed(ids(make_pool(30))))


def test_a_prompt_that_a_cross_encoder_carries_for_the_task_is_used(task):
    used = []

    class Scorer:
        prompts = {"style": "by hand: "}  # noqa: RUF012

        def predict(self, pairs, **options):
            used.append({k: v for k, v in options.items() if "prompt" in k})
            return np.zeros(len(pairs))

    rerank(CrossEncoderReranker(Scorer()), [make_pool(3)], task)
    rerank(CrossEncoderReranker(Scorer(), prompt="mine: "), [make_pool(3)], task)
    assert used == [{"prompt_name": "style"}, {"prompt": "mine: "}]


@pytest.mark.parametrize("scores", [np.zeros((5, 3)), np.zeros(4), np.array([1, 2, np.nan, 4, 5])])
def test_scores_that_are_not_one_finite_number_a_pair_are_refused(scores, task):
    class Scorer:
        def predict(self, pairs, **options):
            return scores

    with pytest.raises(ObliqError, match=r"one number a pair|'q1-d2': NaN"):
        rerank(CrossEncoderReranker(Scorer()), [make_pool(5)], task)


def test_a_cross_encoder_that_is_not_there_is_named(tmp_path, task):
    for model in (str(tmp_path / "none"), tmp_path / "none"):
        reranker = CrossEncoderReranker(model)
        for _ in range(2):
            with pytest.raises(ObliqError, match=r"no cross-encoder at '.*none'"):
                rerank(reranker, [make_pool(3)], task)


def test_fusion_weighs_both_orders_and_a_failed_query_keeps_the_first_stages(task):
    pool = make_pool(10)
    client = ScriptedClient(last_of_the_list)
    plain = Listwise(10, asking=BARE)
    assert rerank(plain, [pool], task, client=client).rankings["q1"].order == tuple(
        range(9, -1, -1)
    )
    for method in ("zscore", "rrf"):
        light = rerank(Fused(plain, method, 0.01), [pool], task, client=client)
        heavy = rerank(Fused(plain, method, 100.0), [pool], task, client=client)
        assert light.orders["q1"] == ids(pool)
        assert heavy.orders["q1"] == tuple(reversed(ids(pool)))
    silent = ScriptedClient(lambda request: "no")
    failed = rerank(Fused(plain), [pool], task, client=silent)
    assert failed.orders["q1"] == ids(pool)
    assert failed.failed == ("q1",)
    for wrong in ({"method": "zscores"}, {"weight": 0.0}):
        with pytest.raises(ObliqError):
            Fused(plain, **wrong)


def test_another_runs_scores_order_what_it_found_and_the_rest_follows(task):
    run = {"q1": {"q1-d4": 0.5, "q1-d2": 0.9, "strange": 2.0}}
    done = rerank(StoredScores(run), [make_pool(6), make_pool(3, "q2")], task)
    assert done.rankings["q1"].order == (2, 4, 0, 1, 3, 5)
    assert done.rankings["q2"].order == (0, 1, 2)


def test_deep_pools_are_brought_down_before_the_costly_step(task):
    pool = make_pool(1000)
    run = {"q1": {f"q1-d{i}": float(i) for i in range(900, 1000)}}
    steps = Cascade(((StoredScores(run), 100), (TourRank(2, asking=BARE), 100)))
    client = ScriptedClient(last_of_the_list, batch=1000)
    done = rerank(steps, [pool], task, client=client)
    order = done.orders["q1"]
    assert sorted(order) == sorted(ids(pool))
    assert set(order[:100]) == {f"q1-d{i}" for i in range(900, 1000)}
    assert set(order[:2]) == {"q1-d999", "q1-d998"}
    assert order[100:] == tuple(f"q1-d{i}" for i in range(900))
    costs = done.costs()
    assert costs["requests"] == costs["parts"]["tourrank:2"]["requests"] == 26
    assert costs["parts"]["scores:run"]["requests"] == 0


def test_a_deep_query_without_a_usable_answer_keeps_the_first_stages_order(task):
    pools = [make_pool(60, "q1"), make_pool(60, "q2")]
    run = {q: {f"{q}-d{i}": float(i) for i in range(60)} for q in ("q1", "q2")}
    steps = Cascade(((StoredScores(run), 20), (TourRank(2, asking=BARE), 20)))

    def script(request):
        refused = "what q1 looks for" in request.messages[-1]["content"]
        return "I'm sorry, but I cannot rank these." if refused else last_of_the_list(request)

    done = rerank(steps, pools, task, client=ScriptedClient(script))
    assert done.failed == ("q1",)
    assert done.orders["q1"] == ids(pools[0])
    assert done.orders["q2"][:2] == ("q2-d59", "q2-d58")
    assert done.costs()["parts"]["tourrank:2"]["faults"]["refused"] > 0


def test_a_wide_tournament_selects_a_hundred_of_a_thousand(task):
    pool = make_pool(1000)
    wide = TourRank(1, asking=BARE, stop=100)
    done = rerank(wide, [pool], task, client=ScriptedClient(last_of_the_list, batch=1000))
    assert done.tally.requests == 110
    # strided groups of 20 and 10: the last hundred all pass, in the order of the first stage
    assert set(done.orders["q1"][:100]) >= {f"q1-d{i}" for i in range(950, 1000)}
    steps = Cascade(((wide, 100), (IdentityReranker(), 100)))
    again = rerank(steps, [pool], task, client=ScriptedClient(last_of_the_list, batch=1000))
    assert again.orders == done.orders
    with pytest.raises(ObliqError, match="at least 1"):
        Cascade(())
    with pytest.raises(ObliqError, match="no more than"):
        Cascade(((wide, 50), (wide, 100), (wide, 10)))


def test_the_order_of_any_reranker_is_made_a_permutation_and_counted(task):
    class Wild:
        name, asks = "wild", False
        identity = {}  # noqa: RUF012

        def rank(self, pool, task):
            return Ranking((4, 4, 99, -1, 1))
            yield

    assert isinstance(Wild(), Reranker)
    done = rerank(Wild(), [make_pool(6), make_pool(0, "q0"), make_pool(1, "q9")], task)
    assert done.rankings["q1"].order == (4, 1, 0, 2, 3, 5)
    assert done.tally.repaired == 1
    assert done.orders["q0"] == ()
    assert len(done.orders["q9"]) == 1


def test_positions_of_any_integer_type_count_and_truth_values_do_not(task):
    class Array:
        name, asks = "array", False
        identity = {}  # noqa: RUF012

        def rank(self, pool, task):
            return Ranking(np.argsort(np.array([0.3, 0.1, 0.9, 0.2])))
            yield

    done = rerank(Array(), [make_pool(4)], task)
    assert done.rankings["q1"].order == (1, 3, 0, 2)
    assert all(type(position) is int for position in done.rankings["q1"].order)
    assert done.tally.repaired == 0
    assert permutation((np.uint8(2), True, np.True_, 1.0, "0"), 3) == ((2, 0, 1), True)

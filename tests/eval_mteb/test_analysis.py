from __future__ import annotations

import pytest

from eval_mteb.analysis import gains, gold_prior, hubs, recall_at_depths, shuffled_judgments
from obliq_hf.errors import ObliqError
from obliq_hf.metrics import per_query


def ranking(*documents: str) -> dict[str, float]:
    return {d: float(-i) for i, d in enumerate(documents)}


QRELS = {"q1": {"a": 1, "b": 1}, "q2": {"c": 1}, "q3": {"a": 2}}


def test_recall_grows_with_depth_and_counts_missing_queries_as_zero():
    run = {"q1": ranking("a", "x", "b"), "q2": ranking("x", "c")}
    found = recall_at_depths(run, QRELS, depths=(1, 2, 1000))
    assert found == {
        1: pytest.approx(0.5 / 3, abs=1e-6),
        2: 0.5,
        1000: pytest.approx(2 / 3, abs=1e-6),
    }


def test_gains_add_up_and_name_the_queries():
    a = {"q1": 0.5, "q2": 0.0, "q3": 0.2, "q4": 0.4}
    b = {"q1": 0.1, "q2": 0.0, "q3": 0.3, "q4": 0.4}
    found = gains(a, b)
    assert (found.helped, found.hurt, found.unchanged, found.zero_under_both) == (1, 1, 1, 1)
    assert found.most_helped == [("q1", 0.4)]
    assert found.most_hurt == [("q3", -0.1)]
    with pytest.raises(ObliqError, match="same queries"):
        gains(a, {"q1": 0.1})


def test_a_collapsed_encoder_shows_as_one_document_coming_first():
    collapsed = {f"q{i}": ranking("hub", f"d{i}") for i in range(9)} | {"q9": ranking("d9", "hub")}
    found = hubs(collapsed)
    assert found.distinct_top1 == 2
    assert found.largest == "hub"
    assert found.largest_share == 0.9
    assert found.largest_share_top10 == 1.0
    assert hubs({"q": {}}).queries == 0


def test_shuffled_judgments_score_a_query_blind_run_as_its_own_and_a_good_one_low():
    qrels = {f"q{i}": {f"d{i}": 1} for i in range(12)}
    good = {q: ranking(*judged) for q, judged in qrels.items()}
    assert shuffled_judgments(good, qrels, repeats=3) == 0.0
    blind = {q: ranking(*(f"d{i}" for i in range(12))) for q in qrels}
    own = per_query(blind, qrels)["ndcg_at_10"]
    assert shuffled_judgments(blind, qrels, repeats=200) == pytest.approx(
        sum(own.values()) / 12, abs=0.02
    )


def test_the_gold_prior_ranks_by_other_queries_votes_and_respects_exclusions():
    qrels = {"q1": {"a": 1}, "q2": {"a": 1, "b": 1}, "q3": {"a": 1, "b": 2, "c": 1}}
    run = gold_prior(qrels, excluded={"q2": ["a"]}, folds=3)
    assert list(run["q1"]) == ["a", "b", "c"]
    assert list(run["q2"]) == ["b", "c"]
    assert list(run["q3"]) == ["a", "b"]


def test_the_gold_prior_finds_what_equally_large_groups_share():
    qrels = {f"q{i}": {f"g{i % 3}-{j}": 1 for j in range(4)} for i in range(30)}
    scores = per_query(gold_prior(qrels), qrels)["ndcg_at_10"]
    assert sum(scores.values()) / 30 > 0.3

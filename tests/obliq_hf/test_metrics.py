from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obliq_hf.errors import ObliqError
from obliq_hf.metrics import mean, metric_names, per_query

LOG3 = math.log2(3)


def direct_ndcg(ranking, grades, k):
    gains = [max(grades.get(d, 0), 0) for d in ranking[:k]]
    best = sorted((max(g, 0) for g in grades.values()), reverse=True)[:k]
    dcg = sum(g / math.log2(i + 2) for i, g in enumerate(gains))
    return dcg / sum(g / math.log2(i + 2) for i, g in enumerate(best))


def direct_recall(ranking, grades, k):
    relevant = {d for d, g in grades.items() if g >= 1}
    return len(relevant & set(ranking[:k])) / len(relevant)


def test_ndcg_by_hand_has_linear_gain():
    run = {"q": {"d1": 3.0, "d2": 2.0, "d3": 1.0}}
    scores = per_query(run, {"q": {"d1": 1, "d2": 2, "missing": 1}}, ks=(2, 10))
    ideal = 2 + 1 / LOG3 + 1 / 2
    assert scores["ndcg_at_10"]["q"] == pytest.approx((1 + 2 / LOG3) / ideal, abs=1e-6)
    assert scores["ndcg_at_2"]["q"] == pytest.approx((1 + 2 / LOG3) / (2 + 1 / LOG3), abs=1e-6)
    assert scores["recall_at_2"]["q"] == pytest.approx(2 / 3, abs=1e-6)


def test_one_relevant_document_at_rank_three_by_hand():
    run = {"q": {"a": 0.3, "b": 0.2, "c": 0.1}}
    scores = per_query(run, {"q": {"c": 1}}, ks=(1, 2, 3))
    assert [scores[f"ndcg_at_{k}"]["q"] for k in (1, 2, 3)] == [0, 0, 0.5]
    assert [scores[f"recall_at_{k}"]["q"] for k in (1, 2, 3)] == [0, 0, 1]


def test_equal_scores_keep_the_order_of_the_run():
    first = {"q": {"z": 0.0, "a": 0.0, "m": 0.0}}
    last = {"q": {"a": 0.0, "m": 0.0, "z": 0.0}}
    qrels = {"q": {"z": 1}}
    assert per_query(first, qrels, ks=(1,))["ndcg_at_1"]["q"] == 1
    assert per_query(last, qrels, ks=(1,))["ndcg_at_1"]["q"] == 0


def test_negative_and_zero_scores_are_ranked():
    run = {"q": {"a": -0.1, "b": -0.2}, "p": {"a": 0.0, "b": -1.0}}
    scores = per_query(run, {"q": {"a": 1}, "p": {"b": 1}}, ks=(1, 2))
    assert scores["recall_at_1"] == {"q": 1, "p": 0}
    assert scores["recall_at_2"] == {"q": 1, "p": 1}


def test_scores_that_differ_in_double_precision_only_are_told_apart():
    run = {"q": {"b": 1.0, "a": 1.0 + 1e-12}}
    assert per_query(run, {"q": {"a": 1}}, ks=(1,))["ndcg_at_1"]["q"] == 1


def test_missing_queries_count_zero_and_queries_without_positives_are_left_out():
    run = {"q1": {"d": 1.0}, "unjudged": {"d": 1.0}, "zero": {"d": 1.0}}
    qrels = {"q1": {"d": 1}, "q2": {"d": 2}, "zero": {"d": 0}, "empty": {}}
    scores = per_query(run, qrels, ks=(10,))
    assert scores["ndcg_at_10"] == {"q1": 1.0, "q2": 0.0}
    assert mean(scores) == {"ndcg_at_10": 0.5, "recall_at_10": 0.5}


def test_a_query_with_no_hits_counts_zero():
    scores = per_query({"q1": {}, "q2": {"d": 1.0}}, {"q1": {"d": 1}, "q2": {"d": 1}}, ks=(5,))
    assert scores["recall_at_5"] == {"q1": 0.0, "q2": 1.0}
    assert per_query({"q": {}}, {"q": {"d": 1}}, ks=(5,))["ndcg_at_5"] == {"q": 0.0}


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.text("abc12 ", min_size=1, max_size=3),
        st.tuples(st.floats(-1e3, 1e3), st.integers(-1, 3)),
        min_size=1,
        max_size=25,
    ),
    st.dictionaries(st.text("xyz", min_size=1, max_size=2), st.integers(0, 2), max_size=4),
)
def test_random_runs_equal_the_direct_formulas(entries, unseen):
    documents = {d: s for d, (s, _) in entries.items()}
    grades = {d: g for d, (_, g) in entries.items() if g >= 0} | unseen
    if not any(g >= 1 for g in grades.values()):
        grades["extra"] = 1
    ranking = sorted(documents, key=lambda d: -documents[d])
    scores = per_query({"q": documents}, {"q": grades}, ks=(1, 3, 10))
    for k in (1, 3, 10):
        assert scores[f"ndcg_at_{k}"]["q"] == pytest.approx(
            direct_ndcg(ranking, grades, k), abs=1e-5
        )
        assert scores[f"recall_at_{k}"]["q"] == pytest.approx(
            direct_recall(ranking, grades, k), abs=1e-5
        )


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.dictionaries(
            st.sampled_from([f"d{i}" for i in range(30)]), st.floats(-5, 5, width=16), max_size=30
        ),
        min_size=1,
    )
)
def test_random_runs_without_ties_equal_pytrec_eval(run):
    import pytrec_eval

    run = {q: {d: s + 100 * i for i, (d, s) in enumerate(ds.items())} for q, ds in run.items()}
    qrels = {q: {f"d{i}": (i + n) % 3 for i in range(0, 30, 2)} for n, q in enumerate(run)}
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.10"}).evaluate(run)
    scores = per_query(run, qrels, ks=(10,))
    for query in run:
        expected = found.get(query, {"ndcg_cut_10": 0.0, "recall_10": 0.0})
        assert scores["ndcg_at_10"][query] == pytest.approx(expected["ndcg_cut_10"], abs=1e-9)
        assert scores["recall_at_10"][query] == pytest.approx(expected["recall_10"], abs=1e-9)


def test_metric_names_are_those_of_mteb():
    names = metric_names((10, 100))
    assert names == ["ndcg_at_10", "ndcg_at_100", "recall_at_10", "recall_at_100"]
    assert list(per_query({"q": {"d": 1.0}}, {"q": {"d": 1}}, ks=(10, 100))) == names


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        ({"1": {"d": 1.0}}, {1: {"d": 1}}, "query ids are strings; 1 is int"),
        ({"1": {"d": 1.0}}, {"1": {7: 1}}, "document ids are strings; 7 .* is int"),
        ({1: {"d": 1.0}}, {"1": {"d": 1}}, "query ids are strings; 1 is int"),
        ({"1": {7: 1.0}}, {"1": {"d": 1}}, "document ids are strings; 7"),
        ({"q": {"d": math.nan}}, {"q": {"d": 1}}, "score nan"),
        ({"q": {"d": 1.0}}, {"q": {"d": 0.5}}, "grades are integers"),
        ({"q": {"d": 1.0}}, {"q": {"d": True}}, "grades are integers"),
        ({"q": {"d": 1.0}}, {"q": {"d": 0}}, "positive grade"),
        ({"q": {"d": 1.0}}, {}, "positive grade"),
        ({"x": {"d": 1.0}}, {"q": {"d": 1}}, "none of the 1 judged queries"),
        ({}, {"q": {"d": 1}}, "none of the 1 judged queries"),
    ],
)
def test_what_cannot_be_scored_is_an_error(run, qrels, message):
    with pytest.raises(ObliqError, match=message):
        per_query(run, qrels)


def test_judgments_that_never_meet_the_corpus_are_an_error():
    run, qrels = {"q": {"1": 1.0}}, {"q": {"01": 1}}
    with pytest.raises(ObliqError, match="none of the judged documents is in the corpus"):
        per_query(run, qrels, corpus_ids=["1", "2"])
    assert per_query(run, qrels, corpus_ids=["1", "01"], ks=(10,))["recall_at_10"] == {"q": 0.0}


def test_bad_cutoffs_and_empty_means_are_refused():
    with pytest.raises(ObliqError, match="cutoffs"):
        per_query({"q": {"d": 1.0}}, {"q": {"d": 1}}, ks=(0,))
    with pytest.raises(ObliqError, match="no queries"):
        mean({"ndcg_at_10": {}})

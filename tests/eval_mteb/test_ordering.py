from __future__ import annotations

import numpy as np
import pytest

from eval_mteb.candidates import allowed_rows
from eval_mteb.ordering import order_results
from eval_mteb.retrieval import AllButExcluded
from obliq_hf.errors import ObliqError

ROW = {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_query_without_results_gets_an_empty_ranking():
    assert order_results({}, ["q"], ROW, top_k=2) == {"q": {}}


def test_ties_go_to_corpus_order_before_the_cut():
    found = order_results({"q": {"d": 1.0, "c": 1.0, "a": 1.0, "b": 2.0}}, ["q"], ROW, top_k=3)
    assert list(found["q"]) == ["b", "a", "c"]
    scores = np.array(list(found["q"].values()), dtype=np.float32)
    assert (np.diff(scores) < 0).all()


def test_nan_names_document_and_query():
    with pytest.raises(ObliqError, match="'b' of query 'q' NaN"):
        order_results({"q": {"b": float("nan")}}, ["q"], ROW, top_k=3)


def test_a_plain_top_ranked_and_a_sparse_one_allow_the_same_rows():
    sparse = AllButExcluded(list(ROW), ["x", "y"], {"x": ["b", "not there"]})
    plain = dict(sparse)
    for mapping in (sparse, plain):
        x, y = allowed_rows(mapping, ["x", "y"], ROW)
        assert (x.excluded, x.only) == ([1], None)
        assert (y.excluded, y.only) == ([], None)


def test_few_candidates_are_kept_as_such_and_a_missing_query_may_retrieve_nothing():
    few, missing = allowed_rows({"x": ["d", "a", "d"]}, ["x", "y"], ROW)
    assert few.only.tolist() == [0, 3]
    assert missing.only.tolist() == []

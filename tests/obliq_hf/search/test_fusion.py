from __future__ import annotations

import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.search.fusion import fuse

A = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}}
B = {"q": {"c": 90.0, "b": 70.0, "d": 20.0}}


def test_reciprocal_ranks_are_summed():
    fused = fuse([A, B], method="rrf")["q"]
    assert list(fused) == ["c", "b", "a", "d"]
    assert fused["c"] == pytest.approx(1 / 61 + 1 / 63)
    assert fused["a"] == pytest.approx(1 / 61)


def test_zscores_are_summed_and_a_missing_document_gets_the_lowest():
    fused = fuse([A, B])["q"]
    spread_a, spread_b = (2 / 3) ** 0.5, (((30**2) + (10**2) + (40**2)) / 3) ** 0.5
    assert fused["b"] == pytest.approx(0 + 10 / spread_b)
    assert fused["c"] == pytest.approx(-1 / spread_a + 30 / spread_b)
    assert fused["a"] == pytest.approx(1 / spread_a - 40 / spread_b)
    assert fused["d"] == pytest.approx(-1 / spread_a - 40 / spread_b)


@pytest.mark.parametrize("method", ["zscore", "rrf"])
def test_a_run_fused_with_itself_keeps_its_order(method):
    run = {"q": {f"d{i}": 1.0 / (i + 1) for i in range(50)}}
    assert list(fuse([run, run], method=method)["q"]) == list(run["q"])


def test_zscores_do_not_change_with_the_scale_of_a_run():
    scaled = {"q": {d: 1000 * s - 7 for d, s in B["q"].items()}}
    assert list(fuse([A, scaled])["q"]) == list(fuse([A, B])["q"])


def test_ties_go_to_the_first_run():
    assert list(fuse([{"q": {"x": 1.0}}, {"q": {"y": 1.0}}], method="rrf")["q"]) == ["x", "y"]
    flat = {"q": {"x": 1.0, "y": 1.0, "z": 1.0}}
    assert list(fuse([flat, flat])["q"]) == ["x", "y", "z"]


def test_weights_move_the_result_and_k_cuts_it():
    assert next(iter(fuse([A, B], weights=[100, 1])["q"])) == "a"
    assert next(iter(fuse([A, B], weights=[1, 100])["q"])) == "c"
    assert list(fuse([A, B], method="rrf", k=2)["q"]) == ["c", "b"]


def test_queries_of_one_run_only_are_kept():
    fused = fuse([{"q1": {"a": 1.0}, "q2": {}}, {"q2": {"b": 2.0, "c": 1.0}}])
    assert list(fused) == ["q1", "q2"]
    assert list(fused["q2"]) == ["b", "c"]


def test_bad_arguments_are_named():
    with pytest.raises(ObliqError, match="at least two"):
        fuse([A])
    with pytest.raises(ObliqError, match="zscore"):
        fuse([A, B], method="zscor")
    with pytest.raises(ObliqError, match="weights"):
        fuse([A, B], weights=[1])
    with pytest.raises(ObliqError, match="positive"):
        fuse([A, B], weights=[1, 0])
    with pytest.raises(ObliqError, match="k must"):
        fuse([A, B], k=0)
    with pytest.raises(ObliqError, match="run 2"):
        fuse([A, {"q": {"d": float("nan")}}])

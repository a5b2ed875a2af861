from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.search.dense import Hits
from obliq_hf.search.runs import read_run, strictly_decreasing, to_run, write_run

if TYPE_CHECKING:
    from pathlib import Path


def through_text(scores):
    return [float(f"{np.float32(score):.9g}") for score in scores]


def assert_falls(scores):
    single = np.array(through_text(scores), np.float32)
    assert (np.diff(single.astype(np.float64)) < 0).all()
    assert single.astype(np.float64).tolist() == list(scores)
    assert all(s == 0 or abs(s) >= np.finfo(np.float32).tiny for s in single)


@settings(deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=60).map(
        lambda v: sorted(v, reverse=True)
    )
)
def test_any_sorted_scores_become_strictly_decreasing_and_barely_move(scores):
    lowered = strictly_decreasing(scores)
    assert len(lowered) == len(scores)
    assert_falls(lowered)
    for before, after in zip(scores, lowered, strict=True):
        assert after <= before or abs(before) < 1e-37
        assert math.isclose(after, before, rel_tol=1e-5, abs_tol=1e-35)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.1, 1e-38, 1e-45, -1e-38, 3.4028234e38])
def test_thousands_of_equal_scores_stay_in_order(value):
    assert_falls(strictly_decreasing([value] * 20_000))


def test_scores_equal_in_single_precision_only_stay_in_order():
    scores = [1.0 - i * 1e-12 for i in range(1000)]
    assert_falls(strictly_decreasing(scores))


def test_scores_that_already_fall_are_kept():
    scores = [3.5, 1.25, 0.0, -0.5, -100.0]
    assert strictly_decreasing(scores) == scores
    assert strictly_decreasing([]) == []


def test_rank_wins_over_a_higher_score_further_down():
    lowered = strictly_decreasing([1.0, 5.0, 3.0])
    assert lowered[0] == 1.0
    assert_falls(lowered)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39])
def test_scores_that_are_no_single_precision_numbers_are_named(bad):
    with pytest.raises(ObliqError, match="rank 2"):
        strictly_decreasing([1.0, bad])


def test_no_room_below_the_lowest_number_is_an_error():
    with pytest.raises(ObliqError, match="no room"):
        strictly_decreasing([float(np.finfo(np.float32).min)] * 2)


def test_odd_ids_survive_a_round_trip_in_order(tmp_path: Path):
    run = {
        "0012": {"NA": 0.5, "null": 0.5, "1e5": 0.5, "an id with  spaces": 0.5, 'd"1': -1.0},
        "q\u2028two": {"0012": 0.0, "#": -0.25},
        "none": {},
    }
    path = tmp_path / "runs" / "run.trec"
    write_run(path, run, tag="system-1")
    back = read_run(path)
    assert list(back) == ["0012", "q\u2028two"]
    assert {q: list(d) for q, d in back.items()} == {q: list(d) for q, d in run.items() if d}
    for documents in back.values():
        assert_falls(list(documents.values()))
    assert back["q\u2028two"] == run["q\u2028two"]
    write_run(tmp_path / "again.trec", back, tag="system-1")
    assert (tmp_path / "again.trec").read_bytes() == path.read_bytes()


def test_the_file_has_six_tab_separated_fields_and_ranks_from_one(tmp_path: Path):
    write_run(tmp_path / "r", {"q 1": {"d 2": 2.0, "d1": 1.5}}, tag="x")
    assert (tmp_path / "r").read_bytes() == b"q 1\tQ0\td 2\t1\t2.0\tx\nq 1\tQ0\td1\t2\t1.5\tx\n"


def test_whitespace_crlf_and_bom_are_read(tmp_path: Path):
    (tmp_path / "r").write_bytes(
        b'\xef\xbb\xbfq1 Q0 d1 2 0.5 s\r\n\r\nq1   Q0  d2 1 0.75 s\r\nq2\tQ0\td "1\t1\t-3e-1\ts\r\n'
    )
    assert read_run(tmp_path / "r") == {"q1": {"d2": 0.75, "d1": 0.5}, "q2": {'d "1': -0.3}}
    assert list(read_run(tmp_path / "r")["q1"]) == ["d2", "d1"]


def test_equal_scores_are_ordered_by_rank_then_by_line(tmp_path: Path):
    (tmp_path / "r").write_text("q Q0 a 2 1 s\nq Q0 b 1 1 s\nq Q0 c 2 1 s\n", encoding="utf-8")
    assert list(read_run(tmp_path / "r")["q"]) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d1 1 0.5", "six fields"),
        ("q Q0 d 1 1 0.5 s", "six fields"),
        ("q Q0 d2 1 high s", "not a number"),
        ("q Q0 d2 1 nan s", "not finite"),
        ("q Q0 d1 2 0.1 s", "'d1' stands twice for query 'q'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line, message):
    (tmp_path / "r.trec").write_text(f"q Q0 d1 1 0.9 s\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_run(tmp_path / "r.trec")
    assert "r.trec:2" in str(caught.value)


@pytest.mark.parametrize(
    ("run", "tag"),
    [
        ({"q\t": {"d": 1.0}}, "s"),
        ({"q": {"d\n": 1.0}}, "s"),
        ({"q": {"": 1.0}}, "s"),
        ({"q": {"d": math.nan}}, "s"),
        ({"q": {1: 1.0}}, "s"),
        ({1: {"d": 1.0}}, "s"),
        ({"q": {"d": 1.0}}, "a\x00b"),
        ({"q": {"d": 1.0}}, "a b"),
        ({"q": {"d": 1.0}}, "../x"),
    ],
)
def test_what_could_not_be_read_back_is_refused_and_leaves_no_file(tmp_path: Path, run, tag):
    with pytest.raises(ObliqError):
        write_run(tmp_path / "r", run, tag=tag)
    assert list(tmp_path.iterdir()) == []


def test_hits_become_a_run_by_row():
    hits = [
        Hits(np.array([2, 0]), np.array([0.5, 0.5], np.float32)),
        Hits(np.array([], np.int64), np.array([], np.float32)),
    ]
    run = to_run(hits, ["q1", "q2"], ["a", "b", "c"])
    assert list(run["q1"]) == ["c", "a"]
    assert run["q1"]["c"] > run["q1"]["a"]
    assert run["q2"] == {}
    with pytest.raises(ObliqError, match="twice"):
        to_run(hits, ["q1", "q1"], ["a", "b", "c"])
    with pytest.raises(ObliqError, match="2 lists of hits for 1"):
        to_run(hits, ["q1"], ["a", "b", "c"])
    with pytest.raises(ObliqError, match="one id to several"):
        to_run(hits, ["q1", "q2"], ["a", "b", "a"])

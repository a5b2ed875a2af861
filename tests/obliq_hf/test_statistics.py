from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obliq_hf.errors import ObliqError
from obliq_hf.metrics import bootstrap_ci, compare_metrics, holm, paired_bootstrap, permutation_test
from obliq_hf.statistics import power_note


def named(values):
    return {f"q{i}": float(v) for i, v in enumerate(values)}


def test_a_small_steady_gain_is_found_because_queries_are_paired():
    rng = np.random.default_rng(0)
    level = rng.uniform(0, 1, 512)
    noise = rng.normal(0, 0.03, 512)
    a, b = named(level + 0.02 + noise), named(level)
    found = paired_bootstrap(a, b)
    assert found.delta == pytest.approx(0.02 + noise.mean())
    assert found.hi - found.lo == pytest.approx(2 * 1.96 * noise.std() / np.sqrt(512), rel=0.1)
    assert found.lo > 0.015
    assert found.p < 0.001
    assert found.n == 512
    lo_a, hi_a = bootstrap_ci(a)
    assert hi_a - lo_a > 4 * (found.hi - found.lo)


def test_the_interval_is_that_of_a_plain_resampling_loop():
    rng = np.random.default_rng(1)
    values = rng.exponential(1, 40)
    draws = np.random.default_rng(99)
    means = [values[draws.integers(0, 40, 40)].mean() for _ in range(20_000)]
    lo, hi = bootstrap_ci(named(values), resamples=20_000)
    assert lo == pytest.approx(np.percentile(means, 2.5), abs=0.02)
    assert hi == pytest.approx(np.percentile(means, 97.5), abs=0.02)


def test_identical_systems_give_a_point_at_zero_and_p_one():
    rng = np.random.default_rng(2)
    scores = named(rng.uniform(0, 1, 77) / 3)
    groups = {q: f"g{i % 5}" for i, q in enumerate(scores)}
    for option in (None, groups):
        found = paired_bootstrap(scores, dict(scores), groups=option)
        assert (found.delta, found.lo, found.hi, found.p) == (0.0, 0.0, 0.0, 1.0)
        assert permutation_test(scores, dict(scores), groups=option) == 1.0


def test_the_order_of_the_queries_does_not_matter():
    rng = np.random.default_rng(3)
    a, b = named(rng.uniform(0, 1, 60)), named(rng.uniform(0, 1, 60))
    keys = list(a)
    rng.shuffle(keys)
    shuffled = {q: a[q] for q in keys}
    groups = {q: q[-1] for q in a}
    assert paired_bootstrap(shuffled, b) == paired_bootstrap(a, b)
    assert paired_bootstrap(shuffled, b, groups=groups) == paired_bootstrap(a, b, groups=groups)
    assert permutation_test(shuffled, b) == permutation_test(a, b)
    assert bootstrap_ci(shuffled) == bootstrap_ci(a)


def test_exchanging_the_systems_turns_the_sign():
    rng = np.random.default_rng(4)
    a, b = named(rng.uniform(0, 1, 60)), named(rng.uniform(0, 1, 60))
    there, back = paired_bootstrap(a, b), paired_bootstrap(b, a)
    assert (back.delta, back.lo, back.hi, back.p) == pytest.approx(
        (-there.delta, -there.hi, -there.lo, there.p)
    )
    assert permutation_test(a, b) == pytest.approx(permutation_test(b, a))


def test_seeds_are_explicit():
    a = named(np.random.default_rng(5).uniform(0, 1, 30))
    assert bootstrap_ci(a, seed=1) == bootstrap_ci(a, seed=1)
    assert bootstrap_ci(a, seed=1) != bootstrap_ci(a, seed=2)


def test_resampling_groups_widens_the_interval_when_queries_of_a_group_agree():
    rng = np.random.default_rng(6)
    level = rng.normal(0.3, 0.2, 12).repeat(20)
    a, b = named(level + rng.normal(0, 0.01, 240)), named(np.zeros(240))
    groups = {f"q{i}": f"author {i // 20}" for i in range(240)}
    by_query, by_group = paired_bootstrap(a, b), paired_bootstrap(a, b, groups=groups)
    assert by_group.delta == by_query.delta
    assert by_group.groups == 12
    assert by_query.groups is None
    assert by_group.hi - by_group.lo > 3 * (by_query.hi - by_query.lo)


def test_groups_of_different_size_are_weighted_by_their_queries():
    scores = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}
    groups = {"a": "big", "b": "big", "c": "big", "d": "small"}
    means = {bootstrap_ci(scores, groups=groups, resamples=1, seed=s)[0] for s in range(30)}
    assert means == {1.0, 0.75, 0.0}


def test_several_metrics_in_one_pass_equal_one_at_a_time():
    rng = np.random.default_rng(7)
    a = {m: named(rng.uniform(0, 1, 50)) for m in ("ndcg_at_10", "recall_at_100")}
    b = {m: named(rng.uniform(0, 1, 50)) for m in ("recall_at_100", "ndcg_at_10")}
    together = compare_metrics(a, b, seed=5)
    assert list(together) == list(a)
    for metric, found in together.items():
        alone = paired_bootstrap(a[metric], b[metric], seed=5)
        assert (found.delta, found.lo, found.hi, found.p) == pytest.approx(
            (alone.delta, alone.lo, alone.hi, alone.p)
        )


def test_more_resamples_than_fit_into_one_draw_still_cover_every_query(monkeypatch):
    from obliq_hf import statistics

    a, b = named(np.arange(30) / 30), named(np.arange(30)[::-1] / 40)
    whole, sign = paired_bootstrap(a, b), permutation_test(a, b)
    monkeypatch.setattr(statistics, "_CHUNK_VALUES", 1000)
    assert paired_bootstrap(a, b) == whole
    assert permutation_test(a, b) == pytest.approx(sign, abs=0.02)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
def test_few_queries_are_enumerated_exactly(differences):
    values = [d / 8 for d in differences]
    totals = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    expected = sum(t >= abs(sum(values)) - 1e-9 for t in totals) / len(totals)
    assert permutation_test(named(values), named([0] * len(values))) == pytest.approx(expected)


def test_random_signs_come_close_to_the_normal_approximation():
    from scipy.stats import norm

    rng = np.random.default_rng(8)
    values = rng.normal(0.1, 1, 300)
    expected = 2 * norm.sf(abs(values.sum()) / np.sqrt((values**2).sum()))
    assert permutation_test(named(values), named(np.zeros(300))) == pytest.approx(
        expected, abs=0.02
    )


def test_signs_of_a_group_are_exchanged_together():
    a, b = named([1.0] * 8), named([0.0] * 8)
    groups = {q: "one" if i < 4 else "two" for i, q in enumerate(a)}
    assert permutation_test(a, b) == pytest.approx(2 / 2**8)
    assert permutation_test(a, b, groups=groups) == pytest.approx(0.5)


def test_random_permutations_never_give_zero():
    a, b = named(np.ones(100)), named(np.zeros(100))
    assert permutation_test(a, b, permutations=99) == pytest.approx(0.01)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    with pytest.raises(ObliqError, match="between 0 and 1"):
        holm([0.5, float("nan")])


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_never_lowers(ps):
    adjusted = holm(ps)
    assert all(q >= p and q <= 1 for p, q in zip(ps, adjusted, strict=True))
    for (p1, q1), (p2, q2) in itertools.combinations(zip(ps, adjusted, strict=True), 2):
        if p1 <= p2:
            assert q1 <= q2


def test_few_queries_are_noted_with_what_they_could_show():
    a = named(np.linspace(0, 1, 20))
    assert "20 queries" in power_note(a, named(np.zeros(20)))
    assert "1 query" in power_note({"q": 1.0}, {"q": 0.0})
    big = named(np.zeros(50))
    assert power_note(big, big) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_bootstrap({"a": 1.0}, {"b": 1.0}), "1 only on the first .*'a'"),
        (lambda: paired_bootstrap({"a": 1.0, "b": 0.0}, {"a": 1.0}), "different queries"),
        (lambda: permutation_test({"a": 1.0}, {"b": 1.0}), "different queries"),
        (lambda: compare_metrics({"m": {"a": 1.0}}, {"n": {"a": 1.0}}), "same metrics"),
        (lambda: bootstrap_ci({}), "no queries"),
        (lambda: bootstrap_ci({"a": float("nan")}), "'a' has a score that is not finite"),
        (lambda: bootstrap_ci({"a": 1.0}, groups={}), "no group"),
        (lambda: bootstrap_ci({"a": 1.0}, resamples=0), "resamples"),
        (lambda: bootstrap_ci({"a": 1.0}, level=1.0), "level"),
        (lambda: permutation_test({"a": 1.0}, {"a": 0.0}, permutations=0), "permutations"),
    ],
)
def test_what_cannot_be_compared_is_an_error(call, message):
    with pytest.raises(ObliqError, match=message):
        call()


def test_few_queries_on_which_nothing_differs_are_said_to_be_few_and_no_more() -> None:
    scores = {"a": 0.1, "b": 0.5, "c": 0.2}
    assert power_note(scores, dict(scores)) == "only 3 queries, and the two do not differ on any"

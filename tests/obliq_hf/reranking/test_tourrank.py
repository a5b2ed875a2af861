from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rerank_pools import (
    BARE,
    assert_same_mean,
    drive,
    first_of_the_list,
    ids,
    last_of_the_list,
    make_judged,
    make_pool,
    numbers_shown,
    simulated_ndcg,
)

from obliq_hf.errors import ObliqError
from obliq_hf.llm import CachedClient, ChatAnswer
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.metrics import per_query
from obliq_hf.reranking import Asking, OracleClient, TourRank, parse_plan, rerank, scaled_plan
from obliq_hf.reranking.asking import query_of
from obliq_hf.reranking.oracle import noisy_order
from obliq_hf.reranking.tourrank import points_order, settled

SIZES = [0, 1, 2, 3, 7, 19, 20, 21, 97, 100, 101, 1000]


@pytest.mark.parametrize("size", SIZES)
def test_a_tournament_nobody_answers_gives_the_first_stages_order_and_is_listed(size, task):
    for script in (
        lambda request: "I'm sorry, I cannot do that.",
        lambda request: ChatAnswer(request.id, error="http-500: broken"),
        lambda request: "",
    ):
        pool = make_pool(size)
        done = rerank(TourRank(2, asking=BARE), [pool], task, client=ScriptedClient(script))
        assert done.orders["q1"] == ids(pool)
        assert done.failed == (("q1",) if size > 1 else ())
        assert done.tally.requests == 2 * scaled_plan(size).calls


@pytest.mark.parametrize("size", SIZES)
def test_a_judge_who_prefers_the_last_brings_them_to_the_front(size, task):
    pool = make_pool(size)
    client = ScriptedClient(last_of_the_list, batch=1000)
    done = rerank(TourRank(3, asking=BARE), [pool], task, client=client)
    assert sorted(done.orders["q1"]) == sorted(ids(pool))
    if size > 3:
        assert set(done.orders["q1"][:2]) == set(ids(pool)[-2:])
    assert done.failed == ()
    assert not done.tally.faults or set(done.tally.faults) == {"long"}


def test_five_tournaments_over_a_hundred_take_five_rounds_of_65_calls(task):
    client = ScriptedClient(first_of_the_list)
    ranking, rounds = drive(TourRank(5, asking=BARE).rank(make_pool(100), task), client)
    assert rounds == [25, 25, 5, 5, 5]
    assert (ranking.tally.requests, ranking.tally.rounds) == (65, 5)


def test_the_tournaments_of_one_are_the_first_of_five(task, tmp_path):
    inner = ScriptedClient(first_of_the_list, batch=1000)
    pools = [make_pool(100, q) for q in ("q1", "q2")]
    with CachedClient(inner, tmp_path / "answers.sqlite") as client:
        rerank(TourRank(1, asking=BARE), pools, task, client=client)
        assert inner.accounting.total.calls == 26
        done = rerank(TourRank(5, asking=BARE), pools, task, client=client)
        assert inner.accounting.total.calls == 130
        assert done.tally.cached == 26
        again = rerank(TourRank(3, asking=BARE), pools, task, client=client)
        assert inner.accounting.total.calls == 130
        assert again.tally.calls == 0
        assert again.tally.prompt_tokens > 0


def test_a_sweep_gives_what_each_number_of_tournaments_gives_alone(task):
    pools, qrels = make_judged(3, 60, 6)

    def client():
        return OracleClient(pools, qrels, asking=BARE, error_rate=0.4)

    for pool in pools:
        judge = client()
        swept, _ = drive(TourRank(4, asking=BARE).sweep(pool, task, [1, 2, 4]), judge)
        assert judge.accounting.total.calls == 4 * scaled_plan(60).calls
        for y in (1, 2, 4):
            alone = rerank(TourRank(y, asking=BARE), [pool], task, client=client())
            assert swept[y].order == alone.rankings[pool.query_id].order
            assert swept[y].scores == alone.rankings[pool.query_id].scores
            assert swept[y].tally.requests == alone.tally.requests


def test_shuffles_differ_between_tournaments_queries_and_seeds(task):
    def first_prompt(query="q1", seed=0, number=0):
        seen = []

        def script(request):
            seen.append(numbers_shown(request))
            return first_of_the_list(request)

        rerank(
            TourRank(number + 1, asking=BARE, seed=seed), [make_pool(20, query)], task,
            client=ScriptedClient(script, batch=1),
        )  # fmt: skip
        return seen[number]

    base = first_prompt()
    assert sorted(base) == list(range(20))
    assert base == first_prompt()
    assert base != first_prompt(query="q2")
    assert base != first_prompt(seed=1)
    assert base != first_prompt(number=1)


def test_a_short_answer_is_filled_in_first_stage_order_and_counted(task):
    def script(request):
        numbers = numbers_shown(request)
        return f"[{numbers.index(max(numbers)) + 1}]"

    done = rerank(
        TourRank(1, asking=BARE, plan=parse_plan("1x6>3", 6)), [make_pool(6)], task,
        client=ScriptedClient(script),
    )  # fmt: skip
    ranking = done.rankings["q1"]
    assert ranking.scores == (1, 1, 0, 0, 0, 1)
    assert ranking.order == (0, 1, 5, 2, 3, 4)
    assert done.tally.filled == 2
    assert done.degraded == ("q1",)
    assert done.failed == ()
    assert done.tally.faults == {"short": 1}


def test_one_group_that_fails_costs_its_places_only(task):
    def script(request):
        if {0, 95} <= set(numbers_shown(request)):
            return ChatAnswer(request.id, error="timeout: 600 s")
        return last_of_the_list(request)

    done = rerank(TourRank(1, asking=BARE), [make_pool(100)], task, client=ScriptedClient(script))
    assert done.failed == ()
    assert done.tally.errors == {"timeout": 1}
    assert done.tally.filled == 10
    points = done.rankings["q1"].scores
    assert [points[p] for p in (0, 45, 50, 95)] == [1, 1, 0, 0]
    assert points[99] == points[98] == 5


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_stopping_early_never_changes_what_it_calls_settled(data):
    size = data.draw(st.integers(2, 7))
    points = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    gains = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    top = data.draw(st.integers(1, size))
    now = points_order(points)[:top]

    def outcomes(i):
        if i == size:
            yield []
            return
        for rest in outcomes(i + 1):
            for gain in range(gains[i] + 1):
                yield [points[i] + gain, *rest]

    same = all(points_order(final)[:top] == now for final in outcomes(0))
    # every document behind can gain all while those ahead gain nothing, so the rule is exact
    assert settled(points, gains, top=top) == same


def test_an_early_stop_saves_calls_and_keeps_the_first_places(task):
    pools, qrels = make_judged(12, 20, 1, seed=3)
    spared = 0
    for top in (1, 2):
        full = rerank(
            TourRank(6, asking=BARE), pools, task, client=OracleClient(pools, qrels, asking=BARE)
        )
        early = rerank(
            TourRank(6, asking=BARE, early_stop=top), pools, task,
            client=OracleClient(pools, qrels, asking=BARE),
        )  # fmt: skip
        for query, order in full.orders.items():
            assert early.orders[query][:top] == order[:top]
        assert early.tally.requests + early.tally.spared == full.tally.requests
        spared += early.tally.spared
        stages, calls = len(scaled_plan(20).stages), scaled_plan(20).calls
        for ranking in early.rankings.values():
            # one tournament after another, and one call a stage in a pool of twenty
            assert calls == stages
            assert ranking.tally.rounds == ranking.tally.requests
        assert max(r.tally.rounds for r in early.rankings.values()) > stages
    assert spared > 0


def test_a_stage_that_is_refused_passes_on_in_first_stage_order_between_two_that_are_answered(task):
    asked = []

    def script(request):
        numbers = numbers_shown(request)
        asked.append(len(numbers))
        # the second stage of a hundred shows ten documents a group, of fifty that are left
        if len(asked) in range(6, 11):
            return "I'm sorry, I cannot choose among these."
        return last_of_the_list(request)

    pool = make_pool(100)
    done = rerank(TourRank(1, asking=BARE), [pool], task, client=ScriptedClient(script, batch=1000))
    assert asked == [20] * 5 + [10] * 5 + [20, 10, 5]
    points = done.rankings["q1"].scores
    # the last fifty pass the first stage; of those the first twenty, in first-stage order, pass
    # the second; from there on the judge prefers the last again
    assert [p for p in range(100) if points[p] >= 1] == list(range(50, 100))
    assert [p for p in range(100) if points[p] >= 2] == list(range(50, 70))
    assert [p for p in range(100) if points[p] >= 3] == list(range(60, 70))
    assert done.orders["q1"][:2] == ("q1-d68", "q1-d69")
    assert done.failed == ()
    assert done.degraded == ("q1",)
    assert done.tally.faults["refused"] == 5
    assert done.tally.filled == 20


def plain_tournaments(grades, rounds, error_rate, rng):
    """The algorithm written down once more: one tournament after another, no code shared."""
    order = list(range(len(grades)))
    points = [0] * len(grades)
    for _ in range(rounds):
        left = list(order)
        for groups, keep in ((5, 10), (5, 4), (1, 10), (1, 5), (1, 2)):
            on = []
            for g in range(groups):
                members = [left[i] for i in range(g, len(left), groups)]
                random.Random(int(rng.integers(2**31))).shuffle(members)
                judged = []
                for member in members:
                    seen = grades[member]
                    if rng.random() < error_rate:
                        seen = grades[members[int(rng.integers(len(members)))]]
                    judged.append((-seen, rng.random(), member))
                on += [member for _, _, member in sorted(judged)[:keep]]
            for member in on:
                points[member] += 1
            left = sorted(on)
    return sorted(order, key=lambda i: (-points[i], i))


@pytest.mark.parametrize(("error_rate", "rounds"), [(0.0, 1), (0.3, 1), (0.3, 4), (0.7, 3)])
def test_expected_ndcg_agrees_with_a_simulation_of_the_algorithm(task, error_rate, rounds):
    pools, qrels = make_judged(50, 100, 8)
    ours, expected = simulated_ndcg(
        TourRank(rounds, asking=BARE),
        lambda grades, rng: plain_tournaments(grades, rounds, error_rate, rng),
        pools,
        qrels,
        task,
        error_rate=error_rate,
    )
    assert_same_mean(ours, expected)


def test_more_tournaments_help_a_judge_who_errs_and_nothing_helps_one_who_is_blind(task):
    pools, qrels = make_judged(15, 100, 8)

    def ndcg(error_rate, rounds):
        client = OracleClient(pools, qrels, asking=BARE, error_rate=error_rate)
        done = rerank(TourRank(rounds, asking=BARE), pools, task, client=client)
        run = {q: {d: -float(r) for r, d in enumerate(o)} for q, o in done.orders.items()}
        return np.mean(list(per_query(run, qrels)["ndcg_at_10"].values()))

    assert ndcg(0, 3) > ndcg(0.4, 4) > ndcg(0.4, 1) > 0.3
    assert ndcg(0, 3) > 0.97
    assert ndcg(1, 3) < 0.25


def test_the_judge_errs_at_the_stated_rate():
    rng = np.random.default_rng(0)
    for error_rate in (0.0, 0.5, 1.0):
        # of two documents each is taken for either with the error rate: half of that goes wrong
        right = [noisy_order([0.0, 1.0], error_rate, rng)[0] for _ in range(3000)]
        assert np.mean(right) == pytest.approx(1 - error_rate / 2, abs=0.03)
    assert sorted(noisy_order([1.0] * 10 + [0.0] * 10, 0.0, rng)[:10]) == list(range(10))


def test_the_question_names_the_attribute_and_what_to_ignore_and_the_generic_one_does_not(task):
    seen = []

    def script(request):
        seen.append(request.messages[-1]["content"])
        assert query_of(request) == "what q1 looks for"
        return first_of_the_list(request)

    for prompt in ("task", "generic"):
        asking = Asking(prompt=prompt, documents=None, query=None)
        client = ScriptedClient(script)
        rerank(TourRank(1, asking=asking), [make_pool(5)], task, client=client)
    assert "authorial style" in seen[0]
    assert "topic and plot; compare rhythm" in seen[0]
    assert "Choose the 2 " in seen[0]
    assert "authorial style" not in seen[1]
    assert "topic and plot" not in seen[1]


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ObliqError, match="at least one round"):
        TourRank(0)
    with pytest.raises(ObliqError, match="early_stop"):
        TourRank(1, early_stop=0)
    with pytest.raises(ObliqError, match="generic"):
        Asking(prompt="generik")
    with pytest.raises(ObliqError, match="schema"):
        Asking(answer="shema")

from __future__ import annotations

import pytest
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
from obliq_hf.llm import ChatAnswer
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import Asking, Listwise, OracleClient, rerank
from obliq_hf.reranking.listwise import windows


def test_windows_move_from_back_to_front_and_the_last_one_is_full():
    assert windows(100) == [(s, s + 20) for s in range(80, -1, -10)]
    assert windows(50) == [(30, 50), (20, 40), (10, 30), (0, 20)]
    assert windows(97)[-2:] == [(7, 27), (0, 20)]
    assert windows(20) == [(0, 20)]
    assert windows(7) == [(0, 7)]
    assert windows(21) == [(1, 21), (0, 20)]
    assert windows(1) == windows(0) == []


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 19, 20, 21, 97, 100, 101, 1000])
def test_any_pool_gives_a_permutation_and_what_lies_beneath_the_depth_stays(size, task):
    pool = make_pool(size)
    client = ScriptedClient(last_of_the_list)
    done = rerank(Listwise(50, asking=BARE), [pool], task, client=client)
    order = done.orders["q1"]
    assert sorted(order) == sorted(ids(pool))
    assert order[50:] == ids(pool)[50:]
    if size > 1:
        assert order[0] == ids(pool)[min(size, 50) - 1]
        assert done.tally.rounds == len(windows(min(size, 50)))


def test_one_pass_brings_the_best_ten_to_the_front_in_order(task):
    done = rerank(
        Listwise(100, asking=BARE), [make_pool(100)], task, client=ScriptedClient(last_of_the_list)
    )
    assert done.rankings["q1"].order[:10] == tuple(range(99, 89, -1))


@pytest.mark.parametrize("answer", ["I'm sorry, I cannot.", "", "nonsense", None])
def test_answers_without_a_ranking_leave_the_order_and_are_listed(answer, task):
    def script(request):
        return answer if answer is not None else ChatAnswer(request.id, error="http-500: x")

    pools = [make_pool(60, q) for q in ("q1", "q2")]
    done = rerank(Listwise(60, asking=BARE), pools, task, client=ScriptedClient(script))
    assert done.orders == {pool.query_id: ids(pool) for pool in pools}
    assert done.failed == ("q1", "q2")
    assert sum(done.tally.faults.values()) + sum(done.tally.errors.values()) == 10


def test_named_documents_come_first_and_the_others_follow_in_their_order(task):
    def script(request):
        shown = numbers_shown(request)
        return f"[{shown.index(7) + 1}] > [{shown.index(3) + 1}] > [99] > [{shown.index(7) + 1}]"

    done = rerank(Listwise(10, asking=BARE), [make_pool(10)], task, client=ScriptedClient(script))
    assert done.rankings["q1"].order == (7, 3, 0, 1, 2, 4, 5, 6, 8, 9)
    assert done.tally.faults == {"out-of-range": 1, "repeated": 1, "short": 1}
    assert done.degraded == ("q1",)
    assert done.failed == ()


def test_an_answer_that_was_cut_counts_as_far_as_it_goes(task):
    def script(request):
        return ChatAnswer(request.id, text="[4] > [2] > [1", finish_reason="length")

    done = rerank(Listwise(10, asking=BARE), [make_pool(10)], task, client=ScriptedClient(script))
    assert done.rankings["q1"].order[:3] == (3, 1, 0)
    assert done.tally.faults == {"cut": 1, "short": 1}


def test_the_budget_of_an_answer_grows_with_the_documents_to_be_named(task):
    seen = []

    def script(request):
        seen.append(request.max_tokens)
        return first_of_the_list(request)

    for depth in (10, 20):
        client = ScriptedClient(script)
        rerank(Listwise(depth, asking=BARE), [make_pool(20)], task, client=client)
    assert seen[1] > seen[0]
    assert seen[1] > 5 * 20


def plain_windows(grades, depth, error_rate, rng):
    """The algorithm written down once more, no code shared."""
    order = list(range(len(grades)))
    end = depth
    while True:
        start = max(0, end - 20)
        judged = []
        for place in range(start, end):
            seen = grades[order[place]]
            if rng.random() < error_rate:
                seen = grades[order[int(rng.integers(start, end))]]
            judged.append((-seen, rng.random(), order[place]))
        order[start:end] = [member for _, _, member in sorted(judged)]
        if start == 0:
            return order
        end -= 10


@pytest.mark.parametrize("error_rate", [0.0, 0.3, 0.7])
def test_expected_ndcg_agrees_with_a_simulation_of_the_algorithm(task, error_rate):
    pools, qrels = make_judged(60, 100, 14)
    ours, expected = simulated_ndcg(
        Listwise(100, asking=BARE),
        lambda grades, rng: plain_windows(grades, 100, error_rate, rng),
        pools,
        qrels,
        task,
        error_rate=error_rate,
    )
    assert_same_mean(ours, expected)
    if error_rate == 0:
        # ten of a window go on: the first ten are right, whatever lies beneath
        assert ours.mean() == 1.0
    else:
        assert 0 < expected.mean() < 1


def test_depths_of_a_sweep_give_what_they_give_alone_in_the_rounds_of_the_deepest(task):
    pools, qrels = make_judged(1, 100, 10)
    pool = pools[0]
    judge = OracleClient(pools, qrels, asking=BARE, error_rate=0.3)
    swept, rounds = drive(Listwise(100, asking=BARE).sweep(pool, task, [10, 20, 50, 100]), judge)
    assert len(rounds) == 9
    assert sum(rounds) == 1 + 1 + 4 + 9
    for depth in (10, 20, 50, 100):
        alone = rerank(Listwise(depth, asking=BARE), [pool], task, client=judge)
        assert swept[depth].order == alone.rankings[pool.query_id].order
        assert swept[depth].tally.requests == alone.tally.requests


def test_equal_windows_of_a_sweep_are_asked_once(task):
    client = ScriptedClient(first_of_the_list)
    swept, rounds = drive(
        Listwise(100, asking=BARE).sweep(make_pool(15), task, [15, 20, 100]), client
    )
    assert rounds == [1]
    assert client.accounting.total.calls == 1
    assert [swept[d].tally.calls for d in (15, 20, 100)] == [1, 0, 0]


def test_one_token_orders_a_window_by_the_log_probabilities_of_its_letters(task):
    def script(request):
        assert request.logprobs == 20
        assert request.max_tokens < 10
        content = request.messages[-1]["content"]
        assert "[A]\n" in content
        assert "[1]" not in content
        letters = [chr(ord("A") + i) for i in range(7)]
        top = [[letter, -float(7 - i)] for i, letter in enumerate(letters)]
        token = {"token": "G", "logprob": -1.0, "top": top}
        return ChatAnswer(request.id, text="G", finish_reason="length", logprobs=(token,))

    asking = Asking(answer="logprobs", documents=None, query=None)
    done = rerank(Listwise(7, asking=asking), [make_pool(9)], task, client=ScriptedClient(script))
    assert done.rankings["q1"].order == (6, 5, 4, 3, 2, 1, 0, 7, 8)
    assert not done.tally.faults
    with pytest.raises(ObliqError, match="20 documents"):
        rerank(
            Listwise(30, window=30, asking=asking), [make_pool(30)], task,
            client=ScriptedClient(script),
        )  # fmt: skip


def test_a_server_without_log_probabilities_still_names_the_first(task):
    asking = Asking(answer="logprobs", documents=None, query=None)
    client = ScriptedClient(lambda request: "C")
    done = rerank(Listwise(5, asking=asking), [make_pool(5)], task, client=client)
    assert done.rankings["q1"].order == (2, 0, 1, 3, 4)


def test_a_schema_is_sent_where_the_server_enforces_one(task):
    def script(request):
        items = request.schema["properties"]["ranking"]
        assert (items["minItems"], items["items"]["maximum"]) == (5, 5)
        return '{"ranking": [5, 4, 3, 2, 1]}'

    asking = Asking(answer="schema", documents=None, query=None)
    done = rerank(Listwise(5, asking=asking), [make_pool(5)], task, client=ScriptedClient(script))
    assert done.rankings["q1"].order == (4, 3, 2, 1, 0)
    assert not done.tally.faults


def test_windows_that_cannot_order_a_list_are_refused():
    for wrong in ({"window": 1}, {"step": 0}, {"window": 5, "step": 6}, {"depth": 0}):
        with pytest.raises(ObliqError):
            Listwise(**wrong)

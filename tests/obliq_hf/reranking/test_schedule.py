from __future__ import annotations

import pytest
from llm_server import Reply, ScriptedServer, prompt_of
from rerank_pools import BARE, ids, last_of_the_list, make_pool

from obliq_hf.errors import ObliqError
from obliq_hf.llm import Budget, CachedClient, EndpointClient, LLMError, RetryPolicy
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import IdentityReranker, Listwise, TourRank, rerank, reranked_run

ORDER = " > ".join(f"[{i}]" for i in range(20, 0, -1))
QUICK = RetryPolicy(attempts=2, first_wait=0.01, patience=1.0, first_patience=1.0)


def test_everything_of_all_queries_shares_one_bound_on_calls(task):
    with (
        ScriptedServer(lambda body, number: ORDER, delay=0.02) as server,
        EndpointClient(server.url, model="m", concurrency=16) as client,
    ):
        pools = [make_pool(100, f"q{i}") for i in range(4)]
        done = rerank(TourRank(2, asking=BARE), pools, task, client=client)
    assert server.calls == done.tally.calls == 4 * 26
    assert server.most_at_once == 16
    assert list(done.orders) == ["q0", "q1", "q2", "q3"]
    assert done.tally.rounds == 5


def test_a_query_alone_is_asked_about_in_five_rounds_of_all_its_tournaments(task):
    delay = 0.05
    with (
        ScriptedServer(lambda body, number: ORDER, delay=delay) as server,
        EndpointClient(server.url, model="m", concurrency=64) as client,
    ):
        done = rerank(TourRank(5, asking=BARE), [make_pool(100)], task, client=client)
    assert server.calls == 65
    assert server.most_at_once == 25
    assert done.tally.rounds == 5
    assert done.tally.latency >= 5 * delay
    assert done.tally.seconds >= 65 * delay
    assert done.seconds >= 5 * delay


def test_a_server_that_fails_for_one_query_costs_that_query_alone(task):
    def script(body, number):
        if "of q1" in prompt_of(body):
            return Reply("broken", status=500)
        return ORDER

    with (
        ScriptedServer(script) as server,
        EndpointClient(server.url, model="m", retry=QUICK) as client,
    ):
        pools = [make_pool(20, f"q{i}") for i in range(3)]
        done = rerank(TourRank(1, asking=BARE), pools, task, client=client)
    assert done.failed == ("q1",)
    assert done.orders["q1"] == ids(pools[1])
    assert done.orders["q0"] != ids(pools[0])
    assert done.tally.errors == {"http-500": 3}
    assert done.costs()["failed_queries"] == ["q1"]


def test_a_run_that_was_broken_off_is_taken_up_without_a_call_made_twice(task, tmp_path):
    pools = [make_pool(100, f"q{i}") for i in range(3)]

    def script(body, number):
        return ORDER if number < 40 else Reply("no such model", status=404)

    with ScriptedServer(script) as server:
        client = CachedClient(
            EndpointClient(server.url, model="m", retry=QUICK, concurrency=8), tmp_path / "a.sqlite"
        )
        with pytest.raises(LLMError):
            rerank(TourRank(2, asking=BARE), pools, task, client=client)
        client.close()
        server.script = lambda body, number: ORDER
        before = server.calls
        client = CachedClient(
            EndpointClient(server.url, model="m", retry=QUICK), tmp_path / "a.sqlite"
        )
        done = rerank(TourRank(2, asking=BARE), pools, task, client=client)
        client.close()
    assert done.tally.requests == 3 * 26
    assert server.calls - before == 3 * 26 - 40
    assert done.tally.cached == 40


def test_a_budget_that_is_spent_leaves_the_first_stages_order(task):
    with (
        ScriptedServer(lambda body, number: ORDER) as server,
        EndpointClient(server.url, model="m", budget=Budget(calls=3), concurrency=1) as client,
    ):
        pools = [make_pool(20, f"q{i}") for i in range(3)]
        done = rerank(TourRank(1, asking=BARE), pools, task, client=client, window=1)
    assert server.calls == 3
    assert done.failed == ("q1", "q2")
    assert done.tally.errors == {"budget": 6}
    assert done.orders["q2"] == ids(pools[2])


def test_thinking_beside_or_inside_the_answer_is_no_part_of_the_ranking(task):
    with (
        ScriptedServer(
            lambda body, number: (
                Reply("[2] > [1]", reasoning="perhaps [1] > [2]")
                if number
                else "<think>[1] > [2] or</think> [2] > [1]"
            )
        ) as server,
        EndpointClient(server.url, model="m", concurrency=1) as client,
    ):
        pools = [make_pool(2, f"q{i}") for i in range(2)]
        done = rerank(Listwise(2, asking=BARE), pools, task, client=client)
    assert all(done.rankings[q].order == (1, 0) for q in ("q0", "q1"))
    assert not done.tally.faults


def test_depths_and_pools_that_cannot_be_are_refused_before_any_call(task):
    client = ScriptedClient(last_of_the_list)
    with pytest.raises(ObliqError, match="asks a language model"):
        rerank(TourRank(1), [make_pool(3)], task)
    with pytest.raises(ObliqError, match="depth"):
        rerank(TourRank(1), [make_pool(3)], task, client=client, depth=0)
    with pytest.raises(ObliqError, match="stands twice"):
        rerank(IdentityReranker(), [make_pool(3), make_pool(3)], task)
    assert client.accounting.total.calls == 0


def test_documents_beneath_the_depth_keep_their_order(task):
    pool = make_pool(50)
    client = ScriptedClient(last_of_the_list)
    done = rerank(TourRank(1, asking=BARE), [pool], task, client=client, depth=10)
    assert done.orders["q1"][10:] == ids(pool)[10:]
    assert set(done.orders["q1"][:2]) == {"q1-d9", "q1-d8"}


def test_a_reranked_run_deals_out_the_first_stages_scores_by_rank():
    first = {"q": {"a": 0.9, "b": 0.5, "c": -0.1, "d": -0.2}, "p": {"x": 1.0}}
    same = reranked_run(first, {"q": ["a", "b"]})
    assert list(same["q"]) == list(first["q"])
    turned = reranked_run(first, {"q": ["c", "a", "b"]}, top_k=3)
    assert list(turned["q"]) == ["c", "a", "b"]
    assert list(turned["q"].values()) == list(same["q"].values())[:3]
    assert turned["p"] == {"x": 1.0}
    tied = reranked_run({"q": {"a": 1.0, "b": 1.0, "c": 1.0}}, {"q": ["c", "b", "a"]})
    scores = list(tied["q"].values())
    assert scores[0] > scores[1] > scores[2]
    with pytest.raises(ObliqError, match="'z' was not among the candidates"):
        reranked_run(first, {"q": ["z"]})

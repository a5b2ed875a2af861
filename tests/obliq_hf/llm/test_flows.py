from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from llm_server import Reply, ScriptedServer, prompt_of

from obliq_hf.errors import ObliqError
from obliq_hf.llm import (
    CachedClient,
    ChatAnswer,
    ChatRequest,
    EndpointClient,
    run_flow,
    run_flows,
)
from obliq_hf.llm.scripted import ScriptedClient

if TYPE_CHECKING:
    from pathlib import Path


def ask(text: str, name: str = "r") -> ChatRequest:
    return ChatRequest(id=name, messages=[{"role": "user", "content": text}])


def two_stages(text):
    first = yield [ask("A " + text)]
    second = yield [ask("B " + first["r"].text, "x"), ask("C " + first["r"].text, "y")]
    return second["x"].text + " | " + second["y"].text


def echo(request):
    return request.messages[-1]["content"]


def test_each_flow_gets_its_own_answers_under_its_own_ids():
    results = dict(
        run_flows(ScriptedClient(echo, batch=3), ((i, two_stages(f"t{i}")) for i in range(20)))
    )
    assert results == {i: f"B A t{i} | C A t{i}" for i in range(20)}


def test_flows_that_ask_nothing_or_yield_an_empty_list_end_too():
    def silent():
        return "nothing"
        yield

    def empty():
        answers = yield []
        return answers

    results = dict(run_flows(ScriptedClient(echo), [("s", silent()), ("e", empty())]))
    assert results == {"s": "nothing", "e": {}}


def test_flows_are_started_only_as_others_end():
    most = {"now": 0, "most": 0}

    def counted(text):
        most["now"] += 1
        most["most"] = max(most["most"], most["now"])
        result = yield from two_stages(text)
        most["now"] -= 1
        return result

    flows = ((i, counted(str(i))) for i in range(200))
    assert len(list(run_flows(ScriptedClient(echo), flows, window=10))) == 200
    assert most["most"] == 10


def test_the_second_stage_of_one_flow_does_not_wait_for_the_first_of_another():
    order = []

    def script(body, number):
        text = prompt_of(body)
        order.append(text)
        return Reply(text, delay=0.5 if text == "A slow" else 0.005)

    with ScriptedServer(script) as server, EndpointClient(server.url, model="m") as client:
        started = time.monotonic()
        finished = [
            key
            for key, _ in run_flows(
                client, [("slow", two_stages("slow")), ("quick", two_stages("quick"))]
            )
        ]
    assert finished == ["quick", "slow"]
    assert order.index("B A quick") < order.index("B A slow")
    assert time.monotonic() - started < 2


def test_a_failed_call_reaches_its_flow_as_an_error():
    def script(request):
        if "t1" in echo(request):
            return ChatAnswer(request.id, error="http-500: broken")
        return echo(request)

    def careful(text):
        answers = yield [ask(text)]
        return answers["r"].error_kind or answers["r"].text

    results = dict(run_flows(ScriptedClient(script), ((i, careful(f"t{i}")) for i in range(3))))
    assert results == {0: "t0", 1: "http-500", 2: "t2"}


def test_two_requests_of_one_flow_with_one_id_are_refused():
    def twice():
        yield [ask("a"), ask("b")]

    with pytest.raises(ObliqError, match="'k'"):
        list(run_flows(ScriptedClient(echo), [("k", twice())]))


def test_flows_over_a_cache_run_without_calls_the_second_time(tmp_path: Path):
    inner = ScriptedClient(echo, batch=5)
    flows = [(i, f"t{i % 30}") for i in range(60)]
    runs = []
    for _ in range(2):
        client = CachedClient(inner, tmp_path / "c.sqlite")
        runs.append(dict(run_flows(client, ((k, two_stages(t)) for k, t in flows))))
    assert runs[0] == runs[1] == {i: f"B A t{i % 30} | C A t{i % 30}" for i in range(60)}
    assert inner.accounting.total.calls == 90


def test_an_error_in_a_flow_reaches_the_caller():
    def broken():
        yield [ask("a")]
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run_flow(ScriptedClient(echo), broken())

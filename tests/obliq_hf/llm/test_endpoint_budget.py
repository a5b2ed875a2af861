"""Budgets in calls, tokens and money are never passed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from endpoint_client import FAST, ask, client_of, many
from llm_server import Reply, ScriptedServer

from obliq_hf.errors import ObliqError
from obliq_hf.llm import (
    Budget,
    EndpointClient,
    Price,
)


def test_the_budget_in_calls_is_never_passed_and_the_rest_is_listed():
    with (
        ScriptedServer(lambda b, n: "ok", delay=0.005) as server,
        client_of(server, budget=Budget(calls=10)) as client,
    ):
        answers = client.complete_all(many(30))
    assert server.calls == 10
    assert sum(a.usable for a in answers.values()) == 10
    assert sum(a.error_kind == "budget" for a in answers.values()) == 20


@pytest.mark.parametrize("budget", [Budget(tokens=2000), Budget(cost=0.003)])
def test_a_budget_in_tokens_or_money_is_never_passed(budget):
    price = Price(prompt=1.0, completion=2.0)
    with (
        ScriptedServer(lambda b, n: Reply("ok", usage=(10, 100)), delay=0.002) as server,
        client_of(server, budget=budget, price=price) as client,
    ):
        answers = client.complete_all([ask("t", id=str(i), max_tokens=100) for i in range(60)])
        total = client.accounting.total
        if budget.tokens is not None:
            assert 1000 < total.prompt_tokens + total.completion_tokens <= budget.tokens
        else:
            assert 0.0015 < client.accounting.cost <= budget.cost
    assert {a.error_kind for a in answers.values()} == {None, "budget"}


@pytest.mark.parametrize(
    ("lost", "calls"),
    [
        (Reply("ok", usage=None), 10),
        (Reply(None, usage=None), 10),
        (Reply(drop=True), 10),
        (Reply(raw=b"nonsense"), 10),
        (Reply("no room", status=400), 30),
        (Reply("ok", usage=(1, 4)), 30),
    ],
)
def test_a_call_of_which_nobody_says_what_it_took_counts_with_its_largest_size(lost, calls):
    retry = replace(FAST, attempts=1)
    with (
        ScriptedServer(lambda b, n: lost) as server,
        client_of(server, budget=Budget(tokens=1090), retry=retry, concurrency=1) as client,
    ):
        answers = client.complete_all([ask("t", id=str(i), max_tokens=100) for i in range(30)])
    assert server.calls == calls
    assert sum(a.error_kind == "budget" for a in answers.values()) == 30 - calls


def test_a_budget_in_money_needs_a_price():
    with pytest.raises(ObliqError, match="price"):
        EndpointClient("http://127.0.0.1:9", model="m", budget=Budget(cost=1))

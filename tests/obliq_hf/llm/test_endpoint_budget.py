"""Budgets in calls, tokens and money are never passed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from endpoint_client import FAST, ask, client_of, many
from llm_server import Reply, ScriptedServer, prompt_of

from obliq_hf.errors import ObliqError
from obliq_hf.llm import (
    Budget,
    EndpointClient,
    Price,
)
from obliq_hf.llm.completions import completion_body, prompt_bound


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
    largest = prompt_bound(ask("t")) + 100
    budget = Budget(tokens=11 * largest - 1)
    with (
        ScriptedServer(lambda b, n: lost) as server,
        client_of(server, budget=budget, retry=retry, concurrency=1) as client,
    ):
        answers = client.complete_all([ask("t", id=str(i), max_tokens=100) for i in range(30)])
    assert server.calls == calls
    assert sum(a.error_kind == "budget" for a in answers.values()) == 30 - calls


@pytest.mark.parametrize("price", [None, Price(prompt=1.0, completion=1.0)])
def test_prompts_of_digits_that_take_a_token_each_do_not_pass_the_budget(price):
    most = 10_000
    budget = Budget(tokens=most) if price is None else Budget(cost=most / 1e6)

    def script(body, number):
        return Reply("ok", usage=(len(prompt_of(body)) + 100, 50), delay=0.01)

    with (
        ScriptedServer(script) as server,
        client_of(server, budget=budget, price=price, concurrency=4) as client,
    ):
        client.complete_all([ask("7" * 2900, id=str(i), max_tokens=50) for i in range(12)])
        total = client.accounting.total
    assert server.calls == 3
    assert total.prompt_tokens + total.completion_tokens <= most


@pytest.mark.parametrize("text", ["7" * 500, "質問" * 200, "plain words " * 40, "\ud83d\x00"])
def test_no_prompt_has_more_tokens_than_its_bound(text):
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    request = ask(text, schema={"type": "object", "properties": {"query": {"type": "string"}}})
    (message,) = completion_body(request)["messages"]
    templated = f"<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert len(bytewise.encode(templated).ids) <= prompt_bound(request)


def test_a_call_waits_for_the_room_that_calls_under_way_may_leave():
    request = ask("t", id="0", max_tokens=100)
    budget = Budget(tokens=2 * (prompt_bound(request) + request.max_tokens))
    with (
        ScriptedServer(lambda b, n: Reply("ok", usage=(10, 5), delay=0.01)) as server,
        client_of(server, budget=budget, concurrency=8) as client,
    ):
        answers = client.complete_all([replace(request, id=str(i)) for i in range(12)])
    assert all(answer.usable for answer in answers.values())
    assert server.most_at_once == 2


def test_a_budget_in_money_needs_a_price():
    with pytest.raises(ObliqError, match="price"):
        EndpointClient("http://127.0.0.1:9", model="m", budget=Budget(cost=1))

from __future__ import annotations

import email.utils
import logging
import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from llm_server import Reply, ScriptedServer, prompt_of, text_logprobs

from obliq_hf.errors import ObliqError
from obliq_hf.llm import (
    Budget,
    CachedClient,
    ChatRequest,
    EndpointClient,
    LLMError,
    Price,
    RetryPolicy,
    request_key,
)

if TYPE_CHECKING:
    from pathlib import Path

FAST = RetryPolicy(attempts=5, first_wait=0.01, max_wait=0.05, patience=2.0, first_patience=0.2)
SECRET = "hf_" + "x" * 34


def ask(text: str, **options) -> ChatRequest:
    options.setdefault("id", "r")
    return ChatRequest(messages=[{"role": "user", "content": text}], **options)


def many(count: int) -> list[ChatRequest]:
    return [ask(f"t{i}", id=str(i)) for i in range(count)]


def client_of(server: ScriptedServer, **options) -> EndpointClient:
    options.setdefault("retry", FAST)
    return EndpointClient(server.url, model="m", **options)


def one(script, request: ChatRequest | None = None, **options):
    """The answer of a server with this script, and the server."""
    with ScriptedServer(script) as server, client_of(server, **options) as client:
        return client.complete_all([request or ask("hello")])["r"], server


def test_answers_are_matched_by_id_whatever_the_order_and_the_bound_is_kept():
    def later_first(body, number):
        return Reply("re " + prompt_of(body), delay=0.06 if number % 3 == 0 else 0.03)

    with ScriptedServer(later_first) as server, client_of(server, concurrency=7) as client:
        answers = client.complete_all(many(60))
    assert {i: a.text for i, a in answers.items()} == {str(i): f"re t{i}" for i in range(60)}
    assert server.calls == 60
    assert server.most_at_once == 7


def test_everything_handed_in_goes_out_at_once_up_to_the_bound():
    with (
        ScriptedServer(lambda b, n: "y", together=40) as server,
        client_of(server, concurrency=64) as client,
    ):
        client.complete_all(many(40))
    assert server.most_at_once == 40


def test_the_request_reaches_the_server_whole_and_in_the_standard_form():
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    request = ask(
        "x",
        temperature=0.5,
        top_p=0.9,
        seed=4,
        max_tokens=33,
        stop=["END"],
        schema=schema,
        logprobs=2,
    )
    _, server = one(lambda b, n: "y", request, extra_body={"chat_template_kwargs": {"a": False}})
    body = server.bodies[0]
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["json_schema"]["schema"] == schema
    expected = {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 4,
        "max_tokens": 33,
        "stop": ["END"],
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"a": False},
    }
    assert {k: body[k] for k in expected} == expected


@pytest.mark.parametrize(
    ("structured", "field"), [("structured_outputs", "structured_outputs"), ("none", None)]
)
def test_a_schema_is_sent_the_way_the_setting_says(structured, field):
    _, server = one(lambda b, n: "y", ask("x", schema={"type": "object"}), structured=structured)
    assert "response_format" not in server.bodies[0]
    assert (server.bodies[0].get("structured_outputs") is not None) == (field is not None)


def test_a_choice_comes_back_as_the_chosen_text():
    answer, _ = one(lambda b, n: '{"choice": "B"}', ask("x", choices=["A", "B"]))
    assert answer.text == "B"


def test_logprobs_are_read():
    answer, _ = one(
        lambda b, n: Reply("A", logprobs=text_logprobs([("A", -0.1), ("B", -2.0)])),
        ask("x", logprobs=2),
    )
    assert answer.logprobs[0]["top"] == [["A", -0.1], ["B", -2.0]]


@pytest.mark.parametrize(
    "fault",
    [
        Reply("down", status=500),
        Reply("bad gateway", status=502),
        Reply("slow", status=504),
        Reply(raw=b"<html>oops</html>"),
        Reply(raw=b"{}"),
        Reply(raw=b'{"choices": []}'),
        Reply(raw=b"[1]"),
        Reply(drop=True),
        Reply(text=None),
        Reply(text=""),
        Reply(text="  \n"),
        Reply(text=None, reasoning="I think"),
        Reply(delay=3.0),
    ],
)
def test_three_failures_of_any_kind_then_success_make_four_attempts(fault):
    timeout = 0.5 if fault.delay else 30.0
    answer, server = one(lambda b, n: fault if n < 3 else "good", timeout=timeout)
    assert (answer.text, answer.attempts, server.calls) == ("good", 4, 4)


def test_tokens_of_failed_attempts_are_counted():
    answer, _ = one(lambda b, n: Reply("" if n < 2 else "good", usage=(10, 5)))
    assert (answer.prompt_tokens, answer.completion_tokens) == (30, 15)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Reply("broken", status=500), "http-500"),
        (Reply(text=None), "empty"),
        (Reply(raw=b"nonsense"), "malformed"),
        (Reply(delay=3.0), "timeout"),
        (Reply(drop=True), "connection"),
    ],
)
def test_a_request_that_keeps_failing_is_a_failed_answer_and_others_are_not_touched(fault, kind):
    with (
        ScriptedServer(lambda b, n: fault if "t3" in prompt_of(b) else "good") as server,
        client_of(
            server, timeout=0.5 if fault.delay else 30, retry=replace(FAST, attempts=2)
        ) as client,
    ):
        answers = client.complete_all(many(8))
    assert answers.pop("3").error_kind == kind
    assert {a.text for a in answers.values()} == {"good"}
    assert client.accounting.errors == {kind: 1}
    assert client.accounting.total.requests == 8


def test_an_over_long_prompt_fails_alone_and_is_not_repeated():
    def script(body, number):
        if len(prompt_of(body)) > 1000:
            return Reply("This model's maximum context length is 512 tokens", status=400)
        return "ok"

    with ScriptedServer(script) as server, client_of(server) as client:
        answers = client.complete_all(
            [ask("a", id="1"), ask("x" * 1_000_000, id="2"), ask("b", id="3")]
        )
    assert [a.error_kind for a in answers.values()] == [None, "too-long", None]
    assert server.calls == 3


def test_a_cut_answer_is_returned_but_not_usable():
    answer, server = one(lambda b, n: Reply("We need a query about", finish="length"))
    assert answer.truncated
    assert not answer.usable
    assert server.calls == 1


@pytest.mark.parametrize(
    ("word", "usable", "truncated"),
    [
        ("stop", True, False),
        ("eos_token", True, False),
        ("END_TURN", True, False),
        ("length", False, True),
        ("MAX_TOKENS", False, True),
        ("model_length", False, True),
        ("content_filter", False, False),
        ("tool_calls", False, False),
        ("abort", False, False),
    ],
)
def test_every_servers_word_for_the_end_of_an_answer_is_understood(word, usable, truncated):
    answer, _ = one(lambda b, n: Reply("text", finish=word))
    assert (answer.usable, answer.truncated) == (usable, truncated)


def test_concurrency_retries_time_limits_and_budgets_change_no_key():
    keys = {
        request_key(EndpointClient(url, model="m", **options).identity, ask("a"))
        for url, options in (
            ("http://127.0.0.1:1/v1", {}),
            ("http://127.0.0.1:2/v1", {"concurrency": 3}),
            ("http://127.0.0.1:1", {"timeout": 1.0, "retry": FAST, "api_key": "k"}),
            ("http://127.0.0.1:1", {"budget": Budget(calls=1), "price": Price(1, 1)}),
        )
    }
    assert len(keys) == 1


def test_a_cut_answer_without_text_is_no_failure_to_be_repeated():
    answer, server = one(lambda b, n: Reply(None, reasoning="hm, so", finish="length"))
    assert (answer.text, answer.thinking, answer.error, server.calls) == (None, "hm, so", None, 1)


@pytest.mark.parametrize(
    "reply",
    [
        Reply("<think>draft</think>final"),
        Reply("draft</think>final"),
        Reply("final", reasoning="draft"),
    ],
)
def test_thinking_is_parted_from_the_text(reply):
    answer, _ = one(lambda b, n: reply)
    assert (answer.text, answer.thinking) == ("final", "draft")


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_pauses_everybody_and_then_all_are_answered(as_date):
    times = []

    def script(body, number):
        times.append(time.time())
        if number == 0:
            wait = email.utils.formatdate(time.time() + 1.5, usegmt=True) if as_date else "0.3"
            return Reply("slow down", status=429, headers={"Retry-After": wait})
        return "ok"

    with ScriptedServer(script) as server, client_of(server, concurrency=1) as client:
        answers = client.complete_all(many(5))
    assert all(a.usable for a in answers.values())
    assert times[1] - times[0] >= 0.28


def test_a_server_that_only_says_busy_is_given_up_after_the_patience():
    policy = RetryPolicy(first_wait=0.01, max_wait=0.02, patience=0.2)
    with (
        ScriptedServer(lambda b, n: Reply("busy", status=503)) as server,
        client_of(server, retry=policy) as client,
        pytest.raises(LLMError, match="http-503"),
    ):
        client.complete_all(many(4))


def test_a_server_that_asks_to_wait_longer_than_the_patience_is_told_at_once():
    reply = Reply("come back tomorrow", status=429, headers={"Retry-After": "86400"})
    start = time.monotonic()
    with pytest.raises(LLMError, match="come back tomorrow"):
        one(lambda b, n: reply)
    assert time.monotonic() - start < 5


def test_a_server_that_dies_and_returns_loses_nothing(tmp_path: Path):
    server = ScriptedServer(lambda b, n: Reply("re " + prompt_of(b), delay=0.01)).start()
    policy = RetryPolicy(attempts=20, first_wait=0.02, max_wait=0.1, patience=20.0)
    client = CachedClient(client_of(server, concurrency=4, retry=policy), tmp_path / "c.sqlite")

    def restart():
        while server.calls < 20:
            time.sleep(0.002)
        server.stop()
        time.sleep(0.3)
        server.start()

    thread = threading.Thread(target=restart)
    thread.start()
    answers = client.complete_all(many(80))
    thread.join()
    client.close()
    server.stop()
    assert {i: a.text for i, a in answers.items()} == {str(i): f"re t{i}" for i in range(80)}


def test_a_wrong_address_is_told_soon_with_its_name():
    with (
        EndpointClient("http://127.0.0.1:9/v1", model="m", retry=FAST) as client,
        pytest.raises(LLMError, match=r"127\.0\.0\.1:9"),
    ):
        client.complete_all(many(3))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_unknown_model_stops_everything_at_once(status):
    with (
        ScriptedServer(lambda b, n: Reply("no such thing", status=status)) as server,
        client_of(server, concurrency=2) as client,
        pytest.raises(LLMError, match="no such"),
    ):
        client.complete_all(many(50))
    assert server.calls <= 4


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


def test_no_token_reaches_a_server_of_the_users_own_unless_it_was_given(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    _, server = one(lambda b, n: "ok")
    assert "authorization" not in server.headers[0]
    _, server = one(lambda b, n: "ok", api_key="sk-given-to-this-server")
    assert server.headers[0]["authorization"] == "Bearer sk-given-to-this-server"


def test_the_key_appears_in_no_log_error_cache_or_repr(tmp_path: Path, caplog):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "c.sqlite"

    def script(body, number):
        status = {0: 500, 1: 400}.get(number, 200)
        return Reply(
            f"wrong key {SECRET} or hf_{'y' * 30}" if status != 200 else "ok", status=status
        )

    with ScriptedServer(script) as server:
        client = CachedClient(client_of(server, api_key=SECRET, concurrency=1), path)
        answers = client.complete_all(many(3))
        text = repr(client.client) + repr(answers) + caplog.text
        client.close()
        with (
            ScriptedServer(lambda b, n: Reply(f"bad {SECRET}", status=401)) as other,
            client_of(other, api_key=SECRET) as refused,
            pytest.raises(LLMError) as caught,
        ):
            refused.complete_all(many(1))
    text += str(caught.value) + "".join(
        p.read_bytes().decode("latin-1") for p in tmp_path.iterdir()
    )
    assert SECRET not in text
    assert "y" * 30 not in text


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "ftp://h/v1", "http://user:pass@host/v1", "https://h/v1?api_key=sk-1", ""],
)
def test_an_address_that_is_none_or_carries_a_secret_is_refused(url):
    with pytest.raises(ObliqError) as caught:
        EndpointClient(url, model="m")
    assert "pass" not in str(caught.value).replace("password", "")
    assert "sk-1" not in str(caught.value)


def test_ctrl_c_keeps_the_answers_of_calls_under_way(tmp_path: Path):
    path = tmp_path / "c.sqlite"
    with ScriptedServer(lambda b, n: Reply("re " + prompt_of(b), delay=0.15)) as server:
        client = CachedClient(client_of(server, concurrency=8), path)

        def interrupt():
            while server.calls < 20:
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background
        try:
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.complete_all(many(60))
            thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
        client.close()
        paid = server.calls
        assert paid < 40
        again = CachedClient(client_of(server, concurrency=8), path)
        answers = again.complete_all(many(60))
        again.close()
    assert {a.text for a in answers.values()} == {f"re t{i}" for i in range(60)}
    assert server.calls == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "api_key"),
        ({"api_key": SECRET}, "HF_HUB_OFFLINE"),
        ({"provider": "no-such-provider", "api_key": SECRET}, "no-such-provider"),
    ],
)
def test_the_hubs_providers_are_refused_at_once_where_they_cannot_be_asked(options, message):
    started = time.monotonic()
    with (
        EndpointClient(model="org/model", **options) as client,
        pytest.raises(LLMError, match=message) as caught,
    ):
        client.complete_all(many(3))
    assert SECRET not in str(caught.value)
    assert time.monotonic() - started < 5


def test_requests_are_read_only_as_fast_as_they_are_sent():
    read = []

    def source():
        for request in many(500):
            read.append(request.id)
            yield request

    with ScriptedServer(lambda b, n: "ok") as server, client_of(server, concurrency=4) as client:
        answers = client.complete(source())
        next(answers)
        assert len(read) < 50
        assert sum(1 for _ in answers) == 499


def test_two_requests_with_one_id_are_refused():
    with (
        ScriptedServer(lambda b, n: "ok") as server,
        client_of(server) as client,
        pytest.raises(ObliqError, match="'r'"),
    ):
        client.complete_all([ask("a"), ask("b")])


def test_the_client_works_again_after_it_was_closed():
    with ScriptedServer(lambda b, n: "ok") as server:
        client = client_of(server)
        for _ in range(2):
            assert client.complete_all([ask("a")])["r"].text == "ok"
            client.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"messages": []},
        {"messages": [{"role": "bot", "content": "x"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"max_tokens": 0},
        {"temperature": -1},
        {"schema": {}, "choices": ["a"]},
        {"stop": "END"},
    ],
)
def test_a_request_of_wrong_form_is_refused_by_name(wrong):
    values = {"id": "q7", "messages": [{"role": "user", "content": "x"}], **wrong}
    with pytest.raises(ObliqError, match="q7" if values["id"] else "id"):
        ChatRequest(**values)

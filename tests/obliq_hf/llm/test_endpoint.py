"""Chat models behind an address: requests as sent, answers as read, and what is refused."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest
from endpoint_client import FAST, SECRET, ask, client_of, many, one
from llm_server import Reply, ScriptedServer, prompt_of, text_logprobs

from obliq_hf.errors import ObliqError
from obliq_hf.llm import (
    Budget,
    CachedClient,
    ChatRequest,
    EndpointClient,
    LLMError,
    Price,
    request_key,
)

if TYPE_CHECKING:
    from pathlib import Path


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

"""An endpoint that fails, refuses, dies and returns, and an interrupt: nothing is lost."""

from __future__ import annotations

import email.utils
import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from endpoint_client import FAST, ask, client_of, many, one
from llm_server import Reply, ScriptedServer, prompt_of

from obliq_hf.llm import (
    CachedClient,
    EndpointClient,
    LLMError,
    RetryPolicy,
)

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_cut_answer_without_text_is_no_failure_to_be_repeated():
    answer, server = one(lambda b, n: Reply(None, reasoning="hm, so", finish="length"))
    assert (answer.text, answer.thinking, answer.error, server.calls) == (None, "hm, so", None, 1)


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

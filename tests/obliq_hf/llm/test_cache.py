from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.llm import AnswerCache, CachedClient, ChatAnswer, ChatRequest, request_key
from obliq_hf.llm.scripted import ScriptedClient

if TYPE_CHECKING:
    from pathlib import Path


def ask(text: str, **options) -> ChatRequest:
    options.setdefault("id", "r")
    return ChatRequest(messages=[{"role": "user", "content": text}], **options)


def many(count: int, prefix: str = "t") -> list[ChatRequest]:
    return [ask(f"{prefix}{i}", id=str(i)) for i in range(count)]


def test_a_second_run_asks_nothing_and_gives_the_same_texts(tmp_path: Path):
    dice = random.Random(1)
    client = ScriptedClient(lambda request: str(dice.random()))
    first = CachedClient(client, tmp_path / "c.sqlite").complete_all(many(50))
    again = CachedClient(client, tmp_path / "c.sqlite")
    second = again.complete_all(many(50))
    assert [a.text for a in first.values()] == [a.text for a in second.values()]
    assert client.accounting.total.calls == 50
    assert again.accounting.total.cached == 50
    assert again.accounting.total.prompt_tokens == 0


BASE = ask("text", seed=1, temperature=0.5, top_p=0.9, stop=["x"])
IDENTITY = {"model": "m", "revision": "1"}


@pytest.mark.parametrize(
    "other",
    [
        ask("other", seed=1, temperature=0.5, top_p=0.9, stop=["x"]),
        replace(BASE, messages=[{"role": "system", "content": "text"}]),
        replace(BASE, max_tokens=5),
        replace(BASE, temperature=0.6),
        replace(BASE, top_p=0.8),
        replace(BASE, seed=2),
        replace(BASE, schema={"type": "object"}),
        replace(BASE, choices=["a"]),
        replace(BASE, stop=["y"]),
        replace(BASE, logprobs=3),
    ],
)
def test_what_decides_an_answer_changes_the_key(other):
    assert request_key(IDENTITY, other) != request_key(IDENTITY, BASE)


def test_model_revision_and_extra_parameters_change_the_key_but_id_and_purpose_do_not():
    keys = {
        request_key(identity, BASE)
        for identity in (
            IDENTITY,
            {"model": "n", "revision": "1"},
            {"model": "m", "revision": "2"},
            {**IDENTITY, "extra_body": {"a": 1}},
        )
    }
    assert len(keys) == 4
    assert request_key(IDENTITY, replace(BASE, id="z", purpose="p")) in keys


def test_failures_are_not_stored_and_asked_again(tmp_path: Path):
    state = {"broken": True}

    def script(request):
        return ChatAnswer(request.id, error="http-500: no") if state["broken"] else "fine"

    client = CachedClient(ScriptedClient(script), tmp_path / "c.sqlite")
    assert client.complete_all([ask("a")])["r"].error_kind == "http-500"
    state["broken"] = False
    assert client.complete_all([ask("a")])["r"].text == "fine"


def test_a_cut_answer_stays_marked_as_cut(tmp_path: Path):
    client = CachedClient(
        ScriptedClient(lambda r: ChatAnswer(r.id, text="half", finish_reason="length")),
        tmp_path / "c.sqlite",
    )
    for _ in range(2):
        answer = client.complete_all([ask("a")])["r"]
        assert answer.truncated
        assert not answer.usable
    assert answer.cached


def test_equal_requests_under_way_together_are_asked_once_and_both_answered(tmp_path: Path):
    dice = random.Random(2)
    client = ScriptedClient(lambda request: str(dice.random()))
    cached = CachedClient(client, tmp_path / "c.sqlite")
    answers = cached.complete_all([ask("same", id="a"), ask("other", id="b"), ask("same", id="c")])
    assert answers["a"].text == answers["c"].text != answers["b"].text
    assert client.accounting.total.calls == 2


def test_the_first_of_two_processes_decides_what_both_read(tmp_path: Path):
    path = tmp_path / "c.sqlite"
    other = AnswerCache(path)

    def slow(request):
        other.put_many(
            [
                (
                    request_key(client.identity, request),
                    ChatAnswer("x", text="first", finish_reason="stop"),
                )
            ]
        )
        return "second"

    client = CachedClient(ScriptedClient(slow), path)
    assert client.complete_all([ask("a")])["r"].text == "first"


def test_logprobs_and_thinking_come_back_as_they_were(tmp_path: Path):
    cache = AnswerCache(tmp_path / "c.sqlite")
    answer = ChatAnswer(
        "a",
        text="é\u2028 \U0001f600",
        thinking="t",
        finish_reason="stop",
        logprobs=({"token": "A", "logprob": -0.5, "top": [["A", -0.5]]},),
    )
    cache.put_many([("k", answer)])
    stored = cache.get("k", "b")
    assert (stored.text, stored.thinking, stored.logprobs) == (
        answer.text,
        answer.thinking,
        answer.logprobs,
    )
    assert stored.id == "b"


def _write_slowly(path, number, count):
    client = CachedClient(ScriptedClient(lambda r: f"{number}"), path)
    for i in range(count):
        client.complete_all([ask(f"t{i}")])


def test_several_processes_may_write_at_once(tmp_path: Path):
    path = tmp_path / "c.sqlite"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_slowly, args=(path, n, 60)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert len(AnswerCache(path)) == 60


def test_a_kill_at_any_point_keeps_what_was_stored(tmp_path: Path):
    path = tmp_path / "c.sqlite"
    AnswerCache(path).close()
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_write_slowly, args=(path, 0, 100_000))
    worker.start()
    reader = AnswerCache(path)
    while len(reader) < 40:
        time.sleep(0.005)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    kept = len(AnswerCache(path))
    assert kept >= 40
    client = ScriptedClient(lambda r: "new")
    CachedClient(client, path).complete_all(many(kept))
    assert client.accounting.total.calls == 0


def _filled(path: Path, count: int = 400) -> AnswerCache:
    cache = AnswerCache(path)
    cache.put_many(
        [
            (f"key{i}", ChatAnswer("x", text="text " * 100 + str(i), finish_reason="stop"))
            for i in range(count)
        ]
    )
    return cache


def test_a_file_that_is_no_database_is_set_aside_and_told(tmp_path: Path, caplog):
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"not a database, but somebody's notes " * 50)
    cache = AnswerCache(path)
    cache.put_many([("k", ChatAnswer("x", text="t", finish_reason="stop"))])
    assert len(cache) == 1
    aside = [p for p in tmp_path.iterdir() if "damaged" in p.name]
    assert len(aside) == 1
    assert aside[0].read_bytes().startswith(b"not a database")
    assert aside[0].name in caplog.text


@pytest.mark.parametrize("span", [(0.3, 0.35), (0.6, 0.8), (0.95, 1.0)])
def test_damaged_pages_cost_only_the_answers_on_them(tmp_path: Path, span, caplog):
    path = tmp_path / "c.sqlite"
    _filled(path).close()
    data = bytearray(path.read_bytes())
    start, end = int(len(data) * span[0]), int(len(data) * span[1])
    data[start:end] = b"\xa5" * (end - start)
    path.write_bytes(bytes(data))
    cache = AnswerCache(path)
    keys = [f"key{i}" for i in range(400)]
    first = cache.get_many(keys)
    cache.put_many([(k, ChatAnswer("x", text="again", finish_reason="stop")) for k in keys])
    again = cache.get_many(keys)
    assert set(again) == set(keys)
    assert all(again[k] == first[k] for k in first)
    share = 1 - (span[1] - span[0])
    assert sum("again" not in again[k] for k in keys) > 400 * share * 0.5


def test_a_row_whose_text_was_altered_is_asked_again(tmp_path: Path):
    path = tmp_path / "c.sqlite"
    client = ScriptedClient(lambda r: "right")
    CachedClient(client, path).complete_all(many(3))
    db = sqlite3.connect(path)
    db.execute("UPDATE answers SET body = replace(body, 'right', 'wrong') WHERE number = 2")
    db.commit()
    db.close()
    answers = CachedClient(client, path).complete_all(many(3))
    assert {a.text for a in answers.values()} == {"right"}
    assert client.accounting.total.calls == 4


def test_a_full_disk_stops_with_a_clear_error_and_keeps_what_is_stored(tmp_path: Path):
    path = tmp_path / "c.sqlite"
    client = ScriptedClient(lambda r: "x" * 3000)
    small = CachedClient(client, AnswerCache(path, max_bytes=80_000))
    with pytest.raises(ObliqError, match="make room") as caught:
        small.complete_all(many(200))
    assert str(path) in str(caught.value)
    small.close()
    stored = len(AnswerCache(path))
    assert stored > 0
    calls = client.accounting.total.calls
    CachedClient(client, path).complete_all(many(200))
    assert client.accounting.total.calls - calls <= 200 - stored


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path):
    with pytest.raises(ObliqError, match="folder"):
        AnswerCache(tmp_path)


def test_twenty_thousand_warm_answers_need_no_call(tmp_path: Path):
    cache = AnswerCache(tmp_path / "c.sqlite")
    client = CachedClient(ScriptedClient(lambda r: "x" * 200, batch=1000), cache)
    requests = many(20_000, "some document text " * 40)
    client.complete_all(requests)
    asked = client.client.accounting.total.calls
    assert len(client.complete_all(requests)) == 20_000
    assert client.client.accounting.total.calls == asked == 20_000

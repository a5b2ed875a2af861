from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from batch_service import answer_requests
from llm_server import Reply, ScriptedServer, oblique_reply, prompt_of
from query_corpus import (
    FAST,
    TASK,
    corpus_of,
    everything_is_accounted_for,
    stage_of,
)

from dataset_builders.synthetic_queries import (
    synthesize,
)
from obliq_hf.files import hash_files
from obliq_hf.llm import BatchPending, Budget, CachedClient, EndpointClient, LLMError, Price
from obliq_hf.llm.batch_files import BatchFileClient
from obliq_hf.records import Corpus

if TYPE_CHECKING:
    from pathlib import Path


def test_a_spent_budget_ends_cleanly_and_a_larger_one_goes_on(tmp_path: Path):
    corpus = corpus_of(20)
    with ScriptedServer(lambda body, n: oblique_reply(body)) as server:
        for calls, total in ((15, 15), (60, 40)):
            client = CachedClient(
                EndpointClient(server.url, model="m", budget=Budget(calls=calls), concurrency=4),
                tmp_path / "c.sqlite",
            )
            report = synthesize(TASK, corpus, client, tmp_path / "out")
            everything_is_accounted_for(tmp_path / "out", corpus)
            client.close()
            assert server.calls == total
    assert report.written == 20


def _synthesize_until_killed(url: str, root: Path, count: int) -> None:
    client = CachedClient(EndpointClient(url, model="m", concurrency=4), root / "c.sqlite")
    synthesize(TASK, corpus_of(count), client, root / "out")


def test_after_a_kill_no_answered_call_is_repeated_and_the_result_is_the_same(tmp_path: Path):
    def script(body, number):
        return Reply(oblique_reply(body), delay=0.01)

    with ScriptedServer(script) as server:
        context = multiprocessing.get_context("spawn")
        worker = context.Process(
            target=_synthesize_until_killed, args=(server.url, tmp_path / "killed", 60)
        )
        worker.start()
        while server.calls < 45 and worker.is_alive():
            time.sleep(0.002)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        time.sleep(0.3)
        before = server.calls
        from obliq_hf.llm import AnswerCache

        stored = len(AnswerCache(tmp_path / "killed" / "c.sqlite"))
        assert 0 < stored < 120
        _synthesize_until_killed(server.url, tmp_path / "killed", 60)
        assert server.calls - before == 120 - stored
        _synthesize_until_killed(server.url, tmp_path / "whole", 60)
    assert hash_files(tmp_path / "killed" / "out") == hash_files(tmp_path / "whole" / "out")


def test_a_server_that_is_lost_stops_the_run_and_what_was_paid_for_is_kept(tmp_path: Path):
    corpus = corpus_of(20)
    server = ScriptedServer(lambda body, n: oblique_reply(body)).start()
    policy = replace(FAST, patience=0.3)

    def client():
        return CachedClient(
            EndpointClient(server.url, model="m", concurrency=2, retry=policy),
            tmp_path / "c.sqlite",
        )

    first = client()
    real = server.script

    def dying(body, number):
        return Reply(drop=True, delay=0.01) if number >= 12 else real(body, number)

    server.script = dying
    try:
        report = synthesize(TASK, corpus, first, tmp_path / "out")
    except LLMError:
        report = None
    first.close()
    assert report is None or report.failed
    server.script = real
    before = server.calls
    second = client()
    report = synthesize(TASK, corpus, second, tmp_path / "out")
    second.close()
    server.stop(wait=False)
    assert report.written == 20
    assert server.calls - before == 40 - 12


def test_both_stages_run_through_batch_files_and_the_price_is_reported(tmp_path: Path):
    corpus = corpus_of(12)
    folder = tmp_path / "batch"

    def run():
        batch = BatchFileClient(folder, model="m", price=Price(1.0, 2.0))
        client = CachedClient(batch, tmp_path / "c.sqlite")
        return synthesize(TASK, corpus, client, tmp_path / "out")

    for number in (1, 2):
        with pytest.raises(BatchPending, match="12 requests"):
            run()
        answer_requests(folder, number, oblique_reply)
    assert run().written == 12
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert report["cost"] == pytest.approx(24 * (10 + 2 * 5) / 1e6)


def test_a_document_too_long_for_a_batch_is_shortened_in_the_next_file(tmp_path: Path):
    texts = ["A short text about nothing at all.", "word " * 3000, "Another short text."]
    corpus, folder = Corpus(["a", "b", "c"], texts), tmp_path / "batch"

    def script(body):
        if len(prompt_of(body)) > 10_000:
            return 400, "This model's maximum context length is 2000 tokens"
        return oblique_reply(body)

    asked = []
    while True:
        client = CachedClient(BatchFileClient(folder, model="m"), tmp_path / "c.sqlite")
        try:
            report = synthesize(TASK, corpus, client, tmp_path / "out")
            break
        except BatchPending:
            bodies = answer_requests(folder, len(asked) + 1, script)
            asked.append(sorted(stage_of(body) for body in bodies))
    assert asked == [["a", "a", "a"], ["a", "b", "b"], ["b"]]
    assert (report.written, report.cut_documents) == (3, 1)

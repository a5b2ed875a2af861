from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from query_corpus import TASK, corpus_of, writer

from dataset_builders.diagnostics.query_report import report_on
from dataset_builders.query_flow import Outcome, Sampling
from dataset_builders.synthetic_queries import synthesize
from obliq_hf.llm.scripted import ScriptedClient

if TYPE_CHECKING:
    from pathlib import Path


def test_a_report_on_a_model_without_a_price_says_nothing_of_the_cost(written):
    root, _, _ = written
    assert "cost" not in json.loads((root / "queries" / "report.json").read_text("utf-8"))
    assert "cost" not in (root / "queries" / "report.md").read_text("utf-8")


def test_answers_with_several_faults_are_one_answer_each_in_the_report(tmp_path: Path):
    def script(request):
        if request.purpose == "stage_b" and len(request.messages) == 2:
            return json.dumps({"query": "@john in 1984"})  # too short, a handle, a number
        return writer(request)

    report = synthesize(TASK, corpus_of(4), ScriptedClient(script), tmp_path)
    assert sum(report.problems.values()) == 12
    assert (report.faulty, sum(report.calls.values())) == (4, 12)
    told = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert told["refused_share"] == pytest.approx(1 / 3, abs=1e-4)
    assert "| answers with a fault | 33.3% |" in (tmp_path / "report.md").read_text("utf-8")


@pytest.mark.parametrize(("attempts", "faulty"), [(1, 0), (2, 5)])
def test_a_copy_counts_as_a_fault_only_where_it_was_asked_anew(tmp_path: Path, attempts, faulty):
    same = json.dumps(
        {
            "query": "Statements by those who hold that trying is of no use and that "
            "all will stay as it has been before, come what may."
        }
    )

    def script(request):
        first = request.purpose == "stage_b" and len(request.messages) == 2
        return same if first else writer(request)

    report = synthesize(
        TASK, corpus_of(6), ScriptedClient(script), tmp_path, sampling=Sampling(attempts=attempts)
    )
    assert report.problems == {"copy-of-query": 5}
    assert report.faulty == faulty


def test_what_an_earlier_version_stored_without_the_count_of_faulty_answers_is_read(
    written, tmp_path: Path
):
    root, corpus, _ = written
    stored = json.loads(Outcome(3, query="who", problems={"number": 2}).to_json())
    del stored["faulty"]
    assert Outcome.from_json(json.dumps(stored)).problems == {"number": 2}
    old = tmp_path / "old"
    shutil.copytree(root / "queries", old)
    info = json.loads((old / "queries.json").read_text("utf-8"))
    del info["counts"]["faulty"]
    (old / "queries.json").write_text(json.dumps(info), "utf-8")
    assert "refused_share" not in report_on(old, corpus=corpus)
    assert "with a fault" not in (old / "report.md").read_text("utf-8")

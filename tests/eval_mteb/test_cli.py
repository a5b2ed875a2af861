from __future__ import annotations

import json
import subprocess
import sys

import pytest
from llm_server import ScriptedServer, prompt_of

from eval_mteb.results import read_results
from obliq_hf.cli import main
from obliq_hf.files import read_json


def test_evaluate_compare_and_report_work_on_a_benchmark_tree(
    bench, tiny_model_dir, tmp_path, capsys
):
    out = tmp_path / "eval"
    words = [
        "evaluate",
        "--data",
        str(bench),
        "--model",
        str(tiny_model_dir),
        "--baseline",
        "bm25,bm25:plain",
        "--out",
        str(out),
    ]
    assert main([*words, "--fuse", "bm25+bm25-plain"]) == 0
    printed = capsys.readouterr().out
    for task in ("math", "math-pooled", "twitter", "twitter-pooled"):
        assert task in printed
        assert (out / task / "fusion-bm25-bm25-plain" / "per_query.json").is_file()
    assert main(["compare", str(out), str(out), "--json", str(tmp_path / "rows.json")]) == 0
    printed = capsys.readouterr().out
    assert "note: math, left out: 1 queries without a judgment in this split" in printed
    assert "note: math, bm25 − bm25: only 4 queries" in printed
    assert {tuple(row["ci95"]) for row in read_json(tmp_path / "rows.json")} == {(0.0, 0.0)}
    assert main(["report", str(out), "--resamples", "200"]) == 0
    assert (out / "report.md").is_file()


def test_the_baselines_that_ask_a_language_model_and_the_teacher_run_from_the_command_line(
    folder, tmp_path
):
    def script(body, number):
        if '"order"' in prompt_of(body):
            return json.dumps({"order": [2, 1]})
        found = {"attribute": "war", "notes": "seen", "search_text": "war and the horse"}
        return json.dumps(found)

    out = tmp_path / "eval"
    with ScriptedServer(script) as server:
        words = ["evaluate", "--data", str(folder), "--tasks", "writing", "--judgments", "gold"]
        words += ["--baseline", "bm25,teacher,rewriter,multihop,oracle", "--out", str(out)]
        words += ["--llm", server.url, "--llm-model", "tiny"]
        words += ["--fuse", "bm25+teacher", "--fuse-method", "rrf"]
        assert main(words) == 0
        asked = server.calls
        assert main(words) == 0
        assert server.calls == asked, "what is measured is not measured again"
    systems = read_results(out)["writing"].systems
    assert set(systems) == {
        "bm25",
        "teacher",
        "rewriter",
        "multihop",
        "oracle",
        "fusion-rrf-bm25-teacher",
    }
    assert [n for n, s in systems.items() if s.ceiling] == ["oracle"]
    calls = {n: s.cost["llm"]["calls"] for n, s in systems.items() if "llm" in s.cost}
    assert set(calls) == {"rewriter", "multihop", "oracle"}
    assert sum(calls.values()) == asked
    # reciprocal ranks fused by hand
    run = systems["fusion-rrf-bm25-teacher"].run["q1"]
    expected: dict[str, float] = {}
    for part in ("bm25", "teacher"):
        for rank, document in enumerate(systems[part].run["q1"], 1):
            expected[document] = expected.get(document, 0) + 1 / (60 + rank)
    for document, score in run.items():
        assert score == pytest.approx(expected[document], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--baseline", "bm52"], "did you mean 'bm25'"),
        (["--baseline", "bm25:english-ish"], "no BM25 setting"),
        (["--baseline", "bm25", "--tasks", "maths"], "did you mean 'math'"),
        (["--baseline", "bm25", "--fuse", "bm25+nothing"], "no system 'nothing'"),
        (["--baseline", "bm25", "--fuse-method", "rff"], "did you mean 'rrf'"),
        ([], "nothing to measure"),
        (["--model", "./nowhere"], "no such model folder"),
    ],
)
def test_wrong_use_is_one_line_and_leaves_nothing(bench, tmp_path, capsys, words, message):
    assert main(["evaluate", "--data", str(bench), "--out", str(tmp_path / "e"), *words]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "e").exists()


def test_importing_eval_mteb_and_its_commands_loads_nothing_heavy():
    code = (
        "import sys, eval_mteb, eval_mteb.cli\n"
        "heavy = {'mteb', 'torch', 'datasets', 'matplotlib', 'transformers', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

from __future__ import annotations

import subprocess
import sys

import pytest

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
    assert {tuple(row["ci95"]) for row in read_json(tmp_path / "rows.json")} == {(0.0, 0.0)}
    assert main(["report", str(out), "--resamples", "200"]) == 0
    assert (out / "report.md").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--baseline", "bm52"], "did you mean 'bm25'"),
        (["--baseline", "bm25:english-ish"], "no BM25 setting"),
        (["--baseline", "bm25", "--tasks", "maths"], "did you mean 'math'"),
        (["--baseline", "bm25", "--fuse", "bm25+nothing"], "no system 'nothing'"),
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

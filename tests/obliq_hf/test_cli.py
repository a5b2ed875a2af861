from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time

import pytest

from obliq_hf import cli
from obliq_hf.errors import ObliqError


def test_help_names_every_command(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in cli.COMMANDS)


def test_an_unknown_command_is_refused_with_the_nearest_name(capsys):
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_shows_its_own_help(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert f"obliq {name}" in capsys.readouterr().out


def test_a_deliberate_error_is_one_line_without_a_traceback(monkeypatch, capsys):
    def broken() -> None:
        """Fail."""
        raise ObliqError("row 3 of corpus.jsonl has no text")

    module = type(sys)("obliq_test_commands")
    module.broken = broken
    monkeypatch.setitem(sys.modules, "obliq_test_commands", module)
    monkeypatch.setitem(cli.COMMANDS, "broken", ("obliq_test_commands:broken", "fails"))
    assert cli.main(["broken"]) == 1
    assert capsys.readouterr().err == "obliq broken: row 3 of corpus.jsonl has no text\n"


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing_half_written(tmp_path):
    source = tmp_path / "source.jsonl"
    rows = [json.dumps({"_id": f"d{i}", "text": "word " * 400}) for i in range(400)]
    source.write_text("\n".join(rows), encoding="utf-8")
    code = (
        "import resource, signal, sys; from obliq_hf.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "sys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", code, "corpus", "jsonl", str(source), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.jsonl"]


def test_importing_the_library_is_fast_and_loads_neither_torch_nor_mteb():
    code = (
        "import sys, time; t = time.perf_counter(); import obliq_hf; s = time.perf_counter() - t;"
        "heavy = {'torch', 'transformers', 'datasets', 'mteb', 'vllm', 'numpy'} & set(sys.modules);"
        "print(s); assert not heavy, heavy"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 0.25


def test_help_of_the_command_line_starts_fast():
    def once() -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "obliq_hf.cli", "--help"], check=True, capture_output=True
        )
        return time.perf_counter() - start

    assert min(once() for _ in range(3)) < 0.7


def test_no_command_module_imports_torch_before_it_runs():
    modules = sorted({target.partition(":")[0] for target, _ in cli.COMMANDS.values()})
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules!r}];"
        "heavy = {'torch', 'transformers', 'datasets', 'mteb'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(importlib.util.find_spec(m) for m in modules)

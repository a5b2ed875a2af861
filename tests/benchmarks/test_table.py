"""The table of benchmarks; what it measures is never a test."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from obliq_hf.errors import ObliqError

ROOT = Path(__file__).resolve().parents[2]


def test_an_aim_is_judged_by_the_ratio_or_by_the_upper_end_of_its_interval(load):
    table = load("benchmarks.table")
    row = table.Row(
        "step", "8 steps", 2.04, {"plain": 2.0, "other": 1.0}, {"plain": 1.03, "other": 3.0},
        {"plain": (1.0, 1.05)}, growth=(2.0, 2.3), growth_beside=(1.9, 2.0), note="paired",
    )  # fmt: skip
    assert row.met("plain") is False
    assert row.met("other") is True
    assert table.Row("x", "1", 1.0, {"y": 2.0}).met("y") is None
    text = table.markdown([row])
    assert "1.02 [1.000, 1.050]" in text
    assert "**missed**" in text
    assert "2.00, 2.30 (beside: 1.90, 2.00) **missed**" in text
    assert text.count("\n| ") == 3
    assert row.to_dict()["ratios"] == {"plain": 1.02, "other": 2.04}
    assert row.missed == ["step, beside plain", "step, growth"]


def test_growth_is_judged_by_the_last_doubling_beside_the_library_under_it(load):
    table = load("benchmarks.table")

    def judged(ours, theirs, **tolerance):
        row = table.Row("a", "4", 1.0, {"it": 1.0}, growth=ours, growth_beside=theirs)
        return row.grows_no_faster(**tolerance)

    assert judged((2.5, 2.1), (2.0, 2.0)) is True
    assert judged((1.5, 2.3), (2.0, 2.0)) is False
    assert judged((1.5, 2.3), (2.0, 2.0), tolerance=0.25) is True
    assert judged((1.5, 1.5), (2.0, 2.0)) is True
    assert judged((), ()) is None
    assert judged((2.0, 2.0), ()) is None
    steady = table.Row("a", "4", 1.0, {"it": 1.0}, {"it": 1.0}, growth=(2.0,), growth_beside=(2.0,))
    assert steady.missed == []
    assert "(beside: 2.00) met" in table.markdown([steady])


def test_a_module_that_cannot_measure_leaves_the_rows_of_the_others(load, monkeypatch, capsys):
    main, table = load("benchmarks.__main__"), load("benchmarks.table")

    def fails(*, scale):
        importlib.import_module("no_such_engine")

    def measured(*, scale):
        return [table.Row(f"at {scale}", "4", 1.0, {"it": 2.0}, {"it": 1.0}, {}, (3.0,), (2.0,))]

    modules = {"first": fails, "second": measured}
    for name, measure in modules.items():
        monkeypatch.setitem(sys.modules, f"bench_{name}", SimpleNamespace(measure=measure))
    monkeypatch.setattr(main, "MODULES", {name: f"bench_{name}" for name in modules})
    known = {"numpy": "2", "rank-bm25": table.NOT_INSTALLED}
    monkeypatch.setattr(main, "environment", lambda: known)
    for name in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    assert main.main(["--scale", "0.5"]) == 1
    said = capsys.readouterr()
    assert "| at 0.5 |" in said.out
    assert "first: not measured: No module named 'no_such_engine'" in said.out
    assert "not installed, so not measured beside ours: rank-bm25" in said.out
    assert "missed: at 0.5, growth" in said.err
    assert "beside it" not in said.err


@pytest.mark.parametrize("error", [ImportError("no such engine"), ObliqError("no such model")])
def test_a_module_that_measured_nothing_is_missed(load, monkeypatch, capsys, error):
    main = load("benchmarks.__main__")

    def fails(*, scale):
        raise error

    monkeypatch.setitem(sys.modules, "bench_fails", SimpleNamespace(measure=fails))
    monkeypatch.setattr(main, "MODULES", {"fails": "bench_fails"})
    for name in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    assert main.main([]) == 1
    said = capsys.readouterr()
    assert f"- fails: not measured: {error}" in said.out
    assert "missed: fails, not measured" in said.err


def test_growth_is_from_each_size_to_the_next_and_ours_is_the_first(load):
    table = load("benchmarks.table")
    done: list[tuple[str, int]] = []

    def make(size: int) -> dict[str, Any]:
        return {label: lambda label=label: done.append((label, size)) for label in ("ours", "it")}

    row = table.by_size("a", [1, 2, 4], make, unit="things", rounds=2)
    assert done == [
        (label, size) for size in (1, 2, 4) for _ in range(2) for label in ("ours", "it")
    ]
    assert row.size == "4 things"
    assert list(row.beside) == ["it"]
    assert len(row.growth) == len(row.growth_beside) == 2


def test_every_module_of_the_table_is_there_and_measures(load):
    modules = load("benchmarks.__main__").MODULES
    for module in modules.values():
        file = ROOT / Path(*module.split(".")).with_suffix(".py")
        assert "def measure(*, scale" in file.read_text(encoding="utf-8"), module


def test_the_check_for_gpus_says_so_and_ends_where_there_is_none(load, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert load("benchmarks.gpu_check").main([]) == 0
    assert "no CUDA device" in capsys.readouterr().out
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_the_check_for_gpus_measures_the_share_that_the_dry_run_assumes(load):
    from training_recipes.architecture import DEVICES

    check = load("benchmarks.gpu_check")
    rows = list(check.measure(check.SMALL, device="cpu"))
    assert [(row["what"], row.get("length")) for row in rows[1:10]] == [
        (what, length)
        for what in ("LoRA step", "LoRA step, checkpointing", "encode")
        for length in (128, 512, 1024)
    ]
    assert [row["rows"] for row in rows[10:]] == [40, 512]
    peak = rows[0]["tflops"] * 1e12 / DEVICES["cpu"].flops
    for row in rows[1:10]:
        repeated = 1.5 if "checkpointing" in row["what"] else 1.0
        assert row["utilisation"] == pytest.approx(row["mfu"] * peak * repeated)
    text = check._table(rows)
    assert "of the vendor's peak" in text
    assert text.count("\n") == len(rows) + 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla T4", None),
    ],
)  # fmt: skip
def test_a_device_is_known_by_the_name_that_cuda_gives_it(load, monkeypatch, name, kind):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: name)
    found = load("benchmarks.gpu_check")._known_device("cuda")
    assert (found and found.name) == kind


def test_the_check_for_gpus_plans_memory_without_the_bases_files(load):
    check = load("benchmarks.gpu_check")
    architecture = check._planned_architecture()
    with_it, without = (check._planned(architecture, 16, 512, on) for on in (True, False))
    assert 6 < with_it < without


def test_the_check_for_gpus_finds_the_best_documents_block_by_block(load, monkeypatch):
    import torch

    check = load("benchmarks.gpu_check")
    monkeypatch.setattr(check, "_BLOCK", 7)
    monkeypatch.setattr(check, "_TOP", 5)
    generator = torch.Generator().manual_seed(0)
    documents = torch.randn(30, 8, generator=generator)
    queries = torch.randn(3, 8, generator=generator)
    expected = (queries @ documents.T).topk(5, dim=1).indices
    assert torch.equal(check._search(queries, documents), expected)


def test_the_generated_index_holds_the_vectors_that_the_least_work_reads(load, tmp_path):
    vectors = load("benchmarks.vectors")
    index = vectors.write_index(tmp_path / "i", 50, 16, shard_rows=20)
    assert len(index) == 50
    vectors.read_and_multiply(tmp_path / "i", 16, np.ones((2, 16), dtype=np.float32))

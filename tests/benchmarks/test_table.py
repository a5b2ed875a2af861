"""The table of benchmarks; what it measures is never a test."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the checkout's ``benchmarks``, which is no part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))

    def imported(name: str) -> ModuleType:
        return importlib.import_module(name)

    return imported


def test_an_aim_is_judged_by_the_ratio_or_by_the_upper_end_of_its_interval(load):
    table = load("benchmarks.table")
    row = table.Row(
        "step", "8 steps", 2.04, {"plain": 2.0, "other": 1.0}, {"plain": 1.03, "other": 3.0},
        {"plain": (1.0, 1.05)}, growth=(2.0, 2.1), growth_beside=(1.9, 2.0), note="paired",
    )  # fmt: skip
    assert row.met("plain") is False
    assert row.met("other") is True
    assert table.Row("x", "1", 1.0, {"y": 2.0}).met("y") is None
    text = table.markdown([row])
    assert "1.02 [1.000, 1.050]" in text
    assert "**missed**" in text
    assert "2.00, 2.10 (beside: 1.90, 2.00)" in text
    assert text.count("\n| ") == 3
    assert row.to_dict()["ratios"] == {"plain": 1.02, "other": 2.04}


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
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert load("benchmarks.gpu_check").main([]) == 0
    assert "no CUDA device" in capsys.readouterr().out


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

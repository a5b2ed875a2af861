"""The checkout's ``benchmarks``, which are no part of the package."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the checkout's ``benchmarks``."""
    monkeypatch.syspath_prepend(str(ROOT))

    def imported(name: str) -> ModuleType:
        return importlib.import_module(name)

    return imported

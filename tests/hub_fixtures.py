"""Fixtures of tests that publish: a running Hub, and stock clients in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import TYPE_CHECKING

import pytest
from hub_server import LocalHub, running_hub
from hub_state import OWNER, STRANGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BASE = "acme/base@0123456789abcdef0123456789abcdef01234567"
NAME = "acme/student"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    """A Hub of one test's own, at ``hub.url``."""
    with running_hub(tmp_path / "hub-store") as served:
        yield served


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clients in this process reach the loopback address."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def client_environment(url: str | None, home: Path, token: str | None = OWNER) -> dict[str, str]:
    """The environment of a fresh process: an empty cache, this Hub (or none), this token."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING", "PYTEST", "TRANSFORMERS_"))
    }
    kept |= {
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        "STRANGER": STRANGER,
    }
    if url:
        kept["HF_ENDPOINT"] = url
    else:
        kept["HF_HUB_OFFLINE"] = "1"
    if token:
        kept["HF_TOKEN"] = token
    return kept


@pytest.fixture
def fresh_process(tmp_path: Path) -> Callable[..., str]:
    """Run Python in a fresh process with an empty cache; gives what it printed.

    The process starts in ``cwd`` (default: an empty folder), so it cannot import this project
    from the working folder.
    """
    count = 0

    def run(
        code: str | list[str],
        *,
        url: str | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        fails: bool = False,
        token: str | None = OWNER,
    ) -> str:
        nonlocal count
        count += 1
        home = tmp_path / f"home-{count}"
        home.mkdir()
        words = ["-c", code] if isinstance(code, str) else code
        done = subprocess.run(
            [sys.executable, *words],
            env=client_environment(url, home, token) | (env or {}),
            cwd=cwd or home,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=240,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    return run


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the Hub's client would have waited between two attempts; it does not."""
    seconds: list[float] = []
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http, "time", types.SimpleNamespace(sleep=seconds.append))
    return seconds


@pytest.fixture
def on_the_hub(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """The Hub of the tests as the one that the environment names."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", OWNER)
    return hub


def copy_of(hub: LocalHub, name: str, revision: str, folder: Path) -> Path:
    """A revision of a model repository as a folder."""
    place = folder / revision[:12].replace("/", "-")
    for path in hub.repo(name, "model").files(revision):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(hub.content(name, path, "model", revision))
    return place

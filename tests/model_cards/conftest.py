"""The fixtures of tests that publish a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hub_fixtures import fresh_process, hub, online, waits
from hub_state import OWNER
from run_folder import make_run

from model_cards.publishing import PublishOptions

if TYPE_CHECKING:
    from hub_server import LocalHub

__all__ = ["fresh_process", "hub", "online", "waits"]


@pytest.fixture(scope="session")
def made_run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    probes = make_run(folder, tiny_model_dir)
    np.save(folder / "probe.npy", probes["vectors"], allow_pickle=False)
    return folder


@pytest.fixture
def run(made_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_run, tmp_path / "runs" / "quickstart"))


@pytest.fixture(params=["folder", "hub"])
def options(request: pytest.FixtureRequest, hub: LocalHub, tmp_path: Path) -> PublishOptions:
    if request.param == "folder":
        return PublishOptions(to=f"folder:{tmp_path / 'laid-out'}", licence="apache-2.0")
    return PublishOptions(endpoint=hub.url, token=OWNER, licence="apache-2.0")


@pytest.fixture
def to_folder(tmp_path: Path) -> PublishOptions:
    return PublishOptions(to=f"folder:{tmp_path / 'laid-out'}", licence="apache-2.0")

"""The fixtures of tests that publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dataset_pushes import NAME
from hub_fixtures import fresh_process, hub, online, waits
from hub_state import OWNER

from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.remote import RemoteRepository

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub

    from obliq_hf.hub.repository import Repository

__all__ = ["fresh_process", "hub", "online", "remote", "repository", "waits"]


@pytest.fixture
def remote(hub: LocalHub, waits: list[float]) -> RemoteRepository:
    return RemoteRepository(NAME, "dataset", endpoint=hub.url, token=OWNER, sleep=waits.append)


@pytest.fixture(params=["folder", "hub"])
def repository(
    request: pytest.FixtureRequest, tmp_path: Path, hub: LocalHub, waits: list[float]
) -> Repository:
    if request.param == "folder":
        return FolderRepository(tmp_path / "laid-out", NAME, "dataset")
    return RemoteRepository(NAME, "dataset", endpoint=hub.url, token=OWNER, sleep=waits.append)

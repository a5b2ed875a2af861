"""A folder laid out as a Hub: whole states only, whoever writes or is killed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from dataset_pushes import LOAD, NAME, config, header, push

from obliq_hf.hub import HubError
from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.repository import Change, Commit, LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("online")


def test_a_look_at_a_folder_never_mixes_two_commits(tmp_path: Path) -> None:
    repository = FolderRepository(tmp_path, NAME, "dataset")
    repository.create(private=None)
    states = [{f"{letter}/{i}" for i in range(20)} | {f"{letter}.md"} for letter in "ab"]
    seen = []

    def look() -> None:
        reader = FolderRepository(tmp_path, NAME, "dataset")
        while not done.is_set():
            snapshot = reader.snapshot()
            assert snapshot is not None
            seen.append(set(snapshot.files))

    done = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(look) for _ in range(2)]
        try:
            for i in range(40):
                now = repository.snapshot()
                assert now is not None
                files = [LocalFile(path, b"x") for path in sorted(states[i % 2])]
                repository.commit(Change("m", files, sorted(now.files)), parent=now.commit)
        finally:
            done.set()
        for one in looks:
            one.result()
    assert any(found == states[0] for found in seen)
    assert all(found in (*states, set()) for found in seen)


def test_tags_given_at_once_are_all_kept(tmp_path: Path) -> None:
    def one(i: int) -> None:
        repository = FolderRepository(tmp_path, NAME, "dataset")
        repository.create(private=None)
        repository.tag(f"v{i}", Commit("", "", ""))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(16)))
    assert set(FolderRepository(tmp_path, NAME, "dataset").tags()) == {f"v{i}" for i in range(16)}


def test_a_full_disk_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = FolderRepository(tmp_path, NAME, "dataset")
    push(repository, config("a"))
    before = {p: p.read_bytes() for p in repository.folder.rglob("*") if p.is_file()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("obliq_hf.hub.folder.shutil.copyfile", full)
    with pytest.raises(HubError, match="no space is left"):
        push(repository, config("a", rows=9))
    assert {p: p.read_bytes() for p in repository.folder.rglob("*") if p.is_file()} == before
    assert not list(repository.folder.parent.glob(".*.tmp"))


def test_a_kill_between_two_renames_is_mended(tmp_path: Path) -> None:
    repository = FolderRepository(tmp_path, NAME, "dataset")
    push(repository, config("a"))
    repository.folder.rename(repository.folder.with_name(".pairs.0123abcd.old"))
    push(repository, config("b"))
    assert {c["config_name"] for c in header(repository)["configs"]} == {"a", "b"}
    assert not list(repository.folder.parent.glob(".pairs*"))


def test_a_folder_loads_under_its_hub_name_from_the_root(
    tmp_path: Path, fresh_process: Callable[..., str]
) -> None:
    push(FolderRepository(tmp_path / "h", NAME, "dataset"), config("writing-k3"))
    arguments = ["-c", LOAD, NAME, "writing-k3", "train", "{}"]
    assert fresh_process(arguments, cwd=tmp_path / "h").strip().count("text") == 3

"""Pushes to a Hub that fails, and several pushes at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dataset_pushes import NAME, config, files, header, push
from hub_state import OWNER

from obliq_hf.hub import HubError
from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.remote import RemoteRepository

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub


pytestmark = pytest.mark.usefixtures("online")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "whoami"),
        ("GET", "/api/datasets/acme/pairs"),
        ("POST", "/api/repos/create"),
        ("POST", "validate-yaml"),
        ("POST", "/preupload/"),
        ("POST", "objects/batch"),
        ("PUT", "/__lfs__/"),
        ("POST", "/commit/"),
        ("POST", "/tag/"),
    ],
)
@pytest.mark.parametrize("status", [429, 500, 504])
def test_a_busy_hub_is_waited_for(
    hub: LocalHub, remote: Any, waits: list[float], method: str, path: str, status: int
) -> None:
    hub.fail(method, path, times=2, status=status, headers={"Retry-After": "7"}, body=b"<html>")
    assert push(remote, config("a")).changed
    assert len(waits) == 2
    if "validate" not in path:  # there the client hides what it was asked to wait
        assert all(wait in (7, 8) for wait in waits), waits
    assert len(hub.repo(NAME).history()) == 2


def test_a_commit_that_meets_another_is_made_again(hub: LocalHub, remote: Any) -> None:
    hub.fail("POST", "/commit/", times=2, status=409)
    assert push(remote, config("a")).changed


def test_a_date_to_come_back_at_is_obeyed(hub: LocalHub, remote: Any, waits: list[float]) -> None:
    late = {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}
    hub.fail("POST", "/commit/", status=429, headers=late)
    assert push(remote, config("a")).changed
    assert max(waits) == 300.0


def test_a_hub_that_stays_busy_is_named_with_what_was_done(hub: LocalHub, remote: Any) -> None:
    hub.fail("POST", "/commit/", times=99, status=429)
    with pytest.raises(HubError, match=f"dataset acme/pairs at {hub.url}: could not commit") as e:
        push(remote, config("a"))
    assert "run the same command again" in str(e.value)


def test_a_drop_in_the_third_file_loses_nothing(hub: LocalHub, remote: Any) -> None:
    push(remote, config("old"))
    before = hub.repo(NAME).history()
    three = [config(name, text=[name] * 3) for name in ("a", "b", "c")]
    hub.fail("PUT", "/__lfs__/", times=99, drop=True, after=2)
    with pytest.raises(HubError, match=r"could not upload to it.*run the same command again"):
        push(remote, *three)
    assert hub.repo(NAME).history() == before
    hub.faults.clear()
    sent = len(hub.log)
    assert push(remote, *three).changed
    uploads = [line for line in hub.lines(sent) if line.startswith("PUT")]
    assert len(uploads) == 1, "the two that arrived are not sent again"


def test_a_drop_that_passes_is_not_even_noticed(hub: LocalHub, remote: Any) -> None:
    hub.fail("PUT", "/__lfs__/", times=2, drop=True)
    assert push(remote, config("a"), config("b", rows=2), config("c", rows=1)).changed


def test_a_commit_whose_answer_is_lost_is_not_made_twice(hub: LocalHub, remote: Any) -> None:
    original = hub.commit

    async def commit_and_drop(request: Any, **names: str) -> Any:
        await original(request, **names)
        hub.routes = routes
        from hub_server import _Dropped

        raise _Dropped

    routes = hub.routes
    hub.routes = [
        (m, p, commit_and_drop if f == hub.commit else f) for m, p, f in hub.routes
    ]  # fmt: skip
    pushed = push(remote, config("a"))
    assert len(hub.repo(NAME).history()) == 2
    assert pushed.version in remote.tags()


def test_a_commit_that_lost_rows_is_noticed(hub: LocalHub, remote: Any) -> None:
    push(remote, config("other", rows=1))
    short = hub.content(NAME, "other/train-00000-of-00001.parquet")
    original = hub._commit

    def lossy(repo: Any, ref: str, tree: dict[str, Any], *rest: Any) -> Any:
        path = "a/train-00000-of-00001.parquet"
        if path in tree:
            tree = tree | {path: hub._blob(path, short)}
        return original(repo, ref, tree, *rest)

    hub._commit = lossy  # type: ignore[method-assign]
    with pytest.raises(HubError, match="'a', split 'train' holds 1 rows; 3 were written"):
        push(remote, config("a", rows=3))


def test_two_pushes_at_once_both_end_up_in_the_repository(hub: LocalHub, waits: Any) -> None:
    def one(name: str) -> Any:
        repository = RemoteRepository(
            NAME, "dataset", endpoint=hub.url, token=OWNER, sleep=waits.append
        )
        return push(repository, config(name), part=name)

    one("first")
    gate = threading.Event()
    hub.fail("POST", "/commit/", gate=gate)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(one, "slow")
        while not any("/preupload/" in line for line in hub.lines()[-3:]):
            pass
        assert one("fast").changed
        gate.set()
        assert slow.result(timeout=30).changed
    text = hub.content(NAME, "README.md").decode()
    names = [c["config_name"] for c in yaml.safe_load(text.split("---\n")[1])["configs"]]
    assert sorted(names) == ["fast", "first", "slow"]
    assert sum("commit/main -> 412" in line for line in hub.lines()) == 1


def test_eight_pushes_at_once_into_a_folder(tmp_path: Path) -> None:
    def one(i: int) -> Any:
        return push(FolderRepository(tmp_path, NAME, "dataset"), config(f"c{i}"), part=f"c{i}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    repository = FolderRepository(tmp_path, NAME, "dataset")
    names = {c["config_name"] for c in header(repository)["configs"]}
    assert names == {f"c{i}" for i in range(8)}
    assert len(files(repository)) == 9

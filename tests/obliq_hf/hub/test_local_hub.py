"""The Hub of the tests answers the stock clients request by request as the recorded log says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from hub_server import LocalHub, running_hub
from hub_state import OWNER, STRANGER
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent

MODELS = {
    "SentenceTransformer.push_to_hub",
    "SentenceTransformer('org/model')",
    "SentenceTransformer('org/model') 2nd (cached)",
    "model_info / config download through transformers AutoConfig",
    "peft: push adapter + load",
}


def _recorded() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (HERE / "hub_requests.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            lines = sections.setdefault(line[3:], [])
        elif line.strip():
            lines.append(line.strip())
    return {name: [_any_range(line) for line in lines] for name, lines in sections.items()}


def _any_range(line: str) -> str:
    return re.sub(r"range=bytes=(\d+)-\d+", r"range=bytes=\1-N", line)


def _seen(hub: LocalHub) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[list[str | int]] = []
    for entry in hub.log:
        if entry.path == "/__section__":
            lines = sections.setdefault(entry.section, [])
        elif lines and lines[-1][0] == entry.line():
            lines[-1][1] += 1
        else:
            lines.append([entry.line(), 1])
    return {
        name: [_any_range(f"{line}  x{n}" if n > 1 else str(line)) for line, n in lines]
        for name, lines in sections.items()
        if name
    }


def _compare(hub: LocalHub, sections: set[str]) -> None:
    recorded, seen = _recorded(), _seen(hub)
    assert set(seen) == sections
    for name, lines in seen.items():
        assert lines == recorded[name], name


def test_hub_and_datasets_clients_make_the_recorded_requests(
    hub: LocalHub, fresh_process: Callable[..., str], tmp_path: Path
) -> None:
    for group in ("hub", "datasets", "load"):
        fresh_process([str(HERE / "client_operations.py"), group, str(tmp_path)], url=hub.url)
    _compare(hub, set(_recorded()) - MODELS)


@pytest.mark.slow
def test_sentence_transformers_makes_the_recorded_requests(
    hub: LocalHub, fresh_process: Callable[..., str], tiny_model_dir: Path, tmp_path: Path
) -> None:
    for group in ("models", "load_model"):
        fresh_process(
            [str(HERE / "client_operations.py"), group, str(tmp_path)],
            url=hub.url,
            env={"MODEL": str(tiny_model_dir)},
        )
    _compare(hub, MODELS)


@pytest.mark.usefixtures("online")
def test_large_files_go_up_in_parts_and_come_back_whole(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store", part_bytes=1000) as hub:
        api = HfApi(endpoint=hub.url, token=OWNER)
        api.create_repo("acme/parts", repo_type="dataset")
        data = bytes(range(256)) * 17
        add = CommitOperationAdd("x.parquet", data)
        api.create_commit("acme/parts", [add], commit_message="x", repo_type="dataset")
        assert hub.content("acme/parts", "x.parquet") == data
        assert sum("/__lfs_part__/" in line for line in hub.lines()) == 5


@pytest.mark.usefixtures("online")
def test_trees_come_in_pages(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store", page=3) as hub:
        hub.put("acme/many", {f"d/{i}.txt": b"x" for i in range(10)})
        api = HfApi(endpoint=hub.url, token=OWNER)
        files = api.list_repo_files("acme/many", repo_type="dataset")
        assert sorted(files) == [".gitattributes", *(f"d/{i}.txt" for i in range(10))]
        assert sum("cursor=" in line for line in hub.lines()) == 3


@pytest.mark.usefixtures("online")
def test_a_commit_on_a_stale_parent_is_refused(hub: LocalHub) -> None:
    first = hub.put("acme/ds", {"a.txt": b"a"})
    hub.put("acme/ds", {"a.txt": b"b"})
    api = HfApi(endpoint=hub.url, token=OWNER)
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_commit(
            "acme/ds",
            [CommitOperationAdd("a.txt", b"c")],
            commit_message="late",
            parent_commit=first,
            repo_type="dataset",
        )
    assert caught.value.response.status_code == 412
    assert hub.content("acme/ds", "a.txt") == b"b"


@pytest.mark.usefixtures("online")
def test_a_gated_repository_is_listed_but_not_read(hub: LocalHub, tmp_path: Path) -> None:
    hub.put("acme/gated", {"a.txt": b"a"})
    hub.repo("acme/gated").gated = True
    api = HfApi(endpoint=hub.url, token=STRANGER)
    assert api.dataset_info("acme/gated").gated == "manual"
    with pytest.raises(GatedRepoError):
        api.hf_hub_download("acme/gated", "a.txt", repo_type="dataset", cache_dir=tmp_path)


def test_a_dropped_connection_is_an_error_at_the_client(hub: LocalHub) -> None:
    hub.fail("PUT", "/__lfs__/", drop=True)
    with pytest.raises(httpx2.TransportError):
        httpx2.put(f"{hub.url}/__lfs__/{'0' * 64}", content=b"x" * 100_000)
    assert hub.log[-1].status == 0

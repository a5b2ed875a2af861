"""Publishing datasets to a folder and to a Hub: what is there afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dataset_pushes import CARD, NAME, config, files, header, load, overwrite, push, readme, texts
from datasets import Dataset

from obliq_hf.errors import ObliqError
from obliq_hf.hub import HubError
from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.parquet import DatasetConfig, config_from_datasets
from obliq_hf.hub.remote import RemoteRepository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hub_server import LocalHub

    from obliq_hf.hub.repository import Repository

pytestmark = pytest.mark.usefixtures("online")


def test_a_pushed_config_loads_in_a_fresh_process(
    repository: Repository, fresh_process: Callable[..., str]
) -> None:
    pushed = push(repository, config("writing-k3"))
    assert load(fresh_process, repository, "writing-k3") == "['text 0', 'text 1', 'text 2']"
    if isinstance(repository, RemoteRepository):
        push(repository, config("writing-k3", rows=1))
        at = pushed.revision
        assert load(fresh_process, repository, "writing-k3", revision=at, streaming=True) == (
            "['text 0', 'text 1', 'text 2']"
        )
        assert load(fresh_process, repository, "writing-k3", revision=pushed.version) == (
            "['text 0', 'text 1', 'text 2']"
        )


def test_one_push_is_one_commit_with_data_and_card(hub: LocalHub, remote: Repository) -> None:
    push(remote, config("a"), config("b"))
    commits = hub.repo(NAME).history()
    assert len(commits) == 2, "the one that made the repository, and ours"
    added = set(commits[0].tree) - set(commits[1].tree)
    assert added == {
        "README.md",
        "a/train-00000-of-00001.parquet",
        "b/train-00000-of-00001.parquet",
    }


def test_the_same_content_again_makes_no_commit(repository: Repository) -> None:
    first = push(repository, config("a"))
    second = push(repository, config("a"))
    assert first.changed
    assert not second.changed
    assert second.added == []
    assert second.version == first.version


def test_fewer_rows_and_another_split_leave_nothing_stale(
    repository: Repository, tmp_path: Path
) -> None:
    push(repository, config("a", rows=10), shard_bytes=1)
    push_many = config_from_datasets(
        "a",
        {"train": Dataset.from_dict({"text": ["x"]}), "dev": Dataset.from_dict({"text": ["y"]})},
    )
    pushed = push(repository, push_many)
    assert files(repository) == {
        "README.md",
        "a/train-00000-of-00001.parquet",
        "a/dev-00000-of-00001.parquet",
    }
    assert pushed.deleted == []
    info = header(repository)["dataset_info"][0]
    assert [f["name"] for f in info["features"]] == ["text"]
    assert texts(repository, tmp_path, "a", "dev") == ["y"]


def test_shards_are_replaced_when_their_number_changes(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("obliq_hf.hub.parquet._GROUP_ROWS", 1)
    monkeypatch.setattr("obliq_hf.hub.parquet._BATCH", 1)
    push(repository, config("a", rows=4), shard_bytes=1)
    assert sum(path.endswith(".parquet") for path in files(repository)) == 4
    pushed = push(repository, config("a", rows=2), shard_bytes=1)
    assert sorted(path for path in files(repository) if path.endswith(".parquet")) == [
        "a/train-00000-of-00002.parquet",
        "a/train-00001-of-00002.parquet",
    ]
    assert len(pushed.deleted) == 4


def test_five_rows_in_many_shards_are_all_there(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("obliq_hf.hub.parquet._GROUP_ROWS", 1)
    monkeypatch.setattr("obliq_hf.hub.parquet._BATCH", 1)
    push(repository, config("a", rows=5), shard_bytes=1)
    assert texts(repository, tmp_path, "a") == [f"text {i}" for i in range(5)]


def test_other_configs_and_edited_text_keep_their_bytes(
    repository: Repository, hub: LocalHub
) -> None:
    push(repository, config("one"), config("two"), config("three"))
    head, _, body = readme(repository).partition("\n---\n")
    edited_head = head.replace("license: cc-by-4.0", "license: cc-by-4.0   # asked the author")
    edited_body = body.replace("Written by the push.", "Written by *me*,  by hand. \u2028 Truly.")
    overwrite(repository, hub, f"{edited_head}\n---\n{edited_body}")
    pushed = push(repository, config("two", rows=5, extra=[1] * 5))
    after_head, _, after_body = readme(repository).partition("\n---\n")
    assert after_body == edited_body
    old_items, new_items = _items(edited_head), _items(after_head)
    for name in ("one", "three"):
        assert new_items["configs", name] == old_items["configs", name]
        assert new_items["dataset_info", name] == old_items["dataset_info", name]
    assert new_items["dataset_info", "two"] != old_items["dataset_info", "two"]
    assert "asked the author" in after_head
    assert any("by hand" in note for note in pushed.notes)


def _items(head: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    key = ""
    for block in head.replace("\n- config_name", "\n\x00- config_name").split("\x00"):
        if block.startswith("- config_name: "):
            name = block.split("\n")[0].removeprefix("- config_name: ")
            item, _, rest = block.partition("\ndataset_info:")
            found[key, name] = item.strip()
            block = "dataset_info:" + rest if rest else ""
        if "configs:" in block:
            key = "configs"
        if "dataset_info:" in block:
            key = "dataset_info"
    return found


def test_an_untouched_text_is_renewed(repository: Repository) -> None:
    push(repository, config("a"))
    push(repository, config("a", rows=4), text=CARD.replace("Written", "Rewritten"))
    assert "Rewritten by the push." in readme(repository)


def test_texts_of_two_artefacts_stand_side_by_side(repository: Repository) -> None:
    push(repository, config("a"), part="graph")
    push(repository, config("b"), part="corpus", text=CARD.replace("Written", "The other"))
    push(repository, config("a", rows=1), part="graph", text=CARD.replace("Written", "Newly"))
    text = readme(repository)
    assert "The other by the push." in text
    assert "Newly by the push." in text
    assert "Written by the push." not in text


def test_configs_that_an_artefact_no_longer_has_are_removed(repository: Repository) -> None:
    push(repository, config("w-corpus"), config("w-top_ranked"))
    pushed = push(repository, config("w-corpus"), retired=["w-top_ranked", "w-corpus"])
    assert [c["config_name"] for c in header(repository)["configs"]] == ["w-corpus"]
    assert pushed.deleted == ["w-top_ranked/train-00000-of-00001.parquet"]


def test_configs_of_one_folder_share_their_files(repository: Repository, tmp_path: Path) -> None:
    one = config("writing-corpus")
    two = DatasetConfig("scene-corpus", one.features, one.splits, folder="writing-corpus")
    push(repository, one, two)
    assert files(repository) == {"README.md", "writing-corpus/train-00000-of-00001.parquet"}
    assert len(texts(repository, tmp_path, "scene-corpus")) == 3


def test_a_dry_run_writes_nothing(repository: Repository, hub: LocalHub) -> None:
    pushed = push(repository, config("a"), dry_run=True)
    assert pushed.dry_run
    assert sorted(pushed.added) == ["README.md", "a/train-00000-of-00001.parquet"]
    assert repository.snapshot() is None
    assert not any(line.startswith(("PUT", "POST")) for line in hub.lines())


def test_a_push_is_tagged_and_a_tag_is_not_moved(repository: Repository) -> None:
    push(repository, config("a"), version="v1.0")
    assert push(repository, config("a"), version="v1.0").version == "v1.0"
    with pytest.raises(HubError, match=r"'v1\.0' is published already, with other content"):
        push(repository, config("a", rows=7), version="v1.0")
    push(repository, config("a", rows=7), version="v2.0")
    assert set(repository.tags()) == {"v1.0", "v2.0"}
    assert push(repository, config("a", rows=7), version="v2.0").changed is False


@pytest.mark.parametrize(
    "version", ["", "a b", "v..1", "main", "0123abc", "v1.lock", "v1/2", "\x00"]
)
def test_a_version_that_cannot_be_a_tag_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(ObliqError, match="version"):
        push(FolderRepository(tmp_path, NAME, "dataset"), config("a"), version=version)

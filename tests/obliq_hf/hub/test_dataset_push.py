"""Pushing datasets to a Hub and to a folder, and what may go wrong on the way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from datasets import Dataset, Features, Value, load_dataset
from hub_state import OWNER, READER, STRANGER

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.hub import HubError, open_repository
from obliq_hf.hub.dataset_push import push_dataset
from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.parquet import DatasetConfig, config_from_datasets
from obliq_hf.hub.remote import RemoteRepository
from obliq_hf.hub.repository import Change, Commit, LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hub_server import LocalHub

    from obliq_hf.hub.repository import Pushed, Repository

NAME = "acme/pairs"
CARD = "---\nlicense: cc-by-4.0\ntags:\n- authorship\n---\n# Pairs\n\nWritten by the push.\n"

pytestmark = pytest.mark.usefixtures("online")


def config(name: str, rows: int = 3, split: str = "train", **columns: list[Any]) -> DatasetConfig:
    data = {"id": [f"d{i}" for i in range(rows)], "text": [f"text {i}" for i in range(rows)]}
    return config_from_datasets(name, {split: Dataset.from_dict(data | columns)})


def push(repository: Repository, *configs: DatasetConfig, text: str = CARD, **more: Any) -> Pushed:
    return push_dataset(configs, repository, card=lambda _: text, **more)


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


def readme(repository: Repository) -> str:
    now = repository.snapshot()
    assert now is not None
    with repository.open("README.md", now.commit) as file:
        return file.read().decode()


def header(repository: Repository) -> dict[str, Any]:
    return yaml.safe_load(readme(repository).split("---\n")[1])


def files(repository: Repository) -> set[str]:
    now = repository.snapshot()
    return set(now.files) - {".gitattributes"} if now else set()


def overwrite(repository: Repository, hub: LocalHub, text: str) -> None:
    if isinstance(repository, FolderRepository):
        (repository.folder / "README.md").write_bytes(text.encode())
    else:
        hub.put(NAME, {"README.md": text.encode()})


LOAD = """
import sys
from datasets import load_dataset
place, config, split, more = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
rows = load_dataset(place, config, split=split, **more)
print([row["text"] for row in rows])
assert "obliq_hf" not in sys.modules
"""


def load(
    run: Callable[..., str], repository: Repository, name: str, split: str = "train", **more: Any
) -> str:
    url = repository.endpoint if isinstance(repository, RemoteRepository) else None
    arguments = ["-c", LOAD, repository.loads_as, name, split, repr(more)]
    return run(arguments, url=url).strip()


def texts(repository: Repository, folder: Path, name: str, split: str = "train") -> list[str]:
    """The texts of a config, loaded from a copy of the repository's newest state."""
    now = repository.snapshot()
    assert now is not None
    copy = folder / f"copy-{now.commit[:12]}"
    for path in now.files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        with repository.open(path, now.commit) as file:
            (copy / path).write_bytes(file.read())
    rows = load_dataset(str(copy), name, split=split, cache_dir=str(folder / "cache"))
    return list(rows["text"])


# --------------------------------------------------------------------------- what is published


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


# --------------------------------------------------------------------------- versions


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


# --------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "name",
    ["pairs", "a/b/c", "../x", "acme/..", "acme/a..b", "acme\\x", "acme/a b", "acme/é", "/etc/x",
     "C:/x", "acme/", "acme/-a", "acme/a--b", "acme/a.git", "acme/con", "acme/a\x00", None,
     "acme/" + "x" * 100],
)  # fmt: skip
def test_a_bad_repository_name_is_refused(name: Any, tmp_path: Path) -> None:
    for to in ("hub", f"folder:{tmp_path}"):
        with pytest.raises(ObliqError, match="repository"):
            open_repository(name, "dataset", to=to)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["default", "Default", "", None, "a/b", "..", "a b", "é", "a:b", "con", "a\x00", 3]
)
def test_a_bad_config_name_is_refused(name: Any) -> None:
    with pytest.raises(ObliqError, match="config"):
        config(name)


def test_config_names_that_differ_by_case_only_are_refused(repository: Repository) -> None:
    with pytest.raises(ObliqError, match="differ by case"):
        push(repository, config("a-k3"), config("A-k3"))
    push(repository, config("a-k3"))
    with pytest.raises(ObliqError, match="by case only"):
        push(repository, config("A-k3"))


@pytest.mark.parametrize("split", ["test-hard", "a b", "all", "", "x/y", None])
def test_a_bad_split_name_is_refused(split: Any) -> None:
    with pytest.raises(ObliqError, match="split"):
        config("a", split=split)


def test_an_empty_split_is_left_out_and_said(repository: Repository) -> None:
    rows = Dataset.from_dict({"text": ["x"]}, features=Features({"text": Value("string")}))
    both = config_from_datasets("a", {"train": rows, "dev": rows.select([])})
    pushed = push(repository, both)
    assert [d["split"] for d in header(repository)["configs"][0]["data_files"]] == ["train"]
    assert any("'dev' has no rows" in note for note in pushed.notes)


def test_a_config_without_rows_is_refused(repository: Repository) -> None:
    empty = Dataset.from_dict({"text": []}, features=Features({"text": Value("string")}))
    with pytest.raises(DataError, match="config 'a' has no rows"):
        push(repository, config_from_datasets("a", {"train": empty}))
    assert repository.snapshot() is None


def test_a_column_of_none_without_a_type_is_refused() -> None:
    with pytest.raises(DataError, match="column 'title' holds nothing but None"):
        config("a", title=[None] * 3)


def test_a_declared_column_of_none_keeps_its_type(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("obliq_hf.hub.parquet._GROUP_ROWS", 2)
    monkeypatch.setattr("obliq_hf.hub.parquet._BATCH", 2)
    features = Features({"text": Value("string"), "title": Value("string")})
    rows = Dataset.from_dict({"text": list("abc"), "title": [None, None, "a"]}, features=features)
    push(repository, config_from_datasets("a", {"train": rows}), shard_bytes=1)
    assert len(files(repository)) == 3
    assert texts(repository, tmp_path, "a") == ["a", "b", "c"]


def test_splits_with_different_features_are_refused_by_column() -> None:
    one = Dataset.from_dict({"score": [1]})
    with pytest.raises(DataError, match=r"'score' is int64 in split 'train' and float64 in .*test"):
        config_from_datasets("a", {"train": one, "test": Dataset.from_dict({"score": [1.0]})})
    with pytest.raises(DataError, match="column 'more' is missing in split 'train'"):
        config_from_datasets(
            "a", {"train": one, "test": Dataset.from_dict({"score": [1], "more": [2]})}
        )


def test_a_card_with_broken_yaml_is_left_alone(repository: Repository, hub: LocalHub) -> None:
    push(repository, config("a"))
    broken = "---\nlicense: mit\ntags: [a, b\nconfigs:\n- x\n---\nMy text.\n"
    overwrite(repository, hub, broken)
    with pytest.raises(HubError, match=r"README\.md: its YAML header cannot be read \(line \d"):
        push(repository, config("a", rows=5))
    assert readme(repository) == broken
    push(repository, config("a", rows=5), replace_card=True)
    assert "My text" not in readme(repository)
    assert header(repository)["license"] == "cc-by-4.0"


def test_data_without_configs_in_the_repository_are_not_hidden(hub: LocalHub, remote: Any) -> None:
    hub.put(NAME, {"data/train.csv": b"a\n1\n"})
    with pytest.raises(HubError, match=r"data/train\.csv.*no config"):
        push(remote, config("a"))


@pytest.mark.parametrize("path", ["../x", "/etc/x", "C:\\x", "\\\\host\\s", "a/..\\..\\x", "a//b"])
def test_a_file_path_out_of_the_repository_is_refused(tmp_path: Path, path: str) -> None:
    from obliq_hf.hub.repository import LocalFile

    with pytest.raises(ObliqError):
        push(
            FolderRepository(tmp_path, NAME, "dataset"),
            config("a"),
            extra=[LocalFile(path, b"x")],
        )
    assert list(tmp_path.rglob("*")) == []


# --------------------------------------------------------------------------- access


def test_without_a_token_nothing_is_built(hub: LocalHub, monkeypatch: Any) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    repository = RemoteRepository(NAME, "dataset", endpoint=hub.url)

    def never() -> Any:
        raise AssertionError("rows were read")

    rows = DatasetConfig("a", Features({"text": Value("string")}), {"train": never})
    with pytest.raises(HubError, match="no token; set HF_TOKEN"):
        push(repository, rows)
    assert hub.log == []


def test_a_token_that_only_reads_is_told_so(hub: LocalHub) -> None:
    repository = RemoteRepository(NAME, "dataset", endpoint=hub.url, token=READER)
    with pytest.raises(HubError, match="may only read") as caught:
        push(repository, config("a"))
    assert READER not in str(caught.value)


def test_a_token_that_only_reads_can_propose(hub: LocalHub, remote: RemoteRepository) -> None:
    push(remote, config("a"))
    reader = RemoteRepository(NAME, "dataset", endpoint=hub.url, token=READER)
    pushed = push(reader, config("a", rows=9), create_pr=True)
    assert pushed.revision == "refs/pr/1"
    assert pushed.pull_request == f"{hub.url}/datasets/{NAME}/discussions/1"
    assert pushed.version is None
    assert hub.repo(NAME).history()[0].number == 1, "main has not moved"


def test_an_unknown_token_is_told_so(hub: LocalHub) -> None:
    repository = RemoteRepository(NAME, "dataset", endpoint=hub.url, token="hf_" + "z" * 34)
    with pytest.raises(HubError, match="the token is not accepted"):
        push(repository, config("a"))


def test_somebody_elses_organisation_is_told_so(hub: LocalHub) -> None:
    repository = RemoteRepository(NAME, "dataset", endpoint=hub.url, token=STRANGER)
    with pytest.raises(HubError, match="the token may not do this"):
        push(repository, config("a"))


def test_a_repository_of_the_other_type_is_told_so(hub: LocalHub, tmp_path: Path) -> None:
    hub.put(NAME, {"config.json": b"{}"}, kind="model")
    repository = RemoteRepository(NAME, "dataset", endpoint=hub.url, token=OWNER)
    with pytest.raises(HubError, match="is a model repository"):
        push(repository, config("a"))
    FolderRepository(tmp_path, NAME, "model").create(private=None)
    with pytest.raises(HubError, match="is a model repository"):
        push(FolderRepository(tmp_path, NAME, "dataset"), config("a"))


def test_private_is_honoured_and_never_silently_public(hub: LocalHub, remote: Any) -> None:
    push(remote, config("a"), private=True)
    assert hub.repo(NAME).private
    hub.repo(NAME).private = False
    with pytest.raises(HubError, match="is public already"):
        push(remote, config("a", rows=4), private=True)


def test_a_folder_with_files_of_others_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    (tmp_path / NAME / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(HubError, match="no push has put there"):
        push(FolderRepository(tmp_path, NAME, "dataset"), config("a"))


def test_offline_is_said_at_once(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = RemoteRepository(NAME, "dataset", endpoint=hub.url, token=OWNER)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        push(repository, config("a"))
    assert hub.log == []


# --------------------------------------------------------------------------- a Hub that fails


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


# --------------------------------------------------------------------------- two at once


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


# --------------------------------------------------------------------------- folders


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


# --------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("secret", ["hf_" + "x" * 34, "unusual-token-form"])
def test_a_token_never_reaches_a_card(repository: Repository, secret: str) -> None:
    if isinstance(repository, RemoteRepository):
        repository = RemoteRepository(
            NAME, "dataset", endpoint=repository.endpoint, token=repository.token
        )
    elif not secret.startswith("hf_"):
        pytest.skip("a folder has no token of its own")
    text = CARD + (repository.token if isinstance(repository, RemoteRepository) else secret)
    with pytest.raises(HubError, match="holds an access token") as caught:
        push(repository, config("a"), text=text)
    assert secret not in str(caught.value)
    assert repository.snapshot() is None


def test_a_path_of_this_machine_never_reaches_a_card(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    with pytest.raises(HubError, match="path of this machine"):
        push(
            FolderRepository(tmp_path, NAME, "dataset"),
            config("a"),
            text=CARD + "trained on /home/somebody/secret-project/x\n",
        )


def test_an_address_with_a_password_is_refused_without_repeating_it(monkeypatch: Any) -> None:
    secret = "hf_" + "x" * 34
    with pytest.raises(ObliqError, match="user name or password") as caught:
        RemoteRepository(NAME, "dataset", endpoint=f"http://me:{secret}@127.0.0.1:1")
    assert secret not in str(caught.value)
    with pytest.raises(ObliqError) as caught:
        open_repository(f"https://me:{secret}@host/acme/x", "dataset")
    assert secret not in str(caught.value)


def test_a_token_is_in_no_log_message_repr_or_exception(
    hub: LocalHub, caplog: pytest.LogCaptureFixture, waits: list[float]
) -> None:
    caplog.set_level("INFO")
    caplog.set_level("DEBUG", logger="huggingface_hub")
    caplog.set_level("DEBUG", logger="obliq_hf")
    secret = "plain-secret-token"
    hub.users[secret] = hub.users[OWNER]
    repository = RemoteRepository(
        NAME, "dataset", endpoint=hub.url, token=secret, sleep=waits.append
    )
    assert secret not in repr(repository)
    hub.fail("POST", "/commit/", status=500, body=f"bad token {secret}".encode())
    hub.fail("POST", "/preupload/", times=3, status=500, headers={"X-Error-Message": secret})
    push(repository, config("a"))
    hub.fail("POST", "/preupload/", times=99, status=403, headers={"X-Error-Message": secret})
    with pytest.raises(HubError) as caught:
        push(repository, config("a", rows=5))
    assert secret not in str(caught.value)
    assert secret not in caplog.text

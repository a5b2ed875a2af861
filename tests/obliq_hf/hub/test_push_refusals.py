"""What a push refuses before it writes anything: bad input, missing rights, secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from dataset_pushes import CARD, NAME, config, files, header, overwrite, push, readme, texts
from datasets import Dataset, Features, Value
from hub_state import OWNER, READER, STRANGER

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.hub import HubError, open_repository
from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.parquet import DatasetConfig, config_from_datasets
from obliq_hf.hub.remote import RemoteRepository

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub

    from obliq_hf.hub.repository import Repository

pytestmark = pytest.mark.usefixtures("online")


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
    pushed = push(repository, config("a", rows=5), replace_card=True)
    assert "My text" not in readme(repository)
    assert header(repository)["license"] == "cc-by-4.0"
    assert any("header could not be read" in note for note in pushed.notes)


def test_a_card_written_anew_keeps_the_other_configs_and_leaves_no_shard_behind(
    repository: Repository, hub: LocalHub, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("obliq_hf.hub.parquet._GROUP_ROWS", 1)
    monkeypatch.setattr("obliq_hf.hub.parquet._BATCH", 1)
    push(repository, config("a", rows=4), config("b"), shard_bytes=1)
    head, body = readme(repository).split("\n---\n", 1)
    edited = head.replace("cc-by-4.0", "mit") + "\nmine: kept\n---\nMy text.\n" + body
    overwrite(repository, hub, edited)
    push(repository, config("a", rows=2), shard_bytes=1, replace_card=True)
    assert "My text" not in readme(repository)
    assert header(repository)["license"] == "cc-by-4.0"
    assert header(repository)["mine"] == "kept"
    assert {c["config_name"] for c in header(repository)["configs"]} == {"a", "b"}
    assert texts(repository, tmp_path, "a") == ["text 0", "text 1"]
    assert len(texts(repository, tmp_path, "b")) == 3
    overwrite(repository, hub, "---\ntags: [a, b\n---\nBroken.\n")
    push(repository, config("a", rows=1), shard_bytes=1, replace_card=True)
    assert texts(repository, tmp_path, "a") == ["text 0"]
    assert any(path.startswith("b/") for path in files(repository))


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

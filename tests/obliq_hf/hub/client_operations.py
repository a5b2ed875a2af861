"""Runs the operations of ``hub_requests.txt`` with the stock clients; prints where each begins.

Called as ``python client_operations.py GROUP FOLDER`` in a process of its own, whose environment
points the clients at the Hub of the tests.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

import httpx2


def section(name: str) -> None:
    """Tell the Hub's log that the operations of a section begin."""
    httpx2.get(os.environ["HF_ENDPOINT"] + "/__section__", headers={"x-section": name})


@contextlib.contextmanager
def failing(kind: type[Exception]) -> Iterator[None]:
    """Require that an operation fails with this error."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def hub_api(folder: Path) -> None:
    """Operations of huggingface_hub alone."""
    from huggingface_hub import (
        CommitOperationAdd,
        CommitOperationDelete,
        HfApi,
        hf_hub_download,
        snapshot_download,
    )
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    api = HfApi()
    work = folder / "m1"
    work.mkdir()
    (work / "b.txt").write_text("text")
    (work / "w.safetensors").write_bytes(bytes(range(256)) * 8)
    section("whoami")
    api.whoami()
    section("create_repo model + exist_ok")
    api.create_repo("acme/m1")
    api.create_repo("acme/m1", exist_ok=True)
    section("create_repo again without exist_ok -> HfHubHTTPError 409")
    with failing(HfHubHTTPError):
        api.create_repo("acme/m1")
    section("upload_folder (text + LFS binary)")
    api.upload_folder(repo_id="acme/m1", folder_path=work)
    section("upload_folder unchanged -> no new commit")
    api.upload_folder(repo_id="acme/m1", folder_path=work)
    section("create_commit add+delete")
    api.create_commit(
        "acme/m1",
        [CommitOperationAdd("c.txt", b"c"), CommitOperationDelete("b.txt")],
        commit_message="swap",
    )
    section("create_commit create_pr")
    api.create_commit(
        "acme/m1", [CommitOperationAdd("pr.txt", b"pr")], commit_message="pr", create_pr=True
    )
    section("")
    api.create_commit("acme/m1", [CommitOperationAdd("b.txt", b"b")], commit_message="back")
    section("create_branch/tag/list_repo_refs")
    api.create_branch("acme/m1", branch="dev")
    api.create_tag("acme/m1", tag="v1.0")
    api.list_repo_refs("acme/m1", include_pull_requests=True)
    section("list_repo_files / tree / file_exists / commits")
    api.list_repo_files("acme/m1")
    list(api.list_repo_tree("acme/m1", recursive=True))
    api.file_exists("acme/m1", "b.txt")
    api.list_repo_commits("acme/m1")
    section("hf_hub_download regular+lfs+tag+PR rev")
    hf_hub_download("acme/m1", "w.safetensors")
    hf_hub_download("acme/m1", "b.txt", revision="v1.0")
    hf_hub_download("acme/m1", "pr.txt", revision="refs/pr/1")
    section("snapshot_download")
    snapshot_download("acme/m1", allow_patterns=[".gitattributes"])
    section("errors: 404 repo / revision / entry / bad token / anonymous private")
    with failing(RepositoryNotFoundError):
        hf_hub_download("acme/nope", "x")
    with failing(RevisionNotFoundError):
        hf_hub_download("acme/m1", "b.txt", revision="nope")
    with failing(EntryNotFoundError):
        hf_hub_download("acme/m1", "nope.txt")
    with failing(HfHubHTTPError):
        HfApi(token="hf_unknown").whoami()
    api.create_repo("acme/secret", private=True)
    api.upload_file(path_or_fileobj=b"s", path_in_repo="s.txt", repo_id="acme/secret")
    for token in (False, os.environ["STRANGER"]):
        with failing(RepositoryNotFoundError):
            hf_hub_download("acme/secret", "s.txt", token=token)
    hf_hub_download("acme/secret", "s.txt")
    with failing(HfHubHTTPError):
        HfApi(token=os.environ["STRANGER"]).upload_file(
            path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="acme/m1"
        )
    section("")
    api.create_repo("acme/doomed")
    section("delete_repo")
    api.delete_repo("acme/doomed")


def datasets_api(folder: Path) -> None:
    """Operations of datasets."""
    from datasets import Dataset, DatasetDict

    corpus = Dataset.from_dict({"id": ["1", "2"], "text": ["a", "b"]})
    section("Dataset.push_to_hub corpus config")
    corpus.push_to_hub("acme/ds", "corpus", split="corpus")
    section("Dataset.push_to_hub queries config")
    queries = Dataset.from_dict({"id": ["q"], "text": ["c"]})
    queries.push_to_hub("acme/ds", "queries", split="queries")
    section("DatasetDict.push_to_hub default config, private=False, num_shards")
    both = DatasetDict(train=Dataset.from_dict({"a": [1, 2]}), test=Dataset.from_dict({"a": [3]}))
    both.push_to_hub("acme/ds", private=False, num_shards={"train": 1, "test": 1})
    section("re-push corpus config (overwrite)")
    corpus.push_to_hub("acme/ds", "corpus", split="corpus")
    section("push to revision + create_pr")
    queries.push_to_hub("acme/ds", "extra", split="queries", create_pr=True)


def load_api(folder: Path) -> None:
    """Loading what :func:`datasets_api` has pushed."""
    import pandas
    from datasets import get_dataset_config_names, load_dataset
    from huggingface_hub import DatasetCard, HfApi, HfFileSystem, ModelCard

    section("get_dataset_config_names")
    get_dataset_config_names("acme/ds")
    section("load_dataset(config)")
    load_dataset("acme/ds", "corpus", split="corpus")
    load_dataset("acme/ds")
    section("load_dataset 2nd time (cached)")
    load_dataset("acme/ds", "corpus", split="corpus")
    section("load_dataset streaming")
    list(load_dataset("acme/ds", "corpus", split="corpus", streaming=True))
    section("")
    sha = HfApi().dataset_info("acme/ds").sha
    assert load_dataset("acme/ds", "corpus", split="corpus", revision=sha).num_rows == 2
    section("load_dataset revision pinned + hf:// path via pandas/fs")
    path = "datasets/acme/ds/corpus/corpus-00000-of-00001.parquet"
    assert path in HfFileSystem().find("datasets/acme/ds")
    assert HfFileSystem().ls("datasets/acme/ds/corpus", detail=False, refresh=True) == [path]
    assert len(pandas.read_parquet(f"hf://{path}")) == 2
    section("DatasetCard load/push, ModelCard push/load")
    card = DatasetCard.load("acme/ds")
    card.text += "More.\n"
    card.push_to_hub("acme/ds")
    ModelCard("---\nlicense: mit\n---\n# m1\n").push_to_hub("acme/m1")
    DatasetCard.load("acme/ds")
    ModelCard.load("acme/m1")
    HfApi().model_info("acme/m1")
    list(HfApi().list_datasets(author="acme"))


def models_api(folder: Path) -> None:
    """A sentence-transformers model pushed and loaded."""
    from sentence_transformers import SentenceTransformer

    modules = list(SentenceTransformer(os.environ["MODEL"], device="cpu"))
    modules[0].model.config._name_or_path = ""  # made on the spot: there is no base to ask for
    model = SentenceTransformer(modules=modules, device="cpu")
    section("SentenceTransformer.push_to_hub")
    model.push_to_hub("acme/st")


def load_model_api(folder: Path) -> None:
    """The model loaded by its name, its configuration, and an adapter on it pushed and loaded."""
    from huggingface_hub import HfApi
    from peft import LoraConfig, PeftModel, get_peft_model
    from sentence_transformers import SentenceTransformer
    from transformers import AutoConfig, AutoModel

    section("SentenceTransformer('org/model')")
    SentenceTransformer("acme/st", device="cpu")
    section("SentenceTransformer('org/model') 2nd (cached)")
    SentenceTransformer("acme/st", device="cpu")
    section("model_info / config download through transformers AutoConfig")
    sha = HfApi().model_info("acme/st").sha
    assert AutoConfig.from_pretrained("acme/st", revision=sha).hidden_size == 32
    SentenceTransformer("acme/st", device="cpu")
    section("peft: push adapter + load")
    sha = HfApi().model_info("acme/st").sha
    base = AutoModel.from_pretrained("acme/st", revision=sha)
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["query", "value"]))
    adapted.push_to_hub("acme/lora")
    sha = HfApi().model_info("acme/st").sha
    PeftModel.from_pretrained(AutoModel.from_pretrained("acme/st", revision=sha), "acme/lora")
    assert "adapter_model.safetensors" in HfApi().list_repo_files("acme/lora")


GROUPS: dict[str, Callable[[Path], None]] = {
    "hub": hub_api,
    "datasets": datasets_api,
    "load": load_api,
    "models": models_api,
    "load_model": load_model_api,
}

if __name__ == "__main__":
    GROUPS[sys.argv[1]](Path(sys.argv[2]))

"""Small datasets, pushed to a folder and to a local Hub, and what is read back of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from datasets import Dataset, load_dataset

from obliq_hf.hub.dataset_push import push_dataset
from obliq_hf.hub.folder import FolderRepository
from obliq_hf.hub.parquet import DatasetConfig, config_from_datasets
from obliq_hf.hub.remote import RemoteRepository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hub_server import LocalHub

    from obliq_hf.hub.repository import Pushed, Repository

NAME = "acme/pairs"
CARD = "---\nlicense: cc-by-4.0\ntags:\n- authorship\n---\n# Pairs\n\nWritten by the push.\n"


def config(name: str, rows: int = 3, split: str = "train", **columns: list[Any]) -> DatasetConfig:
    data = {"id": [f"d{i}" for i in range(rows)], "text": [f"text {i}" for i in range(rows)]}
    return config_from_datasets(name, {split: Dataset.from_dict(data | columns)})


def push(repository: Repository, *configs: DatasetConfig, text: str = CARD, **more: Any) -> Pushed:
    return push_dataset(configs, repository, card=lambda _: text, **more)


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

"""What tests publish and look at: names of repositories, folders, headers, files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
from run_folder import BASE, COMMIT
from safetensors.torch import load_file, save

from obliq_hf.hub.card_header import split_card

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub

CORPUS, GRAPH = "obliq-ir/writing-classics", "obliq-ir/authorship-graph"
MODEL, ADAPTER = "obliq-ir/obliq-ir-mini", "obliq-ir/obliq-ir-mini-lora"


def repository(tmp_path: Path, name: str) -> Path:
    """Where a repository lies that the options ``to_folder`` publish to."""
    return tmp_path / "laid-out" / name


def header(folder: Path) -> dict[str, Any]:
    """The header of its card."""
    return yaml.safe_load(split_card((folder / "README.md").read_text(encoding="utf-8"))[1])


def usage(folder: Path) -> list[str]:
    """The programs in its card."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def files(folder: Path) -> dict[str, bytes]:
    """Path -> content of all its files."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def put_base(hub: LocalHub, base: Path) -> None:
    """The base on the Hub under the commit that the checkpoints name, and a newer main."""
    commit = hub.put(BASE, files(base), kind="model")
    repo = hub.repo(BASE, "model")
    repo.commits[COMMIT] = repo.commits[commit]
    weights = load_file(base / "model.safetensors")
    newer = {name: tensor * 1.5 for name, tensor in weights.items()}
    hub.put(BASE, {"model.safetensors": save(newer, {"format": "pt"})}, kind="model")

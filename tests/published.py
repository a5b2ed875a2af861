"""Looking at what a test has published into a folder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.hub.card_header import split_card

if TYPE_CHECKING:
    from pathlib import Path


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

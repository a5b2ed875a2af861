"""Names of repositories, configs, splits, tags and files, checked before anything is built."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from obliq_hf.errors import ObliqError
from obliq_hf.files import safe_name
from obliq_hf.hub.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Destination",
    "RepoType",
    "check_config_names",
    "check_repo_id",
    "check_repo_path",
    "check_split_name",
    "check_tag",
]

RepoType = Literal["dataset", "model"]

_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_CONFIG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")


def check_repo_id(repo_id: object) -> str:
    r"""Check a repository id, ``organisation/name``.

    Raises:
        ObliqError: It is no string, lacks the organisation, holds ``..``, ``--``, a backslash,
            a space or a character outside ASCII, or is longer than the Hub allows.
    """
    shown = redact(repr(repo_id))
    if not isinstance(repo_id, str) or repo_id.count("/") != 1:
        raise ObliqError(f"repository {shown}: a name of the form organisation/name is needed")
    if len(repo_id) > 96 or "--" in repo_id or ".." in repo_id or repo_id.endswith(".git"):
        raise ObliqError(
            f"repository {shown}: at most 96 characters, no '..' or '--', not ending in '.git'"
        )
    for part in repo_id.split("/"):
        if not _PART.fullmatch(part):
            raise ObliqError(
                f"repository {shown}: {part!r} may hold ASCII letters, digits, '-', '_' and '.' "
                "alone, and may not begin or end with '-' or '.'"
            )
        safe_name(part, "repository name")
    return repo_id


def check_config_names(names: Iterable[object], existing: Iterable[str] = ()) -> None:
    """Check the names of a dataset's configs, against each other and against those published.

    Args:
        names: The configs to publish.
        existing: Names of configs that the repository has already.

    Raises:
        ObliqError: A name is None, empty, ``default``, no plain file name, or differs from
            another only by case.
    """
    seen: dict[str, str] = {}
    given = list(names)
    for name in given:
        if not isinstance(name, str) or not _CONFIG.fullmatch(name) or len(name) > 100:
            raise ObliqError(
                f"config name {name!r}: ASCII letters, digits, '-', '_' and '.' are allowed, "
                "beginning with a letter or digit, at most 100 characters"
            )
        if name.lower() == "default":
            raise ObliqError("a config may not be named 'default': loaders take it for 'no name'")
        safe_name(name, "config name")
        if name.lower() in seen:
            raise ObliqError(
                f"config names {seen[name.lower()]!r} and {name!r} differ by case only"
            )
        seen[name.lower()] = name
    for old in existing:
        mine = seen.get(str(old).lower())
        if mine is not None and mine != old:
            raise ObliqError(
                f"config name {mine!r} differs by case only from {old!r}, which the repository has"
            )


def check_split_name(name: object) -> str:
    """Check the name of a split.

    Raises:
        ObliqError: It is no string of letters, digits and ``_``, or is ``all``.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", name):
        raise ObliqError(f"split name {name!r}: letters, digits and '_' are allowed, no '-'")
    if name.lower() == "all":
        raise ObliqError("a split may not be named 'all': loaders take it for every split")
    return safe_name(name, "split name")


def check_tag(name: object) -> str:
    """Check the name of a version tag.

    Raises:
        ObliqError: It is no plain name.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", name):
        raise ObliqError(f"version {name!r}: letters, digits, '.', '-', '_' and '+' are allowed")
    if ".." in name or name.endswith((".", ".lock")):
        raise ObliqError(f"version {name!r} cannot be a tag: no '..', no '.' or '.lock' at the end")
    if re.fullmatch("[0-9a-f]{7,40}", name) or name in {"main", "HEAD"}:
        raise ObliqError(f"version {name!r} is taken for a commit or branch; put a 'v' before")
    return name


def check_repo_path(path: str) -> str:
    r"""Check the path of a file inside a repository, under POSIX and Windows rules alike.

    Raises:
        ObliqError: It is absolute, has a drive, a backslash, an empty part or ``..``.
    """
    if not path or path.startswith("/") or "\\" in path:
        raise ObliqError(f"{path!r} is no relative path with '/' between its parts")
    for part in path.split("/"):
        safe_name(part, "file name")
    return path


@dataclass(frozen=True)
class Destination:
    """Where to publish: the Hub that the environment names, or a folder laid out as one.

    Attributes:
        folder: The folder, or None for the Hub.
    """

    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Read ``hub`` or ``folder:PATH``.

        Raises:
            ObliqError: It is neither.
        """
        if text == "hub":
            return cls()
        kind, _, path = text.partition(":")
        if kind != "folder" or not path:
            raise ObliqError(f"--to {redact(text)!r}: 'hub' or 'folder:PATH' is needed")
        return cls(Path(path))

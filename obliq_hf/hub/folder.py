"""A folder laid out as a Hub: ``<root>/<organisation>/<name>`` holds what the repository would.

Seen from the root, ``load_dataset("organisation/name", ...)`` and
``SentenceTransformer("organisation/name")`` find it under the very name it would have at a Hub.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from obliq_hf.files import content_hash, read_json, write_json
from obliq_hf.hub.names import check_repo_id, check_repo_path
from obliq_hf.hub.repository import (
    Change,
    Commit,
    HubError,
    LocalFile,
    RemoteFile,
    Snapshot,
    StaleParentError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obliq_hf.hub.names import RepoType

__all__ = ["FolderRepository"]

_STATE = ".obliq-hub"
_NOT_PUBLISHED = {".git", ".cache", "__pycache__"}


@dataclass
class FolderRepository:
    """One repository below a root folder.

    A commit builds the whole new tree beside the old one, with unchanged files linked, and then
    takes its place with two renames: no state is ever half-written. Between the renames the folder
    is missing for a moment; a commit that is killed there is undone by the next one, or by the next
    look at the folder. Whoever looks while a commit takes its place waits for it and looks again.

    Attributes:
        root: The folder that stands for the Hub.
        repo_id: ``organisation/name``.
        repo_type: ``dataset`` or ``model``.
    """

    root: Path
    repo_id: str
    repo_type: RepoType

    def __post_init__(self) -> None:
        check_repo_id(self.repo_id)
        self.root = Path(self.root)

    @property
    def folder(self) -> Path:
        """Where the repository's files lie."""
        return self.root / self.repo_id

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"folder {self.folder}"

    @property
    def loads_as(self) -> str:
        """What a loader is given."""
        return str(self.folder)

    @property
    def _state_file(self) -> Path:
        return self.root / _STATE / f"{self.repo_type}s" / f"{self.repo_id}.json"

    def check_access(self, *, create_pr: bool, private: bool | None = None) -> None:
        """Refuse pull requests and a folder that holds something else.

        Args:
            create_pr: Whether a pull request is asked for.
            private: Means nothing here.

        Raises:
            HubError: Likewise.
        """
        if create_pr:
            raise HubError(f"{self.place}: a folder has no pull requests; leave --create-pr out")
        other = "model" if self.repo_type == "dataset" else "dataset"
        if (self.root / _STATE / f"{other}s" / f"{self.repo_id}.json").exists():
            raise HubError(
                f"{self.place} is a {other} repository; a {self.repo_type} needs another name"
            )
        if self.folder.is_file() or self.root.is_file():
            raise HubError(f"{self.place}: there is a file of that name")
        known = self._state_file.exists()
        if not known and self.folder.is_dir() and any(self.folder.iterdir()):
            card = self.folder / "README.md"
            if not card.is_file():
                raise HubError(f"{self.place}: holds files that no push has put there; use another")

    def create(self, *, private: bool | None) -> None:
        """Make the folder; ``private`` means nothing here."""
        with self._lock():
            self._recover()
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._state_file.exists():
                write_json(self._state_file, {"repo_type": self.repo_type, "tags": {}})

    def snapshot(self, revision: str | None = None) -> Snapshot | None:
        """The files as they lie there now.

        Of older states that have a version tag the digests are known, and nothing else.
        """
        for tagged in self._tagged().values():
            if revision is not None and tagged["id"] == revision:
                files = {p: RemoteFile(size, sha256=sha) for p, size, sha in tagged["files"]}
                return Snapshot(revision, files)
        mark = self._mark()
        if mark is None and not self._state_file.exists():
            return None
        with contextlib.suppress(FileNotFoundError):  # a commit took its place meanwhile
            seen = self._read()
            if mark is not None and mark == self._mark():
                return seen
        with self._lock():
            self._recover()
            return self._read()

    def _mark(self) -> tuple[int, int] | None:
        """What tells the folder from the one that a commit puts in its place."""
        try:
            status = self.folder.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _read(self) -> Snapshot | None:
        if not self.folder.is_dir():
            return None
        files: dict[str, RemoteFile] = {}
        marks: list[tuple[str, int, int]] = []
        for file in sorted(self.folder.rglob("*")):
            inside = file.relative_to(self.folder)
            if file.is_file() and not _NOT_PUBLISHED & set(inside.parts):
                status = file.stat()
                files[inside.as_posix()] = RemoteFile(status.st_size, file=file)
                marks.append((inside.as_posix(), status.st_size, status.st_mtime_ns))
        return Snapshot(content_hash(marks), files)

    def open(self, path: str, revision: str) -> BinaryIO:
        """Open a file for reading."""
        file = self.folder / check_repo_path(path)
        try:
            return file.open("rb")
        except FileNotFoundError:  # unless a commit is just taking its place
            with self._lock():
                self._recover()
                return file.open("rb")

    def commit(self, change: Change, *, parent: str, create_pr: bool = False) -> Commit:
        """Put a new tree in the place of the old one.

        Raises:
            StaleParentError: The folder is not what it was when ``parent`` was taken.
            HubError: It could not be written; it is then as it was.
        """
        for file in change.add:
            check_repo_path(file.path)
        try:
            with self._lock():
                self._recover()
                now = self._read()
                if now is None or now.commit != parent:
                    raise StaleParentError(f"{self.place} was changed meanwhile")
                self._replace(change)
                made = self._read()
        except OSError as error:
            reason = "no space is left" if error.errno == errno.ENOSPC else str(error)
            raise HubError(
                f"{self.place} could not be written: {reason}; it is as it was"
            ) from error
        assert made is not None
        return Commit(id=made.commit, revision=made.commit, url=str(self.folder))

    def _replace(self, change: Change) -> None:
        beside = f".{self.folder.name}.{uuid.uuid4().hex[:8]}"
        fresh = self.folder.with_name(f"{beside}.tmp")
        gone = {*change.delete, *(file.path for file in change.add)}
        try:
            for source in sorted(self.folder.rglob("*")):
                inside = source.relative_to(self.folder).as_posix()
                if source.is_file() and inside not in gone:
                    _link(source, fresh / inside)
            for file in change.add:
                target = fresh / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(file.content, bytes):
                    target.write_bytes(file.content)
                else:
                    shutil.copyfile(file.content, target)
            fresh.mkdir(exist_ok=True)
            old = self.folder.with_name(f"{beside}.old")
            self.folder.rename(old)
            try:
                fresh.rename(self.folder)
            except OSError:
                old.rename(self.folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _recover(self) -> None:
        """After a kill between the two renames of a commit, put the old tree back."""
        for old in self._interrupted():
            if self.folder.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.rename(self.folder)

    def _interrupted(self) -> list[Path]:
        return sorted(self.folder.parent.glob(f".{self.folder.name}.*.old"))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        path = self._state_file.with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            with contextlib.suppress(ImportError):  # no such lock on this system
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            for leftover in self.folder.parent.glob(f".{self.folder.name}.*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield

    def tags(self) -> dict[str, str]:
        """Version tag -> id of the state that it was given to."""
        return {name: tagged["id"] for name, tagged in self._tagged().items()}

    def _tagged(self) -> dict[str, dict[str, Any]]:
        if not self._state_file.exists():
            return {}
        return dict(read_json(self._state_file)["tags"])

    def tag(self, name: str, commit: Commit) -> None:
        """Note a version tag, with the digests of the files it stands for."""
        with self._lock():
            now = self._read()
            files = [
                [path, file.size, LocalFile(path, file.file).sha256]
                for path, file in (now.files if now is not None else {}).items()
                if file.file is not None
            ]
            tags = {**self._tagged(), name: {"id": content_hash(files), "files": files}}
            write_json(self._state_file, {"repo_type": self.repo_type, "tags": tags})


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # no hard links here
        shutil.copy2(source, target)

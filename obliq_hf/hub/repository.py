"""What publishing needs of a repository, whether it lies at a Hub or in a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Protocol, runtime_checkable

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from obliq_hf.hub.names import RepoType

__all__ = [
    "Change",
    "Commit",
    "HubError",
    "LocalFile",
    "RemoteFile",
    "Repository",
    "Snapshot",
    "StaleParentError",
]


class HubError(ObliqError):
    """A repository could not be read or written; the message says which, where and why."""


class StaleParentError(HubError):
    """Somebody else has committed since the repository was looked at."""


@dataclass(frozen=True)
class LocalFile:
    """A file to publish.

    Attributes:
        path: Its path inside the repository.
        content: The bytes, or the local file that holds them.
    """

    path: str
    content: bytes | Path

    @property
    def size(self) -> int:
        """Number of bytes."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return self.content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the content, 64 hexadecimal characters."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def git_oid(self) -> str:
        """The git object id of the content, as a Hub gives it for files outside its LFS store."""
        digest = hashlib.sha1(b"blob %d\0" % self.size)
        if isinstance(self.content, bytes):
            digest.update(self.content)
        else:
            with self.content.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        return digest.hexdigest()

    def text(self) -> str | None:
        """The content as text where it is UTF-8 without NUL and below 16 MB, else None."""
        if self.size > 1 << 24:
            return None
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        try:
            return None if b"\0" in data else data.decode("utf-8")
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class RemoteFile:
    """A file as a repository holds it, known by its size and a digest, or by where it lies."""

    size: int
    sha256: str | None = None
    git_oid: str | None = None
    file: Path | None = None

    def same_as(self, local: LocalFile) -> bool:
        """Whether the content is the same."""
        if self.size != local.size:
            return False
        if self.file is not None:
            return LocalFile(local.path, self.file).sha256 == local.sha256
        if self.sha256 is not None:
            return self.sha256 == local.sha256
        return self.git_oid == local.git_oid


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit.

    Attributes:
        commit: The commit's id.
        files: Path -> file.
    """

    commit: str
    files: dict[str, RemoteFile]


@dataclass(frozen=True)
class Change:
    """What one commit does. Files that are already the same must have been left out.

    Attributes:
        message: First line of the commit message.
        add: Files to add or replace.
        delete: Paths to remove.
    """

    message: str
    add: Sequence[LocalFile] = ()
    delete: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.delete)


@dataclass(frozen=True)
class Commit:
    """A commit that was made.

    Attributes:
        id: Its id.
        revision: What loads it: its id, or the reference of the pull request that holds it.
        url: Where a person looks at it.
    """

    id: str
    revision: str
    url: str
    pull_request: str | None = None


@runtime_checkable
class Repository(Protocol):
    """One repository of datasets or models.

    Attributes:
        repo_id: ``organisation/name``.
        repo_type: ``dataset`` or ``model``.
        place: Where it is, for messages: an address or a folder.
        loads_as: What a loader is given to find it.
    """

    repo_id: str
    repo_type: RepoType

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        ...

    @property
    def loads_as(self) -> str:
        """What ``load_dataset`` or ``SentenceTransformer`` is given."""
        ...

    def check_access(self, *, create_pr: bool, private: bool | None = None) -> None:
        """Find out, before anything is built, whether this push may be made."""
        ...

    def create(self, *, private: bool | None) -> None:
        """Make the repository where it does not exist yet."""
        ...

    def snapshot(self, revision: str | None = None) -> Snapshot | None:
        """The repository at a revision (default: its newest state), or None if it is not there."""
        ...

    def open(self, path: str, revision: str) -> BinaryIO:
        """Open a file for reading with seeks; only what is read is fetched."""
        ...

    def commit(self, change: Change, *, parent: str, create_pr: bool = False) -> Commit:
        """Upload and commit everything, or nothing.

        Raises:
            StaleParentError: The newest state is no longer ``parent``.
        """
        ...

    def tags(self) -> dict[str, str]:
        """Version tag -> commit id."""
        ...

    def tag(self, name: str, commit: Commit) -> None:
        """Give a commit a version tag; an existing tag of the same commit is left."""
        ...


@dataclass(frozen=True)
class Pushed:
    """The outcome of a push.

    Attributes:
        repo_id: The repository.
        place: Where it is.
        loads_as: What a loader is given.
        revision: What to load it at.
        changed: Whether a commit was made.
        added: Paths written.
        deleted: Paths removed.
        version: The tag, where one was set.
        url: The commit or pull request.
        notes: What a person should know.
        rows: Of a dataset: config -> split -> number of rows.
    """

    repo_id: str
    place: str
    loads_as: str
    revision: str
    changed: bool
    added: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    version: str | None = None
    url: str = ""
    pull_request: str | None = None
    dry_run: bool = False
    notes: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, int]] = field(default_factory=dict)

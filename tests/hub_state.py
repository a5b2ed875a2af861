"""What a Hub of the tests keeps: users, repositories, commits, faults to inject, a request log."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading
    from pathlib import Path

OWNER = "hf_" + "o" * 34
READER = "hf_" + "r" * 34
STRANGER = "hf_" + "s" * 34

LFS_SUFFIXES = (".parquet", ".safetensors", ".bin", ".npz", ".npy", ".arrow", ".gguf", ".png")


@dataclass(frozen=True)
class User:
    """The holder of a token: a name, the organisations it may write to, and the token's role."""

    name: str
    orgs: tuple[str, ...] = ()
    role: str = "write"


@dataclass(frozen=True)
class Blob:
    """One file of a commit: its bytes, or the SHA-256 under which the large-file store holds it."""

    size: int
    data: bytes | None = None
    sha256: str | None = None

    @property
    def oid(self) -> str:
        """The git object id."""
        if self.data is not None:
            return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
        return hashlib.sha1((pointer + f"size {self.size}\n").encode()).hexdigest()

    @property
    def etag(self) -> str:
        """What the server gives as ETag: SHA-256 of a large file, git object id of another."""
        return self.sha256 or self.oid

    def entry(self, path: str) -> dict[str, Any]:
        """The file as the tree and paths-info endpoints describe it."""
        row: dict[str, Any] = {"type": "file", "path": path, "size": self.size, "oid": self.oid}
        if self.sha256:
            row["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return row


@dataclass(frozen=True)
class Commit:
    """A commit: its whole tree, what it came after, and its message."""

    oid: str
    tree: dict[str, Blob]
    parent: str | None
    title: str
    message: str = ""
    number: int = 0


@dataclass
class Repo:
    """A repository with its references."""

    kind: str
    name: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: int = 0

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, tag, pull request, or (short) commit id."""
        for ref in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if ref in self.refs:
                return self.commits[self.refs[ref]]
        if re.fullmatch("[0-9a-f]{7,40}", revision):
            for oid, commit in self.commits.items():
                if oid.startswith(revision):
                    return commit
        return None

    def history(self, revision: str = "main") -> list[Commit]:
        """Commits from the newest to the first."""
        commit = self.find(revision)
        found = []
        while commit is not None:
            found.append(commit)
            commit = self.commits.get(commit.parent) if commit.parent else None
        return found

    def files(self, revision: str = "main") -> dict[str, Blob]:
        """Path -> file at a revision."""
        commit = self.find(revision)
        return dict(commit.tree) if commit else {}


@dataclass
class Fault:
    """What to do to the next requests that match."""

    method: str
    path: re.Pattern[str]
    times: int
    status: int | None
    headers: dict[str, str]
    drop: bool
    gate: threading.Event | None
    after: int
    body: bytes


@dataclass
class Entry:
    """One logged request."""

    method: str
    path: str
    status: int
    authorized: bool
    content_type: str | None
    range: str | None
    section: str = ""

    def line(self) -> str:
        """The request as in ``hub_requests.txt``."""
        path = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", self.path)
        path = re.sub(r"\b[0-9a-f]{40}\b", "<sha>", path)
        text = f"{self.method} {path} -> {self.status}"
        if self.content_type and self.method == "POST":
            text += f" ct={self.content_type.partition(';')[0]}"
        if self.range:
            text += f" range={self.range}"
        return text if self.authorized else text + " noauth"


class HubError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = {"X-Error-Message": message, **headers}
        if code:
            self.headers["X-Error-Code"] = code


class HubState:
    """Users, repositories, the store of large files, and what tests look at and set."""

    def __init__(self, store: Path, *, page: int = 1000, part_bytes: int = 1 << 62) -> None:
        self.store = store
        self.page = page
        self.part_bytes = part_bytes
        self.url = ""
        self.users = {
            OWNER: User("olga", ("acme", "obliq-ir")),
            READER: User("rob", ("acme", "obliq-ir"), role="read"),
            STRANGER: User("sam"),
        }
        self.repos: dict[tuple[str, str], Repo] = {}
        self.log: list[Entry] = []
        self.faults: list[Fault] = []
        self.parts: dict[str, dict[int, bytes]] = {}
        store.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------ what tests use

    def repo(self, name: str, kind: str = "dataset") -> Repo:
        """A repository by name."""
        return self.repos[kind, name]

    def content(self, name: str, path: str, kind: str = "dataset", revision: str = "main") -> bytes:
        """The bytes of a file."""
        blob = self.repo(name, kind).files(revision)[path]
        return blob.data if blob.data is not None else (self.store / blob.sha256).read_bytes()

    def put(self, name: str, files: dict[str, bytes], kind: str = "dataset", **more: Any) -> str:
        """Commit files without a client; creates the repository."""
        repo = self.repos.get((kind, name)) or self._create(kind, name, False)
        tree = {**repo.files(), **{p: self._blob(p, data) for p, data in files.items()}}
        return self._commit(repo, "refs/heads/main", tree, more.get("title", "by hand")).oid

    def fail(
        self,
        method: str,
        path: str,
        *,
        times: int = 1,
        status: int | None = None,
        headers: dict[str, str] | None = None,
        drop: bool = False,
        gate: threading.Event | None = None,
        after: int = 0,
        body: bytes = b'{"error": "injected"}',
    ) -> Fault:
        """Disturb the next ``times`` requests whose path (with query) matches, after ``after``.

        ``status`` answers at once; ``drop`` reads half of the body and cuts the connection;
        ``gate`` waits until the event is set and then goes on as usual.
        """
        fault = Fault(
            method, re.compile(path), times, status, headers or {}, drop, gate, after, body
        )
        self.faults.append(fault)
        return fault

    def lines(self, since: int = 0) -> list[str]:
        """Logged requests from the given one on."""
        return [entry.line() for entry in self.log[since:]]

    # ------------------------------------------------------------------ state

    def _blob(self, path: str, data: bytes) -> Blob:
        if path.endswith(LFS_SUFFIXES):
            sha = hashlib.sha256(data).hexdigest()
            (self.store / sha).write_bytes(data)
            return Blob(len(data), sha256=sha)
        return Blob(len(data), data=data)

    def _create(self, kind: str, name: str, private: bool) -> Repo:
        repo = self.repos[kind, name] = Repo(kind, name, private)
        attributes = "".join(f"*{s} filter=lfs diff=lfs merge=lfs -text\n" for s in LFS_SUFFIXES)
        first = {".gitattributes": self._blob(".gitattributes", attributes.encode())}
        self._commit(repo, "refs/heads/main", first, "initial commit")
        return repo

    def _commit(
        self, repo: Repo, ref: str, tree: dict[str, Blob], title: str, message: str = ""
    ) -> Commit:
        parent = repo.refs.get(ref)
        content = json.dumps([parent, title, sorted((p, b.etag) for p, b in tree.items())])
        number = len(repo.commits)
        oid = hashlib.sha1(f"{content}{number}".encode()).hexdigest()
        commit = Commit(oid, tree, parent, title, message, number)
        repo.commits[oid] = commit
        repo.refs[ref] = oid
        return commit

"""Every answer that was paid for, in one SQLite file; and a client that asks only what is new.

The key of an answer is :func:`obliq_hf.llm.chat.request_key`: model, revision, messages, sampling,
seed and response format. Retries, concurrency, batch sizes and logging are not part of it. Failed
calls are never stored. An answer cut at `max_tokens` is stored as what it is.

Several processes may share a file; the first answer to a request wins and all are given that one,
so a repeated run reads the same bytes. A row carries its own checksum; a row that does not match
is asked again. A file that SQLite cannot read is set aside, what can be read of it is copied into
a fresh one, and the log says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.llm.accounting import Accounting
from obliq_hf.llm.chat import ChatAnswer, SessionClient, request_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from obliq_hf.llm.chat import ChatClient, ChatRequest, ChatSession

__all__ = ["AnswerCache", "CachedClient"]

logger = logging.getLogger(__name__)

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS answers"
    " (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, body TEXT NOT NULL,"
    " crc INTEGER NOT NULL)"
)
_INSERT = "INSERT OR IGNORE INTO answers (key, body, crc) VALUES (?, ?, ?)"
_LOOKUP = 400
_STORED = ("text", "thinking", "finish_reason", "prompt_tokens", "completion_tokens", "logprobs")


def _encode(answer: ChatAnswer) -> str:
    return json.dumps({k: getattr(answer, k) for k in _STORED}, separators=(",", ":"))


def _decode(body: str, request_id: str) -> ChatAnswer:
    values = json.loads(body)
    logprobs = values.get("logprobs")
    return ChatAnswer(
        id=request_id, text=values.get("text"), thinking=values.get("thinking"),
        finish_reason=values.get("finish_reason"),
        prompt_tokens=values.get("prompt_tokens", 0),
        completion_tokens=values.get("completion_tokens", 0),
        logprobs=None if logprobs is None else tuple(logprobs), cached=True,
    )


class AnswerCache:
    """A SQLite file of answers by key.

    Args:
        path: The file; it and its folder are made when missing.
        busy_seconds: How long to wait for another process that is writing.
        max_bytes: Refuse to grow beyond this size; None is no limit.

    Raises:
        ObliqError: The path is a folder or cannot be written.
    """

    def __init__(
        self, path: str | Path, *, busy_seconds: float = 60.0, max_bytes: int | None = None
    ) -> None:
        self.path = Path(path)
        self.busy_seconds = busy_seconds
        self.max_bytes = max_bytes
        if self.path.is_dir():
            raise ObliqError(f"{self.path}: is a folder; an answer cache is one file")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ObliqError(f"{self.path}: cannot make its folder ({error})") from error
        self._inode: tuple[int, int] | None = None
        self._db = self._open_or_rebuild()

    # -- reading and writing

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """Look keys up at once.

        Args:
            keys: Keys of :func:`request_key`.

        Returns:
            Key -> stored body, for those that are there and whole.
        """
        found: dict[str, str] = {}
        for start in range(0, len(keys), _LOOKUP):
            part = keys[start : start + _LOOKUP]
            marks = ",".join("?" * len(part))
            rows = self._run(
                f"SELECT key, body, crc FROM answers WHERE key IN ({marks})", part
            )
            for key, body, crc in rows:
                if zlib.crc32(f"{key}{body}".encode()) == crc:
                    found[key] = body
                else:
                    logger.warning("%s: the answer %s is damaged and asked again", self.path, key)
                    self._write("DELETE FROM answers WHERE key = ?", [(key,)])
        return found

    def get(self, key: str, request_id: str = "cached") -> ChatAnswer | None:
        """The stored answer under `key`, given the id `request_id`; None if there is none."""
        body = self.get_many([key]).get(key)
        return None if body is None else _decode(body, request_id)

    def put_many(self, answers: Iterable[tuple[str, ChatAnswer]]) -> None:
        """Store successful answers in one transaction; the first answer under a key stays.

        Args:
            answers: Pairs of key and answer; answers with an error are left out.

        Raises:
            ObliqError: The disk is full or the file cannot be written.
        """
        rows = []
        for key, answer in answers:
            if answer.error is None:
                body = _encode(answer)
                rows.append((key, body, zlib.crc32(f"{key}{body}".encode())))
        if rows:
            self._write(_INSERT, rows)

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM answers")[0][0])

    def close(self) -> None:
        """Close the file; what was written is there for good."""
        self._db.close()

    # -- faults

    def _run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._recover(error)
            return self._db.execute(sql, values).fetchall()

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        try:
            with self._db:
                self._db.executemany(sql, rows)
        except sqlite3.DatabaseError as error:
            self._recover(error)
            with self._db:
                self._db.executemany(sql, rows)

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Rebuild a damaged file; turn every other fault into a clear error."""
        if _is_damage(error):
            self._db.close()
            self._set_aside(error)
            self._db = self._open_or_rebuild()
            return
        raise ObliqError(
            f"{self.path}: the answer cache cannot be read or written ({error}); make room or "
            "check its rights, then run the same command again: stored answers are kept"
        ) from error

    def _open_or_rebuild(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise ObliqError(f"{self.path}: cannot be opened ({error})") from error
            self._set_aside(error)
            return self._open()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=self.busy_seconds, check_same_thread=False)
        try:
            self._prepare(db)
            db.execute("SELECT key, body, crc FROM answers LIMIT 1").fetchall()
        except sqlite3.Error:
            db.close()
            raise
        status = self.path.stat()
        self._inode = (status.st_dev, status.st_ino)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                db.execute("PRAGMA journal_mode=WAL").fetchone()
                db.execute("PRAGMA synchronous=NORMAL")
                if self.max_bytes is not None:
                    page = db.execute("PRAGMA page_size").fetchone()[0]
                    db.execute(f"PRAGMA max_page_count={max(1, self.max_bytes // page)}")
                with db:
                    db.execute(_SCHEMA)
                return
            except sqlite3.OperationalError as error:
                # the switch to WAL does not wait for other processes by itself
                busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename the damaged file and copy what can be read of it into a fresh one."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return
        if self._inode is not None and (status.st_dev, status.st_ino) != self._inode:
            return  # another process has already put a fresh file in its place
        stem = f"{self.path.name}.damaged-{int(time.time())}-{os.getpid()}"
        aside = self.path.with_name(stem)
        for suffix in ("", "-wal", "-shm"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(self.path.with_name(stem + suffix))
        self._inode = None
        fresh = self._open()
        with fresh:
            fresh.executemany(_INSERT, _salvage(aside))
        kept = fresh.execute("SELECT count(*) FROM answers").fetchone()[0]
        fresh.close()
        logger.warning(
            "%s: the answer cache is damaged (%s); it was set aside as %s and %d answers were "
            "copied into a fresh one", self.path, error, aside.name, kept,
        )


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    if (code & 0xFF) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return True
    return "no such column" in str(error) or "no such table" in str(error)


def _salvage(path: Path) -> Iterator[tuple[str, str, int]]:
    """Whole rows of a damaged file, walking it up and down and stepping over what is unreadable."""
    try:
        db = sqlite3.connect(path)
    except sqlite3.Error:
        return
    db.text_factory = bytes
    with contextlib.closing(db):
        for order, sign in (("ASC", ">"), ("DESC", "<")):
            last = 0 if order == "ASC" else 2**62
            step, misses = 0, 0
            while misses < 40:
                edge = last + step if order == "ASC" else max(0, last - step)
                try:
                    for number, key, body, crc in db.execute(
                        f"SELECT number, key, body, crc FROM answers WHERE number {sign} ?"
                        f" ORDER BY number {order}", (edge,),
                    ):
                        last, step, misses = number, 0, 0
                        if isinstance(body, bytes) and zlib.crc32(key + body) == crc:
                            yield key.decode("ascii"), body.decode("utf-8"), crc
                    break
                except (sqlite3.Error, UnicodeDecodeError, TypeError):
                    misses += 1
                    step = max(1, step * 2)


class CachedClient(SessionClient):
    """A client that answers from a cache and asks another client for the rest.

    Equal requests that are under way at the same time are asked once.

    Args:
        client: Whom to ask.
        cache: An :class:`AnswerCache` or the path of one.
        readonly: Answer from the cache, never store.
    """

    def __init__(
        self, client: ChatClient, cache: AnswerCache | str | Path, *, readonly: bool = False
    ) -> None:
        self.client = client
        self.cache = cache if isinstance(cache, AnswerCache) else AnswerCache(cache)
        self.readonly = readonly
        self.model = client.model
        self.revision = client.revision
        self.accounting = Accounting(client.accounting.price)

    @property
    def identity(self) -> dict[str, Any]:
        """That of the client behind the cache."""
        return self.client.identity

    def open(self) -> ChatSession:
        """Start a session."""
        return _CachedSession(self)

    def close(self) -> None:
        """Close the client behind and the cache file."""
        self.client.close()
        self.cache.close()


class _CachedSession:
    """Collects submissions, looks them up together, and passes on what is not there."""

    def __init__(self, owner: CachedClient) -> None:
        self._owner = owner
        self._inner = owner.client.open()
        self._identity = owner.client.identity
        self._new: list[tuple[str, ChatRequest]] = []
        self._ready = deque[ChatAnswer]()
        self._asked: dict[str, str] = {}  # id of a request under way -> its key
        self._waiting: dict[str, list[ChatRequest]] = {}  # key -> all requests that want it
        self._open = 0
        self._unsaved: list[tuple[str, ChatAnswer]] = []

    @property
    def pending(self) -> int:
        return len(self._new) + len(self._ready) + self._open

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    def submit(self, request: ChatRequest) -> None:
        self._new.append((request_key(self._identity, request), request))

    def _look_up(self) -> None:
        new, self._new = self._new, []
        found = self._owner.cache.get_many(list({key for key, _ in new}))
        for key, request in new:
            body = found.get(key)
            if body is not None:
                answer = _decode(body, request.id)
                self._owner.accounting.record(request, answer)
                self._ready.append(answer)
                continue
            self._open += 1
            if key in self._waiting:
                self._waiting[key].append(request)
            else:
                self._waiting[key] = [request]
                self._asked[request.id] = key
                self._inner.submit(request)

    def wait(self) -> list[ChatAnswer]:
        if self._new:
            self._look_up()
        if not self._ready:
            if not self._waiting:
                return []
            self._take(self._inner.wait())
        ready = list(self._ready)
        self._ready.clear()
        return ready

    def _take(self, answers: list[ChatAnswer]) -> None:
        """Store fresh answers, then hand them to every request that wants them."""
        fresh = [(self._asked.pop(answer.id), answer) for answer in answers]
        final: dict[str, str] = {}
        if not self._owner.readonly:
            self._unsaved += [pair for pair in fresh if pair[1].error is None]
            if self._unsaved:
                self._owner.cache.put_many(self._unsaved)
                final = self._owner.cache.get_many([key for key, _ in self._unsaved])
                self._unsaved = []
        for key, answer in fresh:
            for request in self._waiting.pop(key):
                self._open -= 1
                if request.id == answer.id:
                    given = self._first(final.get(key), answer)
                elif answer.error is None:
                    given = replace(
                        self._first(final.get(key), answer), id=request.id, cached=True,
                        attempts=0, seconds=0.0,
                    )
                else:
                    given = replace(answer, id=request.id, attempts=0, prompt_tokens=0,
                                    completion_tokens=0, seconds=0.0)
                self._owner.accounting.record(request, given)
                self._ready.append(given)

    @staticmethod
    def _first(stored: str | None, answer: ChatAnswer) -> ChatAnswer:
        """The answer as stored: that of another process if it was first."""
        if stored is None:
            return answer
        kept = _decode(stored, answer.id)
        return replace(
            answer, text=kept.text, thinking=kept.thinking, finish_reason=kept.finish_reason,
            logprobs=kept.logprobs,
        )

    def close(self) -> None:
        """Store every answer that was paid for and not handed out, then close the client behind."""
        try:
            rescue = getattr(self._inner, "drain", None)
            answers: list[ChatAnswer] = rescue() if rescue is not None else []
            if not self._owner.readonly:
                self._unsaved += [
                    (self._asked[a.id], a)
                    for a in answers if a.error is None and a.id in self._asked
                ]
                self._save_or_tell()
        finally:
            self._inner.close()

    def _save_or_tell(self) -> None:
        unsaved, self._unsaved = self._unsaved, []
        try:
            self._owner.cache.put_many(unsaved)
        except ObliqError as error:
            logger.error("%d answers could not be stored: %s", len(unsaved), error)

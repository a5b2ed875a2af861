"""Every answer that was paid for, in one SQLite file.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.llm.chat import ChatAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["AnswerCache"]

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


def decode_answer(body: str, request_id: str) -> ChatAnswer:
    """A stored body as the answer to the request of this id."""
    values = json.loads(body)
    logprobs = values.get("logprobs")
    return ChatAnswer(
        id=request_id,
        text=values.get("text"),
        thinking=values.get("thinking"),
        finish_reason=values.get("finish_reason"),
        prompt_tokens=values.get("prompt_tokens", 0),
        completion_tokens=values.get("completion_tokens", 0),
        logprobs=None if logprobs is None else tuple(logprobs),
        cached=True,
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
            rows = self._run(f"SELECT key, body, crc FROM answers WHERE key IN ({marks})", part)
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
        return None if body is None else decode_answer(body, request_id)

    def put_many(self, answers: Iterable[tuple[str, ChatAnswer]]) -> bool:
        """Store successful answers in one transaction; the first answer under a key stays.

        Args:
            answers: Pairs of key and answer; answers with an error are left out.

        Returns:
            Whether all of them were new; False where a key had an answer already.

        Raises:
            ObliqError: The disk is full or the file cannot be written.
        """
        rows = []
        for key, answer in answers:
            if answer.error is None:
                body = _encode(answer)
                rows.append((key, body, zlib.crc32(f"{key}{body}".encode())))
        return not rows or self._write(_INSERT, rows) == len(rows)

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

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for each row in one transaction; how many rows it changed."""
        try:
            with self._db:
                return self._db.executemany(sql, rows).rowcount
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                self._keep_what_fits(sql, rows)
            self._recover(error)
            with self._db:
                return self._db.executemany(sql, rows).rowcount

    def _keep_what_fits(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """On a full disk, store the rows that still have room, each by itself."""
        for row in rows:
            try:
                with self._db:
                    self._db.execute(sql, row)
            except sqlite3.OperationalError:
                return

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
            "copied into a fresh one",
            self.path,
            error,
            aside.name,
            kept,
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
                        f" ORDER BY number {order}",
                        (edge,),
                    ):
                        last, step, misses = number, 0, 0
                        if isinstance(body, bytes) and zlib.crc32(key + body) == crc:
                            yield key.decode("ascii"), body.decode("utf-8"), crc
                    break
                except (sqlite3.Error, UnicodeDecodeError, TypeError):
                    misses += 1
                    step = max(1, step * 2)

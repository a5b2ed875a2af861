"""A file at a Hub, read in ranges."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RemoteRanges"]


class RemoteRanges(io.RawIOBase):
    """A seekable file of which only the parts that are read are fetched.

    Wrap it in :class:`io.BufferedReader`, so that small reads make few requests.

    Args:
        fetch: Gives the bytes from a first position to, but without, a last one.
        size: The file's length in bytes.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer from the position on."""
        stop = min(self._at + len(buffer), self._size)
        data = self._fetch(self._at, stop) if stop > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        """Everything from the position on, in one request."""
        data = self._fetch(self._at, self._size) if self._size > self._at else b""
        self._at += len(data)
        return data

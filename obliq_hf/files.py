"""Reading and writing files so that nothing is half-written, and naming them safely."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError, ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "atomic_path",
    "content_hash",
    "hash_files",
    "iter_jsonl",
    "iter_lines",
    "read_json",
    "safe_name",
    "write_json",
    "write_jsonl",
    "write_text",
]

_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{p}{i}" for p in ("COM", "LPT") for i in range(1, 10))}


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary sibling of ``path`` to write to, and rename it to ``path`` on success.

    Works for a file and for a folder. An existing target is replaced; after an exception the
    temporary is removed and the target is as it was. Parent folders are created.

    Args:
        path: The final file or folder.

    Yields:
        A path that does not exist yet, in the same folder as ``path``.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        yield temporary
        if target.is_dir() and temporary.is_dir():
            old = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.old"
            target.rename(old)
            try:
                temporary.rename(target)
            except OSError:
                old.rename(target)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, target)  # noqa: PTH105 - the atomic call itself
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    r"""Write UTF-8 text with ``\n`` line ends, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON, atomically; NaN and infinities are refused."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: The file is missing, is not UTF-8 or is not JSON; the message names it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from error


def iter_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    r"""Yield ``(line number from 1, line)``; lines end at ``\n`` or ``\r\n`` and nowhere else.

    U+2028 and its kin stay inside a line; a byte order mark at the start is dropped.

    Raises:
        DataError: The file is missing or a line is not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}:{number}: not UTF-8: {error}") from error
                yield number, line.rstrip("\n").removesuffix("\r")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a file") from None


class _NotFinite(Exception):
    """A number that JSON does not have."""


def _refuse(constant: str) -> float:
    raise _NotFinite(constant)


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise _NotFinite(number)
    return value


def _not_finite(value: Any, name: str = "") -> str | None:
    """The field, such as ``metadata.year``, of the first number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return name
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    inner = (_not_finite(item, f"{name}.{key}" if name else str(key)) for key, item in items)
    return next((found for found in inner if found is not None), None)


def iter_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, object)`` of a JSON-lines file, skipping blank lines.

    Raises:
        DataError: A line is not a JSON object, or holds NaN or an infinity; the message names
            file, line and field.
    """
    for number, line in iter_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_refuse, parse_float=_finite)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        except _NotFinite as error:
            name = _not_finite(json.loads(line))
            raise DataError(
                f"{path}:{number}{f' field {name!r}' if name else ''} is {error}, no number of "
                "JSON (some programs write NaN for a missing value); write null or leave the "
                "field out"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: a JSON object is needed, not {type(row).__name__}")
        yield number, row


def write_jsonl(path: str | Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON lines, atomically and in a stream.

    Returns:
        The number of rows written.
    """
    count = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def safe_name(name: object, what: str = "name") -> str:
    r"""Check that a name from outside can be one component of a path on any system.

    Args:
        name: The name: a task, config, system, run tag or file name.
        what: What it names, for the message.

    Returns:
        The name itself.

    Raises:
        ObliqError: It is no string, empty, holds ``/``, ``\``, ``:``, a control or
            wildcard character, is ``.`` or ``..``, ends in a dot or a space, starts with a
            space, is a reserved device name, or is longer than 200 characters.
    """
    if not isinstance(name, str):
        raise ObliqError(f"{what} must be a string, not {name!r}")
    bad = (
        not name
        or len(name) > 200
        or re.search(r'[\x00-\x1f\x7f/\\:*?"<>|]', name) is not None
        or name in {".", ".."}
        or name != name.strip(" ")
        or name.endswith(".")
        or name.split(".")[0].upper() in _RESERVED
    )
    if bad:
        raise ObliqError(
            f"{what} {name!r} cannot be part of a path; use letters, digits, '-', '_' and '.'"
        )
    return name


def content_hash(*parts: Any) -> str:
    """SHA-256 over the given values: bytes as they are, everything else as canonical JSON.

    Args:
        parts: Values in order; dictionaries hash the same in any key order.

    Returns:
        64 hexadecimal characters.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            data = bytes(part)
        else:
            data = json.dumps(
                part, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
            ).encode("ascii")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def hash_files(folder: str | Path, *, ignore: Iterable[str] = ()) -> str:
    """SHA-256 over the relative names and contents of all files below a folder.

    Args:
        folder: The folder, or one file.
        ignore: File names (not paths) to leave out.

    Returns:
        64 hexadecimal characters, the same on every machine.
    """
    root = Path(folder)
    skipped = set(ignore)
    # by the characters of the relative names: paths themselves sort without case on Windows
    files = [root] if root.is_file() else [p for p in root.rglob("*") if p.is_file()]
    files.sort(key=lambda file: file.relative_to(root).as_posix())
    digest = hashlib.sha256()
    for file in files:
        if file.name in skipped:
            continue
        name = file.name if file == root else file.relative_to(root).as_posix()
        with file.open("rb") as stream:
            inner = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{name}\0{inner}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()

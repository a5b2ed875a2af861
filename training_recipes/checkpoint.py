"""Checkpoints that are complete or not there: a mark, written last, lists every file."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MARK", "last_complete", "mark_complete", "saving"]

logger = logging.getLogger(__name__)

MARK = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


@contextlib.contextmanager
def saving(what: str) -> Iterator[None]:
    """Say in one line that weights cannot be written, whichever library noticed it.

    Args:
        what: What is being saved, for the message.

    Raises:
        ObliqError: The system refuses to write, as on a full disk.
    """
    from safetensors import SafetensorError

    try:
        yield
    except ObliqError:
        raise
    except (OSError, SafetensorError, RuntimeError) as error:  # the last is torch.save's
        raise ObliqError(
            f"{what} cannot be saved: {error}; make room and run again, finished checkpoints are "
            "kept"
        ) from error


def _files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARK
    }


def mark_complete(folder: str | Path, **facts: Any) -> None:
    """Mark a checkpoint as complete; call it when all processes have written their files.

    Args:
        folder: The checkpoint.
        facts: What else to keep in the mark (JSON values).
    """
    place = Path(folder)
    write_json(place / MARK, {**facts, "files": _files(place)})


def _is_complete(folder: Path) -> bool:
    try:
        mark = read_json(folder / MARK)
    except DataError:
        return False
    files = mark.get("files") if isinstance(mark, dict) else None
    return bool(files) and files == _files(folder)


def last_complete(folder: str | Path) -> Path | None:
    """The latest complete checkpoint of a training; those that a kill cut short are removed.

    Args:
        folder: Holds ``checkpoint-<step>`` folders.

    Returns:
        The checkpoint, or None where there is none.
    """
    root = Path(folder)
    found = []
    for place in root.glob("checkpoint-*") if root.is_dir() else []:
        match = _NAME.fullmatch(place.name)
        if match is None or not place.is_dir():
            continue
        if _is_complete(place):
            found.append((int(match.group(1)), place))
        else:
            logger.warning("%s is not complete and is not resumed from", place.name)
            shutil.rmtree(place)
    return max(found)[1] if found else None

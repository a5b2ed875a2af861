"""Which weights a base has, told from its files without reading all of them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, BinaryIO

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["weights_digest"]

_BLOCK = 16_384
_BLOCKS = 16  # of a tensor at most, evenly spaced


def weights_digest(files: Iterable[Path]) -> str:
    """SHA-256 over type, shape and content of every tensor; of large ones over a sample.

    Names of tensors, their order and their division into files do not count, so a base that was
    split or renamed as stock libraries want it stays the same base.

    Args:
        files: The safetensors files of one model.

    Returns:
        64 hexadecimal characters.

    Raises:
        ObliqError: A file is cut short.
    """
    found = []
    for file in files:
        with file.open("rb") as stream:
            found += list(_tensors(stream, file))
    digest = hashlib.sha256()
    for tensor in sorted(found):
        digest.update(tensor)
    return digest.hexdigest()


def _tensors(stream: BinaryIO, file: Path) -> Iterator[bytes]:
    """A digest of each tensor of a file."""
    size = int.from_bytes(stream.read(8), "little")
    header = json.loads(stream.read(size))
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = about["data_offsets"]
        digest = hashlib.sha256(f"{about['dtype']} {about['shape']}".encode())
        for offset, length in _blocks(end - start):
            stream.seek(8 + size + start + offset)
            block = stream.read(length)
            if len(block) != length:
                raise ObliqError(f"{file}: is cut short in tensor {name!r}")
            digest.update(block)
        yield digest.digest()


def _blocks(size: int) -> list[tuple[int, int]]:
    """Offsets and lengths of what is read of so many bytes."""
    if size <= _BLOCK * _BLOCKS:
        return [(0, size)]
    last = size - _BLOCK
    return [(last * i // (_BLOCKS - 1), _BLOCK) for i in range(_BLOCKS)]

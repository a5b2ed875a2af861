"""Document vectors kept on disk, so that a corpus is encoded once per model and prompt."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json, safe_name, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["BLOCK_ROWS", "check_vectors", "encode_blocks", "stored_vectors"]

logger = logging.getLogger(__name__)

BLOCK_ROWS = 4096
"""Vectors that are encoded, or read back, at once."""


def check_vectors(vectors: NDArray[np.float32], first_row: int, what: str) -> NDArray[np.float32]:
    """Check vectors and give them as float32.

    Args:
        vectors: Shape [n, d].
        first_row: The row of the first one, for the message.
        what: Whose vectors they are.

    Returns:
        A C-contiguous float32 array [n, d].

    Raises:
        ObliqError: Not two-dimensional, or a vector that is not finite; its row is named.
    """
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2:
        raise ObliqError(f"{what}: vectors must have the shape [n, d], not {array.shape}")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        row = first_row + int(np.flatnonzero(~finite)[0])
        raise ObliqError(f"{what}: the vector of row {row} holds NaN or an infinity")
    return array


def encode_blocks(
    encode: Callable[[list[str]], NDArray[np.float32]],
    texts: list[str],
    *,
    what: str,
    block_rows: int = BLOCK_ROWS,
) -> NDArray[np.float32]:
    """Encode texts block by block into one array in memory."""
    blocks = [
        check_vectors(encode(texts[start : start + block_rows]), start, what)
        for start in tqdm(
            range(0, len(texts), block_rows), desc=what, disable=len(texts) <= block_rows
        )
    ]
    return np.concatenate(blocks)


def stored_vectors(
    folder: str | Path,
    key: str,
    texts: list[str],
    encode: Callable[[list[str]], NDArray[np.float32]],
    *,
    what: str = "documents",
    block_rows: int = BLOCK_ROWS,
) -> tuple[NDArray[np.float32], bool]:
    """The vectors of ``texts``, from disk where they are there, else encoded and kept.

    Blocks that were finished before a kill are not encoded again.

    Args:
        folder: The folder of all stored vectors.
        key: Names model, texts and prompt by their content.
        texts: The texts, in order.
        encode: Texts -> vectors [n, d].
        what: What is encoded, for progress and errors.
        block_rows: Texts per block.

    Returns:
        A read-only memory map [n, d] of float32, and whether it was all there already.

    Raises:
        ObliqError: A vector that is not finite, or a model whose dimension changes on the way.
    """
    root = Path(folder)
    done = root / f"{safe_name(key, 'vector key')}.npy"
    if done.is_file():
        vectors = np.load(done, mmap_mode="r", allow_pickle=False)
        if vectors.shape[0] != len(texts):
            raise DataError(f"{done}: {vectors.shape[0]} vectors for {len(texts)} texts; delete it")
        return vectors, True
    root.mkdir(parents=True, exist_ok=True)
    partial, progress = root / f"{key}.partial.npy", root / f"{key}.progress.json"
    rows = 0
    array: np.memmap[Any, Any] | None = None
    if partial.is_file() and progress.is_file():
        array = np.lib.format.open_memmap(partial, mode="r+")
        rows = int(read_json(progress)["rows"])
        if array.shape[0] != len(texts):
            array, rows = None, 0
        else:
            logger.info("%s: %d of %d vectors found, going on from there", what, rows, len(texts))
    bar = tqdm(total=len(texts), initial=rows, desc=what, disable=len(texts) <= block_rows)
    while rows < len(texts):
        block = check_vectors(encode(texts[rows : rows + block_rows]), rows, what)
        if array is None:
            array = _reserved(partial, (len(texts), block.shape[1]))
        if block.shape[1] != array.shape[1]:
            raise ObliqError(
                f"{what}: vectors of dimension {block.shape[1]} after {array.shape[1]}"
            )
        array[rows : rows + len(block)] = block
        array.flush()
        rows += len(block)
        write_json(progress, {"rows": rows})
        bar.update(len(block))
    bar.close()
    del array
    partial.replace(done)
    progress.unlink(missing_ok=True)
    return np.load(done, mmap_mode="r", allow_pickle=False), False


def _reserved(path: Path, shape: tuple[int, int]) -> np.memmap[Any, Any]:
    """A memory map whose space on disk is taken at once.

    A full disk is an error here; writing to a map without space behind it would end the process.
    """
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError:
            del array
            path.unlink(missing_ok=True)
            raise
    return array

"""Vectors on disk: one memory-mapped safetensors file per shard.

A shard's header says to which index it belongs, so that a file of another model or corpus is not
taken for one of this index. Half precision and int8 may have the full vectors beside them: then
the small ones nominate, and the full ones decide the order.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from obliq_hf.errors import DataError, ObliqError, nearest
from obliq_hf.files import atomic_path
from obliq_hf.search.tensors import cast_half
from obliq_hf.search.vectors import row_norms

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["STORAGES", "Shard", "ShardRecord", "Storage", "write_shard"]

Storage = Literal["float32", "float16", "int8"]
"""How vectors are kept: as they are, rounded, or as 8-bit integers with one scale a row."""

STORAGES: tuple[str, ...] = get_args(Storage)

_TYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8}
_NAMES = {np.dtype(kind).name: name for name, kind in _TYPES.items()}
_LARGEST_HEADER = 1 << 20


@dataclass(frozen=True)
class ShardRecord:
    """What is known of a finished shard.

    Attributes:
        file: Name of its file.
        exact: Name of the file with the full vectors, where there is one.
        first: Row number of its first vector.
        rows: Number of vectors.
        sha256: File name -> digest of its content.
        bytes: File name -> size.
        largest_norm: Largest norm of a stored vector.
        residual: Largest norm of the difference between a stored and a full vector; 0 where no
            full vectors are kept.
    """

    file: str
    exact: str | None
    first: int
    rows: int
    sha256: dict[str, str]
    bytes: dict[str, int]
    largest_norm: float
    residual: float


def check_storage(storage: str) -> Storage:
    """A storage by its name.

    Raises:
        ObliqError: There is none of that name.
    """
    if storage not in STORAGES:
        raise ObliqError(f"storage {storage!r} is not valid{nearest(storage, STORAGES)}")
    return storage  # type: ignore[return-value]


def _quantised(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as integers from -127 to 127, and the scale of each."""
    largest = np.abs(vectors).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def write_shard(
    folder: Path,
    number: int,
    vectors: NDArray[np.float32],
    *,
    first: int,
    storage: Storage,
    keep_exact: bool,
    metadata: dict[str, str],
) -> ShardRecord:
    """Write one shard, whole or not at all, and read it back.

    Args:
        folder: The index's folder of shards.
        number: Number of the shard.
        vectors: Its vectors, float32 ``[rows, d]``.
        first: Row number of its first vector.
        storage: How they are kept.
        keep_exact: Whether the full vectors are kept beside smaller ones.
        metadata: What the header says besides ``first``: the index it belongs to.

    Raises:
        ObliqError: A vector is not finite, or too large for half precision; its row is named.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = first + int(np.flatnonzero(~finite)[0])
        raise ObliqError(f"the vector of row {row} holds NaN or an infinity")
    tensors: dict[str, NDArray[Any]] = {}
    stored = vectors
    if storage == "int8":
        tensors["vectors"], tensors["scales"] = _quantised(vectors)
        stored = tensors["vectors"].astype(np.float32) * tensors["scales"][:, None]
    elif storage == "float16":
        with np.errstate(over="ignore"):
            tensors["vectors"] = vectors.astype(np.float16)
        stored = tensors["vectors"].astype(np.float32)
        if not np.isfinite(stored).all():
            row = first + int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
            raise ObliqError(f"the vector of row {row} is too large for float16; use float32")
    else:
        tensors["vectors"] = np.ascontiguousarray(vectors)
    keep_exact = keep_exact and storage != "float32"
    header = {**metadata, "first": str(first)}
    name = f"{number:05d}.safetensors"
    files = {name: tensors}
    if keep_exact:
        files[f"{number:05d}.exact.safetensors"] = {"vectors": np.ascontiguousarray(vectors)}
    digests, sizes = {}, {}
    for file, content in files.items():
        digests[file], sizes[file] = _write(folder / file, content, header)
    return ShardRecord(
        file=name,
        exact=f"{number:05d}.exact.safetensors" if keep_exact else None,
        first=first,
        rows=len(vectors),
        sha256=digests,
        bytes=sizes,
        largest_norm=float(np.nextafter(np.float32(row_norms(stored).max()), np.float32(np.inf))),
        residual=float(row_norms(vectors - stored).max()) * 1.001 if keep_exact else 0.0,
    )


def _write(
    path: Path, tensors: dict[str, NDArray[Any]], metadata: dict[str, str]
) -> tuple[str, int]:
    """Write a safetensors file; returns the digest of what stands on disk, and its size.

    The library's own writer puts metadata in an order that differs from run to run.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary:
        with temporary.open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for array in tensors.values():
                stream.write(np.ascontiguousarray(array).data.cast("B"))
        digest = file_digest(temporary)
        size = temporary.stat().st_size
        _read_header(temporary)
    return digest, size


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and where its data begin.

    Raises:
        DataError: It is none, or shorter than it says.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(_LARGEST_HEADER, size):
            raise DataError(f"{path}: is not a shard of vectors")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise DataError(f"{path}: is not a shard of vectors: {error}") from error
    if not isinstance(header, dict) or "vectors" not in header:
        raise DataError(f"{path}: is not a shard of vectors")
    end = 8 + length + max(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__")
    if end > size:
        raise DataError(f"{path}: is cut short: {size} bytes of {end}")
    return header, 8 + length


class Shard:
    """One shard's vectors, mapped into memory.

    Args:
        folder: The index's folder of shards.
        record: What is known of it.
        storage: How its vectors are kept.
        dimension: Their dimension.
        metadata: What its header must say.

    Raises:
        DataError: A file is missing, cut short, of another shape or of another index.
    """

    def __init__(
        self,
        folder: Path,
        record: ShardRecord,
        *,
        storage: Storage,
        dimension: int,
        metadata: dict[str, str],
    ) -> None:
        self.record = record
        self.storage = storage
        wanted = {**metadata, "first": str(record.first)}
        shape = (record.rows, dimension)
        self.vectors, scales = _mapped(folder, record.file, record, shape, storage, wanted)
        self.scales: NDArray[np.float32] | None = scales
        self.exact: NDArray[np.float32] | None = None
        if record.exact is not None:
            self.exact, _ = _mapped(folder, record.exact, record, shape, "float32", wanted)

    def __len__(self) -> int:
        return self.record.rows

    def read(self, start: int, stop: int, target: NDArray[np.float32]) -> None:
        """Put the stored vectors of some rows into ``target`` as float32."""
        part = self.vectors[start:stop]
        if self.storage == "float16":
            cast_half(part, target)
        elif self.scales is not None:
            np.multiply(part, self.scales[start:stop, None], out=target)
        else:
            target[:] = part

    def stored(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors of single rows, float32."""
        taken = np.empty((len(rows), self.vectors.shape[1]), dtype=np.float32)
        if self.storage == "float16":
            cast_half(self.vectors[rows], taken)
        elif self.scales is not None:
            np.multiply(self.vectors[rows], self.scales[rows, None], out=taken)
        else:
            taken[:] = self.vectors[rows]
        return taken

    def best(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The full vectors of single rows where they are kept, else the stored ones."""
        return self.stored(rows) if self.exact is None else np.asarray(self.exact[rows])


def _mapped(
    folder: Path,
    name: str,
    record: ShardRecord,
    shape: tuple[int, int],
    storage: Storage,
    metadata: dict[str, str],
) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
    path = folder / name
    remedy = "run the same 'obliq encode' again: finished shards are kept, this one is encoded anew"
    if not path.is_file():
        raise DataError(f"{path}: this shard is missing; {remedy}")
    try:
        header, start = _read_header(path)
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None
    found = header.get("__metadata__") or {}
    if found.get("model") != metadata.get("model"):
        raise DataError(
            f"{path}: holds vectors of another model than the index; vectors of two models cannot "
            f"be compared; {remedy}"
        )
    if any(found.get(key) != value for key, value in metadata.items()):
        raise DataError(
            f"{path}: belongs to another index (other texts, prompt, settings or place); {remedy}"
        )
    entry = header["vectors"]
    if entry["dtype"] != _NAMES[storage] or tuple(entry["shape"]) != shape:
        raise DataError(
            f"{path}: holds {entry['dtype']} {entry['shape']}, but the index says "
            f"{_NAMES[storage]} {list(shape)}; {remedy}"
        )
    if path.stat().st_size != record.bytes[name]:
        raise DataError(
            f"{path}: {path.stat().st_size} bytes, but the index says {record.bytes[name]}; "
            f"{remedy}"
        )
    scales = None
    if "scales" in header:
        scales = np.array(_array(path, header["scales"], start))
    return _array(path, entry, start), scales


def _array(path: Path, entry: dict[str, Any], start: int) -> NDArray[Any]:
    return np.memmap(
        path,
        dtype=_TYPES[entry["dtype"]],
        mode="r",
        offset=start + entry["data_offsets"][0],
        shape=tuple(entry["shape"]),
    )

"""Writing the splits of a dataset as parquet shards, and reading their footers back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.hub.names import check_config_names, check_split_name
from obliq_hf.hub.repository import HubError, LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from datasets import Dataset, Features

    from obliq_hf.hub.repository import Repository

__all__ = [
    "DatasetConfig",
    "StagedSplit",
    "config_from_datasets",
    "config_from_parquet",
    "count_rows",
    "rows_to_tables",
    "write_split",
]

SHARD_BYTES = 512 << 20
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 20_000
_BATCH = 1_000


@dataclass(frozen=True)
class DatasetConfig:
    """One config of a dataset repository.

    Attributes:
        name: The config's name.
        features: Its columns, the same in every split.
        splits: Split -> a function that yields its rows as tables, from the start at each call.
        folder: The folder of its files; configs with one folder share the files, so their
            features and splits must be the same. By default the name.
        about: One line for the card.
    """

    name: str
    features: Features
    splits: Mapping[str, Callable[[], Iterable[pa.Table]]]
    folder: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        check_config_names([self.name])
        if not self.folder:
            object.__setattr__(self, "folder", self.name)
        if not self.splits:
            raise ObliqError(f"config {self.name!r} has no splits")
        for split in self.splits:
            check_split_name(split)
        untyped = [name for name, feature in self.features.items() if _is_null(feature)]
        if untyped:
            raise DataError(
                f"config {self.name!r}: column {untyped[0]!r} holds nothing but None, so its type "
                "is unknown; declare its type or leave the column out"
            )


@dataclass(frozen=True)
class StagedSplit:
    """A split written to disk.

    Attributes:
        files: Its shards.
        rows: Number of rows.
        num_bytes: Size of the rows in memory.
    """

    files: list[LocalFile] = field(default_factory=list)
    rows: int = 0
    num_bytes: int = 0


def _is_null(feature: Any) -> bool:
    from datasets import List, Value

    if isinstance(feature, dict):
        return any(_is_null(inner) for inner in feature.values())
    if isinstance(feature, List):
        return _is_null(feature.feature)
    return isinstance(feature, Value) and feature.dtype == "null"


def config_from_datasets(
    name: str, splits: Mapping[str, Dataset], *, folder: str = "", about: str = ""
) -> DatasetConfig:
    """A config from datasets in memory or on disk.

    Args:
        name: The config's name.
        splits: Split -> dataset.
        folder: See :class:`DatasetConfig`.
        about: Likewise.

    Raises:
        DataError: The splits differ in their columns or column types; both are named.
    """
    first_name, first = next(iter(splits.items()))
    for split, dataset in splits.items():
        for column in {**first.features, **dataset.features}:
            one, other = first.features.get(column), dataset.features.get(column)
            if one != other:
                raise DataError(
                    f"config {name!r}: column {column!r} is {_kind(one)} in split {first_name!r} "
                    f"and {_kind(other)} in split {split!r}; splits need the same features"
                )

    def tables_of(dataset: Dataset) -> Callable[[], Iterator[pa.Table]]:
        def tables() -> Iterator[pa.Table]:
            yield from dataset.with_format("arrow").iter(batch_size=_BATCH)

        return tables

    readers = {split: tables_of(dataset) for split, dataset in splits.items()}
    return DatasetConfig(name, first.features, readers, folder, about)


def config_from_parquet(
    name: str,
    path: Path,
    features: Features,
    *,
    split: str = "train",
    folder: str = "",
    about: str = "",
) -> DatasetConfig:
    """A config whose one split is the given columns of a parquet file.

    Raises:
        DataError: The file is no parquet, or lacks a column of ``features``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_schema(path).names
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not readable as parquet: {error}") from error
    missing = [column for column in features if column not in columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r} (columns: {', '.join(columns)})")

    def tables() -> Iterator[pa.Table]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH, columns=list(features)):
                yield pa.Table.from_batches([batch])

    return DatasetConfig(name, features, {split: tables}, folder, about)


def _kind(feature: Any) -> str:
    return "missing" if feature is None else str(getattr(feature, "dtype", feature))


def rows_to_tables(
    rows: Callable[[], Iterable[dict[str, Any]]], features: Features, where: str
) -> Callable[[], Iterator[pa.Table]]:
    """Turn a stream of rows into a stream of tables.

    Args:
        rows: Yields the rows, from the start at each call.
        features: Their columns.
        where: The source, for messages.
    """

    def tables() -> Iterator[pa.Table]:
        import pyarrow as pa

        schema = features.arrow_schema
        batch: list[dict[str, Any]] = []
        done = 0

        def table() -> pa.Table:
            try:
                return pa.Table.from_pylist(batch, schema=schema)
            except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
                stop = done + len(batch)
                raise DataError(f"{where}: rows {done + 1} to {stop}: {error}") from error

        for row in rows():
            batch.append(row)
            if len(batch) >= _BATCH:
                yield table()
                done += len(batch)
                batch = []
        if batch:
            yield table()

    return tables


def write_split(
    config: DatasetConfig, split: str, staging: Path, *, shard_bytes: int = SHARD_BYTES
) -> StagedSplit:
    """Write one split as ``<folder>/<split>-00000-of-0000N.parquet``.

    Memory stays at a few row groups of 16 MB, whatever the number of rows. The same rows give
    the same bytes.

    Args:
        config: The config.
        split: The split.
        staging: Folder to write below.
        shard_bytes: Size in memory at which a new shard begins.

    Raises:
        DataError: A row does not fit the features.
        HubError: The disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = config.features.arrow_schema
    target = staging / config.folder
    target.mkdir(parents=True, exist_ok=True)
    shards: list[Path] = []
    rows = num_bytes = 0
    writer: pq.ParquetWriter | None = None
    in_shard = 0
    try:
        for group in _groups(config, split, schema):
            if writer is None or in_shard >= shard_bytes:
                if writer is not None:
                    writer.close()
                shards.append(target / f"{split}-{len(shards):05d}.parquet")
                writer = pq.ParquetWriter(
                    shards[-1],
                    schema,
                    compression="zstd",
                    use_content_defined_chunking=True,
                    write_page_index=True,
                )
                in_shard = 0
            writer.write_table(group, row_group_size=len(group))
            rows += len(group)
            num_bytes += group.nbytes
            in_shard += group.nbytes
        if writer is not None:
            writer.close()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"config {config.name!r}, split {split!r}: {error}") from error
    except OSError as error:
        raise HubError(
            f"could not write below {staging}: {error}; nothing was published"
        ) from error
    files = []
    for i, shard in enumerate(shards):
        final = shard.with_name(f"{split}-{i:05d}-of-{len(shards):05d}.parquet")
        shard.rename(final)
        files.append(LocalFile(final.relative_to(staging).as_posix(), final))
    return StagedSplit(files, rows, num_bytes)


def _groups(config: DatasetConfig, split: str, schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    pending: list[pa.Table] = []
    size = count = 0
    for table in config.splits[split]():
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise DataError(f"config {config.name!r}, split {split!r}: no column {missing[0]!r}")
        fitted = table.select(schema.names).cast(schema)
        if not len(fitted):
            continue
        pending.append(fitted)
        size += fitted.nbytes
        count += len(fitted)
        if size >= _GROUP_BYTES or count >= _GROUP_ROWS:
            yield pa.concat_tables(pending).combine_chunks()
            pending, size, count = [], 0, 0
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def count_rows(
    repository: Repository, paths: Iterable[str], revision: str
) -> tuple[int, list[Features]]:
    """Read the footers of published parquet files.

    Returns:
        The number of rows of all files together, and the features that each declares.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features

    rows = 0
    features = []
    for path in paths:
        try:
            with repository.open(path, revision) as stream, pq.ParquetFile(stream) as file:
                rows += file.metadata.num_rows
                features.append(Features.from_arrow_schema(file.schema_arrow))
        except (pa.ArrowInvalid, OSError) as error:
            raise HubError(f"{repository.place}: {path} cannot be read back: {error}") from error
    return rows, features

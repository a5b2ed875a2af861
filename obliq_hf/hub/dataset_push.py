"""Publishing a dataset: one commit that holds its shards and its card, read back and tagged."""

from __future__ import annotations

import logging
import re
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError
from obliq_hf.files import content_hash
from obliq_hf.hub.card_header import CardHeader, split_card
from obliq_hf.hub.cards import HeaderItem, merge_card, published_header
from obliq_hf.hub.names import check_config_names, check_repo_path, check_tag
from obliq_hf.hub.parquet import SHARD_BYTES, DatasetConfig, StagedSplit, count_rows, write_split
from obliq_hf.hub.push import check_public, check_push, push_change, read_text
from obliq_hf.hub.repository import Change, HubError, LocalFile, Pushed, Repository, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from datasets import DatasetInfo

__all__ = ["StagedDataset", "push_dataset", "stage_dataset"]

logger = logging.getLogger(__name__)

_DATA = re.compile(r"\.(parquet|jsonl?|csv|tsv|arrow|txt)(\.(gz|zst|bz2|xz))?$")


@dataclass(frozen=True)
class StagedDataset:
    """All configs of a push, written to disk.

    Attributes:
        configs: The configs.
        splits: Folder -> split -> what was written.
        notes: Splits left out because they hold no rows.
    """

    configs: Sequence[DatasetConfig]
    splits: Mapping[str, Mapping[str, StagedSplit]]
    notes: list[str]

    def files(self) -> list[LocalFile]:
        """All shards."""
        return [
            file
            for splits in self.splits.values()
            for staged in splits.values()
            for file in staged.files
        ]

    def rows(self) -> dict[str, dict[str, int]]:
        """Config -> split -> number of rows."""
        return {
            config.name: {s: staged.rows for s, staged in self.splits[config.folder].items()}
            for config in self.configs
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all shards."""
        return content_hash(sorted((file.path, file.sha256) for file in self.files()))

    @property
    def default_tag(self) -> str:
        """The version tag where a person chose none."""
        return f"data-{self.digest[:12]}"

    def info(self, config: DatasetConfig) -> DatasetInfo:
        """The config's features and split sizes."""
        from datasets import DatasetInfo, SplitDict, SplitInfo

        staged = self.splits[config.folder]
        splits = SplitDict()
        for name, split in staged.items():
            splits.add(SplitInfo(name=name, num_bytes=split.num_bytes, num_examples=split.rows))
        return DatasetInfo(
            features=config.features,
            splits=splits,
            download_size=sum(f.size for s in staged.values() for f in s.files),
            dataset_size=sum(s.num_bytes for s in staged.values()),
        )

    def header_items(self) -> list[HeaderItem]:
        """The ``configs`` and ``dataset_info`` of the card's header."""
        items = []
        for config in self.configs:
            paths = [
                {"split": split, "path": f"{config.folder}/{split}-*"}
                for split in self.splits[config.folder]
            ]
            items.append(
                HeaderItem(
                    "configs",
                    {"config_name": config.name, "data_files": paths},
                    _named(config.name),
                )
            )
        for config in self.configs:
            info = {"config_name": config.name, **self.info(config)._to_yaml_dict()}
            items.append(HeaderItem("dataset_info", info, _named(config.name)))
        return items


def _named(name: str) -> Callable[[Any], bool]:
    def same(item: Any) -> bool:
        return isinstance(item, dict) and item.get("config_name", "default") == name

    return same


def stage_dataset(
    configs: Sequence[DatasetConfig], staging: Path, *, shard_bytes: int = SHARD_BYTES
) -> StagedDataset:
    """Write the shards of all configs below a folder.

    A split without rows is left out and noted.

    Raises:
        DataError: A config has no rows at all, or a row does not fit its features.
    """
    check_config_names([config.name for config in configs])
    written: dict[str, dict[str, StagedSplit]] = {}
    notes = []
    for config in configs:
        if config.folder in written:
            continue
        splits = {}
        for split in config.splits:
            staged = write_split(config, split, staging, shard_bytes=shard_bytes)
            if staged.rows:
                splits[split] = staged
            else:
                notes.append(f"config {config.name!r}: split {split!r} has no rows; left out")
        if not splits:
            raise DataError(f"config {config.name!r} has no rows; nothing was published")
        written[config.folder] = splits
    for note in notes:
        logger.warning(note)
    return StagedDataset(configs, written, notes)


def push_dataset(
    configs: Sequence[DatasetConfig],
    repository: Repository,
    *,
    card: Callable[[StagedDataset], str],
    part: str = "dataset",
    extra: Sequence[LocalFile] = (),
    retired: Iterable[str] = (),
    version: str | None = None,
    private: bool | None = None,
    create_pr: bool = False,
    dry_run: bool = False,
    replace_card: bool = False,
    shard_bytes: int = SHARD_BYTES,
    message: str | None = None,
) -> Pushed:
    """Publish configs of a dataset in one commit.

    Configs of the repository that are not among them, and text that people have written, stay
    as they are. Files of an earlier push of the same configs that are no longer theirs are
    removed. The same content again makes no commit. After the commit the repository is read
    back, and rows and features are compared.

    Args:
        configs: What to publish.
        repository: Where to.
        card: Gives the finished card, once sizes are known.
        part: Name of the card's text among those of other artefacts in the repository.
        extra: Further small files, such as provenance.
        retired: Names of configs that an earlier push of the artefact may have made and that
            it no longer has; they are removed.
        version: The version tag to set; by default one made from the content.
        private: Make a new repository private; refuse one that is public.
        create_pr: Open a pull request instead of committing.
        dry_run: Build everything, and write nothing.
        replace_card: Write the card's text anew although it was edited by hand.
        shard_bytes: Size in memory at which a new shard begins.
        message: First line of the commit message.

    Returns:
        What was done.

    Raises:
        DataError: The data cannot be published as they are.
        HubError: The repository refuses, or does not hold afterwards what was written.
    """
    names = [config.name for config in configs]
    check_config_names(names)
    for file in extra:
        check_repo_path(file.path)
    if version is not None:
        check_tag(version)
    repository.check_access(create_pr=create_pr, private=private)
    before = repository.snapshot()
    _check_published(repository, before, names, replace_card)
    with tempfile.TemporaryDirectory(prefix="obliq-publish-") as folder:
        staged = stage_dataset(configs, Path(folder), shard_bytes=shard_bytes)
        tag = version or staged.default_tag
        finished = card(staged)
        check_public(repository, [LocalFile("README.md", finished.encode()), *extra])
        check_push(repository, before, create_pr=create_pr, version=version, data=staged.files())
        notes = list(staged.notes)

        def plan(now: Snapshot | None) -> Change:
            old = read_text(repository, "README.md", now)
            where = f"{repository.place}: README.md"
            gone = [name for name in retired if name not in names]
            merged = merge_card(
                old,
                finished,
                part=part,
                where=where,
                items=staged.header_items(),
                dropped=[(k, _named(n)) for n in gone for k in ("configs", "dataset_info")],
                owned=("size_categories",),
                replace=replace_card,
            )
            notes[len(staged.notes) :] = merged.notes
            return _change(
                now,
                [*staged.files(), *extra, LocalFile("README.md", merged.text.encode())],
                stale=_stale(old, where, now, {*names, *gone}, staged, replace_card),
                message=message or f"Publish {', '.join(names[:3])}" + " ..." * (len(names) > 3),
            )

        pushed = push_change(
            repository,
            plan,
            before=before,
            verify=lambda revision: _verify(repository, staged, revision),
            version=tag,
            private=private,
            create_pr=create_pr,
            dry_run=dry_run,
        )
        pushed.notes.extend(notes)
        pushed.rows.update(staged.rows())
        return pushed


def _check_published(
    repository: Repository, now: Snapshot | None, names: Sequence[str], replace_card: bool
) -> None:
    if now is None:
        return
    text = read_text(repository, "README.md", now)
    where = f"{repository.place}: README.md"
    header = published_header(text, where, broken_is_empty=replace_card)
    if header is None:
        return
    configs = [
        str(item["config_name"])
        for item in header.items("configs")
        if isinstance(item, dict) and "config_name" in item
    ]
    check_config_names(names, configs)
    if not configs:
        data = [path for path in now.files if _DATA.search(path)]
        if data:
            raise HubError(
                f"{repository.place} holds data ({data[0]}) that no config of its card names; "
                "adding configs would hide them. Name them in the card first, or use another "
                "repository"
            )


def _change(
    now: Snapshot | None, files: Sequence[LocalFile], *, stale: Iterable[str], message: str
) -> Change:
    held = now.files if now is not None else {}
    add = [f for f in files if f.path not in held or not held[f.path].same_as(f)]
    return Change(message, add, sorted(stale))


def _stale(
    old: str | None,
    where: str,
    now: Snapshot | None,
    mine: set[str],
    staged: StagedDataset,
    replace_card: bool,
) -> set[str]:
    """Files that earlier pushes of these configs have left and nothing names any more."""
    if old is None or now is None:
        return set()
    header = published_header(old, where, broken_is_empty=replace_card)
    own = {p for i in staged.header_items() if i.key == "configs" for p in _patterns(i.item)}
    others: set[str] = set()
    for item in header.items("configs") if header else []:
        if isinstance(item, dict):
            (own if item.get("config_name") in mine else others).update(_patterns(item))
    written = {file.path for file in staged.files()}
    touched = {path for path in now.files if _matches(path, own)} - written
    kept = {path for path in now.files if _matches(path, others)}
    clash = sorted(kept & written)
    if clash:
        raise HubError(f"{where}: {clash[0]} belongs to another config of the repository")
    return {path for path in touched - kept if path.endswith(".parquet")}


def _patterns(config: Mapping[str, Any]) -> list[str]:
    files = config.get("data_files") or []
    found: list[str] = []
    for entry in [files] if isinstance(files, str | dict) else files:
        value = entry.get("path", []) if isinstance(entry, dict) else entry
        found += [value] if isinstance(value, str) else list(value)
    return [pattern.removeprefix("./") for pattern in found if isinstance(pattern, str)]


def _matches(path: str, patterns: Iterable[str]) -> bool:
    for pattern in patterns:
        expression = re.escape(pattern)
        for glob, meaning in (
            (r"\*\*/", "(?:.*/)?"),
            (r"\*\*", ".*"),
            (r"\*", "[^/]*"),
            (r"\?", "[^/]"),
        ):
            expression = expression.replace(glob, meaning)
        if re.fullmatch(expression, path):
            return True
    return False


def _verify(repository: Repository, staged: StagedDataset, revision: str) -> None:
    """Read the repository back and compare the rows and features of every config."""
    now = repository.snapshot(revision)
    text = read_text(repository, "README.md", now)
    if now is None or text is None:
        raise HubError(f"{repository.place}: revision {revision} is not there after the push")
    header = CardHeader(split_card(text)[1], f"{repository.place}: README.md")
    footers: dict[tuple[str, ...], Any] = {}
    for config in staged.configs:
        item: dict[str, Any] = next(
            (i for i in header.items("configs") if _named(config.name)(i)), {}
        )
        for split, expected in staged.splits[config.folder].items():
            patterns = [
                entry["path"] for entry in item.get("data_files", []) if entry["split"] == split
            ]
            paths = tuple(sorted(path for path in now.files if _matches(path, patterns)))
            if paths not in footers:
                footers[paths] = count_rows(repository, paths, revision)
            rows, features = footers[paths]
            where = f"{repository.place} at {revision}: config {config.name!r}, split {split!r}"
            if rows != expected.rows:
                raise HubError(f"{where} holds {rows} rows; {expected.rows} were written")
            if any(feature != config.features for feature in features):
                raise HubError(f"{where} has features other than those written")

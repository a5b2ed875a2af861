"""A corpus from wherever it is: a folder, a file, or a dataset repository on a Hub.

Repositories are read in the layout this project publishes (configuration `<task>-corpus`) and in
OBLIQ-Bench's (configuration `<hub_config>`), both with a split `corpus`; a folder laid out as a
repository is one too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError, nearest
from obliq_hf.records import Corpus, clean_id, clean_text, corpus_file, read_corpus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from obliq_hf.tasks import ObliqTask

__all__ = ["corpus_from_repository", "open_corpus"]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def open_corpus(source: str, task: ObliqTask, *, group_field: str | None = None) -> Corpus:
    """Read a corpus from a path or a repository; documents without text are dropped.

    Args:
        source: A corpus file or folder, a folder laid out as a repository, or a repository's name.
        task: Chooses the configuration of a repository.
        group_field: The field that names a document's source.

    Raises:
        DataError: There is nothing of the kind, or a document is not as it must be.
    """
    path = Path(source)
    if path.exists():
        try:
            corpus_file(path)
        except DataError:
            if not (path / "README.md").is_file():
                raise
            return corpus_from_repository(source, task, group_field=group_field)
    elif _REPOSITORY.fullmatch(source):
        return corpus_from_repository(source, task, group_field=group_field)
    return read_corpus(source, group_field=group_field, empty="drop")


def corpus_from_repository(
    source: str, task: ObliqTask, *, group_field: str | None = None
) -> Corpus:
    """Read the corpus of a task from a dataset repository.

    Args:
        source: The repository's name, or a folder laid out as one.
        task: Names the configuration: `<task>-corpus`, the task's own in OBLIQ-Bench, or `corpus`.
        group_field: The field that names a document's source; default `group`.

    Raises:
        DataError: The repository, the configuration or the split `corpus` is not there; the
            message names those that are.
    """
    try:
        from datasets import get_dataset_config_names, load_dataset
        from datasets.exceptions import DatasetNotFoundError
    except ImportError as error:
        raise DataError("reading a repository needs: pip install 'obliq-hf[data]'") from error
    wanted = [f"{task.name}-corpus", task.hub_config, task.name, "corpus"]
    try:
        names = get_dataset_config_names(source)
        config = next((name for name in wanted if name in names), None)
        if config is None:
            raise DataError(
                f"{source}: has no configuration {wanted[0]!r}{nearest(str(wanted[0]), names)}"
            )
        # streamed, a folder is read as it stands; else datasets keeps it under its last name alone
        rows = load_dataset(source, config, split="corpus", streaming=Path(source).is_dir())
    except (DatasetNotFoundError, ConnectionError, FileNotFoundError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{source}: neither a path here nor a dataset repository that can be read: {error}"
        ) from error
    return _corpus(rows, source, group_field or "group")


def _corpus(rows: Iterable[dict[str, Any]], source: str, group_field: str) -> Corpus:
    ids, texts, titles = [], [], []
    groups: list[str | None] = []
    for number, row in enumerate(rows):
        where = f"{source}, row {number}"
        name = "_id" if "_id" in row else "id"
        text = clean_text(row.get("text"), f"{where} field 'text'")
        title = clean_text(row.get("title") or "", f"{where} field 'title'")
        if not (text.strip() or title.strip()):
            continue
        metadata = row.get("metadata")
        fields = {**row, **(metadata if isinstance(metadata, dict) else {})}
        group = fields.get(group_field)
        if group_field != "group" and group_field not in fields:
            raise DataError(f"{where} has no field {group_field!r}{nearest(group_field, fields)}")
        ids.append(clean_id(row.get(name), f"{where} field {name!r}"))
        texts.append(text)
        titles.append(title)
        groups.append(None if group is None else str(group))
    if not ids:
        raise DataError(f"{source}: the corpus holds no documents")
    return Corpus(ids, texts, titles, groups)

"""Training rows that others have published, with columns of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError, ObliqError, nearest
from obliq_hf.files import hash_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataset_builders.training_rows import TrainingRows
    from training_recipes.recipe import Recipe

__all__ = ["check_rows", "foreign_rows", "rows_identity"]

_ROLES = ("anchor", "positive", "positives", "negatives", "task")


def check_rows(recipe: Recipe, tasks: Sequence[str]) -> None:
    """Check the section ``rows`` as far as it can be without its file.

    Raises:
        ObliqError: No task is named, an unknown one is, or a role of a column is unknown.
    """
    config = recipe.rows
    if not config.given:
        return
    if (config.path is None) == (config.dataset is None):
        raise ObliqError("rows.path, rows.dataset: name a file, or a dataset on the Hub, not both")
    if config.dataset is not None and config.file is None:
        raise ObliqError("rows.file: name the file in the repository rows.dataset")
    for role in config.columns:
        if role not in _ROLES:
            raise ObliqError(f"rows.columns: no role {role!r}{nearest(role, _ROLES)}")
    if (config.task is None) == ("task" not in config.columns):
        raise ObliqError(
            "rows.task, rows.columns: name the task that all rows are for, or the column 'task' "
            "that says it of each row, not both"
        )
    for name in [config.task] if config.task else config.names.values():
        if name not in tasks:
            raise ObliqError(
                f"rows: {name!r} is not among the recipe's tasks{nearest(name, tasks)}"
            )


def rows_identity(recipe: Recipe) -> dict[str, Any]:
    """What decides the rows, beside the section's settings."""
    config = recipe.rows
    if not config.given:
        return {}
    path = config.path
    return {
        "section": recipe.hash("rows"),
        "read": hash_files(path) if path is not None and Path(path).exists() else None,
    }


def foreign_rows(recipe: Recipe, tasks: Sequence[str]) -> list[TrainingRows]:
    """Read the rows that a recipe names: one training dataset for each task they are for.

    Args:
        recipe: The recipe.
        tasks: Names of its tasks.

    Raises:
        DataError: A column is missing, a row is not as it must be, or no row is for any task.
        HubError: The dataset cannot be had.
    """
    from dataset_builders.foreign_rows import read_foreign_rows

    config = recipe.rows
    if not config.given:
        return []
    source: dict[str, Any] = {}
    if config.path is not None:
        path = Path(config.path)
    else:
        from obliq_hf.hub.download import fetch_file

        assert config.dataset is not None
        assert config.file is not None
        name, _, revision = config.dataset.partition("@")
        path, commit = fetch_file(name, config.file, revision=revision or None)
        source = {"dataset": name, "revision": commit, "file": config.file}
    columns = {role: column for role, column in config.columns.items() if role != "task"}
    column = config.columns.get("task")
    wanted: dict[str, str | None] = {task: task for task in tasks}
    if config.task is not None:
        wanted = {config.task: None}
    wanted.update({task: value for value, task in config.names.items()})
    parts = []
    for task, value in wanted.items():
        only = None if column is None else {column: value}
        try:
            rows = read_foreign_rows(
                path,
                task=task,
                name=f"{task}-rows",
                columns=columns or None,
                negatives=config.negatives,
                only=only,
            )
        except DataError as error:
            if only is None or "holds no rows" not in str(error):
                raise
            continue
        rows.info.update(source)
        parts.append(rows)
    if not parts:
        raise DataError(
            f"{path}: no row's {column!r} is one of {', '.join(map(str, wanted.values()))}; "
            "say with rows.names which value stands for which task"
        )
    return parts

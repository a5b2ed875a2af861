"""The datasets of a mixture as training sees them, and the plan of their batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from datasets import Dataset

    from obliq_hf.records import Corpus
    from obliq_hf.task_data import TaskData
    from obliq_hf.tasks import ObliqTask
    from training_recipes.batches import BatchPlan
    from training_recipes.sections import TrainingConfig

__all__ = [
    "TrainingTable",
    "column_prompts",
    "plan_training",
    "read_dev",
    "read_tables",
    "text_lengths",
    "trained_mteb_tasks",
]


_OTHER_CORPORA = {"classics"}
"""Corpora of this project that hold nothing of the benchmark's."""


@dataclass(frozen=True)
class TrainingTable:
    """One dataset to train on.

    Attributes:
        name: Its name.
        task: Name of the task whose instruction its anchors get.
        kind: ``graph`` or ``queries``.
        rows: Its rows.
    """

    name: str
    task: str
    kind: str
    rows: Dataset


def read_tables(mixture: str | Path) -> list[TrainingTable]:
    """The datasets of a mixture folder, in memory.

    Raises:
        DataError: The folder or a file is not as ``mixture.json`` says.
    """
    import pyarrow.parquet as pq
    from datasets import Dataset
    from datasets.table import InMemoryTable

    from dataset_builders.mixture import read_mixture

    tables = []
    for entry in read_mixture(mixture):
        if entry.kind not in {"graph", "queries"}:
            raise ObliqError(
                f"{mixture}: dataset {entry.name!r} has kind {entry.kind!r}"
                f"{nearest(entry.kind, ['graph', 'queries'])}"
            )
        rows = Dataset(InMemoryTable(pq.read_table(entry.path)))
        tables.append(TrainingTable(entry.name, entry.task, entry.kind, rows))
    return tables


def plan_training(
    config: TrainingConfig, tables: Sequence[TrainingTable], *, seed: int, world: int = 1
) -> BatchPlan:
    """Plan every batch of a training; also what a dry run shows.

    Raises:
        ObliqError: ``training.repeat`` names no dataset or kind, or no batch can be filled.
        DataError: A row is not as it must be.
    """
    from training_recipes.batches import plan_batches
    from training_recipes.conflicts import read_conflicts

    names = [table.name for table in tables]
    kinds = sorted({"graph", "queries"} | {table.kind for table in tables})
    for key in config.repeat:
        if key not in names and key not in kinds:
            raise ObliqError(f"training.repeat: no dataset {key!r}{nearest(key, names + kinds)}")
    repeat = [config.repeat.get(t.name, config.repeat.get(t.kind, 1)) for t in tables]
    conflicts = [
        read_conflicts(
            table.rows,
            name=table.name,
            kind="graph" if table.kind == "graph" else "queries",
            separate_groups=config.separate_groups,
        )
        for table in tables
    ]
    return plan_batches(
        conflicts,
        batch_size=config.batch_size,
        repeat=repeat,
        seed=seed,
        world=world,
        min_batch_size=config.min_batch_size,
        max_steps=config.max_steps,
    )


def column_prompts(
    tables: Sequence[TrainingTable], tasks: Sequence[ObliqTask], prompts: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Dataset -> column -> prompt: the task's instruction on anchors alone.

    Raises:
        ObliqError: A dataset's task is not among those the model is trained for.
    """
    from training_recipes.conflicts import row_negatives

    known = [task.name for task in tasks]
    found: dict[str, dict[str, str]] = {}
    for table in tables:
        if table.task not in known:
            raise ObliqError(
                f"training dataset {table.name!r} is for task {table.task!r}, which is not among "
                f"the recipe's tasks{nearest(table.task, known)}"
            )
        documents = ["positive", *row_negatives(table.rows.column_names)]
        found[table.name] = {
            "anchor": prompts[table.task],
            **dict.fromkeys(documents, prompts["document"]),
        }
    return found


def text_lengths(
    config: TrainingConfig, tables: Sequence[TrainingTable], tasks: Sequence[str]
) -> dict[str, int]:
    """Dataset -> tokens per text, where ``training.lengths`` sets its task's.

    Raises:
        ObliqError: No such task, or a length above that at which the model will encode.
    """
    for key in config.lengths:
        if key not in tasks:
            raise ObliqError(f"training.lengths: no task {key!r}{nearest(key, tasks)}")
        if config.max_length is not None and config.lengths[key] > config.max_length:
            raise ObliqError(
                f"training.lengths.{key}: {config.lengths[key]} is above training.max_length "
                f"{config.max_length}, the length at which the model will encode"
            )
    return {t.name: config.lengths[t.task] for t in tables if t.task in config.lengths}


def trained_mteb_tasks(
    tables: Sequence[TrainingTable], tasks: Sequence[ObliqTask], corpus: str | Path
) -> list[str]:
    """Names in mteb of the tasks whose data a model is trained on.

    Args:
        tables: The datasets trained on.
        tasks: The tasks of the recipe.
        corpus: The corpus folder they were made from, which need not be there.

    Returns:
        For each task that a dataset is for, sorted: its names over this corpus, where the corpus
        has the task; and those of the mteb task itself, unless the corpus is known to be another.
        Gold and pooled judgments of one task have a name each.
    """
    from obliq_hf.task_data import available_tasks
    from obliq_hf.tasks.naming import GOLD_COUNTERPARTS, collection_name, task_class_name

    folder = Path(corpus)
    collection = collection_name(folder)
    present = available_tasks(folder)
    trained = {table.task for table in tables}
    names = {
        task_class_name(collection, name, judgments)
        for name in trained.intersection(present)
        for judgments in ("gold", "pooled")
    }
    for task in tasks:
        if task.name in trained and task.mteb_name is not None and collection not in _OTHER_CORPORA:
            names |= {task.mteb_name, GOLD_COUNTERPARTS.get(task.mteb_name, task.mteb_name)}
    return sorted(names)


def read_dev(folder: str | Path, tasks: Sequence[ObliqTask], split: str) -> dict[str, TaskData]:
    """Development data of every task that has them in a corpus folder; one corpus is read once.

    Args:
        folder: The corpus folder.
        tasks: The tasks of the training.
        split: Name of the split.

    Raises:
        ObliqError: No task has the split.
    """
    from obliq_hf.task_data import (
        available_splits,
        available_tasks,
        read_task_data,
        task_corpus_file,
        with_group_exclusions,
    )

    found: dict[str, TaskData] = {}
    read: dict[Path, Corpus] = {}
    by_name = {task.name: task for task in tasks}
    for name in available_tasks(folder):
        if name not in by_name or split not in available_splits(folder, task=name):
            continue
        file = task_corpus_file(folder, task=name)
        data = read_task_data(folder, task=name, split=split, corpus=read.get(file))
        read[file] = data.corpus
        if by_name[name].exclusion == "group":
            data = with_group_exclusions(data)
        found[name] = data
    if not found:
        raise ObliqError(
            f"training.dev_split: {folder} has no judgments of split {split!r} for any task of "
            "the recipe"
        )
    return found

"""What can be said of a recipe before anything runs, and of its corpus before anything uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.prompts import get_template
from training_recipes.foreign import check_rows
from training_recipes.sections import SYSTEMS
from training_recipes.settings import leaves
from training_recipes.tables import text_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from obliq_hf.records import Corpus
    from training_recipes.recipe import Recipe
    from training_recipes.stages import Stage

__all__ = [
    "check_base",
    "check_dev",
    "check_graph_corpus",
    "check_places",
    "check_recipe",
    "check_scored",
    "check_teacher",
]

_SOURCES = {
    "path": ("beir", "jsonl", "bench"),
    "group_field": ("beir", "jsonl"),
    "label_field": ("beir", "jsonl"),
    "subfolder": ("beir", "jsonl"),
    "metadata": ("beir",),
    "where": ("jsonl",),
    "other_path": ("beir", "jsonl"),
    "other_where": ("beir", "jsonl"),
    "folders": ("bench",),
    "group_fields": ("bench",),
    "revision": ("bench",),
}
"""Setting of the corpus -> the sources that read it."""


def check_recipe(recipe: Recipe, tasks: Sequence[str]) -> None:
    """Check everything about a recipe that can be checked without data or models.

    Args:
        recipe: The recipe.
        tasks: Names of its tasks.

    Raises:
        ObliqError: A section names what is not there, or contradicts another.
    """
    _check_queries(recipe, tasks)
    check_rows(recipe, tasks)
    _check_corpus(recipe, tasks)
    _check_graph(recipe, tasks)
    if (
        recipe.queries.source == "none"
        and not recipe.rows.given
        and (recipe.graph.task is None or recipe.graph.dose == 0)
    ):
        raise ObliqError(
            "nothing to train on: queries.source is none, rows has no file, and graph.task is "
            "null or the dose 0"
        )
    _check_training(recipe, tasks)
    _check_evaluation(recipe)


def _among(key: str, name: str, tasks: Sequence[str]) -> None:
    if name not in tasks:
        raise ObliqError(f"{key}: {name!r} is not among the recipe's tasks{nearest(name, tasks)}")


def _present(key: str, place: str | None) -> None:
    if place is not None and not Path(place).exists():
        raise ObliqError(f"{key}: {place} does not exist")


def _check_queries(recipe: Recipe, tasks: Sequence[str]) -> None:
    config = recipe.queries
    for name in config.tasks:
        _among("queries.tasks", name, tasks)
    if config.source != "none" and not config.tasks:
        raise ObliqError("queries.tasks: name the tasks that the training queries are for")
    if config.source == "path":
        if config.path is None:
            raise ObliqError("queries.path: source 'path' needs the file of the queries")
        _present("queries.path", config.path)
    if config.source == "recorded" and recipe.corpus.source == "bench":
        raise ObliqError("queries.source: queries are recorded for passages of classics alone")
    if config.count is not None and config.source != "llm":
        raise ObliqError("queries.count: goes with queries.source llm")
    _present("rows.path", recipe.rows.path)


def _check_corpus(recipe: Recipe, tasks: Sequence[str]) -> None:
    config = recipe.corpus
    for key, sources in _SOURCES.items():
        if getattr(config, key) and config.source not in sources:
            raise ObliqError(f"corpus.{key}: goes with corpus.source {' or '.join(sources)}")
    if config.source in {"beir", "jsonl"} and config.path is None:
        raise ObliqError(
            f"corpus.path: source {config.source!r} needs the folder or file that it reads"
        )
    _present("corpus.path", config.path)
    for name, place in config.folders.items():
        _present(f"corpus.folders.{name}", place)
    if config.source == "jsonl" and len(tasks) > 1:
        raise ObliqError("tasks: source jsonl makes one task; lay several out and use beir")
    needs_other = "other" in (recipe.graph.corpus, recipe.evaluation.corpus)
    if needs_other and config.other_path is None:
        raise ObliqError(
            "corpus.other_path: the recipe uses the corpus 'other', which is built from it"
        )


def _check_graph(recipe: Recipe, tasks: Sequence[str]) -> None:
    config = recipe.graph
    if config.task is not None:
        _among("graph.task", config.task, tasks)
    if config.corpus not in {"searched", "other"} and not Path(config.corpus).exists():
        raise ObliqError(
            f"graph.corpus: {config.corpus} is neither 'searched' nor 'other' nor a folder"
        )


def _check_training(recipe: Recipe, tasks: Sequence[str]) -> None:
    config = recipe.training
    try:
        get_template(config.template)
    except ObliqError as error:
        raise ObliqError(f"training.template: {error}") from None
    text_lengths(config, (), tasks)
    known = ["graph", "queries", *_datasets(recipe, tasks)]
    for key in config.repeat:
        if key not in known:
            raise ObliqError(f"training.repeat: no dataset {key!r}{nearest(key, known)}")


def _datasets(recipe: Recipe, tasks: Sequence[str]) -> Iterator[str]:
    """Names of the datasets that a recipe's mixture can have."""
    if recipe.queries.source != "none":
        yield from (f"{name}-queries" for name in recipe.queries.tasks)
    if recipe.graph.task is not None:
        yield f"{recipe.graph.task}-graph"
    if recipe.rows.given:
        yield from (f"{name}-rows" for name in tasks)


def _check_evaluation(recipe: Recipe) -> None:
    systems = recipe.evaluation.systems
    for name in systems:
        if name not in SYSTEMS:
            raise ObliqError(f"evaluation.systems: no system {name!r}{nearest(name, SYSTEMS)}")
    if "fusion" in systems and not {"student", "teacher"} <= set(systems):
        raise ObliqError("evaluation.systems: fusion needs student and teacher beside it")


def check_places(recipe: Recipe, stages: Sequence[Stage]) -> None:
    """Check that a run does not write where it reads, which would remove what somebody made.

    Args:
        recipe: The recipe.
        stages: The stages of its run.

    Raises:
        ObliqError: What a setting names lies in, is or holds what a stage writes.
    """
    for key, read in _places_read(recipe):
        there = Path(read).expanduser().resolve()
        for stage in stages:
            for place in stage.places:
                written = (Path(recipe.out) / place).resolve()
                if there == written or written in there.parents or there in written.parents:
                    raise ObliqError(
                        f"{key}: the run reads {read}, but its stage {stage.name!r} writes "
                        f"{Path(recipe.out) / place}; keep what it reads outside the run "
                        "folder, or give another --out"
                    )


def _places_read(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Every setting that names a file or folder, and the file or folder."""
    for key, declared, _ in leaves(type(recipe)):
        mark = declared.metadata.get("path")
        if mark is None or key == "corpus.path":
            continue
        value: Any = recipe
        for name in key.split("."):
            value = getattr(value, name)
        if not value:
            continue
        named = value.values() if isinstance(value, dict) else value
        for place in [named] if isinstance(named, str) else named:
            if mark is True or Path(place).is_absolute() or Path(place).exists():
                yield key, place
    config = recipe.corpus
    if config.path is None:
        return
    parts = [p for p in (config.metadata, config.other_path) if p is not None]
    for part in (config.subfolder or ".", *parts):
        yield "corpus.path", str(Path(config.path) / part)


def check_teacher(recipe: Recipe) -> None:
    """Check what can be said of the teacher without loading it.

    Raises:
        ObliqError: It is not there, or its code is not trusted.
    """
    from obliq_hf import teachers

    config = recipe.graph
    try:
        teachers.check_teacher(config.teacher, trust_remote_code=config.trust_remote_code)
    except ObliqError as error:
        raise ObliqError(f"graph.teacher: {error}") from None


def check_base(recipe: Recipe) -> None:
    """Check that the base is a name, or a folder that is there.

    Raises:
        ObliqError: It is neither.
    """
    from obliq_hf.encoder.sources import locate

    try:
        locate(recipe.training.base, revision=recipe.training.revision)
    except ObliqError as error:
        raise ObliqError(f"training.base: {error}") from None


def check_scored(recipe: Recipe, tasks: Sequence[str]) -> None:
    """Check that the corpus that was built has the judgments that are to be scored with.

    Raises:
        ObliqError: It lacks a task, or a task lacks the split.
    """
    from obliq_hf.task_data import available_splits, available_tasks

    config = recipe.evaluation
    assert config.split is not None
    folder = Path(recipe.out) / ("corpus" if config.corpus == "searched" else "corpus-other")
    present = available_tasks(folder)
    for name in tasks:
        if name not in present:
            has = f"it has {', '.join(present)}" if present else "it has none of any task"
            raise ObliqError(
                f"evaluation.split: the corpus has no judgments of task {name!r} to score with "
                f"({has}); put tasks/{name}/queries.jsonl and tasks/{name}/qrels/"
                f"{config.split}.tsv beside the corpus.jsonl that is read, or train without "
                "scoring: evaluation.split: null"
            )
        splits = available_splits(folder, task=name)
        if config.split not in splits:
            raise ObliqError(
                f"evaluation.split: task {name!r} has no split {config.split!r}"
                f"{nearest(config.split, splits)}"
            )


def check_dev(recipe: Recipe, tasks: Sequence[str]) -> None:
    """Check that some task of the corpus that was built has the development split.

    Raises:
        ObliqError: None has.
    """
    from obliq_hf.task_data import available_splits, available_tasks

    wanted, folder = recipe.training.dev_split, Path(recipe.out) / "corpus"
    if wanted is None:
        return
    names = [name for name in available_tasks(folder) if name in tasks]
    splits = {split for name in names for split in available_splits(folder, task=name)}
    if wanted not in splits:
        raise ObliqError(
            f"training.dev_split: no task of the recipe has a split {wanted!r}"
            + (nearest(wanted, splits) if splits else "; the corpus has no judgments")
        )


def check_graph_corpus(recipe: Recipe, corpus: Corpus) -> None:
    """Check that a graph can be built over the documents, before a teacher encodes them.

    Raises:
        ObliqError: The label is no column, or the dose is larger than the graph can be.
        DataError: No pair of documents is admissible.
    """
    from dataset_builders.admissible import AdmissiblePairs
    from dataset_builders.diagnostics.pair_rates import column_values

    config = recipe.graph
    if config.label is not None:
        try:
            column_values(corpus, config.label)
        except ObliqError as error:
            raise ObliqError(f"graph.label: {error}") from None
    most = config.k * len(corpus)
    if config.dose is not None and config.dose > most:
        raise ObliqError(
            f"graph.dose: {config.dose} pairs are more than {config.k} for each of "
            f"{len(corpus)} documents"
        )
    AdmissiblePairs(corpus, exclude_same_group=config.exclude_same_group)

"""The sizes of a recipe's training datasets, before or after they have been built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import DataError
from obliq_hf.files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from datasets import Dataset

    from training_recipes.recipe import Recipe

__all__ = [
    "BENCH_DOCUMENTS",
    "DEFAULT_LENGTH",
    "DatasetSize",
    "built_datasets",
    "expected_datasets",
    "scored_documents",
]

BENCH_DOCUMENTS = {
    "twitter": 72_122,
    "math": 3508,
    "writing": 10_389,
    "congress": 213_650,
    "wildchat": 507_729,
}
"""Documents of OBLIQ-Bench's corpora, as published."""

DEFAULT_LENGTH = 512
"""Tokens of a text where the recipe sets no limit."""

_SAMPLE_ROWS = 200
_CHARACTERS = 4.0  # of a token, where no tokenizer is at hand


@dataclass(frozen=True)
class DatasetSize:
    """One training dataset.

    Attributes:
        name: Its name.
        rows: Its rows; None where that is not known before the stages have run.
        passes: How often it is gone through.
        negatives: Mined negatives a row.
        mean: Mean tokens of a text, cut to the limit.
        padded: Mean tokens of a text in a batch, padding included.
        longest: Tokens of the longest text, cut to the limit.
        exact: Whether rows and lengths are those of a mixture that has been built.
    """

    name: str
    rows: int | None
    passes: int
    negatives: int
    mean: float
    padded: float
    longest: int
    exact: bool

    @property
    def texts(self) -> int | None:
        """Texts of all passes; None where the rows are not known."""
        return None if self.rows is None else self.rows * self.passes * (2 + self.negatives)


def _limit(recipe: Recipe, task: str) -> int:
    config = recipe.training
    return config.lengths.get(task) or config.max_length or DEFAULT_LENGTH


def _passes(recipe: Recipe, name: str, kind: str) -> int:
    repeat = recipe.training.repeat
    return repeat.get(name, repeat.get(kind, 1))


def _counter(recipe: Recipe) -> Callable[[str], int]:
    """The number of tokens of a text, by the base's tokenizer where it is at hand."""
    from obliq_hf.encoder.sources import locate

    source = locate(recipe.training.base, revision=recipe.training.revision)
    if source.local:
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(source.location, local_files_only=True)
        except (OSError, ValueError):
            tokenizer = None
        if tokenizer is not None:
            return lambda text: len(tokenizer(text, verbose=False)["input_ids"])
    return lambda text: 1 + round(len(text) / _CHARACTERS)


def _lengths(texts: Sequence[str], limit: int, batch: int, count: Any) -> tuple[float, float]:
    """Mean tokens of texts cut to a limit, alone and padded in random batches."""
    if not texts:
        return float(limit), float(limit)
    tokens = np.minimum([count(text) for text in texts], limit)
    rng = np.random.default_rng(0)
    longest = tokens[rng.integers(0, len(tokens), size=(200, batch))].max(axis=1)
    return float(tokens.mean()), float(longest.mean())


def _together(recipe: Recipe) -> int:
    config = recipe.training
    return config.mini_batch_size if config.loss == "cached" else config.batch_size


def built_datasets(recipe: Recipe, mixture: Path) -> tuple[list[DatasetSize], int]:
    """The datasets of a mixture, and the steps of the batches that training will use."""
    from training_recipes.conflicts import row_negatives
    from training_recipes.tables import plan_training, read_tables

    tables = read_tables(mixture)
    config = replace(recipe.training, max_steps=None)
    plan = plan_training(config, tables, seed=recipe.seed)
    count = _counter(recipe)
    datasets = []
    for table, planned in zip(tables, plan.datasets, strict=True):
        rows = table.rows.select(range(0, len(table.rows), max(1, len(table.rows) // _SAMPLE_ROWS)))
        names = ["anchor", "positive", *row_negatives(rows.column_names)]
        texts = [text for name in names for text in rows[name] if text]
        limit = _limit(recipe, table.task)
        mean, padded = _lengths(texts, limit, _together(recipe), count)
        texts += _longest(table.rows, names)
        longest = min(limit, max(map(count, texts), default=limit))
        size = (len(table.rows), planned.passes, len(names) - 2, mean, padded, longest)
        datasets.append(DatasetSize(table.name, *size, exact=True))
    return datasets, len(plan)


def _longest(rows: Dataset, names: Sequence[str]) -> list[str]:
    """The text of most characters in each column."""
    import pyarrow.compute as pc

    found = []
    for name in names if len(rows) else ():
        characters = pc.fill_null(pc.utf8_length(rows.data.column(name)), 0)
        found.append(rows[int(np.argmax(characters.to_numpy()))][name])
    return [text for text in found if text]


def expected_datasets(recipe: Recipe, tasks: Sequence[str], notes: list[str]) -> list[DatasetSize]:
    """The datasets that the recipe asks for, as far as their sizes are known beforehand."""
    count, together = _counter(recipe), _together(recipe)
    datasets = []
    queries = recipe.queries
    for task in queries.tasks if queries.source != "none" else []:
        rows, asked = _query_rows(recipe, task)
        if rows is None:
            notes.append(f"{task}: the number of queries is known once they are there")
        negatives = recipe.negatives.queries
        texts = _rows_of(asked, _corpus_sample(recipe, task), negatives)
        limit = _limit(recipe, task)
        mean, padded = _lengths(texts, limit, together, count)
        passes = _passes(recipe, f"{task}-queries", "queries")
        datasets.append(
            DatasetSize(
                f"{task}-queries", rows, passes, negatives, mean, padded, limit, exact=False
            )
        )
    graph = recipe.graph
    if graph.task is not None and graph.dose != 0:
        documents = _corpus_size(recipe, graph.task) if graph.corpus == "searched" else None
        edges = None if documents is None else graph.k * documents
        rows = graph.dose if edges is None else min(edges, graph.dose or edges)
        if rows is None:
            notes.append("the graph's pairs are known once the corpus is there")
        texts = _corpus_sample(recipe, graph.task) if graph.corpus == "searched" else []
        limit = _limit(recipe, graph.task)
        mean, padded = _lengths(texts, limit, together, count)
        name = f"{graph.task}-graph"
        passes = _passes(recipe, name, "graph")
        datasets.append(
            DatasetSize(
                name, rows, passes, recipe.negatives.graph, mean, padded, limit, exact=False
            )
        )
    if queries.source == "llm":
        calls = 2 * sum(d.rows or 0 for d in datasets if d.name.endswith("-queries"))
        model = recipe.llm.model or "the language model"
        notes.append(f"queries: {model} is asked at least {calls:,} times, two stages a query")
    if any(d.rows is not None and d.mean == d.padded for d in datasets):
        notes.append("lengths without a text at hand are the limits: tokens and hours are at most")
    return datasets


def _rows_of(queries: Sequence[str], documents: Sequence[str], negatives: int) -> list[str]:
    """Texts in the proportion in which training rows hold them: a query, and its documents."""
    if not queries or not documents:
        return list(queries or documents)
    each = 1 + negatives
    return [
        text
        for i, query in enumerate(queries)
        for text in (query, *(documents[(i * each + j) % len(documents)] for j in range(each)))
    ]


def _query_rows(recipe: Recipe, task: str) -> tuple[int | None, list[str]]:
    """Number of a task's training queries, and some of their texts."""
    from obliq_hf.files import iter_jsonl

    config = recipe.queries
    file: Path | None = Path(recipe.out) / "queries" / f"{task}.jsonl"
    if file is not None and not file.is_file():
        file = None
        if config.source == "path" and config.path is not None:
            place = Path(config.path)
            file = place / f"{task}.jsonl" if place.is_dir() else place
    if file is not None:
        rows = [row for _, row in iter_jsonl(file)]
        return len(rows), [str(row.get("query") or row.get("text")) for row in rows[:_SAMPLE_ROWS]]
    if config.source == "llm":
        documents = _corpus_size(recipe, task)
        known = [n for n in (documents, config.count) if n is not None]
        return (min(known) if known else None), []
    if config.source == "recorded":
        from dataset_builders.recorded_queries import recorded_file

        recorded = [row for _, row in iter_jsonl(recorded_file(task))]
        used = [row for row in recorded if row.get("split", "train") == "train"]
        return len(used), [str(row.get("query")) for row in used[:_SAMPLE_ROWS]]
    return None, []


def _corpus_places(recipe: Recipe, task: str) -> list[Path]:
    """Where a task's corpus may lie, the run folder first."""
    built = Path(recipe.out) / "corpus"
    places = [built / "tasks" / task, built]
    config = recipe.corpus
    if config.source == "bench":
        own = config.folders.get(task)
        if own is not None:
            places.append(Path(own))
        elif config.path is not None:
            from dataset_builders.corpora.several import folder_of

            places.append(folder_of(config.path, task))
    elif config.path is not None:
        path = Path(config.path)
        places.append(path / config.subfolder if config.subfolder else path)
    return places


def _corpus_file(recipe: Recipe, task: str) -> Path | None:
    from obliq_hf.records import corpus_file

    for place in _corpus_places(recipe, task):
        try:
            return corpus_file(place)
        except DataError:
            continue
    return None


def _corpus_size(recipe: Recipe, task: str) -> int | None:
    """Number of a task's documents, where it is known."""
    file = _corpus_file(recipe, task)
    if file is not None:
        with file.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    if recipe.corpus.source == "bench" and recipe.corpus.path is None:
        return BENCH_DOCUMENTS.get(task)
    return None


def _corpus_sample(recipe: Recipe, task: str) -> list[str]:
    """Some of a task's texts, where they are at hand."""
    from obliq_hf.records import iter_documents

    file = _corpus_file(recipe, task)
    texts: list[str] = []
    for document in iter_documents(file) if file is not None else ():
        texts.append(document.text)
        if len(texts) == _SAMPLE_ROWS:
            break
    return texts


def scored_documents(recipe: Recipe, tasks: Sequence[str]) -> int | None:
    """Documents that one model encodes in the evaluation."""
    if recipe.corpus.source != "bench":
        provenance = Path(recipe.out) / "corpus" / "corpus.json"
        if provenance.is_file():
            return int(read_json(provenance)["documents"])
        return _corpus_size(recipe, tasks[0]) if tasks else None
    sizes = [_corpus_size(recipe, task) for task in tasks]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None

"""What a recipe will take: rows, steps, tokens, parameters, memory and hours on a named device.

Nothing is downloaded, built or trained. Where the mixture has been built it is read, and the
batches are the ones that training will use; before that, sizes come from the recipe, from files
that it names, and for OBLIQ-Bench from its published ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json
from training_recipes.architecture import (
    Architecture,
    find_device,
    read_architecture,
    step_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from training_recipes.architecture import Device
    from training_recipes.recipe import Recipe

__all__ = ["DatasetSize", "TrainingCost", "plan_recipe", "shown"]

BENCH_DOCUMENTS = {
    "twitter": 72_122,
    "math": 3508,
    "writing": 10_389,
    "congress": 213_650,
    "wildchat": 507_729,
}
"""Documents of OBLIQ-Bench's corpora, as published."""

_SAMPLE_ROWS = 200
_CHARACTERS = 4.0  # of a token, where no tokenizer is at hand
_DEFAULT_LENGTH = 512
_SHARING = 0.9  # of the speed, with several devices


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
        exact: Whether rows and lengths are those of a mixture that has been built.
    """

    name: str
    rows: int | None
    passes: int
    negatives: int
    mean: float
    padded: float
    exact: bool

    @property
    def texts(self) -> int:
        """Texts that training forwards, over all passes."""
        return (self.rows or 0) * self.passes * (2 + self.negatives)


@dataclass(frozen=True)
class TrainingCost:
    """What a recipe takes.

    Attributes:
        recipe: The recipe.
        architecture: The model's sizes.
        datasets: The training datasets.
        steps: Steps; None where a dataset's rows are not known.
        exact: Whether the mixture has been built.
        device: The device, if one was named.
        count: Number of devices.
        documents: Documents that the evaluation encodes, with every model; None if not known.
        notes: What a person should know besides.
    """

    recipe: Recipe
    architecture: Architecture
    datasets: tuple[DatasetSize, ...]
    steps: int | None
    exact: bool
    device: Device | None = None
    count: int = 1
    documents: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> float:
        """Tokens that training reads, without padding."""
        return sum(d.texts * d.mean for d in self.datasets)

    @property
    def flops(self) -> float:
        """FLOP of the training, padding included."""
        passes = self.architecture.passes(self.recipe.training)
        return sum(
            d.texts * d.padded * passes * self.architecture.forward_flops(d.padded)
            for d in self.datasets
        )

    def hours(self, flops: float) -> float | None:
        """Hours that the devices take for so many FLOP."""
        if self.device is None:
            return None
        share = self.count * (_SHARING if self.count > 1 else 1)
        return flops / (self.device.flops * self.device.utilisation * share) / 3600

    def memory(self) -> Any:
        """Memory of the most expensive step; see :func:`step_memory`."""
        cpu = self.device is not None and self.device.memory is None
        bf16 = self.recipe.training.bf16
        return max(
            (
                step_memory(
                    self.architecture,
                    self.recipe.training,
                    length=d.padded,
                    negatives=d.negatives,
                    processes=self.count,
                    half=not cpu and bf16 is not False,
                    cuda=not cpu,
                )
                for d in self.datasets
            ),
            key=lambda cost: cost.total,
        )


def plan_recipe(recipe: Recipe, *, device: str | None = None) -> TrainingCost:
    """Say what a recipe takes.

    Args:
        recipe: The recipe.
        device: ``h100``, ``8xh100``, ``cpu``, ...; None leaves out hours and what fits.

    Raises:
        ObliqError: No such device, the base's sizes cannot be had, or the recipe contradicts
            itself.
    """
    from obliq_hf.tasks import load_tasks

    count, kind = find_device(device) if device is not None else (1, None)
    tasks = [task.name for task in load_tasks(recipe.tasks)]
    architecture = read_architecture(recipe.training)
    notes: list[str] = []
    mixture = Path(recipe.out) / "mixture"
    built = (mixture / "mixture.json").is_file()
    steps: int | None
    if built:
        datasets, steps = _built(recipe, mixture)
    else:
        datasets = _expected(recipe, tasks, notes)
        steps = _steps(recipe, datasets)
    if not datasets:
        raise ObliqError("nothing to train on: the recipe has neither queries nor graph pairs")
    return TrainingCost(
        recipe=recipe,
        architecture=architecture,
        datasets=tuple(datasets),
        steps=steps,
        exact=built,
        device=kind,
        count=count,
        documents=_documents(recipe, tasks),
        notes=notes,
    )


def _steps(recipe: Recipe, datasets: Sequence[DatasetSize]) -> int | None:
    config = recipe.training
    if any(d.rows is None for d in datasets):
        return config.max_steps
    steps = sum(math.ceil((d.rows or 0) * d.passes / config.batch_size) for d in datasets)
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _limit(recipe: Recipe, task: str) -> int:
    config = recipe.training
    return config.lengths.get(task) or config.max_length or _DEFAULT_LENGTH


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


def _built(recipe: Recipe, mixture: Path) -> tuple[list[DatasetSize], int]:
    """The datasets of a mixture, and the steps of the batches that training will use."""
    from training_recipes.conflicts import row_negatives
    from training_recipes.tables import plan_training, read_tables

    tables = read_tables(mixture)
    plan = plan_training(recipe.training, tables, seed=recipe.seed)
    count = _counter(recipe)
    datasets = []
    for table, planned in zip(tables, plan.datasets, strict=True):
        rows = table.rows.select(range(0, len(table.rows), max(1, len(table.rows) // _SAMPLE_ROWS)))
        names = ["anchor", "positive", *row_negatives(rows.column_names)]
        texts = [text for name in names for text in rows[name] if text]
        mean, padded = _lengths(texts, _limit(recipe, table.task), _together(recipe), count)
        negatives = len(row_negatives(table.rows.column_names))
        datasets.append(
            DatasetSize(table.name, len(table.rows), planned.passes, negatives, mean, padded, True)
        )
    return datasets, len(plan)


def _expected(recipe: Recipe, tasks: Sequence[str], notes: list[str]) -> list[DatasetSize]:
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
        mean, padded = _lengths(texts, _limit(recipe, task), together, count)
        passes = _passes(recipe, f"{task}-queries", "queries")
        datasets.append(
            DatasetSize(f"{task}-queries", rows, passes, negatives, mean, padded, False)
        )
    graph = recipe.graph
    if graph.task is not None and graph.dose != 0:
        documents = _corpus_size(recipe, graph.task) if graph.corpus == "searched" else None
        edges = None if documents is None else graph.k * documents
        rows = graph.dose if edges is None else min(edges, graph.dose or edges)
        if rows is None:
            notes.append("the graph's pairs are known once the corpus is there")
        texts = _corpus_sample(recipe, graph.task) if graph.corpus == "searched" else []
        mean, padded = _lengths(texts, _limit(recipe, graph.task), together, count)
        name = f"{graph.task}-graph"
        passes = _passes(recipe, name, "graph")
        datasets.append(
            DatasetSize(name, rows, passes, recipe.negatives.graph, mean, padded, False)
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


def _documents(recipe: Recipe, tasks: Sequence[str]) -> int | None:
    """Documents that one model encodes in the evaluation."""
    if recipe.corpus.source != "bench":
        provenance = Path(recipe.out) / "corpus" / "corpus.json"
        if provenance.is_file():
            return int(read_json(provenance)["documents"])
        return _corpus_size(recipe, tasks[0]) if tasks else None
    sizes = [_corpus_size(recipe, task) for task in tasks]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def shown(plan: TrainingCost) -> str:
    """The plan as text for people."""
    config, model = plan.recipe.training, plan.architecture
    how = "as built" if plan.exact else "estimated; 'obliq run --until mixture' makes them exact"
    width = max(len(d.name) for d in plan.datasets)
    head = f"{'dataset':<{width}} {'rows':>9} {'passes':>6} {'negatives':>9} {'tokens a text':>14}"
    lines = [f"{plan.recipe.name}: what it takes", "", f"Datasets ({how}):", f"  {head}"]
    for d in plan.datasets:
        rows = "unknown" if d.rows is None else f"{d.rows:,}"
        lines.append(
            f"  {d.name:<{width}} {rows:>9} {d.passes:>6} {d.negatives:>9} {d.mean:>14.0f}"
        )
    steps = "unknown" if plan.steps is None else f"{plan.steps:,}"
    share = 100 * model.trained / model.parameters
    lines += [
        "",
        f"Steps:      {steps} of {config.batch_size} rows",
        f"Tokens:     {_big(plan.tokens)} read in training",
        f"Parameters: {_big(model.parameters)}, {_big(model.trained)} trained ({share:.2f} %)"
        f" - {model.name}",
    ]
    cost = plan.memory()
    parts = (
        ("weights", cost.weights),
        ("training", cost.training),
        ("activations", cost.activations),
        ("vectors", cost.embeddings),
    )
    lines.append(
        f"Memory:     about {cost.total / 1e9:.1f} GB a device ("
        + ", ".join(f"{name} {value / 1e9:.1f}" for name, value in parts)
        + ")"
    )
    lines += _device_lines(plan, cost.total)
    lines += [f"Note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _device_lines(plan: TrainingCost, memory: float) -> list[str]:
    device = plan.device
    if device is None:
        return ["Hours:      name a device to estimate them: --device h100, --device 8xa100-80gb"]
    named = device.name if plan.count == 1 else f"{plan.count} x {device.name}"
    lines = []
    if device.memory is not None:
        fits = "fits" if memory < device.memory else "does NOT fit"
        lines.append(f"            {fits} in the {device.memory / 1e9:.0f} GB of {device.name}")
    hours = plan.hours(plan.flops)
    at = f"{device.utilisation:.0%} of {device.flops / 1e12:,.3g} TFLOP/s assumed"
    if plan.steps is None:
        lines.append("Hours:      unknown until all datasets' sizes are known")
    else:
        lines.append(f"Hours:      {_hours(hours)} of training on {named} ({at})")
    if plan.documents is not None:
        length = plan.recipe.training.max_length or _DEFAULT_LENGTH
        flops = plan.documents * length * plan.architecture.forward_flops(length)
        lines.append(
            f"            at most {_hours(plan.hours(flops))} more for each model that encodes the "
            f"{plan.documents:,} documents scored"
        )
    return lines


def _hours(hours: float | None) -> str:
    if hours is None:
        return "unknown"
    if hours < 1 / 60:
        return f"{hours * 3600:.0f} s"
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.1f} h"


def _big(number: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f}"

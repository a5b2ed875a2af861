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

from obliq_hf.errors import ObliqError
from training_recipes.architecture import (
    Architecture,
    find_device,
    read_architecture,
    step_memory,
)
from training_recipes.dataset_sizes import (
    DEFAULT_LENGTH,
    DatasetSize,
    built_datasets,
    expected_datasets,
    scored_documents,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from training_recipes.architecture import Device
    from training_recipes.recipe import Recipe

__all__ = ["TrainingCost", "plan_recipe", "shown"]

_SHARING = 0.9  # of the speed, with several devices


@dataclass(frozen=True)
class TrainingCost:
    """What a recipe takes.

    Attributes:
        recipe: The recipe.
        architecture: The model's sizes.
        datasets: The training datasets.
        steps: Steps; None where neither ``max_steps`` nor all datasets' rows are known.
        complete: Steps of all passes over all datasets; None where their rows are not known.
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
    complete: int | None
    exact: bool
    device: Device | None = None
    count: int = 1
    documents: int | None = None
    notes: list[str] = field(default_factory=list)

    def _trained(self, cost: Callable[[DatasetSize], float]) -> float | None:
        """What the training's texts cost together, given the cost of one; None if not known."""
        if self.steps is None or self.complete is None:
            return None
        every = sum((d.texts or 0) * cost(d) for d in self.datasets)
        return every * self.steps / max(1, self.complete)

    @property
    def tokens(self) -> float | None:
        """Tokens that training reads, without padding; None where rows are not known."""
        return self._trained(lambda d: d.mean)

    @property
    def flops(self) -> float | None:
        """FLOP of the training, padding included; None where rows are not known."""
        passes = self.architecture.passes(self.recipe.training)
        return self._trained(
            lambda d: d.padded * passes * self.architecture.forward_flops(d.padded)
        )

    def hours(self, flops: float | None) -> float | None:
        """Hours that the devices take for so many FLOP; None where either is not known."""
        if self.device is None or flops is None:
            return None
        share = self.count * (_SHARING if self.count > 1 else 1)
        return flops / (self.device.flops * self.device.utilisation * share) / 3600

    def memory(self) -> Any:
        """Memory of the most expensive step, on the longest texts; see :func:`step_memory`."""
        cpu = self.device is not None and self.device.memory is None
        bf16 = self.recipe.training.bf16
        return max(
            (
                step_memory(
                    self.architecture,
                    self.recipe.training,
                    length=d.longest,
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
    complete: int | None
    most = recipe.training.max_steps
    if built:
        datasets, complete = built_datasets(recipe, mixture)
    else:
        datasets = expected_datasets(recipe, tasks, notes)
        complete = _steps(recipe, datasets)
    if not datasets:
        raise ObliqError("nothing to train on: the recipe has neither queries nor graph pairs")
    return TrainingCost(
        recipe=recipe,
        architecture=architecture,
        datasets=tuple(datasets),
        steps=min((n for n in (complete, most) if n is not None), default=None),
        complete=complete,
        exact=built,
        device=kind,
        count=count,
        documents=scored_documents(recipe, tasks),
        notes=notes,
    )


def _steps(recipe: Recipe, datasets: Sequence[DatasetSize]) -> int | None:
    if any(d.rows is None for d in datasets):
        return None
    size = recipe.training.batch_size
    return sum(math.ceil((d.rows or 0) * d.passes / size) for d in datasets)


def shown(plan: TrainingCost) -> str:
    """The plan as text for people."""
    config, model = plan.recipe.training, plan.architecture
    how = "as built" if plan.exact else "estimated; 'obliq run --until mixture' makes them exact"
    width = max(len(d.name) for d in plan.datasets)
    head = f"{'dataset':<{width}} {'rows':>9} {'passes':>6} {'negatives':>9} "
    head += f"{'tokens a text':>14} {'longest':>7}"
    lines = [f"{plan.recipe.name}: what it takes", "", f"Datasets ({how}):", f"  {head}"]
    for d in plan.datasets:
        rows = "unknown" if d.rows is None else f"{d.rows:,}"
        lines.append(
            f"  {d.name:<{width}} {rows:>9} {d.passes:>6} {d.negatives:>9} {d.mean:>14.0f} "
            f"{d.longest:>7,}"
        )
    steps = "unknown" if plan.steps is None else f"{plan.steps:,}"
    share = 100 * model.trained / model.parameters
    lines += [
        "",
        f"Steps:      {steps} of {config.batch_size} rows",
        f"Tokens:     {'unknown' if plan.tokens is None else _big(plan.tokens)} read in training",
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
    if hours is None:
        lines.append("Hours:      unknown until all datasets' sizes are known")
    else:
        lines.append(f"Hours:      {_hours(hours)} of training on {named} ({at})")
    if plan.documents is not None:
        length = plan.recipe.training.max_length or DEFAULT_LENGTH
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

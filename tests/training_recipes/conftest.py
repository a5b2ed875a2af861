"""Tiny mixtures made on the spot, and what trains on them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echo_task import ECHO
from small_recipe import RECIPE, write_source
from tiny_training import Stopped

from obliq_hf.files import write_json
from obliq_hf.records import train_features
from training_recipes.sections import TrainingConfig
from training_recipes.trainer import ObliqTrainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = (
    "the old man went down to the sea and said no word",
    "she had a letter from her brother in the war",
    "they came to the door of the house at night",
    "a green tree stood by the river in the field",
    "the king was dead and his son would be the master",
    "there is fire in the window and water on the stone",
    "my heart is with you and my hope is with them",
    "the horse and the ship are lost on the long road",
)
PLANTED = "zyxwvu planted secret 31415926"


def sentence(rng: np.random.Generator) -> str:
    """A few lines in random order; no two are the same."""
    words = " ".join(LINES[i] for i in rng.permutation(len(LINES))[:2]).split()
    return " ".join(words[i] for i in sorted(rng.choice(len(words), 12, replace=False)))


def write_dataset(
    folder: Path, name: str, kind: str, rows: int, negatives: int, *, task: str, seed: int
) -> dict[str, Any]:
    """One parquet file of a mixture; returns its entry in ``mixture.json``."""
    rng = np.random.default_rng(seed)
    prefix = "d" if kind == "graph" else "q"
    columns: dict[str, Any] = {
        "anchor": [f"{sentence(rng)} {prefix}{i}" for i in range(rows)],
        "positive": [f"{sentence(rng)} p{i}" for i in range(rows)],
        **{
            f"negative_{j + 1}": [f"{sentence(rng)} n{i} {j}" for i in range(rows)]
            for j in range(negatives)
        },
        "anchor_id": [f"{name}-a{i}" for i in range(rows)],
        "positive_id": [f"{name}-p{i}" for i in range(rows)],
        "negative_ids": [[f"{name}-n{i}-{j}" for j in range(negatives)] for i in range(rows)],
        "anchor_group": [f"w{i}" if kind == "graph" else None for i in range(rows)],
        "positive_group": [f"v{i}" for i in range(rows)],
        "negative_groups": [[None] * negatives for _ in range(rows)],
        "blocked_ids": [[f"{name}-a{i}", f"{name}-p{i}"] for i in range(rows)],
    }
    columns["positive"][0] += f" {PLANTED}"
    schema = train_features(negatives).arrow_schema
    pq.write_table(pa.table(columns, schema=schema), folder / f"{name}.parquet")
    return {
        "name": name, "task": task, "kind": kind, "path": f"{name}.parquet", "rows": rows,
        "negatives": negatives,
    }  # fmt: skip


@pytest.fixture(scope="session")
def write_mixture() -> Callable[..., Path]:
    """Write a mixture folder from ``(name, kind, rows, negatives)`` entries."""

    def write(folder: Path, *datasets: tuple[str, str, int, int], task: str = "writing") -> Path:
        folder.mkdir(parents=True)
        entries = [
            write_dataset(folder, name, kind, rows, negatives, task=task, seed=number)
            for number, (name, kind, rows, negatives) in enumerate(datasets)
        ]
        write_json(folder / "mixture.json", {"datasets": entries})
        return folder

    return write


@pytest.fixture
def make_mixture(tmp_path: Path, write_mixture: Callable[..., Path]) -> Callable[..., Path]:
    """The same in the test's own folder."""

    def make(*datasets: tuple[str, str, int, int], name: str = "mixture") -> Path:
        return write_mixture(tmp_path / name, *datasets)

    return make


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("training reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def settings(tiny_model_dir: Path) -> TrainingConfig:
    return TrainingConfig(
        base=str(tiny_model_dir), batch_size=8, max_length=64, learning_rate=1e-3,
        save_steps=100, logging_steps=2,
    )  # fmt: skip


@pytest.fixture
def mixture(make_mixture: Callable[..., Path]) -> Path:
    return make_mixture(("w-graph", "graph", 40, 0), ("w-queries", "queries", 40, 2))


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    step: list[int | None] = [None]
    original = ObliqTrainer.training_step

    def stopping(self: ObliqTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step[0]:
            raise Stopped
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ObliqTrainer, "training_step", stopping)
    return lambda number: step.__setitem__(0, number)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory, tiny_model_dir):
    folder = tmp_path_factory.mktemp("recipe")
    source = write_source(folder / "source")
    (folder / "echo.yaml").write_text(ECHO, encoding="utf-8")
    text = RECIPE.format(source=source, base=tiny_model_dir)
    (folder / "small.yaml").write_text(text, encoding="utf-8")
    return folder / "small.yaml"

"""A training step beside the plain sentence-transformers script: the same rows, paired by step."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.encoding import mixed_texts
from benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from training_recipes.sections import TrainingConfig

__all__ = ["measure"]

_BATCH = 32
_LAYERS = 2
_LENGTH = 64


@contextlib.contextmanager
def _step_ends() -> Iterator[list[float]]:
    """When each step of whichever trainer runs has ended."""
    from transformers.trainer_callback import CallbackHandler

    ends: list[float] = []
    original = CallbackHandler.on_step_end

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        ends.append(time.perf_counter())
        return original(self, *args, **kwargs)

    CallbackHandler.on_step_end = recorded  # type: ignore[method-assign]
    try:
        yield ends
    finally:
        CallbackHandler.on_step_end = original  # type: ignore[method-assign]


def _mixture(folder: Path, rows: int, negatives: int) -> Path:
    """A mixture of queries that share nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from obliq_hf.files import write_json
    from obliq_hf.records import train_features

    folder.mkdir(parents=True)
    texts = mixed_texts(rows * (2 + negatives), seed=rows)
    columns: dict[str, Any] = {"anchor": texts[:rows], "positive": texts[rows : 2 * rows]}
    for j in range(negatives):
        columns[f"negative_{j + 1}"] = texts[(2 + j) * rows : (3 + j) * rows]
    columns |= {
        "anchor_id": [f"q{i}" for i in range(rows)],
        "positive_id": [f"p{i}" for i in range(rows)],
        "negative_ids": [[f"n{i}-{j}" for j in range(negatives)] for i in range(rows)],
        "negative_groups": [[None] * negatives for _ in range(rows)],
        "anchor_group": [None] * rows,
        "positive_group": [None] * rows,
        "blocked_ids": [[f"p{i}"] for i in range(rows)],
    }
    schema = train_features(negatives).arrow_schema
    pq.write_table(pa.table(columns, schema=schema), folder / "rows.parquet")
    entry = {
        "name": "rows", "task": "writing", "kind": "queries", "path": "rows.parquet", "rows": rows,
        "negatives": negatives,
    }  # fmt: skip
    write_json(folder / "mixture.json", {"datasets": [entry]})
    return folder


def _ours(config: TrainingConfig, mixture: Path, out: Path) -> list[float]:
    from obliq_hf.tasks import load_tasks
    from training_recipes.train import train

    with _step_ends() as ends:
        train(
            config, mixture, out, tasks=load_tasks(["writing"]), reload_check=False,
            show_progress=False,
        )  # fmt: skip
    return ends


def _plain(config: TrainingConfig, mixture: Path, out: Path) -> list[float]:
    """The script of sentence-transformers' own documentation, on the same batches."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.training_args import (
        SentenceTransformerTrainingArguments,
    )

    from obliq_hf.prompts import prompts_for
    from training_recipes.conflicts import row_negatives
    from training_recipes.tables import plan_training, read_tables

    (table,) = read_tables(mixture)
    plan = plan_training(config, [table], seed=13)
    order = [row for batch in plan.batches for row in batch.rows]
    names = ["anchor", "positive", *row_negatives(table.rows.column_names)]
    rows = Dataset.from_dict({n: [table.rows[n][i] for i in order] for n in names})

    class InOrder(DefaultBatchSampler):
        """The rows as they come."""

        def __iter__(self) -> Iterator[list[int]]:
            for start in range(0, len(rows), _BATCH):
                yield list(range(start, min(start + _BATCH, len(rows))))

    model = SentenceTransformer(config.base, device="cpu")
    model.max_seq_length = config.max_length
    steps = len(plan)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out),
        num_train_epochs=1,
        per_device_train_batch_size=_BATCH,
        learning_rate=config.learning_rate,
        warmup_steps=round(config.warmup_ratio * steps),
        batch_sampler=InOrder,  # type: ignore[arg-type]
        prompts={"anchor": prompts_for(["writing"])["writing"]},
        save_strategy="no",
        logging_steps=config.logging_steps,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        loss=MultipleNegativesRankingLoss(model, scale=1 / config.temperature),
    )
    with _step_ends() as ends, contextlib.redirect_stdout(None):
        trainer.train()
    return ends


def measure(*, scale: float = 1.0, rounds: int = 2) -> list[Row]:
    """One row: seconds of all steps at the largest size, and the paired ratio of single steps.

    Args:
        scale: Share of the usual number of steps, for trials.
        rounds: Runs of each side at the largest size.
    """
    from obliq_hf.encoder import ObliqSentenceTransformer
    from training_recipes.sections import TrainingConfig

    first = max(3, round(8 * scale))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        base = root / "base"
        ObliqSentenceTransformer.from_base("embedded", layers=_LAYERS, device="cpu").save(base)
        config = TrainingConfig(
            base=str(base), max_length=_LENGTH, batch_size=_BATCH, save_steps=100_000
        )
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        steps: dict[str, list[np.ndarray]] = {"ours": [], "plain": []}
        for size in (first, 2 * first, 4 * first):
            mixture = _mixture(root / f"mixture-{size}", size * _BATCH, 0)
            taken: dict[str, list[np.ndarray]] = {"ours": [], "plain": []}
            for turn in range(rounds if size == 4 * first else 1):
                for label, run in (("ours", _ours), ("plain", _plain)):
                    ends = run(config, mixture, root / f"{label}-{size}-{turn}")
                    taken[label].append(np.diff(ends))
            steps = taken
            for label, runs in taken.items():
                seconds[label].append(float(np.min([run.sum() for run in runs])))
    ours, plain = (np.min(steps[label], axis=0) for label in ("ours", "plain"))
    low, high = _interval(ours, plain)

    def growth(label: str) -> tuple[float, ...]:
        return tuple(b / a for a, b in zip(seconds[label], seconds[label][1:], strict=False))

    return [
        Row(
            what=f"training step ({_LAYERS} layers of MiniLM, {_BATCH} rows)",
            size=f"{len(ours)} steps",
            seconds=float(ours.sum()),
            beside={"plain script": float(plain.sum())},
            aims={"plain script": 1.03},
            interval={"plain script": (low, high)},
            growth=growth("ours"),
            growth_beside=growth("plain"),
            note="the interval is over paired steps, each the faster of two runs",
        )
    ]


def _interval(ours: np.ndarray, plain: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the ratio of sums, over resampled steps."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(ours), size=(10_000, len(ours)))
    low, high = np.percentile(ours[drawn].sum(axis=1) / plain[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)

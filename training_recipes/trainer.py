"""The sentence-transformers trainer, with planned batches and checkpoints that are whole models."""

from __future__ import annotations

import logging
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import load_fsdp_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from obliq_hf.errors import ObliqError
from training_recipes.checkpoint import mark_complete, saving
from training_recipes.conflicts import row_negatives
from training_recipes.publishing import PublishesWholeModels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import datasets
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from obliq_hf.encoder import ObliqSentenceTransformer
    from training_recipes.batches import BatchPlan

__all__ = ["ObliqTrainer", "PlannedRows", "PlannedShares", "Progress", "TaskCollator"]

logger = logging.getLogger(__name__)

Item = tuple[int, int, int]
"""``(dataset, row, negatives)``."""


class PlannedShares(Sampler[list[Item]]):
    """This process's share of every planned batch, in order.

    Args:
        plan: The global batches.
        rank: Number of this process.
        world: Number of processes.
    """

    def __init__(self, plan: BatchPlan, rank: int, world: int) -> None:
        self.plan, self.rank, self.world = plan, rank, world
        self.batch_size = plan.batch_size // world
        self.drop_last = False

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[Item]]:
        return self.plan.shares(self.rank, self.world)


class PlannedRows(Dataset[dict[str, str]]):
    """Only the texts of the training datasets: what stands beside them never meets a tokenizer.

    Args:
        tables: Name and rows of each dataset, in the order of the plan.
    """

    def __init__(self, tables: Sequence[tuple[str, datasets.Dataset]]) -> None:
        self.names = [name for name, _ in tables]
        self.tables = [
            table.select_columns(["anchor", "positive", *row_negatives(table.column_names)])
            for _, table in tables
        ]

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def __getitems__(self, items: list[Item]) -> list[dict[str, str]]:
        """Rows of one batch, each with its dataset's name and as many negatives as planned."""
        dataset, _, negatives = items[0]
        columns = self.tables[dataset][[row for _, row, _ in items]]
        kept = ["anchor", "positive", *row_negatives(list(columns))[:negatives]]
        texts = zip(*(columns[name] for name in kept), strict=True)
        name = self.names[dataset]
        return [{**dict(zip(kept, row, strict=True)), "dataset_name": name} for row in texts]


@dataclass
class TaskCollator(SentenceTransformerDataCollator):
    """Tokenizes a batch with the prompts and the length of its dataset.

    Attributes:
        lengths: Dataset -> tokens per text, where they differ from the model's own.
    """

    lengths: dict[str, int] = field(default_factory=dict)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Tokenize one batch.

        Raises:
            ObliqError: The dataset has no prompts; it must never get none silently.
        """
        name = features[0]["dataset_name"]
        if not isinstance(self.prompts, dict) or name not in self.prompts:
            raise ObliqError(f"no prompts are set for the training dataset {name!r}")
        self.max_length = self.lengths.get(name)
        return super().__call__(features)


class Progress(TrainerCallback):
    """A progress bar with the last loss, and logged losses that must be finite.

    Args:
        show: Whether to draw the bar.
    """

    def __init__(self, show: bool) -> None:
        self.show = show
        self.bar: tqdm[Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any
    ) -> None:
        """Open the bar."""
        if self.show and state.is_world_process_zero:
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Advance the bar; log before every checkpoint, so that resuming logs the same means."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
        if control.should_save or control.should_evaluate:
            control.should_log = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: dict[str, Any] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Show the loss and refuse one that is not finite."""
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        if not math.isfinite(loss):
            raise ObliqError(
                f"the loss is {loss} by step {state.global_step}; lower training.learning_rate "
                "or raise training.temperature"
            )
        logger.info("step %d of %d: loss %.4f", state.global_step, state.max_steps, loss)
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{loss:.3f}")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class ObliqTrainer(PublishesWholeModels, SentenceTransformerTrainer):  # type: ignore[misc]
    """Trains on planned batches; each checkpoint is a whole model of ours and exactly resumable.

    Args:
        tables: Name and rows of each dataset, in the order of the plan.
        plan: The global batches.
        spare: Makes another model of the same kind on the CPU, into which sharded weights are
            gathered.
        kwargs: As for :class:`SentenceTransformerTrainer`; ``data_collator`` must be given.
    """

    def __init__(
        self,
        *,
        tables: Sequence[tuple[str, datasets.Dataset]],
        plan: BatchPlan,
        spare: Callable[[], ObliqSentenceTransformer],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._rows = PlannedRows(tables)
        self._plan = plan
        self._spare = spare
        self._losses: dict[str, list[torch.Tensor]] = {}
        for callback in (PrinterCallback, ProgressCallback):  # they print
            self.remove_callback(callback)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Collect nothing for the automatic card, which would hold training texts."""

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no automatic card."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of one batch; kept by dataset, whose losses are not comparable."""
        name = inputs.get("dataset_name")
        result = super().compute_loss(model, inputs, *args, **kwargs)
        if name is not None and self.model.training:
            loss = result[0] if isinstance(result, tuple) else result
            self._losses.setdefault(name, []).append(loss.detach())
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean loss of each dataset since the last log."""
        if "loss" in logs and self._losses:
            means = {name: torch.stack(losses).mean() for name, losses in self._losses.items()}
            self._losses.clear()
            for name, mean in means.items():  # in one order on all processes
                logs[f"loss/{name}"] = float(self.accelerator.reduce(mean, reduction="mean"))
        super().log(logs, start_time)

    def final_model(self) -> ObliqSentenceTransformer:
        """The trained model in evaluation mode; all processes must call this."""
        if self.is_fsdp_enabled:
            state = self.accelerator.get_state_dict(self.model)
            return self._gathered(state) if self.is_world_process_zero() else self._spare()
        return self.accelerator.unwrap_model(self.model).eval()

    def _gathered(self, state: dict[str, Any]) -> ObliqSentenceTransformer:
        model = self._spare()
        model.load_state_dict(state)
        return model.eval()

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The planned shares of this process; Accelerate only moves them to the device."""
        accelerator = self.accelerator
        sampler = PlannedShares(self._plan, accelerator.process_index, accelerator.num_processes)
        loader = DataLoader(
            self._rows,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and accelerator.device.type == "cuda",
        )
        self._train_dataloader = prepare_data_loader(
            loader,
            device=accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
        )
        return self._train_dataloader

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        model = self.accelerator.unwrap_model(self.model)
        if state_dict is not None:
            model = self._gathered(state_dict)
        model.save_pretrained(output_dir or self.args.output_dir, create_model_card=False)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        with saving(f"checkpoint-{step}"):
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                folder = Path(self.args.output_dir or ".") / f"checkpoint-{step}"
                mark_complete(folder, step=step)

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            plugin = self.accelerator.state.fsdp_plugin
            load_fsdp_model(plugin, self.accelerator, self.model, checkpoint)
            return
        load_weights(self.accelerator.unwrap_model(self.model), Path(checkpoint))

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        result = super()._init_training_state(*args, **kwargs)
        state = self.state
        if state.best_global_step:  # recorded as a path, which a moved run folder invalidates
            best = Path(self.args.output_dir or ".") / f"checkpoint-{state.best_global_step}"
            state.best_model_checkpoint = str(best) if best.is_dir() else None
        return result

    def _load_best_model(self) -> None:
        # the stock method only logs a failure and would return the last weights as the best
        assert self.state.best_model_checkpoint is not None
        logger.info("the best step is %s", self.state.best_global_step)
        self._load_from_checkpoint(self.state.best_model_checkpoint)


def load_weights(model: SentenceTransformer, folder: Path) -> None:
    """Load a checkpoint's weights into the model it was made from, all of them or none.

    Args:
        model: The model, with adapters where the checkpoint holds adapters.
        folder: The checkpoint.

    Raises:
        ObliqError: A tensor is missing, left over or of another shape.
    """
    adapter = folder / "adapter_model.safetensors"
    if not adapter.is_file():
        loaded = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        _check_names(folder, dict(model.state_dict()), dict(loaded.state_dict()))
        model.load_state_dict(loaded.state_dict())
        return
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    backbone = model[0].model
    state = load_file(adapter)
    _check_names(adapter, get_peft_model_state_dict(backbone, save_embedding_layers=False), state)
    set_peft_model_state_dict(backbone, state)


def _check_names(where: Path, wanted: dict[str, Any], given: dict[str, Any]) -> None:
    missing, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    other = [k for k in wanted if k in given and wanted[k].shape != given[k].shape]
    if missing or extra or other:
        raise ObliqError(
            f"{where} does not fit the model: {len(missing)} tensors missing, {len(extra)} left "
            f"over, {len(other)} of another shape ({', '.join((missing + extra + other)[:3])})"
        )


def set_dropout(model: torch.nn.Module, probability: float) -> None:
    """Set the dropout of an encoder, except in front of its adapters."""
    for name, module in model.named_modules():
        if "lora_" in name:
            continue
        if isinstance(module, torch.nn.Dropout):
            module.p = probability
        for attribute in ("attention_dropout", "dropout_p", "dropout_prob"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, probability)


def remove_checkpoints(folder: Path) -> None:
    """Remove a finished training's checkpoints, and their parent where nothing else is there."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()

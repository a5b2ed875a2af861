"""One training: the encoder, the loss and the trainer that a configuration asks for."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from training_recipes.devices import process_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from obliq_hf.encoder import ObliqSentenceTransformer
    from obliq_hf.task_data import TaskData
    from obliq_hf.tasks import ObliqTask
    from training_recipes.batches import BatchPlan
    from training_recipes.devices import Precision
    from training_recipes.sections import TrainingConfig
    from training_recipes.tables import TrainingTable

__all__ = ["TrainingSession", "dev_evaluator", "progress_wanted"]


def dev_evaluator(dev: Mapping[str, TaskData] | None, prompts: Mapping[str, str]) -> Any:
    """The evaluator of the development data, or None where there are none.

    Raises:
        ObliqError: A task has no prompt or no development query.
    """
    if not dev:
        return None
    from training_recipes.dev import DevEvaluator

    evaluator = DevEvaluator(dev)
    evaluator.check(prompts)
    return evaluator


def progress_wanted() -> bool:
    """Whether the switches of the Hugging Face libraries and tqdm allow a progress bar."""
    import datasets
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as transformers_logging

    return not (
        os.environ.get("TQDM_DISABLE", "") not in {"", "0"}
        or are_progress_bars_disabled()
        or datasets.are_progress_bars_disabled()
        or not transformers_logging.is_progress_bar_enabled()
    )


@contextlib.contextmanager
def _library_bars_off() -> Iterator[None]:
    """Keep the bars of saving and loading out of the training's own."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@dataclass
class TrainingSession:
    """Everything one training needs.

    Attributes:
        config: The settings.
        tasks: The tasks whose prompts the model gets.
        tables: The datasets.
        plan: The batches.
        columns: Dataset -> column -> prompt.
        lengths: Dataset -> tokens per text, where they differ from the model's own.
        evaluator: Chooses the best checkpoint; None keeps the last.
        seed: Seed of adapters and dropout.
        precision: Precision of weights and arithmetic.
        checkpoints: Where checkpoints lie.
        show_progress: Whether to show a bar.
        publish: Publishes the whole model under a commit message, at every checkpoint.
    """

    config: TrainingConfig
    tasks: Sequence[ObliqTask]
    tables: Sequence[TrainingTable]
    plan: BatchPlan
    columns: dict[str, dict[str, str]]
    lengths: dict[str, int]
    evaluator: Any
    seed: int
    precision: Precision
    checkpoints: Path
    show_progress: bool
    publish: Callable[[Any, str], Any] | None = None

    def build_encoder(self) -> ObliqSentenceTransformer:
        """The untrained encoder, with its adapters where the configuration asks for them.

        Raises:
            ObliqError: The base cannot be had, or a setting does not fit it.
        """
        from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer
        from training_recipes.trainer import set_dropout

        config, lora = self.config, None
        if config.lora is not None:
            targets = config.lora.targets
            lora = LoraSettings(
                r=config.lora.r,
                alpha=config.lora.alpha,
                dropout=config.lora.dropout,
                targets=None if targets is None else tuple(targets),
                seed=self.seed,
            )
        model = ObliqSentenceTransformer.from_base(
            config.base,
            tasks=self.tasks,
            template=config.template,
            include_prompt=config.include_prompt,
            max_length=config.max_length,
            layers=config.layers,
            lora=lora,
            dtype=self.precision.weights,
            revision=config.revision,
            device=self.precision.device,
        )
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        self._check_lengths(model)
        return model

    def _check_lengths(self, model: ObliqSentenceTransformer) -> None:
        """Refuse lengths of single tasks at which the prompt leaves no room for text."""
        for name, length in self.lengths.items():
            prompt = max(self.columns[name].values(), key=len)
            taken = len(model.tokenizer(prompt)["input_ids"])
            if length - taken < 8:
                raise ObliqError(
                    f"training.lengths: the prompt of {name!r} takes {taken} of {length} tokens "
                    "and leaves no room for text"
                )

    def run(
        self, model: ObliqSentenceTransformer, start: str | None
    ) -> tuple[ObliqSentenceTransformer, dict[str, Any]]:
        """Train; returns the trained model and what was logged."""
        from training_recipes.trainer import ObliqTrainer, Progress, TaskCollator

        trainer = ObliqTrainer(
            tables=[(table.name, table.rows) for table in self.tables],
            plan=self.plan,
            spare=self.build_encoder,
            model=model,
            args=self._arguments(),
            loss=self._loss(model),
            evaluator=self.evaluator,
            data_collator=TaskCollator(
                preprocess_fn=model.preprocess, prompts=self.columns, lengths=self.lengths
            ),
            callbacks=[Progress(self.show_progress)],
        )
        trainer.publish = self.publish
        with _library_bars_off():
            trainer.train(resume_from_checkpoint=start)
        return trainer.final_model(), self._history(trainer)

    def clean(self) -> None:
        """Remove the checkpoints."""
        from training_recipes.trainer import remove_checkpoints

        remove_checkpoints(self.checkpoints)

    def _arguments(self) -> Any:
        from sentence_transformers.sentence_transformer.training_args import (
            SentenceTransformerTrainingArguments,
        )

        config = self.config
        steps = len(self.plan)
        choosing: dict[str, Any] = {}
        if self.evaluator is not None:
            choosing = {
                "eval_strategy": "steps",
                "eval_steps": config.save_steps,
                "load_best_model_at_end": True,
                "metric_for_best_model": f"eval_{self.evaluator.primary_metric}",
                "greater_is_better": True,
            }
        state = process_state()
        return SentenceTransformerTrainingArguments(
            output_dir=str(self.checkpoints),
            num_train_epochs=1,
            per_device_train_batch_size=config.batch_size // state.num_processes,
            learning_rate=config.learning_rate,
            lr_scheduler_type=(
                "constant_with_warmup" if config.scheduler == "constant" else config.scheduler
            ),
            warmup_steps=round(config.warmup_ratio * steps),
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            bf16=self.precision.bf16,
            gradient_checkpointing=config.gradient_checkpointing,
            gradient_checkpointing_kwargs=(
                {"use_reentrant": False} if config.gradient_checkpointing else None
            ),
            ddp_find_unused_parameters=config.lora is None,
            seed=self.seed,
            save_strategy="steps",
            save_steps=config.save_steps,
            save_total_limit=config.save_total_limit,
            logging_steps=config.logging_steps,
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            push_to_hub=self.publish is not None,
            hub_strategy="every_save",
            dataloader_drop_last=state.num_processes > 1,
            use_cpu=state.device.type == "cpu",
            **choosing,
        )

    def _loss(self, model: ObliqSentenceTransformer) -> Any:
        from sentence_transformers.sentence_transformer.losses import (
            CachedMultipleNegativesRankingLoss,
            MultipleNegativesRankingLoss,
        )

        options: dict[str, Any] = {
            "scale": 1 / self.config.temperature,
            "gather_across_devices": process_state().num_processes > 1,
        }
        if self.config.loss == "cached":
            return CachedMultipleNegativesRankingLoss(
                model, mini_batch_size=self.config.mini_batch_size, **options
            )
        return MultipleNegativesRankingLoss(model, **options)

    def _history(self, trainer: Any) -> dict[str, Any]:
        log = trainer.state.log_history
        losses = [
            {
                "step": entry["step"],
                "loss": entry["loss"],
                "learning_rate": entry.get("learning_rate"),
                "datasets": {k[5:]: v for k, v in entry.items() if k.startswith("loss/")},
            }
            for entry in log
            if "loss" in entry
        ]
        history: dict[str, Any] = {"losses": losses}
        if self.evaluator is not None:
            history["dev"] = {
                "metric": self.evaluator.primary_metric,
                "best_step": trainer.state.best_global_step,
                "best": trainer.state.best_metric,
                "scores": [
                    {"step": entry["step"]}
                    | {
                        k[5:]: v
                        for k, v in entry.items()
                        if k.endswith(self.evaluator.primary_metric)
                    }
                    for entry in log
                    if f"eval_{self.evaluator.primary_metric}" in entry
                ],
            }
        return history

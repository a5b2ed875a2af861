"""What a training leaves: the model, the adapter and the report, each whole or not at all."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.files import atomic_path, write_json, write_text
from training_recipes.checkpoint import saving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from obliq_hf.encoder import ObliqSentenceTransformer
    from training_recipes.batches import BatchPlan
    from training_recipes.devices import Precision
    from training_recipes.sections import TrainingConfig

__all__ = ["probe_vectors", "training_report", "write_training"]


def probe_vectors(model: ObliqSentenceTransformer, prompts: Sequence[str]) -> np.ndarray:
    """Embeddings of the probe texts under each prompt, float32 [prompts * probes, d]."""
    import numpy as np

    from training_recipes.reload_check import PROBES

    return np.concatenate(
        [model.encode(list(PROBES), prompt_name=p, show_progress_bar=False) for p in prompts]
    )


def _shown(config: TrainingConfig) -> dict[str, Any]:
    """The settings for the report: the base by name, never by the place where it lies."""
    from training_recipes.settings import to_plain

    plain: dict[str, Any] = to_plain(config)
    if Path(config.base).is_dir():
        plain["base"] = Path(config.base).name
    return plain


def _parameters(model: ObliqSentenceTransformer) -> dict[str, int]:
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return {"all": sum(n for n, _ in sizes), "trained": sum(n for n, t in sizes if t)}


def _versions() -> dict[str, str]:
    from obliq_hf import __version__

    names = ("torch", "transformers", "sentence-transformers", "accelerate", "peft", "datasets")
    return {"obliq-hf": __version__, **{name: version(name) for name in names}}


def training_report(
    config: TrainingConfig, model: ObliqSentenceTransformer, plan: BatchPlan, precision: Precision
) -> dict[str, Any]:
    """What ``training.json`` says of settings, base, batches and versions."""
    return {
        "settings": _shown(config),
        "base": model.base.to_dict(with_path=False),
        "bf16": precision.bf16,
        "weights": precision.weights,
        "parameters": _parameters(model),
        "prompts": dict(model.prompts),
        "steps": len(plan),
        "batches": {
            "batch_size": plan.batch_size,
            "min_batch_size": plan.min_batch_size,
            "short_batches_hold_multiples_of": plan.multiple,
            "datasets": [asdict(dataset) for dataset in plan.datasets],
        },
        "versions": _versions(),
    }


def _default_card(report: Mapping[str, Any], names: Sequence[str]) -> str:
    base = report["base"]["id"]
    lines = [
        "---",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        "tags: [sentence-transformers, feature-extraction]",
        *([f"base_model: {base}"] if base else []),
        "---",
        "",
        "# A retriever trained with obliq_hf",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        "model = SentenceTransformer(FOLDER_OR_NAME)",
        f'queries = model.encode_query(texts, prompt_name="{names[0]}")',
        "documents = model.encode_document(passages)",
        "```",
        "",
    ]
    return "\n".join(lines)


def _cast_copy(model: ObliqSentenceTransformer, dtype: str) -> ObliqSentenceTransformer:
    """A copy with the weights in another precision; buffers stay as they are."""
    import torch

    cast = copy.deepcopy(model)
    for parameter in cast.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return cast


def write_training(
    model: ObliqSentenceTransformer,
    place: Path,
    *,
    config: TrainingConfig,
    probed: Sequence[str],
    before: np.ndarray,
    report: dict[str, Any],
    card: str | None,
    reload_check: bool,
    started: float,
) -> None:
    """Save adapter, report and model, each whole; the model last.

    Args:
        model: The trained encoder.
        place: The run folder.
        config: The settings.
        probed: Names of the prompts under which models are compared.
        before: The untrained base's vectors under them.
        report: Content of ``training.json`` so far.
        card: Text of the README, or None for a short one.
        reload_check: Whether to load the model in a fresh process and compare.
        started: When the training started, by ``time.perf_counter``.

    Raises:
        ObliqError: The disk is full, or the saved model is not the trained one or equals the base.
    """
    from training_recipes.reload_check import check_reloaded

    whole = model
    text = _default_card(report, probed) if card is None else card
    if config.lora is not None:
        with saving("the adapter"), atomic_path(place / "adapter") as temporary:
            model.save(temporary)
            write_text(temporary / "README.md", text)
        whole = model.merged(config.save_dtype)
        assert whole.merge_report is not None
        report["merge"] = asdict(whole.merge_report)
    elif config.save_dtype != "float32":
        whole = _cast_copy(model, config.save_dtype)
    with atomic_path(place / "model") as temporary:
        with saving("the model"):
            whole.save(temporary)
            write_text(temporary / "README.md", text)
        if reload_check:
            exact = config.save_dtype == "float32" and report["device"] == "cpu"
            report["reloaded"] = asdict(
                check_reloaded(
                    temporary,
                    probed,
                    trained=probe_vectors(whole, probed),
                    base=before,
                    tolerance=1e-5 if exact else 5e-3,
                )
            )
        report["seconds"] = round(time.perf_counter() - started, 1)
        write_json(place / "training.json", report)

"""Metadata of the published OBLIQ-IR checkpoints, for ``mteb.get_model`` and the leaderboard.

What is stated was read on the repositories' cards or follows from the base's architecture; what
nobody has published is None. All three were trained on synthetic queries over the five corpora of
OBLIQ-Bench, the distilled ones also on a graph over the writing corpus, so none is zero-shot on
any of the five tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mteb.models.model_meta import ModelMeta, ScoringFunction

from eval_mteb.registry import register_model
from obliq_hf.tasks.naming import GOLD_COUNTERPARTS

if TYPE_CHECKING:
    from eval_mteb.models import SentenceTransformerEncoderWrapper

__all__ = ["BASE", "CHECKPOINTS", "OBLIQ_IR_3B", "OBLIQ_IR_3B_LORA", "OBLIQ_IR_3B_NO_DISTILL"]

_TRAINED_ON = {
    *GOLD_COUNTERPARTS,
    *GOLD_COUNTERPARTS.values(),
    "OBLIQBenchWritingRetrieval",
    "OBLIQBenchCongressRetrieval",
}
_BASE_NAME = "nvidia/llama-nv-embed-reasoning-3b"


def _load(
    name: str, revision: str | None = None, device: str | None = None, **kwargs: Any
) -> SentenceTransformerEncoderWrapper:
    """Load a checkpoint or an adapter; without prompts of its own it gets the five tasks'."""
    from eval_mteb.models import load_encoder
    from obliq_hf.tasks import builtin_task_names, load_task

    wrapper = load_encoder(name, revision=revision, device=device)
    if any(wrapper.model.prompts.values()):
        return wrapper
    tasks = [load_task(task) for task in builtin_task_names()]
    return load_encoder(
        name,
        tasks=tasks,
        template="reasonir",
        include_prompt=False,
        revision=revision,
        device=device,
    )


def _meta(name: str, **fields: Any) -> ModelMeta:
    common: dict[str, Any] = {
        "loader": _load,
        "name": name,
        "revision": None,
        "release_date": None,
        "languages": ["eng-Latn"],
        "n_parameters": None,
        "memory_usage_mb": None,
        "max_tokens": None,
        "embed_dim": 3072,
        "license": "cc-by-nc-4.0",
        "open_weights": True,
        "public_training_code": None,
        "public_training_data": None,
        "framework": ["Sentence Transformers", "PyTorch", "safetensors"],
        "reference": f"https://huggingface.co/{name}",
        "similarity_fn_name": ScoringFunction.COSINE,
        "use_instructions": True,
        "training_datasets": None,
        "modalities": ["text"],
    }
    return ModelMeta(**{**common, **fields})


_DATA = "https://huggingface.co/datasets/DataScience-UIBK/OBLIQ-IR-Data"
_OURS: dict[str, Any] = {
    "training_datasets": _TRAINED_ON,
    "public_training_data": _DATA,
    "adapted_from": _BASE_NAME,
}

OBLIQ_IR_3B = _meta("DataScience-UIBK/OBLIQ-IR-3B", **_OURS)
"""The merged checkpoint."""

OBLIQ_IR_3B_LORA = _meta("DataScience-UIBK/OBLIQ-IR-3B-LoRA", **_OURS)
"""Its adapter, for use with the base."""

OBLIQ_IR_3B_NO_DISTILL = _meta("DataScience-UIBK/OBLIQ-IR-3B-no-distill", **_OURS)
"""The ablation without the authorship graph."""

BASE = _meta(_BASE_NAME)
"""The candidate base; what it was trained on is not known here."""

CHECKPOINTS = (OBLIQ_IR_3B, OBLIQ_IR_3B_LORA, OBLIQ_IR_3B_NO_DISTILL, BASE)

for _checkpoint in CHECKPOINTS:
    register_model(_checkpoint)

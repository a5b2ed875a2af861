"""Late-interaction encoders (ColBERT's kind, LateOn among them) for the harness."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mteb.models.model_meta import ScoringFunction
from mteb.models.sentence_transformer_wrapper import MultiVectorWrapper

from eval_mteb.models import default_name, local_meta, understood
from obliq_hf.encoder.fingerprint import model_fingerprint
from obliq_hf.files import content_hash

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from obliq_hf.encoder.sources import ModelSource

__all__ = ["is_late_interaction", "load_late_interaction"]


def is_late_interaction(source: ModelSource) -> bool:
    """Whether a checkpoint says that it is sentence-transformers' ``MultiVectorEncoder``."""
    config = source.json("config_sentence_transformers.json")
    return isinstance(config, dict) and config.get("model_type") == "MultiVectorEncoder"


def load_late_interaction(
    path_or_name: str | Path,
    *,
    name: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    prompts: Mapping[str, str] | None = None,
    max_length: int | None = None,
) -> MultiVectorWrapper:
    """Load a ``MultiVectorEncoder`` with a name that its content gives it.

    Args:
        path_or_name: A checkpoint's folder or hub name.
        name: The name in results; by default the folder's or the hub's.
        revision: A hub revision.
        device: The device.
        prompts: Prompts that replace the model's; ``{}`` for none at all.
        max_length: Longest input in tokens, where it is not the model's own.

    Returns:
        mteb's wrapper, which searches by MaxSim.
    """
    from sentence_transformers import MultiVectorEncoder

    from obliq_hf.encoder.sources import locate, refuse_pickle

    source = locate(path_or_name, revision=revision)
    refuse_pickle(source)
    model = MultiVectorEncoder(source.location, revision=source.revision, device=device)
    if max_length is not None:
        model.max_seq_length = max_length
    own: dict[str, Any] = (
        dict(model.prompts) if prompts is None else {"query": "", "document": "", **prompts}
    )
    model.prompts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        wrapper = MultiVectorWrapper(model)
    model.prompts = own
    wrapper.model_prompts = {k: v for k, v in own.items() if v is not None and understood(k)}
    changed = prompts is not None or max_length is not None
    commit = None if changed else source.commit()
    wrapper.mteb_model_meta = local_meta(
        name or source.id or default_name(source.location),
        commit or content_hash(model_fingerprint(model), model.max_seq_length, own)[:40],
        loader=MultiVectorWrapper,
        n_parameters=sum(p.numel() for p in model.parameters()),
        model_type=["late-interaction"],
        similarity_fn_name=ScoringFunction.MAX_SIM,
        framework=["Sentence Transformers", "PyTorch"],
        use_instructions=any(own.values()),
    )
    return wrapper

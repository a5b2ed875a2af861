"""LoRA adapters on a sentence encoder's transformer: attach, save, load, merge."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from sentence_transformers.base.modules import Transformer
from sentence_transformers.util import import_from_string
from transformers import AutoProcessor
from transformers.pytorch_utils import Conv1D

from obliq_hf.encoder.backbone import find_layers, load_backbone
from obliq_hf.encoder.lora import MergeReport
from obliq_hf.encoder.sources import EMBEDDED, EMBEDDED_ID, BaseRecord, ModelSource, locate
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PreTrainedModel

    from obliq_hf.encoder.adapted import AdaptedSentenceTransformer
    from obliq_hf.encoder.lora import LoraSettings

    Adapted = TypeVar("Adapted", bound=AdaptedSentenceTransformer)

logger = logging.getLogger(__name__)

_MERGE_TOLERANCE = 1e-3
_INSTALL = 'LoRA needs peft; run: pip install "obliq-hf[train]"'


def peft_model(module: nn.Module) -> Any:
    """The PEFT model inside a Transformer, or None where there is no adapter."""
    model = getattr(module, "model", None)
    return model if isinstance(module, Transformer) and hasattr(model, "merge_and_unload") else None


def _projections(model: PreTrainedModel) -> dict[str, nn.Module]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)
    }


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def lora_targets(model: PreTrainedModel, targets: tuple[str, ...] | None) -> list[str]:
    """Names of the projections to adapt, sorted, each as short as it is unambiguous.

    Args:
        model: A transformer.
        targets: Names asked for; None for all projections of the transformer's layers.

    Raises:
        ObliqError: A name that no projection has; those there are are listed.
    """
    projections = _projections(model)
    if targets is not None:
        last = {name.rpartition(".")[2] for name in projections}
        for target in targets:
            if not any(_ends_with(name, target) for name in projections):
                raise ObliqError(
                    f"lora.targets: {type(model).__name__} has no projection {target!r}; "
                    f"it has: {', '.join(sorted(last))}"
                )
        return sorted(set(targets))
    stack = find_layers(model)[2]
    inside = [name for name in projections if name.startswith(f"{stack}.")]
    outside = [name for name in projections if name not in set(inside)]
    chosen = set()
    for name in inside:
        parts = name.removeprefix(f"{stack}.").split(".")[1:]
        for start in range(len(parts) - 1, -1, -1):
            suffix = ".".join(parts[start:])
            if not any(_ends_with(other, suffix) for other in outside):
                chosen.add(suffix)
                break
    if not chosen:
        raise ObliqError(f"{type(model).__name__}: its layers hold no linear projections to adapt")
    return sorted(chosen)


def attach(transformer: nn.Module, settings: LoraSettings, record: BaseRecord) -> None:
    """Put new adapters on a transformer; the base's weights are frozen.

    Raises:
        ObliqError: No transformer, adapters already there, or a target that does not exist.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ObliqError(_INSTALL) from error

    if not isinstance(transformer, Transformer):
        raise ObliqError(f"LoRA needs a transformer; the model begins with {type(transformer)}")
    if hasattr(transformer.model, "peft_config"):
        raise ObliqError("the model already carries an adapter; merge it before adding another")
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=lora_targets(transformer.model, settings.targets),
        task_type="FEATURE_EXTRACTION",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        transformer.model = get_peft_model(transformer.model, config)
    config.base_model_name_or_path, config.revision = published_base(record)


def published_base(record: BaseRecord) -> tuple[str, str | None]:
    """Name and revision of the base for ``adapter_config.json``.

    A base that was cut, masked anew or converted has no name under which stock libraries would
    load the same weights, so none is given: they refuse the adapter instead of loading another
    model. This package builds the base again from its own record.
    """
    if record.changed:
        return "", None
    return record.id or record.path or "", record.revision


def finish_saved(folder: Path, record: BaseRecord) -> None:
    """Put the base's name into a saved adapter's configuration, in a stable order of keys."""
    file = folder / "adapter_config.json"
    config = read_json(file)
    config["base_model_name_or_path"], config["revision"] = published_base(record)
    for key, value in config.items():
        if key in {"target_modules", "exclude_modules"} and isinstance(value, list):
            config[key] = sorted(value)
    write_json(file, dict(sorted(config.items())))


def check_saved(folder: Path, model: Any) -> None:
    """Check that every adapter tensor of a model stands in its saved folder.

    Raises:
        ObliqError: The file is missing (an adapter not named ``default`` goes elsewhere), or
            tensors are.
    """
    from peft import get_peft_model_state_dict

    name = model.active_adapter
    expected = set(get_peft_model_state_dict(model, save_embedding_layers=False, adapter_name=name))
    file = folder / "adapter_model.safetensors"
    saved = set(load_file(file)) if file.is_file() else set()
    if not expected or expected - saved:
        raise ObliqError(
            f"{len(expected - saved)} of {len(expected)} adapter tensors were not saved "
            f"(adapter {name!r}; the adapter to save must be called 'default')"
        )


def load_adapter(
    source: ModelSource,
    *,
    base: str | Path | None = None,
    base_revision: str | None = None,
    trainable: bool = False,
    model_kwargs: dict[str, Any] | None = None,
) -> tuple[list[nn.Module], dict[str, Any], BaseRecord]:
    """Load an adapter's modules on the base it was trained on.

    Args:
        source: Where the adapter lies; its revision is the adapter's alone.
        base: Another place of the same base.
        base_revision: The base's revision; by default the recorded one.
        trainable: Whether the adapter is to be trained further.
        model_kwargs: Keyword arguments for the base's ``from_pretrained``.

    Returns:
        The modules, the saved model configuration, and what the base was built from.

    Raises:
        ObliqError: The base is not known or not to be had, or has other weights than the one
            trained on; weights are pickled; or adapter tensors are missing or left over.
    """
    try:
        from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
        from peft.utils import set_peft_model_state_dict
    except ImportError as error:
        raise ObliqError(_INSTALL) from error

    folder = source.folder()
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise ObliqError(f"{folder}: no adapter_model.safetensors (pickled weights are not loaded)")
    if not (folder / "modules.json").is_file():
        raise ObliqError(
            f"{folder}: no modules.json, so pooling and normalisation are unknown; "
            "not an adapter of a sentence encoder"
        )
    saved = read_json(folder / "config_sentence_transformers.json")
    record = BaseRecord.from_dict(saved.get("base_model"))
    peft_config = PeftConfig.from_pretrained(str(folder))
    base_source = _base_source(source, record, peft_config, base, base_revision)
    backbone, loaded = load_backbone(
        base_source,
        layers=record.layers,
        bidirectional=record.bidirectional,
        text_only=False,
        model_kwargs=model_kwargs,
    )
    _check_base(source, record, base_source, loaded)
    transformer = backbone[0]
    if not isinstance(transformer, Transformer):
        raise ObliqError(
            f"{base_source.location}: is not a transformer, so not this adapter's base"
        )
    _restore_settings(transformer, folder)
    peft_config.inference_mode = not trainable
    peft_config.base_model_name_or_path = None
    model = get_peft_model(transformer.model, peft_config)
    state = load_file(weights)
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    problems = [
        f"{title}: {', '.join(keys[:5])}{f' and {len(keys) - 5} more' if len(keys) > 5 else ''}"
        for title, keys in (
            ("missing", sorted(expected.keys() - state.keys())),
            ("unexpected", sorted(state.keys() - expected.keys())),
            (
                "of another shape",
                [k for k in state if k in expected and state[k].shape != expected[k].shape],
            ),
        )
        if keys
    ]
    if problems:
        raise ObliqError(f"{weights}: adapter does not fit its base; {'; '.join(problems)}")
    set_peft_model_state_dict(model, state)
    transformer.model = model
    if not trainable:
        model.requires_grad_(False)
        model.eval()
    record = replace(loaded, layers=record.layers, bidirectional=record.bidirectional)
    peft_config.base_model_name_or_path, peft_config.revision = published_base(record)
    return [transformer, *_other_modules(folder)], saved, record


def _base_source(
    source: ModelSource,
    record: BaseRecord,
    config: Any,
    base: str | Path | None,
    base_revision: str | None,
) -> ModelSource:
    name = base or record.path or record.id or config.base_model_name_or_path
    if not name:
        raise ObliqError(f"{source.location}: does not say what base it was trained on; give base=")
    if base is None and name == EMBEDDED_ID and record.revision is None and base_revision is None:
        name = EMBEDDED
    revision = base_revision
    if revision is None and base is None and name != EMBEDDED:
        revision = record.revision or config.revision
    return locate(
        name,
        revision=revision,
        token=source.token,
        cache_folder=source.cache_folder,
        local_files_only=source.local_files_only,
    )


def _check_base(
    source: ModelSource, record: BaseRecord, base: ModelSource, loaded: BaseRecord
) -> None:
    """Check that a base has the weights that an adapter was trained on."""
    if record.weights is None:
        logger.warning(
            "%s: does not say which weights its base had; whether %s is that base is not checked",
            source.location,
            base.location,
        )
    elif loaded.weights != record.weights:
        raise ObliqError(
            f"{base.location}: has other weights than the base that the adapter "
            f"{source.location} was trained on; name that one with base= or base_revision="
        )


def _restore_settings(transformer: Transformer, folder: Path) -> None:
    """Take tokenizer, length and modalities from the adapter's folder, as the stock loader does."""
    transformer.processor = AutoProcessor.from_pretrained(str(folder), local_files_only=True)
    settings = Transformer.load_config(str(folder), local_files_only=True)
    transformer.modality_config = settings["modality_config"]
    transformer.module_output_name = settings["module_output_name"]
    transformer.input_formatter.supported_modalities = list(settings["modality_config"])


def _other_modules(folder: Path) -> list[nn.Module]:
    modules = []
    for item in read_json(folder / "modules.json")[1:]:
        if not item["type"].startswith("sentence_transformers."):
            raise ObliqError(f"{folder}: module {item['type']} needs remote code, never run")
        module: Any = import_from_string(item["type"])
        modules.append(module.load(str(folder), subfolder=item["path"], local_files_only=True))
    return modules


def merge(transformer: Any) -> tuple[int, float]:
    """Merge a transformer's adapters into its weights, in place and in the weights' precision.

    Returns:
        The number of projections changed, and the largest absolute change of a weight.

    Raises:
        ObliqError: Adapter weights are left after merging, or none was found.
    """
    model = peft_model(transformer)
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "get_delta_weight")]
    with torch.no_grad():
        changes = [
            float(layer.get_delta_weight(name).abs().max())
            for layer in layers
            for name in layer.active_adapters
        ]
    transformer.model = model.merge_and_unload(safe_merge=True)
    left = [key for key in transformer.model.state_dict() if "lora_" in key]
    if left or not changes:
        raise ObliqError(
            f"merging left {len(left)} adapter tensors of {len(changes)} projections; the adapter "
            "is not where it should be"
        )
    return len(changes), max(changes)


def merged_copy(model: Adapted, dtype: torch.dtype | None, texts: list[str]) -> Adapted:
    """A copy of an encoder with its adapter merged in fp32 and then cast.

    Raises:
        ObliqError: No adapter, or merged embeddings of ``texts`` that are not the adapter's.
    """
    peft = peft_model(model[0])
    if peft is None:
        raise ObliqError("the model has no adapter to merge")
    modules = [copy.deepcopy(module) for module in model.children()]
    _cast(modules[0], torch.float32)
    merged = type(model)(modules=modules, device=str(model.device)).eval()
    for name in ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "base"):
        setattr(merged, name, copy.copy(getattr(model, name)))
    wanted = merged.encode(texts)
    with peft_model(merged[0]).disable_adapter():
        before = merged.encode(texts)
    layers, change = merge(merged[0])
    given = merged.encode(texts)
    difference = float(np.abs(given - wanted).max())
    if not difference < _MERGE_TOLERANCE:
        raise ObliqError(f"merged embeddings differ from the adapter's by {difference:.2g}")
    _cast(merged, dtype or peft.base_model.model.dtype)
    merged.merge_report = MergeReport(
        layers=layers,
        max_weight_change=change,
        max_embedding_change=float(np.abs(given - before).max()),
        max_difference=difference,
        min_cosine=float((merged.encode(texts) * wanted).sum(axis=1).min()),
    )
    return merged


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights alone: buffers such as rotary frequencies stay in fp32, as when loaded."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)

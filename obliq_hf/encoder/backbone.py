"""The transformer of a base model, as this project needs it; remote code is never run."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from torch.nn import ModuleList
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from obliq_hf.encoder.sources import BaseRecord, ModelSource, refuse_pickle
from obliq_hf.errors import ObliqError
from obliq_hf.llama_conversion import MODEL_TYPE, convert_bidirectional_llama

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

TEXT_ONLY: dict[str, Any] = {
    "text": {"method": "forward", "method_output_name": "last_hidden_state"}
}
"""Texts go to the model as they are, also where the tokenizer has a chat template."""


def find_layers(model: PreTrainedModel) -> tuple[nn.Module, str, str]:
    """Find the stack of a transformer's layers.

    Returns:
        The module that holds it, its name there, and its dotted path from ``model``.

    Raises:
        ObliqError: No list of modules is as long as the configuration's number of layers.
    """
    count = getattr(model.config, "num_hidden_layers", None)
    paths = [
        path
        for path, module in model.named_modules()
        if isinstance(module, ModuleList) and len(module) == count
    ]
    if not paths:
        raise ObliqError(f"{type(model).__name__}: no stack of {count} transformer layers found")
    path = min(paths, key=lambda p: (p.count("."), p))
    parent, _, name = path.rpartition(".")
    return model.get_submodule(parent), name, path


def keep_first_layers(model: PreTrainedModel, layers: int) -> None:
    """Cut a transformer down to its first layers, weights and configuration.

    Raises:
        ObliqError: Fewer than one, or more than it has.
    """
    parent, name, _ = find_layers(model)
    stack = getattr(parent, name)
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= len(stack):
        raise ObliqError(f"layers must be between 1 and {len(stack)}, not {layers!r}")
    setattr(parent, name, ModuleList(list(stack)[:layers]))
    model.config.num_hidden_layers = layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = list(model.config.layer_types)[:layers]


def is_decoder(model: PreTrainedModel) -> bool:
    """Whether an architecture was made to predict the next token only."""
    return is_decoder_kind(model.config.model_type)


def is_decoder_kind(kind: str) -> bool:
    """The same of a ``model_type``, as configurations name it."""
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and (
        kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )


def sees_later_tokens(model: PreTrainedModel) -> bool:
    """Whether the first token's vector depends on the last token: bidirectional attention."""
    count = min(8, int(model.config.vocab_size))
    ids = torch.arange(count - 4, count, device=model.device).repeat(2, 1)
    ids[1, -1] = count - 4
    training = model.training
    model.eval()
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    model.train(training)
    return not torch.equal(hidden[0, 0], hidden[1, 0])


def set_attention(model: PreTrainedModel, bidirectional: bool) -> bool:
    """Make a decoder read in both directions, or from left to right only.

    Returns:
        Whether that changed the model's own setting.

    Raises:
        ObliqError: The architecture does not heed the setting.
    """
    changed = getattr(model.config, "is_causal", True) == bidirectional
    if changed:
        model.config.is_causal = not bidirectional
    if sees_later_tokens(model) != bidirectional:
        raise ObliqError(
            f"{type(model).__name__} does not heed is_causal={not bidirectional} in its "
            "configuration; choose another base or bidirectional=None"
        )
    return changed


def check_special_tokens(
    tokenizer: PreTrainedTokenizerBase, declared: dict[str, Any], pooling: str, where: str
) -> None:
    """Check that the tokenizer begins and ends texts as its configuration says.

    Args:
        tokenizer: The tokenizer as loaded.
        declared: Content of ``tokenizer_config.json``.
        pooling: ``lasttoken`` and ``cls`` pooling read one of these tokens; for them it is an
            error, otherwise a warning.
        where: What was loaded, for the message.

    Raises:
        ObliqError: The token that is pooled is not there.
    """
    ids = tokenizer("a")["input_ids"]
    for key, token, position, critical in (
        ("add_eos_token", tokenizer.eos_token_id, -1, "lasttoken"),
        ("add_bos_token", tokenizer.bos_token_id, 0, "cls"),
    ):
        if declared.get(key) is not True or (ids and token is not None and ids[position] == token):
            continue
        end = "end" if position else "begin"
        message = (
            f"{where}: the tokenizer's configuration says {key}: true, but texts do not {end} "
            "with that token"
        )
        if pooling == critical:
            raise ObliqError(
                f"{message}, and {pooling!r} pooling reads it; mend the tokenizer's post-processor"
            )
        logger.warning("%s", message)


@contextlib.contextmanager
def _stock(source: ModelSource) -> Iterator[tuple[ModelSource, bool]]:
    """The source itself, or for a remote-code bidirectional Llama a stock copy of it."""
    config = source.json("config.json")
    if config is None or config.get("model_type") != MODEL_TYPE:
        yield source, False
        return
    with tempfile.TemporaryDirectory(prefix="obliq-") as temporary:
        target = Path(temporary) / "stock"
        convert_bidirectional_llama(source.folder(), target, link=True)
        yield replace(source, location=str(target), local=True), True


def load_backbone(
    source: ModelSource,
    *,
    layers: int | None = None,
    bidirectional: bool | None = None,
    text_only: bool = True,
    model_kwargs: dict[str, Any] | None = None,
) -> tuple[list[nn.Module], BaseRecord]:
    """Load a base's modules in evaluation mode on the CPU.

    Args:
        source: Where the base lies: a SentenceTransformer or a plain transformer.
        layers: Keep this many first layers.
        bidirectional: For decoders, the attention to use; None keeps the base's.
        text_only: Ignore a chat template.
        model_kwargs: Further keyword arguments of ``from_pretrained`` (dtype, attention).

    Returns:
        The modules (one :class:`Transformer` for a plain transformer; none is added) and what
        they were built from.

    Raises:
        ObliqError: No model there, pickled weights, remote code needed, or layers out of range.
    """
    refuse_pickle(source)
    is_sentence_transformer = source.file("modules.json") is not None
    if not is_sentence_transformer and source.file("config.json") is None:
        raise ObliqError(
            f"{source.location}: no config.json or modules.json there"
            + ("" if source.local else " (no such model, no access, or offline and not cached)")
        )
    if source.file("adapter_config.json") is not None:
        raise ObliqError(
            f"{source.location}: is an adapter, not a base; load it with "
            "ObliqSentenceTransformer.from_adapter"
        )
    kwargs = {**(model_kwargs or {}), "use_safetensors": True}
    with _stock(source) as (stock, converted):
        try:
            if is_sentence_transformer:
                model = SentenceTransformer(
                    stock.location, device="cpu", model_kwargs=kwargs, **stock.hub_options
                )
                modules: list[nn.Module] = list(model.children())
            else:
                hub = stock.hub_options
                hub["cache_dir"] = hub.pop("cache_folder")
                modules = [
                    Transformer(
                        stock.location,
                        model_kwargs={**hub, **kwargs},
                        processor_kwargs=dict(hub),
                        config_kwargs=dict(hub),
                        modality_config=dict(TEXT_ONLY),
                        module_output_name="token_embeddings",
                    )
                ]
        except OSError as error:
            raise ObliqError(f"{source.location}: cannot be loaded: {error}") from error
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise ObliqError(
                f"{source.location}: needs remote code, which is never run; choose a base of a "
                "stock architecture"
            ) from error
    record = BaseRecord(
        id=source.id,
        path=None if source.id else str(Path(source.location).resolve()),
        revision=source.commit(),
        converted=converted,
        weights=source.weights_digest(),
    )
    transformer = modules[0]
    if not isinstance(transformer, Transformer):
        if layers is not None:
            raise ObliqError(f"{source.location}: has no transformer layers to choose from")
        return modules, record
    transformer.model.config._name_or_path = source.id or ""
    transformer.model.name_or_path = source.id or ""
    transformer.model.eval()
    if text_only:
        transformer.modality_config = dict(TEXT_ONLY)
        transformer.input_formatter.supported_modalities = ["text"]
    _prepare_tokenizer(transformer, source)
    if layers is not None:
        full = transformer.model.config.num_hidden_layers
        keep_first_layers(transformer.model, layers)
        record = replace(record, layers=layers if layers < full else None)
    if (
        bidirectional is not None
        and is_decoder(transformer.model)
        and set_attention(transformer.model, bidirectional)
    ):
        record = replace(record, bidirectional=bidirectional)
    return modules, record


def _prepare_tokenizer(transformer: Transformer, source: ModelSource) -> None:
    tokenizer = transformer.tokenizer
    if tokenizer is None:
        raise ObliqError(f"{source.location}: has no tokenizer")
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise ObliqError(f"{source.location}: the tokenizer has no padding and no end token")
        tokenizer.pad_token = tokenizer.eos_token
    for name in ("name_or_path", "is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.name_or_path = source.id or ""


def set_max_length(transformer: nn.Module, length: int) -> None:
    """Set the number of tokens texts are cut to.

    Raises:
        ObliqError: Not a whole number of at least 8, or more than the model has positions for.
    """
    if not isinstance(transformer, Transformer):
        raise ObliqError("max_length needs a transformer; static embeddings have no limit")
    if isinstance(length, bool) or not isinstance(length, int) or length < 8:
        raise ObliqError(f"max_length must be a whole number >= 8, not {length!r}")
    limit = getattr(transformer.model.config, "max_position_embeddings", None)
    for module in transformer.model.modules():
        positions = getattr(module, "position_embeddings", None)
        if isinstance(positions, torch.nn.Embedding) and positions.padding_idx is not None:
            limit = positions.num_embeddings - positions.padding_idx - 1
    if isinstance(limit, int) and 0 < limit < length:
        raise ObliqError(f"max_length {length} is more than the base's {limit} positions")
    transformer.max_seq_length = length


_STARTS = ("a", "The", "I", "1", '"', "(", "-", "...", "é", "他")
_LEAST_ROOM = 8


def check_prompts_tokenise(
    transformer: Transformer, prompts: dict[str, str], *, include_prompt: bool
) -> None:
    """Check that prompts leave room for text and do not merge with it.

    Where the prompt is left out of the pooling, its tokens are counted on its own; if its last
    token merged with the first of the text, the count would be off.

    Raises:
        ObliqError: The prompt is named.
    """
    tokenizer: Any = transformer.tokenizer
    for prompt in sorted(set(prompts.values()) - {""}):
        ids = tokenizer(prompt, verbose=False)["input_ids"]
        limit = transformer.max_seq_length
        if limit is not None and limit - len(ids) < _LEAST_ROOM:
            raise ObliqError(
                f"prompt {prompt!r} takes {len(ids)} of {limit} tokens and leaves no room for "
                "text; raise max_length or shorten the instruction"
            )
        if include_prompt:
            continue
        for start in _STARTS:
            features = transformer.preprocess([start], prompt=prompt)
            count = int(features["prompt_length"])
            if features["input_ids"][0, :count].tolist() != ids[:count]:
                raise ObliqError(
                    f"prompt {prompt!r} merges with a text that begins with {start!r} in this "
                    "tokenizer; end it with a line break"
                )


def assemble(
    modules: list[nn.Module], pooling: Any, include_prompt: bool, where: str
) -> list[nn.Module]:
    """Put pooling and normalisation behind a base's transformer.

    Args:
        modules: The base's modules.
        pooling: ``mean``, ``cls`` or ``lasttoken``, or ``keep`` for what the base has.
        include_prompt: Whether the prompt's tokens count.
        where: What was loaded, for messages.

    Raises:
        ObliqError: Further layers of the base would be dropped, or there is nothing to keep.
    """
    transformer, rest = modules[0], modules[1:]
    if pooling == "keep":
        if isinstance(transformer, Transformer) and not rest:
            raise ObliqError(f"{where}: a plain transformer has no pooling to keep; choose 'mean'")
        for module in rest:
            if isinstance(module, Pooling):
                module.include_prompt = include_prompt
        return modules if isinstance(modules[-1], Normalize) else [*modules, Normalize()]
    dropped = [m for m in modules if not isinstance(m, Transformer | Pooling | Normalize)]
    if dropped or not isinstance(transformer, Transformer):
        names = ", ".join(type(module).__name__ for module in dropped)
        raise ObliqError(
            f"{where}: holds {names}, which {pooling!r} pooling would drop; use pooling='keep'"
        )
    dimension = transformer.get_embedding_dimension()
    return [
        transformer,
        Pooling(dimension, pooling_mode=pooling, include_prompt=include_prompt),
        Normalize(),
    ]

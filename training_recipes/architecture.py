"""What a base's architecture costs: parameters, arithmetic and memory of a training step."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest

if TYPE_CHECKING:
    from training_recipes.sections import TrainingConfig

__all__ = ["DEVICES", "Architecture", "Device", "StepCost", "find_device", "read_architecture"]

logger = logging.getLogger(__name__)

LLAMA_3B = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
"""The geometry of Llama-3.2-3B."""

_KNOWN = {"nvidia/llama-nv-embed-reasoning-3b": LLAMA_3B}

_CONTEXT_BYTES = 1.5e9  # what CUDA and its libraries take
_SLACK = 1.1  # fragmentation


@dataclass(frozen=True)
class Device:
    """An accelerator, or a pair of CPU cores.

    Attributes:
        name: Its name.
        flops: Peak of dense bfloat16 matrix products, FLOP/s, from the vendor's sheet.
        memory: Bytes of its memory; None for a CPU.
        utilisation: Share of the peak that a training step reaches, with what checkpointing
            repeats counted as work; an assumption. ``benchmarks/gpu_check.py`` measures it, as
            the column "of the vendor's peak".
    """

    name: str
    flops: float
    memory: float | None
    utilisation: float = 0.35


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("h200", 989e12, 141e9),
        Device("h100", 989e12, 80e9),
        Device("a100-80gb", 312e12, 80e9),
        Device("a100-40gb", 312e12, 40e9),
        Device("l40s", 362e12, 48e9),
        Device("rtx4090", 165e12, 24e9),
        Device("l4", 121e12, 24e9),
        # two cores as measured: MiniLM encodes 100 passages of 64 tokens a second
        Device("cpu", 270e9, None, 0.5),
    )
}


def find_device(name: str) -> tuple[int, Device]:
    """``8xh100`` as the number of devices and what they are; ``h100`` is one.

    Raises:
        ObliqError: No such device; the nearest are named.
    """
    several = re.fullmatch(r"([1-9]\d*)x(.+)", name.lower())
    count, kind = (int(several[1]), several[2]) if several else (1, name.lower())
    if kind not in DEVICES:
        raise ObliqError(
            f"no device {kind!r}{nearest(kind, DEVICES)} (several of one kind: 8xh100)"
        )
    return count, DEVICES[kind]


@dataclass(frozen=True)
class Architecture:
    """The sizes of a transformer that decide what it costs.

    Attributes:
        name: Where the sizes are from.
        parameters: All weights.
        trained: Weights that are trained.
        matrices: Weights of the layers' matrices, which every token goes through.
        layers: Number of layers.
        hidden: Width of a layer.
        intermediate: Width inside the feed-forward part.
        attention: Width of all attention heads together.
        adapted: Whether adapters are trained, and the base's weights are frozen.
    """

    name: str
    parameters: int
    trained: int
    matrices: int
    layers: int
    hidden: int
    intermediate: int
    attention: int
    adapted: bool

    def forward_flops(self, length: float) -> float:
        """FLOP per token of a forward pass over texts of ``length`` tokens."""
        return 2 * self.matrices + 4 * self.layers * self.attention * length

    def passes(self, config: TrainingConfig) -> int:
        """Forward passes that a token of a training step costs.

        A backward pass costs as much as two, or one where the weights are frozen and only the
        activations' gradients are needed; checkpointing repeats the forward pass, and the cached
        loss has one before.
        """
        backward = 1 if self.adapted else 2
        return 1 + backward + int(config.gradient_checkpointing) + int(config.loss == "cached")


@dataclass(frozen=True)
class StepCost:
    """Memory of a training step, in bytes.

    Attributes:
        weights: The model.
        training: Gradients and optimizer states, and the adapters.
        activations: What the backward pass needs of the rows that are forwarded together.
        embeddings: Vectors and similarities of the whole batch.
        context: CUDA's own.
    """

    weights: float
    training: float
    activations: float
    embeddings: float
    context: float

    @property
    def total(self) -> float:
        """All of it, with a tenth for fragmentation."""
        parts = self.weights + self.training + self.activations + self.embeddings
        return parts * _SLACK + self.context


def step_memory(
    architecture: Architecture,
    config: TrainingConfig,
    *,
    length: float,
    negatives: int,
    processes: int = 1,
    half: bool = True,
    cuda: bool = True,
) -> StepCost:
    """Estimate the memory of a training step on one device; good to some tens of per cent.

    Args:
        architecture: The model.
        config: The training.
        length: Tokens of a padded text.
        negatives: Mined negatives a row.
        processes: Processes that share a batch.
        half: Whether arithmetic is in bfloat16.
        cuda: Whether CUDA's own memory counts.
    """
    size = 2 if half else 4
    frozen = architecture.parameters - architecture.trained
    weights = frozen * (size if architecture.adapted else 4)
    training = architecture.trained * 16  # fp32: weight, gradient, two moments
    columns = 2 + negatives
    rows = config.batch_size // processes
    together = config.mini_batch_size if config.loss == "cached" else rows * columns
    tokens = together * length
    # inputs of the norms, projections and products of one layer
    layer = tokens * size * (10 * architecture.hidden + 4 * architecture.intermediate)
    stack = architecture.layers * layer
    if config.gradient_checkpointing:
        stack = architecture.layers * tokens * architecture.hidden * size + layer
    embeddings = rows * columns * architecture.hidden * 4 * 3
    embeddings += rows * config.batch_size * (columns - 1) * 4 * 2
    return StepCost(weights, training, stack, embeddings, _CONTEXT_BYTES if cuda else 0)


def read_architecture(config: TrainingConfig) -> Architecture:
    """The sizes of a training's base, from its configuration; no weights are read.

    Raises:
        ObliqError: The base's configuration cannot be had, or has no such projections.
    """
    import torch
    from transformers import AutoModel

    name, settings = _settings(config)
    with torch.device("meta"):
        model = AutoModel.from_config(settings)
    if config.layers is not None:
        from obliq_hf.encoder.backbone import keep_first_layers

        keep_first_layers(model, config.layers)
    parameters = sum(p.numel() for p in model.parameters())
    trained = parameters
    if config.lora is not None:
        from obliq_hf.encoder.adapters import lora_targets

        targets = config.lora.targets
        chosen = lora_targets(model, None if targets is None else tuple(targets))
        trained = sum(
            config.lora.r * sum(module.weight.shape)
            for full, module in model.named_modules()
            if any(full == t or full.endswith(f".{t}") for t in chosen)
            and isinstance(getattr(module, "weight", None), torch.nn.Parameter)
        )
        parameters += trained
    sizes = model.config
    inside = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n)
    heads = sizes.num_attention_heads
    width = getattr(sizes, "head_dim", None) or sizes.hidden_size // heads
    return Architecture(
        name=name,
        parameters=parameters,
        trained=trained,
        matrices=inside,
        layers=sizes.num_hidden_layers,
        hidden=sizes.hidden_size,
        intermediate=getattr(sizes, "intermediate_size", 4 * sizes.hidden_size),
        attention=heads * width,
        adapted=config.lora is not None,
    )


def _settings(config: TrainingConfig) -> tuple[str, Any]:
    """A base's configuration: as it lies, or, where it is out of reach, as it is known."""
    from transformers import AutoConfig

    from obliq_hf.encoder.sources import locate

    source = locate(config.base, revision=config.revision)
    found = None
    try:
        found = source.json("config.json")
    except OSError as error:
        logger.info("%s: %s", source.location, error)
    if found is None and source.id in _KNOWN:
        found = _KNOWN[source.id]
        note = f"{source.id} (out of reach here; the sizes of Llama-3.2-3B)"
    elif found is None:
        raise ObliqError(
            f"training.base: {config.base}: its config.json cannot be read (offline and not "
            "cached, or no such model)"
        )
    else:
        note = source.id or source.location.rpartition("/")[2]
    values = {k: v for k, v in found.items() if k not in {"auto_map", "architectures"}}
    kind = str(values.pop("model_type"))
    if kind == "llama_bidirec":
        kind = "llama"
    return note, AutoConfig.for_model(kind, **values)

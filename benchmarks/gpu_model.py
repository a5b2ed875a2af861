"""A model of the 3B geometry with random weights, and what its passes cost; no download."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = [
    "FULL",
    "SMALL",
    "Scale",
    "encode_batch",
    "forward_flops",
    "peak_rate",
    "random_model",
    "seconds_of",
    "token_batch",
    "training_step",
]

_SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        changes: What differs from the 3B geometry.
        tokens: Tokens of a training step.
        encoded: Tokens of a batch that is encoded.
        documents: Documents searched.
        steps: Steps timed, after two that are not.
    """

    changes: dict[str, int]
    tokens: int
    encoded: int
    documents: int
    steps: int


FULL = Scale({}, 8192, 32_768, 507_729, 5)
SMALL = Scale(_SMALL, 512, 1024, 5000, 2)


def random_model(scale: Scale, device: str) -> Any:
    """A bidirectional Llama with random weights, made where it is used."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from training_recipes.architecture import LLAMA_3B

    settings = {k: v for k, v in {**LLAMA_3B, **scale.changes}.items() if k != "model_type"}
    config = LlamaConfig(**settings, is_causal=False, use_cache=False, attn_implementation="sdpa")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return LlamaModel(config)
    finally:
        torch.set_default_dtype(before)


def token_batch(rows: int, length: int, vocabulary: int, device: str) -> dict[str, torch.Tensor]:
    """Random token ids ``[rows, length]``, all of them attended to."""
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (rows, length), generator=generator).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _pooled(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean-pooled unit vectors, in single precision."""
    import torch

    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1).float() / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def seconds_of(function: Callable[[], object], steps: int, device: str) -> float:
    """Mean seconds of a call, after two that are not counted."""
    import torch

    def settle() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    for _ in range(2):
        function()
    settle()
    started = time.perf_counter()
    for _ in range(steps):
        function()
    settle()
    return (time.perf_counter() - started) / steps


def peak_rate(device: str) -> float:
    """Rate of a large bfloat16 matrix product, FLOP/s: what this device really reaches."""
    import torch

    size = 8192 if device.startswith("cuda") else 256
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: a @ b, 10, device)


def _sizes(model: Any) -> tuple[int, int, int]:
    """Weights of the layers' matrices, number of layers, width of the heads together."""
    config = model.config
    matrices = sum(
        p.numel() for n, p in model.named_parameters()
        if p.ndim == 2 and "embed" not in n and "lora_" not in n
    )  # fmt: skip
    return matrices, config.num_hidden_layers, config.num_attention_heads * config.head_dim


def forward_flops(model: Any, length: int) -> float:
    """FLOP of one token in a forward pass over texts of this length."""
    matrices, layers, width = _sizes(model)
    return 2 * matrices + 4 * layers * width * length


def training_step(model: Any, optimizer: Any, batch: dict[str, torch.Tensor], device: str) -> None:
    """One step: the first half of the texts are anchors, the second their positives."""
    import torch

    half = len(batch["input_ids"]) // 2
    with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16):
        vectors = _pooled(model, batch)
    scores = vectors[:half] @ vectors[half : 2 * half].T / 0.02
    torch.nn.functional.cross_entropy(scores, torch.arange(half, device=device)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def encode_batch(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Vectors of a batch, without gradients."""
    import torch

    with torch.inference_mode():
        return _pooled(model, batch)

"""What a CUDA machine does with the 3B architecture: training, encoding, search; no download.

    python -m benchmarks.gpu_check [--small] [--out figures.json]

Random weights of Llama-3.2-3B's geometry, bidirectional, in bfloat16. Measured are one LoRA step
(r = 16 on all seven projections) at several lengths with and without gradient checkpointing,
encoding, and exact search over WildChat's 507,729 x 3,072. Beside the memory measured stands what
``obliq run --dry-run`` would have said. Its hours rest on a share of the vendor's peak, with what
checkpointing repeats counted as work: that share is measured here too, where the device is one that
the dry run knows. Takes a few minutes; without CUDA it says so and ends.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_model import (
    FULL,
    SMALL,
    Scale,
    encode_batch,
    forward_flops,
    peak_rate,
    random_model,
    seconds_of,
    token_batch,
    training_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from training_recipes.architecture import Architecture, Device

__all__ = ["main", "measure"]

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LENGTHS = (128, 512, 1024)
_TOP = 100
_BLOCK = 65_536


def _known_device(device: str) -> Device | None:
    """What the dry run knows of this device; None where it does not know it."""
    import torch

    from training_recipes.architecture import DEVICES

    if not device.startswith("cuda"):
        return DEVICES.get(device)
    name = torch.cuda.get_device_name().lower().replace(" ", "")
    fitting = [kind for kind in DEVICES if kind.partition("-")[0] in name]
    return DEVICES[max(fitting, key=len)] if fitting else None


def _training_rows(scale: Scale, device: str, peak: float) -> Iterator[dict[str, Any]]:
    import torch
    from peft import LoraConfig, get_peft_model

    planned = None if scale.changes else _planned_architecture()
    for checkpointing in (False, True):
        model = random_model(scale, device)
        vocabulary = model.config.vocab_size
        flops = {length: forward_flops(model, length) for length in _LENGTHS}
        config = LoraConfig(
            r=16, lora_alpha=32, target_modules=list(_TARGETS), task_type="FEATURE_EXTRACTION"
        )
        adapted = get_peft_model(model, config)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        if checkpointing:
            adapted.enable_input_require_grads()
            adapted.gradient_checkpointing_enable({"use_reentrant": False})
        adapted.train()
        trained = [p for p in adapted.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4)
        for length in _LENGTHS:
            rows = max(2, scale.tokens // length)
            batch = token_batch(rows, length, vocabulary, device)
            step = partial(training_step, adapted, optimizer, batch, device)
            yield {
                "what": "LoRA step" + (", checkpointing" if checkpointing else ""),
                "length": length,
                "rows": rows,
                **_timed(
                    step, rows * length, flops[length], scale, device, peak,
                    passes=2, repeated=int(checkpointing),
                ),
                "planned_gb": planned and _planned(planned, rows, length, checkpointing),
            }  # fmt: skip
        del adapted, model, optimizer, trained
        _emptied(device)


def _timed(
    function: Callable[[], object],
    tokens: int,
    flops: float,
    scale: Scale,
    device: str,
    peak: float,
    *,
    passes: int = 1,
    repeated: int = 0,
) -> dict[str, Any]:
    """Tokens a second, shares of the peak, and peak memory.

    Args:
        function: One step.
        tokens: Tokens of a step.
        flops: FLOP of a token's forward pass.
        scale: How much is measured.
        device: Where.
        peak: Rate of a matrix product here, FLOP/s.
        passes: Forward passes that a step costs.
        repeated: Forward passes that checkpointing adds.

    Returns:
        ``mfu`` is the share of ``peak``, without what is repeated; ``utilisation`` that of the
        vendor's peak and with it, as the dry run counts.
    """
    import torch

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = seconds_of(function, scale.steps, device)
    except torch.cuda.OutOfMemoryError:
        _emptied(device)
        return {"seconds": None, "note": "out of memory"}
    rate = tokens / seconds
    found = {"seconds": seconds, "tokens_per_second": rate, "mfu": rate * passes * flops / peak}
    known = _known_device(device)
    if known is not None:
        found["utilisation"] = rate * (passes + repeated) * flops / known.flops
    if device.startswith("cuda"):
        found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return found


def _planned_architecture() -> Architecture:
    from training_recipes.architecture import read_architecture
    from training_recipes.recipe import load_recipe

    return read_architecture(load_recipe("obliq_ir_3b").training)


def _planned(architecture: Architecture, rows: int, length: int, checkpointing: bool) -> float:
    """What a dry run says of the memory, without CUDA's own."""
    from training_recipes.architecture import step_memory
    from training_recipes.recipe import load_recipe

    config = replace(
        load_recipe("obliq_ir_3b").training,
        loss="plain",
        batch_size=max(2, rows // 2),
        min_batch_size=None,
        gradient_checkpointing=checkpointing,
    )
    cost = step_memory(architecture, config, length=length, negatives=0, cuda=False)
    return cost.total / 1e9


def _encoding_rows(scale: Scale, device: str, peak: float) -> Iterator[dict[str, Any]]:
    model = random_model(scale, device).eval()
    for length in _LENGTHS:
        rows = max(1, scale.encoded // length)
        batch = token_batch(rows, length, model.config.vocab_size, device)
        encode = partial(encode_batch, model, batch)
        yield {
            "what": "encode",
            "length": length,
            "rows": rows,
            **_timed(encode, rows * length, forward_flops(model, length), scale, device, peak),
        }
    del model
    _emptied(device)


def _search_rows(scale: Scale, device: str) -> Iterator[dict[str, Any]]:
    """Exact search on the device over half-precision vectors, block by block."""
    import torch

    dimensions = int({"hidden_size": 3072, **scale.changes}["hidden_size"])
    documents = torch.empty(scale.documents, dimensions, dtype=torch.float16, device=device)
    for start in range(0, scale.documents, _BLOCK):
        block = documents[start : start + _BLOCK]
        block.copy_(
            torch.nn.functional.normalize(torch.randn_like(block, dtype=torch.float32), dim=1)
        )
    for count in (40, 512):
        queries = torch.randn(count, dimensions, device=device)
        queries = torch.nn.functional.normalize(queries, dim=1).half()
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        seconds = seconds_of(partial(_search, queries, documents), scale.steps, device)
        row: dict[str, Any] = {
            "what": f"exact search, {scale.documents:,} x {dimensions:,} fp16, top {_TOP}",
            "rows": count,
            "seconds": seconds,
            "queries_per_second": count / seconds,
        }
        if device.startswith("cuda"):
            row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        yield row


def _search(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Rows of the best documents of each query, by blocks of scores."""
    import torch

    values = torch.empty(len(queries), 0, device=queries.device)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(documents), _BLOCK):
        scores = (queries @ documents[start : start + _BLOCK].T).float()
        best = scores.topk(min(_TOP, scores.shape[1]), dim=1)
        values = torch.cat([values, best.values], dim=1)
        rows = torch.cat([rows, best.indices + start], dim=1)
        values, kept = values.topk(min(_TOP, values.shape[1]), dim=1)
        rows = rows.gather(1, kept)
    return rows


def _emptied(device: str) -> None:
    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def measure(scale: Scale = FULL, *, device: str = "cuda") -> Iterator[dict[str, Any]]:
    """Rows as they are measured.

    Args:
        scale: How much is measured.
        device: Where.
    """
    peak = peak_rate(device)
    yield {"what": "bfloat16 matrix product", "tflops": peak / 1e12}
    yield from _training_rows(scale, device, peak)
    yield from _encoding_rows(scale, device, peak)
    yield from _search_rows(scale, device)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    columns = {
        "what": "what", "length": "tokens a text", "rows": "texts", "seconds": "seconds",
        "tokens_per_second": "tokens/s", "mfu": "of the rate here",
        "utilisation": "of the vendor's peak", "memory_gb": "GB",
        "planned_gb": "GB planned", "queries_per_second": "queries/s", "tflops": "TFLOP/s",
        "note": "",
    }  # fmt: skip
    formats = {
        "seconds": ".4f", "tokens_per_second": ",.0f", "mfu": ".1%", "utilisation": ".1%",
        "memory_gb": ".1f", "planned_gb": ".1f", "queries_per_second": ",.0f", "tflops": ",.0f",
        "rows": ",", "length": ",",
    }  # fmt: skip
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [
            "" if row.get(key) is None else format(row[key], formats.get(key, ""))
            for key in columns
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Measure and print one table; returns the exit status."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # the base's sizes are known without it
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="a tiny geometry, to try the script")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args(words)
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA device here, so nothing was measured")
        return 0
    name = torch.cuda.get_device_name()
    rows = []
    for row in measure(SMALL if options.small else FULL):
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
    print(_table(rows))
    if options.out is not None:
        content = {"device": name, "torch": torch.__version__, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

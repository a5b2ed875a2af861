"""What the devices at hand allow: refused settings and precision."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from accelerate import PartialState

    from training_recipes.sections import TrainingConfig

__all__ = ["Precision", "check_devices", "process_state"]


def _sharded() -> bool:
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in {"1", "true"}


def _cpu_asked_for() -> bool:
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true"}


def process_state() -> PartialState:
    """This process among all that train; the first call joins them.

    Accelerate takes processes without accelerators for single ones unless it is told.
    """
    import torch
    from accelerate import PartialState

    return PartialState(cpu=_cpu_asked_for() or not torch.accelerator.is_available())


def check_devices() -> None:
    """Refuse launcher settings that cannot work here.

    Raises:
        ObliqError: FSDP without an accelerator, or more processes than accelerators.
    """
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    on_cpu = _cpu_asked_for()
    if _sharded() and (on_cpu or devices == 0):
        raise ObliqError(
            "FSDP needs GPUs; without them Accelerate would silently run DDP. Use "
            "training_recipes/accelerate/ddp.yaml, or train in one process"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if devices and not on_cpu and local > devices:
        raise ObliqError(
            f"{local} processes were started on this machine, which has {devices} GPUs; "
            f"launch with --num_processes {devices}"
        )


@dataclass(frozen=True)
class Precision:
    """Precision of weights and arithmetic.

    Attributes:
        bf16: Whether matrix products are done in bfloat16 (mixed precision).
        weights: dtype of the loaded weights.
        device: Where the encoder is built.
    """

    bf16: bool
    weights: str
    device: str

    @classmethod
    def of(cls, config: TrainingConfig) -> Precision:
        """What a configuration asks for, on this process's device.

        Raises:
            ObliqError: It asks for bfloat16 where there is none, or for half-precision weights
                that are to be trained.
        """
        import torch

        device = process_state().device
        able = device.type == "cuda" and torch.cuda.is_bf16_supported()
        if config.bf16 is True and not able:
            raise ObliqError("training.bf16: this device has no bfloat16; use auto or false")
        bf16 = able if config.bf16 == "auto" else bool(config.bf16)
        weights = config.base_dtype
        if weights == "auto":
            # the parameters of one shard must have one dtype, and adapters are in float32
            half = bf16 and config.lora is not None and not _sharded()
            weights = "bfloat16" if half else "float32"
        if weights != "float32" and config.lora is None:
            raise ObliqError(
                "training.base_dtype: without an adapter all weights are trained, which needs "
                "float32; bf16 gives mixed precision"
            )
        return cls(bf16, weights, "cpu" if _sharded() else str(device))

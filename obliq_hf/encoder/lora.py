"""Settings of LoRA adapters, and what is reported when they are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from obliq_hf.errors import ObliqError, nearest


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters (arXiv 2106.09685).

    Attributes:
        r: Rank.
        alpha: Updates are scaled by ``alpha / r``.
        dropout: Dropout on the adapters' inputs.
        targets: Names of the projections to adapt (last part or dotted end of a module's name);
            None stands for every attention and MLP projection of the transformer's layers.
        seed: Seed of the adapters' first weights.

    Raises:
        ObliqError: A value out of its range.
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.r, bool) or not isinstance(self.r, int) or self.r < 1:
            raise ObliqError(f"lora.r must be a whole number >= 1, not {self.r!r}")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise ObliqError(f"lora.alpha must be a number, not {self.alpha!r}")
        if not self.alpha > 0:
            raise ObliqError(f"lora.alpha must be above 0, not {self.alpha!r}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ObliqError(f"lora.dropout must be at least 0 and below 1, not {self.dropout!r}")
        if self.targets is not None:
            if isinstance(self.targets, str) or not self.targets:
                raise ObliqError(f"lora.targets must be a list of names, not {self.targets!r}")
            object.__setattr__(self, "targets", tuple(self.targets))

    @classmethod
    def of(cls, value: LoraSettings | Mapping[str, Any] | None) -> LoraSettings | None:
        """Settings as they are or from a mapping; None stays None.

        Raises:
            ObliqError: An unknown key.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ObliqError(f"lora must be a mapping, not {value!r:.60}")
        known = {item.name for item in fields(cls)}
        for key in value:
            if key not in known:
                raise ObliqError(f"lora.{key} is unknown{nearest(key, known)}")
        return cls(**value)


@dataclass(frozen=True)
class MergeReport:
    """What merging an adapter did; differences are absolute, of single numbers.

    Attributes:
        layers: Number of projections changed.
        max_weight_change: Largest change of a weight against the base.
        max_embedding_change: Largest change of a probe embedding against the base.
        max_difference: Largest difference between merged and adapter embeddings, both in fp32.
        min_cosine: Smallest cosine between the adapter's probe embeddings and those of the merged
            model as returned, after any cast.
    """

    layers: int
    max_weight_change: float
    max_embedding_change: float
    max_difference: float
    min_cosine: float

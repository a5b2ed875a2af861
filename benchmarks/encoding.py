"""Encoding texts of mixed lengths beside batches in corpus order and beside the stock encode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.table import Row, by_size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["measure", "mixed_texts"]

_BATCH = 32
_LAYERS = 2  # of MiniLM: enough that the model, not Python, is what takes time


def mixed_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of some ten to some four hundred words, most of them short."""
    rng = np.random.default_rng(seed)
    words = np.array(
        ["".join(rng.choice(list("aeiourstlnm"), rng.integers(2, 9))) for _ in range(4000)]
    )
    lengths = np.clip(np.exp(rng.normal(4.0, 0.9, count)), 8, 400).astype(int)
    return [" ".join(rng.choice(words, n)) for n in lengths]


def _calls(count: int) -> dict[str, Callable[[], object]]:
    from sentence_transformers import SentenceTransformer

    from obliq_hf.encoder import ObliqSentenceTransformer
    from obliq_hf.encoder.text_encoder import ModelEncoder

    ours = ObliqSentenceTransformer.from_base("embedded", layers=_LAYERS, device="cpu")
    stock = SentenceTransformer(modules=list(ours), device="cpu")
    encoder = ModelEncoder(ours, name="minilm", batch_size=_BATCH)
    texts = mixed_texts(count)
    options = {"batch_size": _BATCH, "show_progress_bar": False}

    def unsorted() -> None:
        for start in range(0, count, _BATCH):
            stock.encode(texts[start : start + _BATCH], **options)  # type: ignore[call-overload]

    return {
        "ours": lambda: encoder.encode(texts, prompt=""),
        "batches in corpus order": unsorted,
        "SentenceTransformer.encode": lambda: stock.encode(texts, **options),  # type: ignore[call-overload]
    }


def measure(*, scale: float = 1.0) -> list[Row]:
    """One row.

    Args:
        scale: Share of the usual sizes, for trials.
    """
    first = max(8, int(160 * scale))
    return [
        by_size(
            f"encode mixed lengths ({_LAYERS} layers of MiniLM)",
            [first, 2 * first, 4 * first],
            _calls,
            unit="texts",
            aims={"batches in corpus order": 1 / 1.3, "SentenceTransformer.encode": 1.05},
            rounds=2,
        )
    ]

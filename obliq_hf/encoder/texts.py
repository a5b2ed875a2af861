"""What goes into an encoder and what comes out of it, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from obliq_hf.errors import ObliqError
from obliq_hf.records import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable

PLACEHOLDER = "."
"""Stands for a text that leaves nothing to pool."""
_NOTHING = 1e-6


def checked_texts(inputs: Any) -> list[str]:
    """Texts as a list of strings without NUL and lone surrogates.

    Raises:
        ObliqError: No sequence, or an item that is no string; its row is named.
    """
    if isinstance(inputs, np.ndarray):
        inputs = inputs.tolist()
    if isinstance(inputs, str | bytes | dict) or not hasattr(inputs, "__iter__"):
        raise ObliqError(f"texts must be a list of strings, not {type(inputs).__name__}")
    return [clean_text(text, f"text in row {row}") for row, text in enumerate(inputs)]


def finished_vectors(result: Any, *, unit: bool, placeholder: Callable[[], torch.Tensor]) -> Any:
    """Embeddings in float32, finite, and of length 1.

    Args:
        result: Embeddings, [n, d]: an array, a tensor or a list of tensors.
        unit: Whether they are to have length 1.
        placeholder: Gives the embedding [1, d] of the text that stands for one without tokens.

    Returns:
        The embeddings in the form they came in.

    Raises:
        ObliqError: A row that is not finite, or a model that pools nothing of any text.
    """
    if isinstance(result, list):
        return list(finished_vectors(torch.stack(result), unit=unit, placeholder=placeholder))
    vectors = torch.from_numpy(result) if isinstance(result, np.ndarray) else result
    vectors = vectors.float()
    norms = vectors.norm(dim=1, keepdim=True)
    bad = torch.nonzero(~torch.isfinite(norms[:, 0])).flatten().tolist()
    if bad:
        raise ObliqError(f"text in row {bad[0]}: its embedding is not finite")
    empty = norms[:, 0] < _NOTHING
    if bool(empty.any()):
        stand_in = placeholder().float().to(vectors.device)
        if not float(stand_in.norm()) > _NOTHING:
            raise ObliqError("nothing is left of any text to pool; does the prompt fill the model?")
        vectors = torch.where(empty.unsqueeze(1), stand_in, vectors)
        norms = vectors.norm(dim=1, keepdim=True)
    if unit:
        vectors = vectors / norms
    return vectors.numpy() if isinstance(result, np.ndarray) else vectors

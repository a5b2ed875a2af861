"""An encoder of large corpora: batches of texts of like length, and a name for what made them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from obliq_hf.encoder.fingerprint import model_fingerprint
from obliq_hf.errors import ObliqError
from obliq_hf.prompts import is_query_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

__all__ = [
    "ModelEncoder",
    "TextEncoder",
    "UnencodableText",
    "length_sorted_batches",
    "load_text_encoder",
]

_SAMPLE = 256  # texts from which the number of characters of a token is taken
_LARGEST_BATCH = 16  # times batch_size, where texts are short and tokens are what counts
_FALLBACK_CHARACTERS = 4.0


class UnencodableText(ObliqError):
    """A text whose vector is not finite.

    Attributes:
        row: Its position among the texts given.
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"text in row {row}: its vector is not finite")
        self.row = row


class TextEncoder(Protocol):
    """What fills and searches an index.

    Attributes:
        name: Its name, for people.
        fingerprint: Digest of what decides its vectors.
        revision: Its commit on the Hub, where it has one.
        dimension: Dimension of its vectors.
        max_length: Tokens a text is cut to, where there is a limit.
        document_prompt: What it sets before documents.
        query_prompts: Name -> what it sets before queries.
    """

    name: str
    fingerprint: str
    revision: str | None
    dimension: int
    max_length: int | None
    document_prompt: str
    query_prompts: dict[str, str]

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str,
        progress: Callable[[int], object] | None = None,
    ) -> NDArray[np.float32]:
        """Vectors ``[n, d]``, float32, in the order of the texts.

        Args:
            texts: The texts.
            prompt: What is set before each.
            progress: Called with the number of texts of each finished batch.

        Raises:
            UnencodableText: A vector is not finite.
        """
        ...


def length_sorted_batches(
    lengths: NDArray[np.int64], *, batch_size: int, batch_tokens: int | None = None
) -> list[NDArray[np.int64]]:
    """Put texts of like length into one batch, so that little is padded; the longest come first.

    Args:
        lengths: Length of every text, int64 ``[n]``.
        batch_size: Texts of a batch.
        batch_tokens: Where given, short texts come in larger batches: of as many as fill so many
            tokens, up to 16 times ``batch_size``.

    Returns:
        Positions of each batch's texts; every position stands in one batch.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        size = batch_size
        if batch_tokens is not None:
            longest = max(1, int(lengths[order[start]]))
            size = min(_LARGEST_BATCH * batch_size, max(1, batch_tokens // longest))
        batches.append(order[start : start + size])
        start += size
    return batches


class ModelEncoder:
    """A SentenceTransformer as an encoder of large corpora.

    Args:
        model: The model, in evaluation mode. Cosine similarity is what vectors are made for: they
            have length 1, unless the model says that it compares by inner product.
        name: Its name; by default that of its card or folder.
        revision: Its commit on the Hub.
        batch_size: Texts of a batch.
        batch_tokens: Tokens of a batch, so that short texts come in larger ones; by default on an
            accelerator those of ``batch_size`` texts of full length, and no such limit on a CPU,
            where larger batches are no faster.

    Raises:
        ObliqError: A batch size below 1, or a model that compares by a distance.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        name: str,
        revision: str | None = None,
        batch_size: int = 32,
        batch_tokens: int | None = None,
    ) -> None:
        if batch_size < 1 or (batch_tokens is not None and batch_tokens < 1):
            raise ObliqError(f"batch_size must be at least 1, not {batch_size}")
        similarity = str(model.similarity_fn_name or "cosine")
        if similarity not in {"cosine", "dot"}:
            raise ObliqError(
                f"{name} compares vectors by {similarity}; an index knows cosine and dot product"
            )
        self.model = model.eval()
        self.name = name
        self.revision = revision
        self.fingerprint = model_fingerprint(model)
        self.dimension = int(model.get_embedding_dimension() or 0)
        self.max_length: int | None = model.max_seq_length
        prompts = {key: text or "" for key, text in model.prompts.items()}
        self.document_prompt = next(
            (prompts[key] for key in ("document", "passage", "corpus") if key in prompts), ""
        )
        self.query_prompts = {k: v for k, v in prompts.items() if is_query_prompt(k)}
        self.batch_size = batch_size
        if batch_tokens is None and model.device.type != "cpu" and self.max_length:
            batch_tokens = batch_size * self.max_length
        self.batch_tokens = batch_tokens
        self._unit = similarity == "cosine"

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str,
        progress: Callable[[int], object] | None = None,
    ) -> NDArray[np.float32]:
        """Vectors ``[n, d]``, float32; see :class:`TextEncoder`."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        lengths = self._lengths(texts, prompt)
        for batch in length_sorted_batches(
            lengths, batch_size=self.batch_size, batch_tokens=self.batch_tokens
        ):
            try:
                vectors[batch] = self._encode([texts[row] for row in batch.tolist()], prompt)
            except ObliqError:
                for row in batch.tolist():  # the message names a row of the batch
                    try:
                        vectors[row] = self._encode([texts[row]], prompt)[0]
                    except ObliqError as error:
                        raise UnencodableText(row) from error
            if progress is not None:
                progress(len(batch))
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise UnencodableText(int(bad[0]))
        return vectors

    def _encode(self, texts: list[str], prompt: str) -> NDArray[np.float32]:
        vectors = self.model.encode(
            texts,
            prompt=prompt,
            batch_size=len(texts),
            show_progress_bar=False,
            normalize_embeddings=self._unit,
        )
        return np.asarray(vectors, dtype=np.float32)

    def _lengths(self, texts: Sequence[str], prompt: str) -> NDArray[np.int64]:
        """Estimated tokens of every text, from the characters of some that were tokenized."""
        characters = np.array([len(text) for text in texts], dtype=np.int64)
        lengths = np.ceil(characters / self._characters_per_token(texts)).astype(np.int64)
        lengths += math.ceil(len(prompt) / _FALLBACK_CHARACTERS)
        if self.max_length is not None:
            # of texts that are cut, the shorter still come together
            lengths = np.minimum(lengths, self.max_length)
        return lengths

    def _characters_per_token(self, texts: Sequence[str]) -> float:
        tokenizer = getattr(self.model, "tokenizer", None)
        step = max(1, len(texts) // _SAMPLE)
        sample = [text[:10_000] for text in texts[::step] if text]
        if not callable(tokenizer) or not sample:
            return _FALLBACK_CHARACTERS
        tokens = sum(len(ids) for ids in tokenizer(sample, verbose=False)["input_ids"])
        return max(1.0, sum(map(len, sample)) / max(1, tokens))


def load_text_encoder(
    model: str | Path,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    batch_tokens: int | None = None,
) -> ModelEncoder:
    """Load a model to encode a corpus or queries with.

    Args:
        model: A folder, an id on the Hub, a bare name of ``obliq-ir``, or ``"embedded"``.
        revision: Branch, tag or commit on the Hub.
        device: Where it goes; None chooses.
        dtype: Precision of the arithmetic: ``float32``, ``bfloat16`` or ``float16``; None for that
            of the files. The model stays the same one: queries may be encoded otherwise.
        max_length: Tokens a text is cut to; None for the model's own.
        batch_size: Texts of a batch.
        batch_tokens: As of :class:`ModelEncoder`.

    Raises:
        ObliqError: There is no such model, or a setting is not valid.
    """
    import torch

    from obliq_hf.encoder.adapted import check_dtype
    from obliq_hf.encoder.backbone import set_max_length
    from obliq_hf.encoder.sentence_transformer import ObliqSentenceTransformer
    from obliq_hf.encoder.sources import locate

    check_dtype(dtype)
    source = locate(model, revision=revision)
    loaded = ObliqSentenceTransformer(model, revision=revision, device=device)
    if max_length is not None:
        set_max_length(loaded[0], max_length)
    folder = Path(source.location)
    called = folder.parent.name if folder.name in {"model", "adapter"} else folder.name
    encoder = ModelEncoder(
        loaded,
        name=source.id or called,
        revision=source.commit(),
        batch_size=batch_size,
        batch_tokens=batch_tokens,
    )
    if dtype is not None:
        for parameter in loaded.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))
    return encoder

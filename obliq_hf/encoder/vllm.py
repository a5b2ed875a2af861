"""Encoding a corpus with vLLM's pooling runner, for a GPU that is to be kept busy.

vLLM reads merged checkpoints of stock architectures. It gets the very tokens that
sentence-transformers makes of a text, so the vectors are the same within rounding: cosines of at
least 0.9999 in float32 and 0.999 in half precision.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.encoder.text_encoder import UnencodableText, load_text_encoder
from obliq_hf.encoder.texts import PLACEHOLDER
from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["VLLMEncoder"]

_INSTALL = "pip install 'obliq-hf[vllm]'"
_ROWS = 4096  # texts handed to the engine at a time; it batches them itself
_TOKENIZED = 256


class VLLMEncoder:
    """A merged checkpoint behind vLLM; see :class:`obliq_hf.encoder.text_encoder.TextEncoder`.

    Args:
        model: A folder or an id on the Hub: Transformer, mean pooling, and maybe Normalize.
        revision: Branch, tag or commit on the Hub.
        max_length: Tokens a text is cut to; None for the model's own.
        dtype: Precision of the arithmetic; None for that of the files.
        engine: Further arguments of ``vllm.LLM``, such as ``gpu_memory_utilization``.

    Raises:
        ObliqError: vLLM is not installed, or the model is an adapter or pools otherwise.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        max_length: int | None = None,
        dtype: str | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise ObliqError(f"vLLM is not installed: {_INSTALL}")
        from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

        from obliq_hf.encoder.sources import locate

        source = locate(model, revision=revision)
        known = load_text_encoder(model, revision=revision, device="cpu", max_length=max_length)
        modules = list(known.model)
        if getattr(known.model, "has_adapter", False):
            raise ObliqError(f"{known.name}: is an adapter; vLLM needs the merged checkpoint")
        pooling = modules[1] if len(modules) > 1 else None
        if not isinstance(pooling, Pooling) or str(pooling.pooling_mode) != "mean":
            raise ObliqError(f"{known.name}: does not pool by the mean; use sentence-transformers")
        if any(not isinstance(module, Normalize) for module in modules[2:]):
            raise ObliqError(f"{known.name}: has further layers that vLLM would leave out")
        self.name, self.fingerprint, self.revision = known.name, known.fingerprint, known.revision
        self.dimension, self.max_length = known.dimension, known.max_length
        self.document_prompt, self.query_prompts = known.document_prompt, known.query_prompts
        self._unit = len(modules) > 2 or str(known.model.similarity_fn_name or "cosine") == "cosine"
        self._include_prompt = bool(pooling.include_prompt)
        self._stock = known.model.to("meta")  # tokenizes; its weights are not needed any more
        self._arguments = {
            "model": source.location,
            "revision": None if source.local else source.revision,
            "dtype": dtype or "auto",
            "max_model_len": known.max_length,
            "enable_prefix_caching": False,
            **(engine or {}),
        }
        self._engine: tuple[str, Any] | None = None

    def _engine_for(self, task: str) -> Any:
        """The engine, started for whole vectors or for those of single tokens."""
        if self._engine is not None and self._engine[0] == task:
            return self._engine[1]
        self.close()
        from vllm import LLM
        from vllm.config import PoolerConfig

        kind = {"embed": "MEAN", "token_embed": "ALL"}[task]
        config = PoolerConfig(task=task, pooling_type=kind, use_activation=False)
        llm = LLM(runner="pooling", pooler_config=config, **self._arguments)
        self._engine = (task, llm)
        return llm

    def close(self) -> None:
        """Shut the engine down and free its memory."""
        import gc

        if self._engine is None:
            return
        core = getattr(getattr(self._engine[1], "llm_engine", None), "engine_core", None)
        self._engine = None
        if core is not None and hasattr(core, "shutdown"):
            core.shutdown()
        gc.collect()

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str,
        progress: Callable[[int], object] | None = None,
    ) -> NDArray[np.float32]:
        """Vectors ``[n, d]``, float32, in the order of the texts."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), _ROWS):
            part = list(texts[start : start + _ROWS])
            vectors[start : start + len(part)] = self._encode(part, prompt)
            if progress is not None:
                progress(len(part))
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
        bad = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
        if len(bad):
            raise UnencodableText(int(bad[0]))
        return vectors / norms[:, None].astype(np.float32) if self._unit else vectors

    def _encode(self, texts: list[str], prompt: str) -> NDArray[np.float32]:
        """Mean-pooled vectors; where the prompt is left out of the mean, from those of tokens."""
        ids, skipped = self._tokens(texts, prompt)
        prompts = [{"prompt_token_ids": row} for row in ids]
        if not skipped or self._include_prompt:
            outputs = self._engine_for("embed").embed(prompts, use_tqdm=False)
            return np.array([output.outputs.embedding for output in outputs], dtype=np.float32)
        engine = self._engine_for("token_embed")
        outputs = engine.encode(prompts, pooling_task="token_embed", use_tqdm=False)
        rows = [np.asarray(output.outputs.data.float().cpu()) for output in outputs]
        return np.array([row[skipped:].mean(axis=0) for row in rows], dtype=np.float32)

    def _tokens(self, texts: list[str], prompt: str) -> tuple[list[list[int]], int]:
        """The tokens of prompt and text as the stock model makes them, and the prompt's number."""
        rows: list[list[int]] = []
        skipped = 0
        for start in range(0, len(texts), _TOKENIZED):
            features = self._stock.preprocess(texts[start : start + _TOKENIZED], prompt=prompt)
            skipped = int(features.get("prompt_length") or 0)
            for ids, mask in zip(features["input_ids"], features["attention_mask"], strict=True):
                rows.append(ids[mask.bool()].tolist())
        least = 0 if self._include_prompt else skipped
        if any(len(row) <= least for row in rows):  # nothing to pool: as the stock class does
            features = self._stock.preprocess([PLACEHOLDER], prompt=prompt)
            stand_in = features["input_ids"][0].tolist()
            rows = [row if len(row) > least else stand_in for row in rows]
        return rows, skipped

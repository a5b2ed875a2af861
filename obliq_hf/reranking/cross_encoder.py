"""Any CrossEncoder of sentence-transformers as a reranker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.files import hash_files
from obliq_hf.reranking.values import Ranking, Tally

if TYPE_CHECKING:
    from obliq_hf.llm.flows import Flow
    from obliq_hf.reranking.values import Pool
    from obliq_hf.tasks import ObliqTask

__all__ = ["CrossEncoderReranker", "cross_encoder_content"]


def cross_encoder_content(model: Any) -> str:
    """What decides a cross-encoder's scores, as far as it can be told without loading one.

    Args:
        model: A folder or name, or a model.

    Returns:
        A digest of a folder's files or of a model's weights and settings; otherwise the name.
    """
    if isinstance(model, str | Path):
        return hash_files(model) if Path(model).is_dir() else str(model)
    if hasattr(model, "state_dict"):
        from obliq_hf.encoder.fingerprint import model_fingerprint

        return model_fingerprint(model)
    return type(model).__name__


@dataclass
class CrossEncoderReranker:
    """Scores every candidate with the query, in one pass of a cross-encoder.

    Texts are given whole; the model's own tokeniser cuts them to its length. A prompt that the
    model carries under the task's name is used.

    Attributes:
        model: A :class:`sentence_transformers.CrossEncoder`, or the name or folder of one, a
            string or a path.
        revision: The revision of a name on the Hub.
        batch_size: Pairs at once.
        max_length: Longest pair in tokens; None is the model's own.
        device: The device; None is the model's own choice.
        prompt: A prompt put before the query instead of the model's own.
    """

    model: Any
    revision: str | None = None
    batch_size: int = 32
    max_length: int | None = None
    device: str | None = None
    prompt: str | None = None
    _loaded: Any = field(default=None, init=False, repr=False)

    asks = False

    @property
    def name(self) -> str:
        """``cross-encoder:`` and the model's name."""
        return f"cross-encoder:{self._model_name()}"

    @property
    def identity(self) -> dict[str, Any]:
        """The model, by its content where it lies in a folder or in memory, and how it is used."""
        return {
            "reranker": "cross-encoder",
            "model": cross_encoder_content(self.model),
            "revision": self.revision,
            "max_length": self.max_length,
            "prompt": self.prompt,
        }

    def _model_name(self) -> str:
        if isinstance(self.model, str | Path):
            return str(self.model)
        config = getattr(self.model, "config", None)
        return str(getattr(config, "_name_or_path", "") or type(self.model).__name__)

    def load(self) -> Any:
        """The model, loaded when first needed.

        Raises:
            ObliqError: There is none of that name.
        """
        if self._loaded is None:
            if isinstance(self.model, str | Path):
                from sentence_transformers import CrossEncoder

                try:
                    self._loaded = CrossEncoder(
                        str(self.model),
                        revision=self.revision,
                        device=self.device,
                        max_length=self.max_length,
                        trust_remote_code=False,
                    )
                except OSError as error:
                    raise ObliqError(f"no cross-encoder at {str(self.model)!r}: {error}") from error
            else:
                self._loaded = self.model
        return self._loaded

    def rank(self, pool: Pool, task: ObliqTask) -> Flow[Ranking]:
        """Candidates by their scores; equal scores keep the first stage's order.

        Raises:
            ObliqError: The model gives several numbers a pair, or one that is not finite.
        """
        model = self.load()
        options: dict[str, Any] = {}
        if self.prompt is not None:
            options["prompt"] = self.prompt
        elif task.name in (getattr(model, "prompts", None) or {}):
            options["prompt_name"] = task.name
        started = time.perf_counter()
        pairs = [(pool.query, candidate.text) for candidate in pool.candidates]
        scores = np.asarray(
            model.predict(pairs, batch_size=self.batch_size, show_progress_bar=False, **options),
            dtype=np.float64,
        )
        if scores.shape == (len(pairs), 1):
            scores = scores[:, 0]
        if scores.shape != (len(pairs),):
            raise ObliqError(
                f"{self.name} gives scores of shape {scores.shape} for {len(pairs)} pairs; one "
                "number a pair is needed"
            )
        if not np.isfinite(scores).all():
            bad = pool.candidates[int(np.flatnonzero(~np.isfinite(scores))[0])].id
            raise ObliqError(f"{self.name}: query {pool.query_id!r}, document {bad!r}: NaN score")
        order = np.argsort(-scores, kind="stable")
        seconds = time.perf_counter() - started
        tally = Tally(seconds=seconds, latency=seconds)
        return Ranking(tuple(order.tolist()), tuple(scores.tolist()), tally)
        yield  # a generator, like every reranker

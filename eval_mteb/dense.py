"""Any dense encoder as a search model: exact search, exclusions first, ties to corpus order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType

from eval_mteb.candidates import allowed_rows
from eval_mteb.task_prompts import log_prompts, used_prompt, with_task_prompt
from eval_mteb.vectors import check_vectors, encode_blocks, stored_vectors
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.search.dense import Hits, search
from obliq_hf.search.runs import to_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mteb.models import EncoderProtocol
    from mteb.models.model_meta import ModelMeta
    from numpy.typing import NDArray


__all__ = ["EncoderSearch", "VectorSearch", "document_texts"]


def document_texts(corpus: Any) -> list[str]:
    """Title and text of each document joined as mteb hands them to a model."""
    texts = corpus["text"]
    if "title" not in corpus.column_names:
        return [text.strip() for text in texts]
    return [
        f"{title} {text}".strip() if title else text.strip()
        for title, text in zip(corpus["title"], texts, strict=True)
    ]


class VectorSearch:
    """The part that all models with one vector a text share: exact top k among allowed rows."""

    strict_order = True

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.documents: NDArray[np.float32] | None = None
        self.ids: list[str] = []
        self.row: dict[str, int] = {}

    def costs(self) -> dict[str, Any]:
        """Seconds spent encoding documents and queries and searching."""
        return {"seconds": dict(self.seconds)}

    def rank(
        self,
        query_ids: list[str],
        queries: NDArray[np.float32],
        *,
        top_k: int,
        top_ranked: Any = None,
    ) -> dict[str, dict[str, float]]:
        """Rank the indexed documents for query vectors [q, d]; a run with strict scores."""
        if self.documents is None:
            raise ObliqError("index a corpus before searching it")
        start = time.perf_counter()
        allowed = allowed_rows(top_ranked, query_ids, self.row)
        everywhere = [i for i, entry in enumerate(allowed) if entry.only is None]
        hits: list[Hits | None] = [None] * len(query_ids)
        if everywhere:
            excluded = [allowed[i].excluded for i in everywhere]
            found = search(
                queries[everywhere],
                self.documents,
                top_k,
                excluded=excluded if any(excluded) else None,
            )
            for i, entry in zip(everywhere, found, strict=True):
                hits[i] = entry
        for i, candidates in enumerate(allowed):
            rows = candidates.only
            if rows is None:
                continue
            if len(rows) == 0:
                hits[i] = Hits(rows, np.zeros(0, dtype=np.float32))
                continue
            (inner,) = search(queries[i : i + 1], np.asarray(self.documents[rows]), top_k)
            hits[i] = Hits(rows[inner.rows], inner.scores)
        run = to_run([h for h in hits if h is not None], query_ids, self.ids)
        self.seconds["search"] = time.perf_counter() - start
        return run


class EncoderSearch(VectorSearch):
    """An mteb encoder as a search model over exact inner products.

    Args:
        encoder: Any mteb encoder.
        prompt_names: Names of the task, whose prompt in the model's own prompts is used.
        vectors: A folder that keeps document vectors between evaluations, for encoders that have
            a ``fingerprint`` (:func:`eval_mteb.models.load_encoder`); by default nothing is kept.
    """

    def __init__(
        self,
        encoder: EncoderProtocol,
        *,
        prompt_names: Sequence[str] = (),
        vectors: Path | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.prompt_names = tuple(prompt_names)
        self.vectors = vectors
        similarity = encoder.mteb_model_meta.similarity_fn_name
        if similarity not in {None, ScoringFunction.COSINE, ScoringFunction.DOT_PRODUCT}:
            raise ObliqError(
                f"{encoder.mteb_model_meta.name} compares vectors by {similarity.value}; exact "
                "search here knows cosine and dot product"
            )
        self.normalize = similarity is not ScoringFunction.DOT_PRODUCT
        self.reused = False

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The encoder's."""
        return self.encoder.mteb_model_meta

    def costs(self) -> dict[str, Any]:
        """Seconds by phase, and whether the document vectors were there already."""
        return {**super().costs(), "document_vectors_reused": self.reused}

    def _encode(
        self, texts: list[str], kind: PromptType, metadata: Any, encode_kwargs: Any, **where: Any
    ) -> NDArray[np.float32]:
        from torch.utils.data import DataLoader

        columns = {"text": texts, "query" if kind is PromptType.query else "body": texts}
        encoder = with_task_prompt(self.encoder, self.prompt_names, metadata)
        vectors = encoder.encode(
            DataLoader(Dataset.from_dict(columns), batch_size=1024, shuffle=False),
            task_metadata=metadata,
            prompt_type=kind,
            **where,
            **encode_kwargs,
        )
        array = np.array(vectors.cpu() if hasattr(vectors, "cpu") else vectors, dtype=np.float32)
        if self.normalize and array.ndim == 2:
            norms = np.linalg.norm(array, axis=1, keepdims=True)
            norms[norms == 0] = 1
            array /= norms
        return array

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Any,
        **kwargs: Any,
    ) -> None:
        """Encode the documents, or find their vectors."""
        self.ids = list(corpus["id"])
        self.row = {document: i for i, document in enumerate(self.ids)}
        texts = document_texts(corpus)
        if not texts:
            raise ObliqError(f"{task_metadata.name}: the corpus holds no documents")
        log_prompts(self.encoder, self.prompt_names, task_metadata)
        start = time.perf_counter()
        what = f"{self.mteb_model_meta.name}: documents"

        def encode(block: list[str]) -> NDArray[np.float32]:
            return self._encode(
                block,
                PromptType.document,
                task_metadata,
                encode_kwargs,
                hf_split=hf_split,
                hf_subset=hf_subset,
            )

        fingerprint = getattr(self.encoder, "vector_fingerprint", None)
        if self.vectors is None or fingerprint is None:
            self.documents = encode_blocks(encode, texts, what=what)
        else:
            _, prompt = used_prompt(
                self.encoder, self.prompt_names, task_metadata, PromptType.document
            )
            pooled = getattr(self.encoder, "include_prompt", None) if prompt else None
            key = content_hash(fingerprint, texts, [prompt], pooled)[:40]
            self.documents, self.reused = stored_vectors(
                self.vectors, key, texts, encode, what=what
            )
        self.seconds["encode documents"] = time.perf_counter() - start

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Any = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Encode the queries and rank the documents each may retrieve."""
        texts = list(queries["text"])
        if "instruction" in queries.column_names:
            texts = [
                text if extra is None else f"{text} {extra}"
                for text, extra in zip(texts, queries["instruction"], strict=True)
            ]
        start = time.perf_counter()
        vectors = check_vectors(
            self._encode(
                texts,
                PromptType.query,
                task_metadata,
                encode_kwargs,
                hf_split=hf_split,
                hf_subset=hf_subset,
            ),
            0,
            f"{self.mteb_model_meta.name}: queries",
        )
        self.seconds["encode queries"] = time.perf_counter() - start
        return self.rank(list(queries["id"]), vectors, top_k=top_k, top_ranked=top_ranked)

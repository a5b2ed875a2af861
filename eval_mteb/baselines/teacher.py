"""The frozen teacher itself as an mteb search model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from eval_mteb.dense import VectorSearch, document_texts
from eval_mteb.models import local_meta
from eval_mteb.vectors import BLOCK_ROWS, check_vectors, encode_blocks, stored_vectors
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.teachers import StylometricProfile

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from mteb.models.model_meta import ModelMeta
    from numpy.typing import NDArray

    from obliq_hf.teachers import Teacher

__all__ = ["TeacherSearch"]


class TeacherSearch(VectorSearch):
    """Search by the vectors of a frozen teacher; queries and documents are encoded alike.

    A text that a stylometric profile says nothing of (an empty one, one in another script) has a
    zero vector, which is as near to every text; such texts are counted in the costs.

    Args:
        teacher: The teacher.
        vectors: A folder that keeps its document vectors between evaluations.
    """

    def __init__(self, teacher: Teacher, *, vectors: Path | None = None) -> None:
        super().__init__()
        self.teacher = teacher
        self.vectors = vectors
        self.undefined = {"documents": 0, "queries": 0}

    def costs(self) -> dict[str, Any]:
        """Seconds by phase, and the texts without a vector where there are any."""
        some = any(self.undefined.values())
        return {**super().costs(), **({"texts_without_a_vector": self.undefined} if some else {})}

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        if isinstance(self.teacher, StylometricProfile):
            return self.teacher.encode(texts, undefined="zero")
        return self.teacher.encode(texts)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after the teacher."""
        return local_meta(
            f"teacher-{self.teacher.name}".replace("/", "-"),
            self.teacher.fingerprint[:40],
            model_type=["dense"],
            framework=["NumPy"],
            use_instructions=False,
        )

    def index(self, corpus: Any, *, task_metadata: Any, **kwargs: Any) -> None:
        """Encode the documents, or find their vectors."""
        self.ids = list(corpus["id"])
        self.row = {document: i for i, document in enumerate(self.ids)}
        texts = document_texts(corpus)
        if not texts:
            raise ObliqError(f"{task_metadata.name}: the corpus holds no documents")
        what = f"{self.teacher.name}: documents"
        start = time.perf_counter()
        if self.vectors is None:
            self.documents = encode_blocks(self._encode, texts, what=what)
        else:
            key = content_hash(self.teacher.fingerprint, texts)[:40]
            self.documents, _ = stored_vectors(self.vectors, key, texts, self._encode, what=what)
        self.undefined["documents"] = _zeros(self.documents)
        self.seconds["encode documents"] = time.perf_counter() - start

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """Encode the queries and rank the documents each may retrieve."""
        start = time.perf_counter()
        vectors = check_vectors(
            self._encode(list(queries["text"])), 0, f"{self.teacher.name}: queries"
        )
        self.undefined["queries"] = _zeros(vectors)
        self.seconds["encode queries"] = time.perf_counter() - start
        return self.rank(list(queries["id"]), vectors, top_k=top_k, top_ranked=top_ranked)


def _zeros(vectors: NDArray[np.float32]) -> int:
    """How many vectors [n, d] are zero; read in blocks, since they may be a memory map."""
    return sum(
        int((~vectors[start : start + BLOCK_ROWS].any(axis=1)).sum())
        for start in range(0, len(vectors), BLOCK_ROWS)
    )

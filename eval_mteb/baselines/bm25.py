"""BM25 as an mteb search model, with the tokeniser setting in its name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from eval_mteb.candidates import allowed_rows
from eval_mteb.dense import document_texts
from eval_mteb.models import local_meta
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.search.bm25 import BM25Index
from obliq_hf.search.runs import to_run

if TYPE_CHECKING:
    from mteb.models.model_meta import ModelMeta

__all__ = ["BM25Search"]


class BM25Search:
    """BM25 over title and text, one stated tokeniser setting.

    Args:
        setting: The setting of :class:`obliq_hf.search.bm25.BM25Index`: the score depends on it,
            so it is part of the name.
    """

    strict_order = True

    def __init__(self, setting: str = "english") -> None:
        self.setting = setting
        self.seconds: dict[str, float] = {}
        self.index_: BM25Index | None = None
        self.ids: list[str] = []
        self.row: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """What decides the scores, apart from the corpus."""
        import bm25s

        return content_hash(["bm25", self.setting, bm25s.__version__])

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after the setting."""
        return local_meta(
            f"bm25-{self.setting}",
            self.fingerprint[:40],
            model_type=["sparse"],
            framework=["NumPy"],
            use_instructions=False,
            training_datasets=set(),
        )

    def costs(self) -> dict[str, Any]:
        """Seconds spent indexing and searching."""
        return {"seconds": dict(self.seconds)}

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Tokenise and index the documents."""
        self.ids = list(corpus["id"])
        self.row = {document: i for i, document in enumerate(self.ids)}
        start = time.perf_counter()
        self.index_ = BM25Index(document_texts(corpus), setting=self.setting)
        self.seconds["index"] = time.perf_counter() - start

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """The best documents of each query among those it may retrieve."""
        if self.index_ is None:
            raise ObliqError("index a corpus before searching it")
        query_ids = list(queries["id"])
        start = time.perf_counter()
        excluded = []
        for allowed in allowed_rows(top_ranked, query_ids, self.row):
            if allowed.only is None:
                excluded.append(allowed.excluded)
            else:
                mask = np.ones(len(self.ids), dtype=bool)
                mask[allowed.only] = False
                excluded.append(np.flatnonzero(mask).tolist())
        hits = self.index_.search(
            list(queries["text"]), top_k, excluded=excluded if any(excluded) else None
        )
        run = to_run(hits, query_ids, self.ids)
        self.seconds["search"] = time.perf_counter() - start
        return run

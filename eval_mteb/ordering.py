"""The border at which a search model's results become a ranking with one unmistakable order."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.search.runs import strictly_decreasing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mteb.models import SearchProtocol
    from mteb.models.model_meta import ModelMeta

__all__ = ["OrderedSearch", "order_results"]


def order_results(
    results: Mapping[str, Mapping[str, float]],
    query_ids: list[str],
    row: Mapping[str, int],
    *,
    top_k: int,
    excluded: Mapping[str, list[str]] | None = None,
    who: str = "the model",
) -> dict[str, dict[str, float]]:
    """Check results and give them strictly decreasing scores in the order they mean.

    Args:
        results: Query id -> document id -> score, in any order, of any sign.
        query_ids: All queries asked; one that is missing from ``results`` gets an empty ranking.
        row: Document id -> row in the corpus; ties go to the earlier row.
        top_k: Documents kept per query.
        excluded: Query id -> ids that must not be there.
        who: The model's name, for messages.

    Returns:
        Query id -> document id -> score, best first.

    Raises:
        ObliqError: A score that is no number, a document that is not in the corpus, or one that
            is excluded for its query.
    """
    ordered: dict[str, dict[str, float]] = {}
    for query in query_ids:
        scored = results.get(query, {})
        hidden = set((excluded or {}).get(query, ()))
        for document, score in scored.items():
            if math.isnan(score):
                raise ObliqError(f"{who} scored document {document!r} of query {query!r} NaN")
            if document not in row:
                raise ObliqError(f"{who} returned {document!r}, which is not in the corpus")
            if document in hidden:
                raise ObliqError(
                    f"{who} returned {document!r}, which is excluded for query {query!r}"
                )
        ranked = sorted(scored, key=lambda d: (-scored[d], row[d]))[:top_k]
        scores = strictly_decreasing([scored[d] for d in ranked])
        ordered[query] = dict(zip(ranked, map(float, scores), strict=True))
    return ordered


class OrderedSearch:
    """A search model whose results are checked and strictly ordered before mteb scores them.

    Args:
        model: Any mteb search model. One whose own results are already ordered by our search
            (``strict_order = True``) is passed through, apart from the check for missing queries.
    """

    def __init__(self, model: SearchProtocol) -> None:
        self.model = model
        self.seconds: dict[str, float] = {}
        self.search_seconds = 0.0
        self._row: dict[str, int] = {}

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The wrapped model's."""
        return self.model.mteb_model_meta

    @property
    def costs(self) -> dict[str, Any]:
        """Seconds by phase and of the whole search, and what else the model counted."""
        own = getattr(self.model, "costs", None)
        counted = dict(own() if callable(own) else own or {})
        seconds = {**self.seconds, **counted.pop("seconds", {})}
        counted.pop("search_seconds", None)  # of a search within this one
        return {"seconds": seconds, "search_seconds": self.search_seconds, **counted}

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Index the corpus with the wrapped model."""
        self._row = {document: i for i, document in enumerate(corpus["id"])}
        start = time.perf_counter()
        self.model.index(corpus, **kwargs)
        self.seconds["index"] = time.perf_counter() - start

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """Search with the wrapped model and put its results in strict order."""
        start = time.perf_counter()
        results = self.model.search(queries, top_k=top_k, top_ranked=top_ranked, **kwargs)
        self.seconds["search"] = self.search_seconds = time.perf_counter() - start
        query_ids = list(queries["id"])
        if getattr(self.model, "strict_order", False):
            return {query: results.get(query, {}) for query in query_ids}
        return order_results(
            results,
            query_ids,
            self._row,
            top_k=top_k,
            excluded=getattr(top_ranked, "excluded", None),
            who=str(self.mteb_model_meta.name),
        )

"""Fusing the rankings of several search models, and replaying a stored ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eval_mteb.models import local_meta
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.search.fusion import fuse
from obliq_hf.search.runs import check_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mteb.models import SearchProtocol
    from mteb.models.model_meta import ModelMeta

    from obliq_hf.search.runs import Run

__all__ = ["FusionSearch", "RunSearch"]


class RunSearch:
    """A stored run as a search model: what it ranked is what is returned.

    Args:
        run: Query id -> document id -> score.
        name: A short name.
    """

    def __init__(self, run: Run, *, name: str) -> None:
        check_run(run, name)
        self.run = run
        self.name = name

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after the run and its content."""
        rankings = {query: list(ranked.items()) for query, ranked in self.run.items()}
        return local_meta(self.name, content_hash(rankings)[:40])

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Nothing to index."""

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """The stored rankings, cut at ``top_k``; a query the run lacks gets none."""
        found = {}
        for query in queries["id"]:
            ranked = list(self.run.get(query, {}).items())[:top_k]
            found[query] = dict(ranked)
        return found


class FusionSearch:
    """The fused ranking of several search models.

    Args:
        models: At least two search models.
        method: ``"zscore"`` (sum of standardised scores) or ``"rrf"`` (reciprocal ranks).
        weights: One weight a model; equal by default.
    """

    def __init__(
        self,
        models: Sequence[SearchProtocol],
        *,
        method: str = "zscore",
        weights: Sequence[float] | None = None,
    ) -> None:
        if len(models) < 2:
            raise ObliqError(f"a fusion needs at least two models, not {len(models)}")
        self.models = list(models)
        self.method = method
        self.weights = None if weights is None else list(weights)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after its parts and the method."""
        metas = [model.mteb_model_meta for model in self.models]
        names = "+".join(str(meta.name).split("/")[-1] for meta in metas)
        revision = content_hash([[m.name, m.revision] for m in metas], self.method, self.weights)
        return local_meta(
            f"{self.method}-{names}".replace("+", "-and-"), revision[:40], model_type=["hybrid"]
        )

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Index the corpus with every model."""
        for model in self.models:
            model.index(corpus, **kwargs)

    def search(self, queries: Any, *, top_k: int, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Search with every model and fuse what they found."""
        runs = [model.search(queries, top_k=top_k, **kwargs) for model in self.models]
        return fuse(runs, method=self.method, weights=self.weights, k=top_k)

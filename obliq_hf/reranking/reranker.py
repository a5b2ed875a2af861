"""What a reranker is, and the one that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from obliq_hf.reranking.values import Ranking

if TYPE_CHECKING:
    from obliq_hf.llm.flows import Flow
    from obliq_hf.reranking.values import Pool
    from obliq_hf.tasks import ObliqTask

__all__ = ["IdentityReranker", "Reranker"]


@runtime_checkable
class Reranker(Protocol):
    """Orders the candidates of a query.

    :meth:`rank` is a generator: it yields lists of requests to a language model, is sent their
    answers, and returns a :class:`~obliq_hf.reranking.values.Ranking`. What it yields at once is
    asked at once, together with what other queries ask; see
    :func:`obliq_hf.reranking.schedule.rerank`. A reranker without a language model yields nothing.
    """

    @property
    def name(self) -> str:
        """A short name with the settings that matter, such as ``tourrank:5``."""

    @property
    def asks(self) -> bool:
        """Whether it asks a language model."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides its rankings, apart from the language model."""

    def rank(self, pool: Pool, task: ObliqTask) -> Flow[Ranking]:
        """Order a pool of two or more candidates."""


class IdentityReranker:
    """Leaves the first stage's order as it is."""

    name = "identity"
    asks = False

    @property
    def identity(self) -> dict[str, Any]:
        """Nothing but its kind."""
        return {"reranker": "identity"}

    def rank(self, pool: Pool, task: ObliqTask) -> Flow[Ranking]:
        """The order as it came, with the first stage's scores."""
        return Ranking(
            tuple(range(len(pool))), tuple(candidate.score for candidate in pool.candidates)
        )
        yield  # a generator, like every reranker

"""Reranking many queries at once: one session, one bound on calls, whatever the rerankers ask.

Every query is a flow (:mod:`obliq_hf.llm.flows`): what a reranker asks at one time goes out
together with what all other queries ask, as many calls at once as the client allows. The second
round of a query starts when its own first one is answered, however far the others are.

What comes back is a permutation of the pool, whatever a reranker returns: documents beneath the
depth keep their places, and so does a candidate that is the query's own text, which no reranker is
shown. A query for which nothing usable was answered keeps the first stage's order and is listed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.llm import LLMError
from obliq_hf.llm.flows import run_flows
from obliq_hf.reranking.values import Ranking, Tally, permutation
from obliq_hf.search.runs import strictly_decreasing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from obliq_hf.llm import ChatAnswer, ChatClient, ChatRequest
    from obliq_hf.llm.flows import Flow
    from obliq_hf.reranking.reranker import Reranker
    from obliq_hf.reranking.values import Pool
    from obliq_hf.search.runs import Run
    from obliq_hf.tasks import ObliqTask

__all__ = [
    "Reranked",
    "finish",
    "pool_flow",
    "put_back",
    "rerank",
    "reranked_run",
    "run_all",
    "shown_positions",
    "together",
]


@dataclass(frozen=True)
class Reranked:
    """What reranking made of all queries.

    Attributes:
        orders: Query id -> ids of its pool, best first.
        rankings: Query id -> the ranking, with what it took.
        failed: Queries for which nothing usable was answered.
        degraded: Queries in which the first-stage order filled at least one place.
        tally: Totals.
        seconds: Wall time.
    """

    orders: dict[str, tuple[str, ...]]
    rankings: dict[str, Ranking]
    failed: tuple[str, ...]
    degraded: tuple[str, ...]
    tally: Tally
    seconds: float

    def check_budget(self) -> None:
        """Refuse to go on with rankings that a spent budget cut short.

        Raises:
            LLMError: Some calls were not made; those that were are in the cache.
        """
        if self.tally.errors["budget"]:
            raise LLMError(
                f"the budget was spent after {self.tally.calls} calls, "
                f"{self.tally.errors['budget']} were not made; what was answered is kept: run "
                "again with a larger budget"
            )

    def costs(self) -> dict[str, Any]:
        """Totals as plain values, with the wall time, the parts, and the queries that failed."""
        parts: dict[str, Tally] = {}
        for ranking in self.rankings.values():
            for name, tally in ranking.parts.items():
                parts.setdefault(name, Tally()).add(tally)
        return {
            **self.tally.as_dict(),
            "wall_seconds": round(self.seconds, 3),
            "queries": len(self.orders),
            "failed_queries": list(self.failed),
            "degraded_queries": len(self.degraded),
            **({"parts": {k: v.as_dict() for k, v in parts.items()}} if parts else {}),
        }


def rerank(
    reranker: Reranker,
    pools: Iterable[Pool],
    task: ObliqTask,
    *,
    client: ChatClient | None = None,
    depth: int | None = None,
    window: int | None = None,
    progress: str | None = None,
    total: int | None = None,
) -> Reranked:
    """Rerank all queries, each within its pool.

    Args:
        reranker: The reranker.
        pools: One pool a query; read as slots become free.
        task: What decides relevance.
        client: The language model, for rerankers that ask one. Behind a
            :class:`obliq_hf.llm.CachedClient` no question is paid for twice.
        depth: Candidates reranked; None takes all. Those beneath keep their order.
        window: Most queries under way at once; None takes the capacity of the client's session.
        progress: Label of a progress bar with calls, tokens and rate; None shows none.
        total: Number of queries, for the bar.

    Returns:
        The new orders, and what they took.

    Raises:
        ObliqError: A reranker that asks without a client, a depth below 1, or a query that stands
            twice.
        LLMError: The model cannot be used at all; what was answered is in the cache.
    """
    if reranker.asks and client is None:
        raise ObliqError(f"reranker {reranker.name!r} asks a language model: give client=")
    if depth is not None and depth < 1:
        raise ObliqError(f"depth must be at least 1, not {depth}")
    started = time.perf_counter()
    orders: dict[str, tuple[str, ...]] = {}
    rankings: dict[str, Ranking] = {}
    seen: dict[str, None] = {}

    def flows() -> Iterator[tuple[tuple[str, tuple[str, ...]], Flow[Ranking]]]:
        for pool in pools:
            if pool.query_id in seen:
                raise ObliqError(f"query {pool.query_id!r} stands twice among the pools")
            seen[pool.query_id] = None
            ids = tuple(candidate.id for candidate in pool.candidates)
            yield (pool.query_id, ids), pool_flow(reranker, pool, task, depth)

    for (query, ids), ranking in run_all(
        client if reranker.asks else None, flows(), window=window, progress=progress, total=total
    ):
        rankings[query] = ranking
        orders[query] = tuple(ids[position] for position in ranking.order)
    # results come as they finish; the order of the pools is the order of the queries
    orders = {query: orders[query] for query in seen}
    return finish(orders, rankings, time.perf_counter() - started)


def finish(
    orders: dict[str, tuple[str, ...]], rankings: Mapping[str, Ranking], seconds: float
) -> Reranked:
    """Totals over rankings."""
    tally = Tally()
    ordered = {query: rankings[query] for query in orders}
    for ranking in ordered.values():
        tally.add(ranking.tally, side_by_side=True)
    return Reranked(
        orders,
        ordered,
        tuple(query for query, ranking in ordered.items() if ranking.failed),
        tuple(query for query, ranking in ordered.items() if ranking.tally.filled),
        tally,
        seconds,
    )


def pool_flow(
    reranker: Reranker, pool: Pool, task: ObliqTask, depth: int | None = None
) -> Generator[list[ChatRequest], dict[str, ChatAnswer], Ranking]:
    """One query's flow: what is shown to the reranker, and its order put back into the pool."""
    shown = shown_positions(pool, depth)
    withheld = (len(pool) if depth is None else min(depth, len(pool))) - len(shown)
    if len(shown) < 2:
        return Ranking.first_stage(len(pool), tally=Tally(withheld=withheld))
    ranking = yield from reranker.rank(pool.select(shown), task)
    ranking.tally.withheld += withheld
    return put_back(ranking, shown, len(pool))


def shown_positions(pool: Pool, depth: int | None) -> list[int]:
    """Positions within the depth, apart from candidates that are the query's own text."""
    own = pool.query.split()
    within = len(pool) if depth is None else min(depth, len(pool))
    return [p for p in range(within) if not _is_text(pool.candidates[p].text, own)]


def put_back(ranking: Ranking, shown: Sequence[int], size: int) -> Ranking:
    """A ranking of the candidates shown as one of the whole pool; the others keep their places."""
    inner, repaired = permutation(ranking.order, len(shown))
    ranking.tally.repaired += repaired
    if len(shown) == size:
        return replace(ranking, order=inner)
    order = list(range(size))
    for place, position in zip(shown, inner, strict=True):
        order[place] = shown[position]
    return replace(ranking, order=tuple(order), scores=None)


def _is_text(text: str, words: list[str]) -> bool:
    """Whether a text consists of these words."""
    if words and not text.lstrip().startswith(words[0]):
        return False
    return text.split() == words


def run_all(
    client: ChatClient | None,
    flows: Iterable[tuple[Any, Flow[Any]]],
    *,
    window: int | None = None,
    progress: str | None = None,
    total: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Run flows with a client, or one after another where none of them asks anything.

    Raises:
        ObliqError: A flow asks and there is no client.
    """
    if client is not None:
        yield from run_flows(client, flows, window=window, progress=progress, total=total)
        return
    for key, flow in flows:
        try:
            next(flow)
        except StopIteration as stop:
            yield key, stop.value
        else:
            flow.close()
            raise ObliqError("this reranker asks a language model: give client=")


def together(
    flows: Sequence[Flow[Any]],
) -> Generator[list[ChatRequest], dict[str, ChatAnswer], list[Any]]:
    """Run flows of one query side by side, round by round; equal requests are asked once.

    Args:
        flows: The flows.

    Returns:
        Their results, in order.
    """
    results: list[Any] = [None] * len(flows)
    waiting: dict[int, list[ChatRequest]] = {}

    def advance(index: int, answers: dict[str, ChatAnswer] | None) -> None:
        flow = flows[index]
        try:
            asked = next(flow) if answers is None else flow.send(answers)
        except StopIteration as stop:
            results[index] = stop.value
        else:
            waiting[index] = asked

    for index in range(len(flows)):
        advance(index, None)
    while waiting:
        current, waiting = dict(waiting), {}
        asked: dict[Any, ChatRequest] = {}
        places: dict[tuple[int, str], str] = {}
        for index, requests in current.items():
            for request in requests:
                content = _content(request)
                if content not in asked:
                    asked[content] = replace(request, id=str(len(asked)))
                places[(index, request.id)] = asked[content].id
        answers = yield list(asked.values())
        handed: set[str] = set()
        for index, requests in current.items():
            own: dict[str, ChatAnswer] = {}
            for request in requests:
                given = places[(index, request.id)]
                answer = replace(answers[given], id=request.id)
                if given in handed:  # paid for by the flow that got it first
                    answer = replace(answer, cached=True, attempts=0, seconds=0.0)
                handed.add(given)
                own[request.id] = answer
            advance(index, own)
    return results


def _content(request: ChatRequest) -> tuple[Any, ...]:
    return (
        tuple((m["role"], m["content"]) for m in request.messages),
        request.max_tokens,
        request.temperature,
        request.seed,
        request.logprobs,
        None if request.schema is None else repr(request.schema),
    )


def reranked_run(
    first_stage: Run, reranked: Mapping[str, Sequence[str]], *, top_k: int | None = None
) -> Run:
    """A run in the new order, with the first stage's scores.

    The scores of a query are those of its first stage, dealt out by rank, so that an order that is
    not changed keeps every score to the last digit.

    Args:
        first_stage: The first stage's run; documents in order of rank.
        reranked: Query id -> ids of its pool, best first; the pool is the beginning of the
            query's ranking. A query without an entry keeps its order.
        top_k: Documents kept a query.

    Returns:
        The run, queries in the order of ``first_stage``, scores strictly decreasing.

    Raises:
        ObliqError: A document that the first stage did not find.
    """
    run: Run = {}
    for query, found in first_stage.items():
        order = list(reranked.get(query, found))
        strange = [document for document in order if document not in found]
        if strange:
            raise ObliqError(f"query {query!r}: {strange[0]!r} was not among the candidates")
        pool = set(order)
        ranked = [*order, *(document for document in found if document not in pool)][:top_k]
        scores = strictly_decreasing(sorted(found.values(), reverse=True)[: len(ranked)])
        run[query] = dict(zip(ranked, scores, strict=True))
    return run

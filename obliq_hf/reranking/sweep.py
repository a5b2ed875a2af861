"""Many settings of rerankers over the same pools, from as few calls as they can be had with.

All numbers of tournaments come from the calls of the largest, depths of listwise reranking are held
side by side so that equal windows are asked once, a deep pool is brought down once for all settings
that bring it down alike, and everything of all queries shares one session.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.reranking.cascade import Cascade
from obliq_hf.reranking.listwise import Listwise
from obliq_hf.reranking.schedule import (
    Reranked,
    finish,
    pool_flow,
    put_back,
    run_all,
    shown_positions,
    together,
)
from obliq_hf.reranking.settings import RerankSettings, build_reranker
from obliq_hf.reranking.tourrank import TourRank
from obliq_hf.reranking.values import Ranking, Tally, permutation

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from obliq_hf.llm import ChatAnswer, ChatClient, ChatRequest
    from obliq_hf.llm.flows import Flow
    from obliq_hf.reranking.asking import Asking
    from obliq_hf.reranking.reranker import Reranker
    from obliq_hf.reranking.values import Pool
    from obliq_hf.search.runs import Run
    from obliq_hf.tasks import ObliqTask

__all__ = ["sweep"]


def sweep(
    settings: Sequence[RerankSettings],
    pools: Sequence[Pool],
    task: ObliqTask,
    *,
    client: ChatClient | None = None,
    asking: Asking | None = None,
    seed: int = 0,
    second: Run | None = None,
    progress: str | None = None,
) -> dict[str, Reranked]:
    """Rerank the same pools under several settings.

    Args:
        settings: The settings; their labels must differ.
        pools: One pool a query, as deep as the deepest setting needs.
        task: What decides relevance.
        client: The language model, where any setting asks one.
        asking: Budgets of texts, temperature, thinking.
        seed: Seed of shuffles.
        second: The other run of a pre-selection by fusion.
        progress: Label of a progress bar.

    Returns:
        Label -> what reranking made of all queries and what it would take alone. The wall time of
        each is that of the whole sweep.

    Raises:
        ObliqError: Two settings with one label, or a setting that asks without a client.
    """
    labels = [entry.label for entry in settings]
    if len(set(labels)) < len(labels):
        raise ObliqError(f"settings with one label: {sorted(labels)}")
    asking_ones = [entry.label for entry in settings if entry.asks]
    if asking_ones and client is None:
        raise ObliqError(f"reranker {asking_ones[0]!r} asks a language model: give client=")
    families = _families(settings, asking=asking, seed=seed, second=second)
    started = time.perf_counter()

    def flows() -> Iterator[tuple[tuple[int, Pool], Any]]:
        for pool in pools:
            for number, family in enumerate(families):
                yield (number, pool), family.flow(pool, task)

    rankings: dict[str, dict[str, Ranking]] = {label: {} for label in labels}
    for (_, pool), found in run_all(
        client, flows(), progress=progress, total=len(pools) * len(families)
    ):
        for label, ranking in found.items():
            rankings[label][pool.query_id] = ranking
    seconds = time.perf_counter() - started
    result = {}
    for label in labels:
        orders = {}
        for pool in pools:
            order = rankings[label][pool.query_id].order
            orders[pool.query_id] = tuple(pool.candidates[p].id for p in order)
        result[label] = finish(orders, rankings[label], seconds)
    return result


class _One:
    """A single setting."""

    def __init__(self, settings: RerankSettings, **how: Any) -> None:
        self.settings = settings
        self.reranker = build_reranker(settings, **how)

    def flow(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], dict[str, Ranking]]:
        ranking = yield from pool_flow(self.reranker, pool, task, self.settings.pool_depth)
        return {self.settings.label: ranking}


class _Many:
    """Settings of one reranker that differ in its number alone."""

    def __init__(self, members: dict[int, RerankSettings], **how: Any) -> None:
        self.members = members
        largest = members[max(members)]
        self.depth = largest.pool_depth
        reranker = build_reranker(largest, **how)
        assert isinstance(reranker, TourRank | Listwise)
        self.reranker = reranker

    def flow(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], dict[str, Ranking]]:
        shown = shown_positions(pool, self.depth)
        withheld = min(self.depth, len(pool)) - len(shown)
        if len(shown) < 2:
            first = Ranking.first_stage(len(pool), tally=Tally(withheld=withheld))
            return {entry.label: first for entry in self.members.values()}
        numbers = list(self.members)
        found = yield from self.reranker.sweep(pool.select(shown), task, numbers)
        for ranking in found.values():
            ranking.tally.withheld += withheld
        return {
            self.members[number].label: put_back(found[number], shown, len(pool))
            for number in numbers
        }


class _Deep:
    """Settings with one pre-selection, which is done once a pool."""

    def __init__(self, members: Sequence[RerankSettings], **how: Any) -> None:
        self.depth = members[0].pool_depth
        whole = build_reranker(members[0], **how)
        assert isinstance(whole, Cascade)
        self.first, self.keep = whole.steps[0]
        inner = [replace(entry, preselect=None) for entry in members]
        self.labels = {a.label: b.label for a, b in zip(inner, members, strict=True)}
        self.rerankers = {entry.label: build_reranker(entry, **how) for entry in inner}
        self.families = _families(inner, **how)

    def flow(
        self, pool: Pool, task: ObliqTask
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], dict[str, Ranking]]:
        shown = shown_positions(pool, self.depth)
        withheld = min(self.depth, len(pool)) - len(shown)
        if len(shown) < 2:
            tally = Tally(withheld=withheld)
            first = Ranking.first_stage(len(pool), tally=tally)
            return dict.fromkeys(self.labels.values(), first)
        deep = pool.select(shown)
        first = yield from self.first.rank(deep, task)
        order, _ = permutation(first.order, len(deep))
        kept = deep.select(order[: self.keep])
        found = yield from together([family.flow(kept, task) for family in self.families])
        result = {}
        for inner, ranking in (pair for part in found for pair in part.items()):
            steps = Cascade(
                (
                    (_Known(self.first, first), self.keep),
                    (_Known(self.rerankers[inner], ranking), self.keep),
                )
            )
            # what is known asks nothing, so that the steps are put together at once
            done = yield from steps.rank(deep, task)
            done.tally.withheld += withheld
            result[self.labels[inner]] = put_back(done, shown, len(pool))
        return result


class _Known:
    """A reranker whose ranking is there already."""

    def __init__(self, reranker: Reranker, ranking: Ranking) -> None:
        self.name, self.asks = reranker.name, reranker.asks
        self.identity = reranker.identity
        self.ranking = ranking

    def rank(self, pool: Pool, task: ObliqTask) -> Flow[Ranking]:
        tally = Tally()
        tally.add(self.ranking.tally)
        return replace(self.ranking, tally=tally)
        yield  # a generator, like every reranker


def _families(settings: Sequence[RerankSettings], **how: Any) -> list[_One | _Many | _Deep]:
    """Settings that share calls, put together; in the order of their first members."""
    groups: dict[Any, list[RerankSettings]] = {}
    for entry in settings:
        alike: Any = entry.label
        if entry.preselect is not None:
            alike = _preselection(entry)
        elif entry.fuse is None and entry.early_stop is None:
            if entry.reranker == "tourrank":
                alike = replace(entry, rounds=1)
            elif entry.reranker == "listwise":
                alike = replace(entry, listwise_depth=1)
        groups.setdefault(alike, []).append(entry)
    families: list[_One | _Many | _Deep] = []
    for members in groups.values():
        if members[0].preselect is not None:
            families.append(_Deep(members, **how))
            continue
        if len(members) == 1:
            families.append(_One(members[0], **how))
            continue
        key = "rounds" if members[0].reranker == "tourrank" else "listwise_depth"
        families.append(_Many({getattr(entry, key): entry for entry in members}, **how))
    return families


def _preselection(entry: RerankSettings) -> tuple[Any, ...]:
    """What decides a setting's pre-selection."""
    own: tuple[Any, ...] = ()
    if entry.preselect == "cross-encoder":
        own = (entry.cross_encoder,)
    elif entry.preselect == "tournament":
        own = (entry.preselect_rounds, entry.prompt, entry.answer)
    return (entry.preselect, entry.first_stage_depth, entry.depth, *own)

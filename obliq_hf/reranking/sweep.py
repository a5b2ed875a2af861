"""Many settings of rerankers over the same pools, from as few calls as they can be had with.

All numbers of tournaments come from the calls of the largest, depths of listwise reranking are held
side by side so that equal windows are asked once, and everything of all queries shares one session.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.reranking.listwise import Listwise
from obliq_hf.reranking.schedule import (
    Reranked,
    finish,
    pool_flow,
    put_back,
    run_all,
    shown_positions,
)
from obliq_hf.reranking.settings import RerankSettings, build_reranker
from obliq_hf.reranking.tourrank import TourRank
from obliq_hf.reranking.values import Ranking

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from obliq_hf.llm import ChatAnswer, ChatClient, ChatRequest
    from obliq_hf.reranking.asking import Asking
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
    families = _families(settings, asking, seed, second)
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
        if len(shown) < 2:
            first = Ranking.first_stage(len(pool))
            return {entry.label: first for entry in self.members.values()}
        numbers = list(self.members)
        found = yield from self.reranker.sweep(pool.select(shown), task, numbers)
        withheld = min(self.depth, len(pool)) - len(shown)
        for ranking in found.values():
            ranking.tally.withheld += withheld
        return {
            self.members[number].label: put_back(found[number], shown, len(pool))
            for number in numbers
        }


def _families(
    settings: Sequence[RerankSettings], asking: Asking | None, seed: int, second: Run | None
) -> list[_One | _Many]:
    """Settings that share calls, put together; in the order of their first members."""
    how: dict[str, Any] = {"asking": asking, "seed": seed, "second": second}
    groups: dict[Any, list[RerankSettings]] = {}
    for entry in settings:
        alike: Any = entry.label
        if entry.preselect is None and entry.fuse is None and entry.early_stop is None:
            if entry.reranker == "tourrank":
                alike = replace(entry, rounds=1)
            elif entry.reranker == "listwise":
                alike = replace(entry, listwise_depth=1)
        groups.setdefault(alike, []).append(entry)
    families: list[_One | _Many] = []
    for members in groups.values():
        if len(members) == 1:
            families.append(_One(members[0], **how))
            continue
        key = "rounds" if members[0].reranker == "tourrank" else "listwise_depth"
        families.append(_Many({getattr(entry, key): entry for entry in members}, **how))
    return families

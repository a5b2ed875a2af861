"""Splitting queries so that those which share a document stay together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["GroupedSplit", "connected_queries", "split_queries"]


def connected_queries(
    queries: Sequence[str], documents: Mapping[str, Iterable[str]]
) -> list[list[str]]:
    """Groups of queries that share a document, directly or through other queries.

    Args:
        queries: All queries, in order.
        documents: Query -> the documents it touches (judged or excluded).

    Returns:
        The groups, the first member of each in the order of ``queries``.
    """
    parent = list(range(len(queries)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[str, int] = {}
    for i, query in enumerate(queries):
        for document in documents.get(query, ()):
            other = root(first.setdefault(document, i))
            mine = root(i)
            parent[max(mine, other)] = min(mine, other)
    groups: dict[int, list[str]] = {}
    for i, query in enumerate(queries):
        groups.setdefault(root(i), []).append(query)
    return list(groups.values())


@dataclass(frozen=True)
class GroupedSplit:
    """A partition of the queries.

    Attributes:
        splits: Split -> its queries, in their order.
        info: Seed, shares, number of groups and size of the largest.
    """

    splits: dict[str, list[str]]
    info: dict[str, Any]


def split_queries(
    queries: Sequence[str],
    documents: Mapping[str, Iterable[str]],
    shares: Mapping[str, float],
    *,
    seed: int = 0,
) -> GroupedSplit:
    """Divide queries among splits, whole groups at a time.

    The largest groups are placed first, each where most is still missing, so the shares are met
    as well as the groups allow. Among groups of one size the seed decides.

    Args:
        queries: All queries.
        documents: Query -> the documents it touches.
        shares: Split -> share of the queries; they add up to 1.
        seed: Of the order among groups of one size.

    Raises:
        ObliqError: A share is negative or they do not add up to 1.
    """
    if any(share < 0 for share in shares.values()) or not math.isclose(sum(shares.values()), 1):
        raise ObliqError(f"shares of the splits must add up to 1, not {dict(shares)}")
    groups = connected_queries(queries, documents)
    order = np.random.default_rng(seed).permutation(len(groups))
    missing = {split: share * len(queries) for split, share in shares.items() if share > 0}
    chosen: dict[str, str] = {}
    for place in sorted(order.tolist(), key=lambda i: -len(groups[i])):
        split = max(missing, key=lambda name: missing[name])
        missing[split] -= len(groups[place])
        chosen.update(dict.fromkeys(groups[place], split))
    splits = {name: [q for q in queries if chosen[q] == name] for name in missing}
    return GroupedSplit(
        splits,
        {
            "seed": seed,
            "shares": dict(shares),
            "groups": len(groups),
            "largest_group": max(map(len, groups), default=0),
            "queries": {name: len(members) for name, members in splits.items()},
        },
    )

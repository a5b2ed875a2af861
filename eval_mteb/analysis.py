"""What a ranking is like beyond its mean: depth, gains and losses, hubs, sanity baselines.

Everything here needs only runs, judgments and exclusions, so it works on any stored evaluation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.metrics import per_query
from obliq_hf.search.runs import strictly_decreasing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eval_mteb.results import Scores
    from obliq_hf.records import Qrels
    from obliq_hf.search.runs import Run

__all__ = [
    "DEPTHS",
    "Gains",
    "Hubs",
    "gains",
    "gold_prior",
    "hubs",
    "recall_at_depths",
    "shuffled_judgments",
]

DEPTHS = (10, 20, 50, 100, 200, 500, 1000)
"""Depths at which recall is reported: what a reranker of that depth could still find."""


def recall_at_depths(run: Run, qrels: Qrels, *, depths: Sequence[int] = DEPTHS) -> dict[int, float]:
    """Mean recall at each depth, over all judged queries.

    Args:
        run: Query id -> document id -> score.
        qrels: The judgments.
        depths: Cutoffs; those beyond the run's length repeat its last value.

    Returns:
        Depth -> mean recall.
    """
    scores = per_query(run, qrels, ks=tuple(depths))
    found = {}
    for depth in depths:
        values = scores[f"recall_at_{depth}"].values()
        found[depth] = round(sum(values) / len(values), 6)
    return found


@dataclass(frozen=True)
class Gains:
    """How a − b falls out query by query.

    Attributes:
        helped: Queries better under a.
        hurt: Queries worse under a.
        unchanged: Queries equal and above zero.
        zero_under_both: Queries at zero under both: nothing there for a reranker or a fusion.
        median_gain: Median difference among those helped.
        median_loss: Median difference among those hurt, as a negative number.
        most_helped: Query ids of the largest gains with their differences.
        most_hurt: Likewise for the largest losses.
    """

    helped: int
    hurt: int
    unchanged: int
    zero_under_both: int
    median_gain: float
    median_loss: float
    most_helped: list[tuple[str, float]]
    most_hurt: list[tuple[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def gains(a: Scores, b: Scores, *, shown: int = 5) -> Gains:
    """Count the queries that a helps and hurts against b.

    Args:
        a: Query id -> value.
        b: The same queries under another system.
        shown: How many of the largest gains and losses are listed.

    Returns:
        The counts; they add up to the number of queries.

    Raises:
        ObliqError: The two were not measured on the same queries.
    """
    if a.keys() != b.keys():
        raise ObliqError("gains and losses need the same queries under both systems")
    change = {query: a[query] - b[query] for query in a}
    up = {q: d for q, d in change.items() if d > 1e-12}
    down = {q: d for q, d in change.items() if d < -1e-12}
    same = [q for q in change if q not in up and q not in down]
    nothing = [q for q in same if a[q] == 0]
    order = sorted(change, key=lambda q: (-change[q], q))

    def listed(queries: list[str]) -> list[tuple[str, float]]:
        return [(q, round(change[q], 4)) for q in queries]

    return Gains(
        helped=len(up),
        hurt=len(down),
        unchanged=len(same) - len(nothing),
        zero_under_both=len(nothing),
        median_gain=round(float(np.median(list(up.values()))), 4) if up else 0.0,
        median_loss=round(float(np.median(list(down.values()))), 4) if down else 0.0,
        most_helped=listed([q for q in order if q in up][:shown]),
        most_hurt=listed([q for q in reversed(order) if q in down][:shown]),
    )


@dataclass(frozen=True)
class Hubs:
    """Whether a few documents come first for everything, the sign of a collapsed encoder.

    Attributes:
        queries: Queries with at least one hit.
        distinct_top1: Different documents that come first for some query.
        largest_share: Share of the queries whose first document is the most frequent one.
        largest: That document.
        largest_share_top10: Share of the queries with the most frequent document among the
            first ten.
    """

    queries: int
    distinct_top1: int
    largest_share: float
    largest: str | None
    largest_share_top10: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def hubs(run: Run) -> Hubs:
    """Count the documents that come first."""
    rankings = [list(ranked) for ranked in run.values() if ranked]
    if not rankings:
        return Hubs(0, 0, 0.0, None, 0.0)
    first = Counter(ranked[0] for ranked in rankings)
    ten = Counter(document for ranked in rankings for document in ranked[:10])
    document, count = min(first.items(), key=lambda item: (-item[1], item[0]))
    return Hubs(
        queries=len(rankings),
        distinct_top1=len(first),
        largest_share=round(count / len(rankings), 6),
        largest=document,
        largest_share_top10=round(max(ten.values()) / len(rankings), 6),
    )


def shuffled_judgments(
    run: Run, qrels: Qrels, *, metric: str = "ndcg_at_10", repeats: int = 20, seed: int = 0
) -> float:
    """The score of a run against other queries' judgments: what is not about the query.

    The judgments are dealt out anew among the queries, so that none keeps its own where that is
    possible. A score near the real one means that the ranking hardly depends on the query.

    Args:
        run: The run, documents in order of rank.
        qrels: The judgments.
        metric: ``ndcg_at_k`` or ``recall_at_k``.
        repeats: Seeded deals to average over.
        seed: Their seed.

    Returns:
        The mean score.
    """
    k = int(metric.rsplit("_", 1)[1])
    queries = sorted(qrels)
    if len(queries) < 2:
        raise ObliqError("judgments of a single query cannot be dealt out anew")
    rng = np.random.default_rng(seed)
    known = {query: dict(list(run.get(query, {}).items())[:k]) for query in queries}
    values = []
    for _ in range(repeats):
        order = rng.permutation(len(queries))
        shift = int(rng.integers(1, len(queries)))
        dealt = {
            queries[order[i]]: qrels[queries[order[(i + shift) % len(queries)]]]
            for i in range(len(queries))
        }
        scores = per_query(known, dealt, ks=(k,))[metric]
        values.append(sum(scores.values()) / len(scores))
    return round(float(np.mean(values)), 6)


def gold_prior(
    qrels: Qrels,
    *,
    excluded: Mapping[str, Sequence[str]] | None = None,
    folds: int = 5,
    seed: int = 0,
    depth: int = 1000,
) -> Run:
    """Rank, for each query, the documents that most *other* queries judge relevant.

    It never looks at the query: a system that does not beat it has learnt which documents are
    popular, not what the query asks for. The queries are cut into folds and each is served with
    the votes of the other folds. (Leaving out the query alone would put the documents that share
    its attribute one vote behind all others of equal standing.)

    Args:
        qrels: The judgments.
        excluded: Query id -> documents it must not retrieve.
        folds: Number of folds; as many as there are queries at most.
        seed: Seed of the folds.
        depth: Documents per query.

    Returns:
        A run; ties go to the document id.
    """
    queries = sorted(qrels)
    order = np.random.default_rng(seed).permutation(len(queries))
    fold_of = {queries[i]: place % max(1, folds) for place, i in enumerate(order.tolist())}
    votes: dict[int, Counter[str]] = {fold: Counter() for fold in set(fold_of.values())}
    for query, judged in qrels.items():
        relevant = [d for d, grade in judged.items() if grade > 0]
        for fold, counter in votes.items():
            if fold != fold_of[query]:
                counter.update(relevant)
    rankings = {
        fold: sorted(counter, key=lambda d: (-counter[d], d)) for fold, counter in votes.items()
    }
    run: Run = {}
    for query in qrels:
        fold = fold_of[query]
        hidden = set((excluded or {}).get(query, ()))
        ranked = [d for d in rankings[fold] if d not in hidden][:depth]
        values = strictly_decreasing([float(votes[fold][d]) for d in ranked])
        run[query] = dict(zip(ranked, values, strict=True))
    return run

"""Pools with known answers for the tests of reranking."""

from __future__ import annotations

import numpy as np

from obliq_hf.metrics import per_query
from obliq_hf.reranking import Asking, Candidate, OracleClient, Pool, rerank
from obliq_hf.reranking.asking import offered_texts

BARE = Asking(documents=None, query=None)
"""Texts are shown whole."""


def make_pool(size: int, query: str = "q1") -> Pool:
    return Pool(
        query,
        f"what {query} looks for",
        tuple(
            Candidate(f"{query}-d{i}", f"text {i} of {query}", 1 - i / 2000) for i in range(size)
        ),
    )


def make_judged(queries: int, size: int, relevant: int, seed: int = 0):
    """Pools in which the relevant documents lie anywhere, and their judgments."""
    rng = np.random.default_rng(seed)
    pools = [make_pool(size, f"q{i}") for i in range(queries)]
    qrels = {
        pool.query_id: {
            pool.candidates[p].id: 1 for p in rng.choice(size, relevant, replace=False).tolist()
        }
        for pool in pools
    }
    return pools, qrels


def ids(pool: Pool) -> tuple[str, ...]:
    return tuple(candidate.id for candidate in pool.candidates)


def numbers_shown(request) -> list[int]:
    """The numbers in the texts of the candidates that a request shows, in order."""
    return [int(text.split()[1]) for text in offered_texts(request)]


def first_of_the_list(request) -> str:
    """A judge who prefers the first stage's order."""
    numbers = numbers_shown(request)
    return " > ".join(f"[{i + 1}]" for i in sorted(range(len(numbers)), key=numbers.__getitem__))


def last_of_the_list(request) -> str:
    """A judge who prefers the opposite of the first stage's order."""
    numbers = numbers_shown(request)
    order = sorted(range(len(numbers)), key=lambda i: -numbers[i])
    return " > ".join(f"[{i + 1}]" for i in order)


def drive(flow, client):
    """Run a flow alone; its result and the number of requests of each round."""
    rounds = []
    try:
        asked = next(flow)
        while True:
            rounds.append(len(asked))
            asked = flow.send(client.complete_all(asked))
    except StopIteration as stop:
        return stop.value, rounds


def simulated_ndcg(reranker, plain, pools, qrels, task, *, error_rate):
    """nDCG@10 of each query by a reranker, and by its algorithm written down once more.

    Args:
        reranker: Asked with a judge who errs at the rate.
        plain: Gives an order of positions, from the grades and a generator.
    """
    judge = OracleClient(pools, qrels, asking=BARE, error_rate=error_rate, seed=1)
    done = rerank(reranker, pools, task, client=judge)
    ours = per_query(_as_run(done.orders), qrels)["ndcg_at_10"]
    rng = np.random.default_rng(5)
    expected = []
    for _ in range(3):
        orders = {}
        for pool in pools:
            grades = [qrels[pool.query_id].get(c.id, 0) for c in pool.candidates]
            orders[pool.query_id] = [pool.candidates[p].id for p in plain(grades, rng)]
        expected += per_query(_as_run(orders), qrels)["ndcg_at_10"].values()
    return np.array(list(ours.values())), np.array(expected)


def _as_run(orders):
    return {q: {d: -float(r) for r, d in enumerate(o)} for q, o in orders.items()}


def assert_same_mean(ours, expected):
    """The means of two samples differ by no more than chance."""
    spread = np.sqrt(ours.var() / len(ours) + expected.var() / len(expected))
    assert abs(ours.mean() - expected.mean()) < 3.5 * spread + 1e-6

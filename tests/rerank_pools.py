"""Pools with known answers for the tests of reranking."""

from __future__ import annotations

import numpy as np

from obliq_hf.reranking import Asking, Candidate, Pool
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

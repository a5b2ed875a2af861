"""TourRank beside a plain reference that does the same calls, with a judge that answers at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.table import Row, by_size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["measure"]

_POOL = 100
_ROUNDS = 5
_STAGES = ((5, 10), (5, 4), (1, 10), (1, 5), (1, 2))  # groups, and how many of each go on
_WORDS = 60


def _pools(count: int) -> list[Any]:
    from obliq_hf.reranking import Candidate, Pool

    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("aeiourstlnm"), 6)) for _ in range(2000)])

    def text() -> str:
        return " ".join(rng.choice(words, _WORDS))

    return [
        Pool(f"q{i}", text(), tuple(Candidate(f"d{j}", text(), 1 - j / 1000) for j in range(_POOL)))
        for i in range(count)
    ]


def _answer(shown: int) -> str:
    return " > ".join(f"[{i + 1}]" for i in range(shown))


def _plain(pools: list[Any]) -> None:
    """The schedule of arXiv 2406.11678 in a loop: a prompt, an answer and its numbers, no more."""
    for pool in pools:
        points = [0] * _POOL
        for tournament in range(_ROUNDS):
            left = list(range(_POOL))
            for groups, keep in _STAGES:
                kept: list[int] = []
                for g in range(groups):
                    group = left[g::groups]
                    rng = np.random.default_rng([tournament, g])
                    rng.shuffle(group)
                    listed = "\n".join(
                        f"[{i + 1}] {pool.candidates[d].text}" for i, d in enumerate(group)
                    )
                    prompt = f"Query: {pool.query}\n\n{listed}\n\nName the {keep} best."
                    reply = _answer(len(group)) if prompt else ""
                    best = [int(n) - 1 for n in re.findall(r"\[(\d+)\]", reply)][:keep]
                    kept += [group[i] for i in best]
                for document in kept:
                    points[document] += 1
                left = sorted(kept)
        sorted(range(_POOL), key=lambda d: -points[d])


def _calls(count: int) -> dict[str, Callable[[], object]]:
    from obliq_hf.llm.scripted import ScriptedClient
    from obliq_hf.reranking import Asking, TourRank, rerank
    from obliq_hf.reranking.asking import offered_texts
    from obliq_hf.tasks import load_task

    task, pools = load_task("congress"), _pools(count)
    client = ScriptedClient(lambda request: _answer(len(offered_texts(request))))
    reranker = TourRank(rounds=_ROUNDS, asking=Asking(documents=None, query=None))
    return {
        "ours": lambda: rerank(reranker, pools, task, client=client),
        "plain reference": lambda: _plain(pools),
    }


def measure(*, scale: float = 1.0) -> list[Row]:
    """One row.

    Args:
        scale: Share of the usual sizes, for trials.
    """
    first = max(1, int(10 * scale))
    return [
        by_size(
            f"TourRank, {_ROUNDS} tournaments of {_POOL}, a judge without latency",
            [first, 2 * first, 4 * first],
            _calls,
            unit="queries",
            rounds=2,
            note="65 calls a query in 5 rounds; with calls of 200 ms the reference takes 13 s a "
            "query, ours 1 s when the server takes all at once",
        )
    ]

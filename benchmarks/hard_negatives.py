"""Mining hard negatives beside bare bm25s on the same texts: index, retrieval, and the filters.

    python benchmarks/hard_negatives.py [--documents 40000] [--queries 2000]

Prints seconds of both and their ratio; the aim is at most 1.3.
"""

from __future__ import annotations

import argparse
import time

import bm25s
import numpy as np
import Stemmer

from dataset_builders.hard_negatives import mine
from obliq_hf.records import Corpus
from obliq_hf.search.bm25 import BM25Index


def texts(count: int, length: int, rng: np.random.Generator) -> list[str]:
    """Random words whose frequencies follow Zipf's law."""
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(30_000)])
    weights = 1 / np.arange(1, len(words) + 1)
    rows = rng.choice(words, size=(count, length), p=weights / weights.sum())
    return [" ".join(row) for row in rows]


def main() -> None:
    """Time both three times and print the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--queries", type=int, default=2_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    drawn = texts(options.documents + options.queries, 120, rng)
    documents = drawn[: options.documents]
    queries = [" ".join(text.split()[:60]) for text in drawn[options.documents :]]
    groups: list[str | None] = [f"g{i // 20}" for i in range(options.documents)]
    corpus = Corpus([f"d{i}" for i in range(options.documents)], documents, groups=groups)
    positives = [[f"d{i % options.documents}"] for i in range(options.queries)]
    bare, ours = [], []
    for _ in range(3):
        start = time.perf_counter()
        stemmer = Stemmer.Stemmer("english")
        settings = {"stopwords": "en", "stemmer": stemmer, "show_progress": False}
        retriever = bm25s.BM25()
        retriever.index(bm25s.tokenize(documents, **settings), show_progress=False)
        retriever.retrieve(bm25s.tokenize(queries, **settings), k=100, show_progress=False)
        bare.append(time.perf_counter() - start)
        start = time.perf_counter()
        mined = mine(queries, positives, corpus, BM25Index(documents))
        ours.append(time.perf_counter() - start)
    print(f"bm25s {min(bare):.2f} s, mining {min(ours):.2f} s: {min(ours) / min(bare):.2f} times")
    print(mined.report.summary())


if __name__ == "__main__":
    main()

"""BM25 and hard negatives beside bare bm25s, rank-bm25 and ``mine_hard_negatives``."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.hard_negatives import texts as zipf_texts
from benchmarks.table import Row, by_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from obliq_hf.records import Corpus

__all__ = ["measure"]

Calls = dict[str, "Callable[[], object]"]
_DEPTH = 100
_WORDS = 120


@cache
def _data(count: int) -> tuple[Corpus, list[str], list[list[str]]]:
    """Documents in groups of twenty, queries a twentieth as many, and their positives."""
    from obliq_hf.records import Corpus

    asked = max(8, count // 20)
    drawn = zipf_texts(count + asked, _WORDS, np.random.default_rng(0))
    groups: list[str | None] = [f"g{i // 20}" for i in range(count)]
    corpus = Corpus([f"d{i}" for i in range(count)], drawn[:count], groups=groups)
    queries = [" ".join(text.split()[:60]) for text in drawn[count:]]
    return corpus, queries, [[f"d{i}"] for i in range(asked)]


def _bare(documents: list[str], queries: list[str]) -> Callable[[], object]:
    """Bare bm25s: index, and the best hundred of every query."""
    import bm25s
    import Stemmer

    def run() -> object:
        settings: dict[str, Any] = {
            "stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False,
        }  # fmt: skip
        retriever = bm25s.BM25()
        retriever.index(bm25s.tokenize(documents, **settings), show_progress=False)
        asked = bm25s.tokenize(queries, **settings)
        return retriever.retrieve(asked, k=_DEPTH, show_progress=False)

    return run


def _mining_calls(count: int) -> Calls:
    from dataset_builders.hard_negatives import mine
    from obliq_hf.search.bm25 import BM25Index

    corpus, queries, positives = _data(count)
    return {
        "ours": lambda: mine(queries, positives, corpus, BM25Index(corpus.texts)),
        "bare bm25s": _bare(corpus.texts, queries),
    }


def _search_calls(count: int) -> Calls:
    from obliq_hf.search.bm25 import BM25Index

    corpus, queries, _ = _data(count)
    calls: Calls = {
        "ours": lambda: BM25Index(corpus.texts).search(queries, _DEPTH),
        "bare bm25s": _bare(corpus.texts, queries),
    }
    if importlib.util.find_spec("rank_bm25"):
        from rank_bm25 import BM25Okapi

        def rank_bm25() -> None:
            index = BM25Okapi([text.split() for text in corpus.texts])
            for query in queries:
                index.get_top_n(query.split(), range(count), n=_DEPTH)

        calls["rank-bm25"] = rank_bm25
    return calls


def _negatives_calls(count: int) -> Calls:
    """Four negatives a query; theirs has a static embedding model, the cheapest there is."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from sentence_transformers.util import mine_hard_negatives
    from tokenizers import Tokenizer, models, pre_tokenizers

    from dataset_builders.hard_negatives import mine

    corpus, queries, positives = _data(count)
    words = sorted({word for text in corpus.texts for word in text.split()})
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, "[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_dim=256)], device="cpu"
    )
    texts = [corpus.texts[corpus.row[ids[0]]] for ids in positives]
    pairs = Dataset.from_dict({"query": queries, "answer": texts})

    def stock() -> object:
        return mine_hard_negatives(
            pairs, model, corpus=corpus.texts, range_min=10, range_max=_DEPTH, num_negatives=4,
            verbose=False,
        )  # fmt: skip

    return {
        "ours": lambda: mine(queries, positives, corpus),
        "bare bm25s": _bare(corpus.texts, queries),
        "mine_hard_negatives": stock,
    }


def measure(*, scale: float = 1.0) -> list[Row]:
    """Three rows.

    Args:
        scale: Share of the usual sizes, for trials.
    """

    def sizes(smallest: int) -> list[int]:
        first = max(150, int(smallest * scale))
        return [first, 2 * first, 4 * first]

    return [
        by_size(
            "BM25: index, and top 100 for a twentieth as many queries",
            sizes(2500),
            _search_calls,
            unit="documents",
            aims={"bare bm25s": 1.3},
            rounds=2,
        ),
        by_size(
            "BM25 mining with groups, copies and windows",
            sizes(5000),
            _mining_calls,
            unit="documents",
            aims={"bare bm25s": 1.3},
            rounds=2,
        ),
        by_size(
            "hard negatives, 4 a query",
            sizes(1000),
            _negatives_calls,
            unit="documents",
            rounds=2,
            note="mine_hard_negatives embeds with a static model of 256 dimensions, "
            "the cheapest there is; a transformer takes minutes",
        ),
    ]

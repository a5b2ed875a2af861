"""How far queries give their documents away, and how they resemble the real ones.

*Entity leakage*: share of queries with a name of their document (paper: 1.7 to 6.4 %).
*Coverage*: share of a query's content words that occur in its document (paper: .359 for synthetic
Congress queries against .102 for the official ones). Content words are those of three letters or
more that are no function words; they are compared as they are written, in lower case.
*Self-retrieval*: the rank at which BM25 finds the document by its query; an oblique query should
not find it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset_builders.query_checks import (
    RARE_IDF,
    CorpusWords,
    leaked_names,
    leaked_rare_words,
    quoted_run,
)
from dataset_builders.query_copies import find_copies
from obliq_hf.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from obliq_hf.records import Corpus

__all__ = [
    "Leakage",
    "content_words",
    "coverage",
    "distinct_ngrams",
    "distribution_overlap",
    "leakage",
    "self_retrieval_ranks",
]

_WORD = re.compile(r"[^\W\d_]{3,}(?:['’][^\W\d_]+)?")
_FUNCTION_TEXT = """
about above across after again against all almost alone along already also although always among
and another any anybody anyone anything are around because been before behind being below between
both but can cannot could did does doing done down during each either else enough even ever every
everybody everyone everything few for from further had has have having her here hers herself him
himself his how however into its itself just least less let like many may maybe might mine more
most much must myself near neither never nobody none nor not nothing now off often once one only
onto other others our ours ourselves out over own perhaps quite rather same shall she should since
some somebody someone something sometimes somewhere still such than that the their theirs them
themselves then there these they this those though through thus too toward towards under until
upon use used very was way well were what whatever when where whether which while who whom whose
why will with within without would yet you your yours yourself
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())


def content_words(text: str) -> list[str]:
    """The words of a text that carry its matter, in lower case, in order."""
    words = (word.lower().replace("’", "'") for word in _WORD.findall(text))
    return [w for w in words if w not in _FUNCTION_WORDS and w.split("'")[0] not in _FUNCTION_WORDS]


def coverage(query: str, document: str) -> float:
    """Share of a query's different content words that occur in the document; 0 without any."""
    asked = set(content_words(query))
    return len(asked & set(content_words(document))) / len(asked) if asked else 0.0


def self_retrieval_ranks(
    queries: Sequence[str], documents: Sequence[str], corpus: Corpus, *, depth: int = 1000
) -> NDArray[np.int64]:
    """The rank at which BM25 finds each query's document.

    Args:
        queries: n query texts.
        documents: The id of each one's document.
        corpus: The documents searched.
        depth: Deepest rank looked at.

    Returns:
        int64 array [n]: the rank from 1, or `depth + 1` where it is not among the first `depth`
        or shares no term with the query.
    """
    from obliq_hf.search.bm25 import BM25Index

    depth = min(depth, len(corpus))
    index = BM25Index(corpus.full_texts())
    ranks = np.full(len(queries), depth + 1, dtype=np.int64)
    for start in range(0, len(queries), 512):
        hits = index.search(queries[start : start + 512], depth)
        for place, (found, document) in enumerate(
            zip(hits, documents[start : start + 512], strict=True), start
        ):
            at = np.flatnonzero(found.rows == corpus.row[document])
            if len(at) and found.scores[at[0]] > 0:
                ranks[place] = at[0] + 1
    return ranks


def distinct_ngrams(texts: Sequence[str], n: int, *, sample: int = 500, seed: int = 0) -> float:
    """Different n-grams of words over all, in a sample of the texts so that sizes compare.

    Args:
        texts: The texts.
        n: Length of the n-grams.
        sample: Texts drawn; the figure falls with their number.
        seed: Seed of the draw.
    """
    rows = np.random.default_rng(seed).permutation(len(texts))[:sample]
    grams: Counter[tuple[str, ...]] = Counter()
    for row in rows.tolist():
        words = re.findall(r"\w+", texts[row].lower())
        grams.update(zip(*(words[i:] for i in range(n)), strict=False))
    return len(grams) / grams.total() if grams else 0.0


def distribution_overlap(a: Sequence[float], b: Sequence[float], *, bins: int = 20) -> float:
    """Overlap of two samples' histograms over their common range: 1 alike, 0 apart."""
    if not len(a) or not len(b):
        return 0.0
    low, high = min(*a, *b), max(*a, *b)
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    shares = [np.histogram(x, edges)[0] / len(x) for x in (a, b)]
    return float(np.minimum(*shares).sum())


@dataclass(frozen=True)
class Leakage:
    """Figures of a set of queries.

    Attributes:
        queries: Number of queries.
        entity_leakage: Share with a name of their document.
        rare_word_leakage: Share with a rare word of their document.
        quotations: Share with six words in a row from their document.
        coverage: Mean share of content words that occur in the document.
        coverage_quartiles: First, second and third quartile of it.
        median_characters: Median length.
        distinct_1: Different words over all words, in 500 queries.
        distinct_2: Likewise for pairs of words.
        near_copies: Share that is nearly an earlier query.
        self_retrieval: Share whose document BM25 finds at rank 1, among 10, among 100; median
            rank; size of the corpus searched. Empty where there was none.
    """

    queries: int
    entity_leakage: float
    rare_word_leakage: float
    quotations: float
    coverage: float
    coverage_quartiles: tuple[float, float, float]
    median_characters: float
    distinct_1: float
    distinct_2: float
    near_copies: float
    self_retrieval: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, rounded to four places."""

        def plain(value: Any) -> Any:
            if isinstance(value, float):
                return round(value, 4)
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            if isinstance(value, tuple):
                return [plain(v) for v in value]
            return value

        return {name: plain(value) for name, value in asdict(self).items()}


def leakage(
    queries: Sequence[str],
    documents: Sequence[str],
    *,
    words: CorpusWords | None = None,
    ranks: NDArray[np.int64] | None = None,
    searched: int = 0,
    rare_idf: float = RARE_IDF,
) -> Leakage:
    """Measure queries against the documents they were written from.

    Args:
        queries: n query texts.
        documents: n document texts.
        words: Word statistics of the corpus; default those of `documents`.
        ranks: :func:`self_retrieval_ranks`, if known.
        searched: Size of the corpus of `ranks`.
        rare_idf: Inverse document frequency above which a word is rare.

    Raises:
        DataError: There are no queries, or not as many documents.
    """
    if not len(queries) or len(queries) != len(documents):
        raise DataError(
            f"{len(queries)} queries and {len(documents)} documents: as many of both, "
            "at least one, are needed"
        )
    words = words or CorpusWords.of(documents)
    pairs = list(zip(queries, documents, strict=True))
    shares = np.asarray([coverage(q, d) for q, d in pairs])
    retrieval: dict[str, float] = {}
    if ranks is not None:
        retrieval = {
            "rank_1": float(np.mean(ranks <= 1)),
            "rank_10": float(np.mean(ranks <= 10)),
            "rank_100": float(np.mean(ranks <= 100)),
            "median_rank": float(np.median(ranks)),
            "documents": searched,
        }
    first, second, third = np.quantile(shares, [0.25, 0.5, 0.75]).tolist()
    return Leakage(
        queries=len(queries),
        entity_leakage=float(np.mean([bool(leaked_names(q, d, words)) for q, d in pairs])),
        rare_word_leakage=float(
            np.mean([bool(leaked_rare_words(q, d, words, rare_idf=rare_idf)) for q, d in pairs])
        ),
        quotations=float(np.mean([quoted_run(q, d, 6) is not None for q, d in pairs])),
        coverage=float(shares.mean()),
        coverage_quartiles=(first, second, third),
        median_characters=float(np.median([len(q) for q in queries])),
        distinct_1=distinct_ngrams(queries, 1),
        distinct_2=distinct_ngrams(queries, 2),
        near_copies=len(find_copies(queries, queries.__getitem__)) / len(queries),
        self_retrieval=retrieval,
    )

"""BM25 on bm25s, with the tokeniser stated, exclusions, and an order that ties cannot disturb."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.search.dense import Hits
from obliq_hf.search.exclusions import flatten_exclusions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bm25s.tokenization import Tokenized
    from numpy.typing import NDArray

__all__ = ["SETTINGS", "BM25Index", "BM25Setting"]


@dataclass(frozen=True)
class BM25Setting:
    """How texts become terms, and the two parameters of the Lucene variant of BM25.

    Attributes:
        name: Name of the setting.
        stopwords: Whether the 33 English stop words of Lucene are dropped.
        stemmer: A Snowball algorithm of PyStemmer, or None.
        k1: Saturation of the term frequency.
        b: Normalisation by document length.
        pattern: Regular expression of a token, on lower-cased text.
    """

    name: str
    stopwords: bool = True
    stemmer: str | None = "english"
    k1: float = 1.5
    b: float = 0.75
    pattern: str = r"(?u)\b\w\w+\b"


SETTINGS: dict[str, BM25Setting] = {
    setting.name: setting
    for setting in (
        BM25Setting("english"),
        BM25Setting("plain", stopwords=False, stemmer=None),
        BM25Setting("stemmed", stopwords=False),
        BM25Setting("stopwords", stemmer=None),
        BM25Setting("anserini", stemmer="porter", k1=0.9, b=0.4),
    )
}
"""``english`` is the default and what mteb's own BM25 baseline does; ``plain``, ``stemmed`` and
``stopwords`` leave out one or both language steps; ``anserini`` has that toolkit's parameters."""


class BM25Index:
    """An inverted index over texts.

    Args:
        texts: The documents; row numbers are their positions. Empty texts are kept and match
            nothing.
        setting: A name in ``SETTINGS``, or a setting of one's own.
        show_progress: Whether bm25s shows its progress bars.

    Raises:
        ObliqError: There are no texts, one is not a string, or the setting is unknown.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        setting: str | BM25Setting = "english",
        show_progress: bool = False,
    ) -> None:
        import bm25s

        if isinstance(setting, str):
            if setting not in SETTINGS:
                raise ObliqError(f"unknown BM25 setting {setting!r}{nearest(setting, SETTINGS)}")
            setting = SETTINGS[setting]
        if len(texts) == 0:
            raise ObliqError("there are no documents to index")
        self.setting = setting
        self.size = len(texts)
        self._show_progress = show_progress
        tokens = self._tokenize(texts, "document")
        self._vocabulary: dict[str, int] = tokens.vocab
        self._index = None
        if self._vocabulary:
            self._index = bm25s.BM25(k1=setting.k1, b=setting.b, method="lucene")
            self._index.index(
                (tokens.ids, self._vocabulary),
                create_empty_token=False,
                show_progress=show_progress,
            )

    def describe(self) -> dict[str, object]:
        """The setting as plain values, for reports and fingerprints."""
        return {"engine": "bm25s", "method": "lucene", "lowercase": True, **asdict(self.setting)}

    def __len__(self) -> int:
        return self.size

    def search(
        self,
        texts: Sequence[str],
        k: int,
        *,
        excluded: Sequence[Sequence[int]] | None = None,
    ) -> list[Hits]:
        """Rank the documents for every query text.

        Args:
            texts: The queries.
            k: Hits per query.
            excluded: For every query the rows that may not be returned, removed before the
                best ``k`` are taken.

        Returns:
            One ``Hits`` per query with exactly ``min(k, n - excluded)`` entries: by descending
            score, then in corpus order. A document that shares no term with the query has score
            0 and comes after all that do, in corpus order; so a query of stop words or unknown
            words returns the corpus from its start.

        Raises:
            ObliqError: ``k`` is below 1, a query is not a string, or an excluded row does not
                exist.
        """
        if k < 1:
            raise ObliqError(f"k must be at least 1, not {k}")
        hidden_query, hidden_row = flatten_exclusions(excluded, len(texts), self.size)
        bounds = np.searchsorted(hidden_query, np.arange(len(texts) + 1))
        tokens = self._tokenize(texts, "query") if len(texts) else None
        words = [""] * len(tokens.vocab) if tokens else []
        for word, number in tokens.vocab.items() if tokens else ():
            words[number] = word
        hits = []
        for i in range(len(texts)):
            assert tokens is not None
            known = [
                self._vocabulary[words[token]]
                for token in tokens.ids[i]
                if words[token] in self._vocabulary
            ]
            if known and self._index is not None:
                scores = self._index.get_scores_from_ids(known)
            else:
                scores = np.zeros(self.size, dtype=np.float32)
            hits.append(_best(scores, k, hidden_row[bounds[i] : bounds[i + 1]]))
        return hits

    def _tokenize(self, texts: Sequence[str], kind: str) -> Tokenized:
        import bm25s

        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ObliqError(f"{kind} {i} is {type(text).__name__}, not a string")
        stemmer = None
        if self.setting.stemmer is not None:
            import Stemmer

            stemmer = Stemmer.Stemmer(self.setting.stemmer)
        return bm25s.tokenize(
            list(texts),
            lower=True,
            token_pattern=self.setting.pattern,
            stopwords="en" if self.setting.stopwords else [],
            stemmer=stemmer,
            show_progress=self._show_progress,
        )


def _best(scores: NDArray[np.float32], k: int, hidden: NDArray[np.int64]) -> Hits:
    """The ``k`` best rows that are not hidden: by score descending, then by row ascending."""
    admissible = len(scores) - len(np.unique(hidden)) if len(hidden) else len(scores)
    width = min(k, admissible)
    ranked = scores
    if len(hidden):
        ranked = scores.copy()
        ranked[hidden] = -np.inf
    if width < len(scores):
        cut = np.partition(ranked, len(scores) - width)[len(scores) - width] if width else np.inf
        above = np.flatnonzero(ranked > cut)
        level = np.flatnonzero(ranked == cut)[: width - len(above)]
        rows = np.concatenate([above, level])
    else:
        rows = np.arange(len(scores))
    rows = rows[np.lexsort((rows, -ranked[rows]))]
    return Hits(rows.astype(np.int64), scores[rows].astype(np.float32))

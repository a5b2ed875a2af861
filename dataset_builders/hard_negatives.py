"""Hard negatives for training rows: what BM25 finds for the query and no rule says is relevant.

Source: the four BM25 negatives a query of OBLIQ-IR (arXiv 2609.29649); its rank window and
filters are not known, so both are settings here.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from dataset_builders.mined_negatives import MinedNegatives, MiningReport
from dataset_builders.near_duplicates import (
    TextProfile,
    is_near_duplicate,
    text_key,
)
from obliq_hf.errors import DataError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dataset_builders.graph import Graph
    from obliq_hf.records import Corpus
    from obliq_hf.search.dense import Hits

__all__ = [
    "Fill",
    "LexicalIndex",
    "mine",
]

logger = logging.getLogger(__name__)

Fill = Literal["none", "random"]
"""What to do where too few negatives are found: leave the row short, or draw documents."""

_QUERY_BLOCK = 2048


class LexicalIndex(Protocol):
    """What mining needs of a BM25 index over the corpus."""

    def search(self, texts: Sequence[str], k: int) -> list[Hits]:
        """The k best documents of every text."""


@dataclass
class _Query:
    """What one query must not be given, and what it has so far."""

    text: str | None
    reasons: dict[int, str]
    groups: set[str]
    likenesses: list[int]
    rank: int = 0
    taken: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    considered: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    own_profile: TextProfile | None = None

    def profile(self) -> TextProfile:
        if self.own_profile is None:
            self.own_profile = TextProfile(self.text or "")
        return self.own_profile


def _check_ids(
    rows: Sequence[Sequence[str]], count: int, what: str, corpus: Corpus, *, needed: bool
) -> list[list[int]]:
    if len(rows) != count:
        raise DataError(f"{what} of {len(rows)} rows given for {count} queries")
    found: list[list[int]] = []
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not all(isinstance(i, str) for i in row):
            raise DataError(
                f"row {number}: {what} must be a list of document ids (strings), not {row!r:.80}"
            )
        unknown = [i for i in row if i not in corpus.row]
        if unknown:
            raise DataError(f"row {number}: {what} name {unknown[0]!r}, not a document here")
        if needed and not row:
            raise DataError(f"row {number}: {what} is an empty list; one document id is needed")
        found.append([corpus.row[i] for i in row])
    return found


class _Miner:
    def __init__(
        self,
        corpus: Corpus,
        *,
        n: int,
        first_rank: int,
        last_rank: int,
        near_duplicates: bool,
        exclude_same_group: bool,
    ) -> None:
        self.corpus = corpus
        self.n, self.first_rank, self.last_rank = n, first_rank, last_rank
        self.near_duplicates = near_duplicates
        self.groups: Sequence[str | None] = (
            corpus.groups if exclude_same_group else [None] * len(corpus)
        )
        self.by_text: dict[bytes, int] = {}
        self.same = [
            self.by_text.setdefault(text_key(text), row) for row, text in enumerate(corpus.texts)
        ]
        self.first = np.array(self.same, dtype=np.int64)
        self.profile = lru_cache(maxsize=10_000)(self._profile)
        self.copy_groups: dict[int, set[str]] = {}
        for row in np.flatnonzero(self.first != np.arange(len(corpus))).tolist():
            group, text = self.groups[row], self.same[row]
            if group is not None:
                self.copy_groups.setdefault(text, set()).add(group)

    def _profile(self, row: int) -> TextProfile:
        return TextProfile(self.corpus.texts[row])

    def shares_group(self, query: _Query, text: int) -> bool:
        """Whether a text stands in a group of the query's documents, there or as a copy."""
        if not query.groups:
            return False
        copies = self.copy_groups.get(text)
        return self.groups[text] in query.groups or bool(copies and copies & query.groups)

    def walk(self, query: _Query, rows: list[int], scores: list[float]) -> bool:
        """Go down a ranked list from its start; True once nothing more can come of it."""
        query.rank = query.considered = 0
        query.taken, query.ranks, query.head = [], [], []
        query.skipped = Counter()
        for row, score in zip(rows, scores, strict=True):
            if score <= 0:
                return True  # shares no term with the query
            query.considered += 1
            text = self.same[row]
            reason = query.reasons.get(text)
            if reason is None and self.shares_group(query, text):
                reason = "group of the query or of a positive"
            if reason is not None:
                query.skipped[reason] += 1
                continue
            query.rank += 1
            if query.rank < self.first_rank:
                query.head.append(text)
            elif text in query.taken:
                query.skipped["same text as another negative"] += 1
            elif text in query.head:
                query.skipped["same text as one ranked before the window"] += 1
            elif self.resembles(query, text):
                query.skipped["near duplicate of the query or of a positive"] += 1
            else:
                query.taken.append(text)
                query.ranks.append(query.rank)
            if len(query.taken) == self.n or query.rank == self.last_rank:
                return True
        return False

    def resembles(self, query: _Query, row: int) -> bool:
        """Whether a document is a near duplicate of the query's documents."""
        if not self.near_duplicates:
            return False
        own = self.profile(row)
        if any(is_near_duplicate(own, self.profile(other)) for other in query.likenesses):
            return True
        return query.text is not None and is_near_duplicate(own, query.profile())

    def fill(self, query: _Query, candidates: NDArray[np.int64], seed: list[int]) -> int:
        """Draw what is missing from the admissible documents outside the window's head."""
        rng = np.random.default_rng(seed)
        barred = {*query.taken, *query.head}
        before = len(query.taken)

        def take(rows: list[int]) -> None:
            for row in rows:
                if len(query.taken) == self.n:
                    return
                if row in barred:
                    continue
                barred.add(row)
                admissible = row not in query.reasons and not self.shares_group(query, row)
                if admissible and not self.resembles(query, row):
                    query.taken.append(row)
                    query.ranks.append(0)

        missing = self.n - before
        take(candidates[rng.integers(len(candidates), size=8 * missing)].tolist())
        if len(query.taken) < self.n:
            take(rng.permutation(candidates).tolist())
        return len(query.taken) - before


def mine(
    query_texts: Sequence[str],
    positives: Sequence[Sequence[str]],
    corpus: Corpus,
    index: LexicalIndex | None = None,
    *,
    n: int = 4,
    first_rank: int = 10,
    last_rank: int = 100,
    query_ids: Sequence[str] | None = None,
    excluded: Sequence[Sequence[str]] | None = None,
    graph: Graph | None = None,
    exclude_same_group: bool = True,
    near_duplicates: bool = True,
    fill: Fill = "none",
    seed: int = 0,
    show_progress: bool = False,
) -> MinedNegatives:
    """Find hard negatives for training queries with BM25.

    Never a negative: the positives of the query (and of every other row with the same query
    text), the query itself, other documents with the text of either, documents from the group of
    the query or of a positive, their neighbours in the graph, and documents excluded for the
    query. The other documents that share a term with the query are ranked 1, 2, ...; those from
    ``first_rank`` to ``last_rank`` are candidates, near duplicates of the query's document or
    of a positive are skipped, and the first n are taken. Every row is kept, wherever BM25 ranks
    its positive, and however few negatives it finds.

    Args:
        query_texts: The text BM25 is asked with, one a row.
        positives: Document ids a row, at least one.
        corpus: The documents.
        index: BM25 over ``corpus.full_texts()``; built here by default.
        n: Negatives a row.
        first_rank: First rank taken; the ranks before it are the likeliest to be relevant.
        last_rank: Last rank taken.
        query_ids: For a graph's rows, the anchors' document ids; ids that are not in the corpus
            (those of queries) say nothing.
        excluded: Further document ids a row that must not be its negatives.
        graph: The teacher's graph over this corpus; the complete one of a dose is used.
        exclude_same_group: Leave out groups where the corpus has them.
        near_duplicates: Leave out near duplicates (:mod:`dataset_builders.near_duplicates`).
        fill: ``random`` draws what is missing from the admissible documents, except those ranked
            before ``first_rank``; all equally likely, none twice, fewer where there are fewer.
        seed: Seed of the draw; a row's draw depends on nothing but the seed and its place.
        show_progress: Show a bar.

    Returns:
        The negatives, and the report with the shortage and what was skipped, by reason.

    Raises:
        DataError: Positives that are no lists of known ids (the row is named), lists of different
            lengths, a window that is none, an empty query.
    """
    if n < 0 or first_rank < 1 or last_rank < first_rank:
        raise DataError(
            f"n={n}, first_rank={first_rank}, last_rank={last_rank}: n of 0 or more and "
            "1 <= first_rank <= last_rank are needed"
        )
    if fill not in get_args(Fill):
        raise DataError(f"no fill {fill!r}{nearest(str(fill), get_args(Fill))}")
    for number, text in enumerate(query_texts):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"row {number}: the query text is empty or no string ({text!r:.60})")
    count = len(query_texts)
    right = _check_ids(positives, count, "positives", corpus, needed=True)
    barred = (
        _check_ids(excluded, count, "excluded", corpus, needed=False)
        if excluded is not None
        else [[] for _ in range(count)]
    )
    if query_ids is not None and len(query_ids) != count:
        raise DataError(f"{len(query_ids)} query ids given for {count} queries")
    if graph is not None and graph.ids != corpus.ids:
        raise DataError("the graph was built over another corpus than the negatives come from")
    settings = {
        "n": n,
        "first_rank": first_rank,
        "last_rank": last_rank,
        "exclude_same_group": exclude_same_group and corpus.has_groups,
        "near_duplicates": near_duplicates,
        "graph": graph is not None,
        "fill": fill,
        "seed": seed,
    }
    report = MiningReport(queries=count, wanted=n, settings=settings)
    if n == 0 or count == 0:
        return MinedNegatives([[] for _ in range(count)], [[] for _ in range(count)], report)
    miner = _Miner(
        corpus,
        n=n,
        first_rank=first_rank,
        last_rank=last_rank,
        near_duplicates=near_duplicates,
        exclude_same_group=exclude_same_group,
    )
    queries = _prepare(miner, query_texts, right, barred, query_ids, graph)
    if index is None:
        from obliq_hf.search.bm25 import BM25Index

        index = BM25Index(corpus.full_texts())
    _retrieve(miner, index, query_texts, queries, show_progress)
    if fill == "random":
        candidates = np.flatnonzero(miner.first == np.arange(len(corpus)))
        for number, query in enumerate(queries):
            if len(query.taken) < n:
                report.filled += miner.fill(query, candidates, [seed, number])
    skipped: Counter[str] = Counter()
    for query in queries:
        skipped.update(query.skipped)
        report.considered += query.considered
        report.mined += sum(rank > 0 for rank in query.ranks)
        report.short_queries += len(query.taken) < n
        report.missing += n - len(query.taken)
    report.skipped = dict(skipped.most_common())
    logger.info("%s", report.summary())
    if report.missing:
        logger.warning("hard negatives: %s", report.shortage())
    ids = [[corpus.ids[row] for row in query.taken] for query in queries]
    return MinedNegatives(ids, [query.ranks for query in queries], report)


def _prepare(
    miner: _Miner,
    texts: Sequence[str],
    positives: list[list[int]],
    excluded: list[list[int]],
    query_ids: Sequence[str] | None,
    graph: Graph | None,
) -> list[_Query]:
    corpus, same = miner.corpus, miner.same
    keys = [text_key(text) for text in texts]
    together: dict[bytes, dict[int, None]] = {}
    for key, rows in zip(keys, positives, strict=True):
        together.setdefault(key, {}).update(dict.fromkeys(rows))
    own = [miner.by_text.get(key, -1) for key in keys]
    for place, query in enumerate(query_ids or ()):
        own[place] = corpus.row.get(query, own[place])
    joined: dict[int, set[int]] = {}
    if graph is not None:
        complete = graph.complete or graph
        ends = {row for row in own if row >= 0}
        ends.update(row for rows in positives for row in rows)
        joined = complete.neighbours(ends)
    queries = []
    for text, key, row, out in zip(texts, keys, own, excluded, strict=True):
        known = [*([row] if row >= 0 else []), *together[key]]
        reasons = dict.fromkeys((same[i] for i in out), "excluded for the query")
        for end in known:
            reasons.update((same[i], "graph neighbour") for i in joined.get(end, ()))
        reasons.update((same[i], "positive, or its text") for i in together[key])
        if row >= 0:
            reasons[same[row]] = "the query itself, or its text"
        groups = {g for end in known if (g := miner.groups[end]) is not None}
        alone = text if row < 0 else None
        queries.append(_Query(alone, reasons, groups, [same[end] for end in known]))
    return queries


def _retrieve(
    miner: _Miner,
    index: LexicalIndex,
    texts: Sequence[str],
    queries: list[_Query],
    show_progress: bool,
) -> None:
    """Search deeper and deeper, each time for the queries that need it."""
    from tqdm.auto import tqdm

    size = len(miner.corpus)
    depth = max(64, 4 * (miner.first_rank - 1 + miner.n))
    pending = list(range(len(queries)))
    with tqdm(total=len(queries), desc="hard negatives", disable=not show_progress) as bar:
        while pending:
            depth = min(depth, size)
            open_still: list[int] = []
            for start in range(0, len(pending), _QUERY_BLOCK):
                block = pending[start : start + _QUERY_BLOCK]
                found = index.search([texts[i] for i in block], depth)
                for i, hits in zip(block, found, strict=True):
                    done = miner.walk(queries[i], hits.rows.tolist(), hits.scores.tolist())
                    if not done and len(hits.rows) == depth < size:
                        open_still.append(i)
                    else:
                        bar.update()
            pending = open_still
            depth *= 4

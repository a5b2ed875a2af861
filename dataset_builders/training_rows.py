"""Rows to train on: from a graph's edges, from queries with judgments, from files of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dataset_builders.near_duplicates import same_text_rows, text_key
from obliq_hf.errors import DataError
from obliq_hf.files import safe_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dataset_builders.graph import Graph
    from dataset_builders.hard_negatives import LexicalIndex
    from dataset_builders.mined_negatives import MinedNegatives
    from obliq_hf.records import Corpus, Qrels, Queries

__all__ = [
    "Kind",
    "TrainingRows",
    "graph_rows",
    "negatives_for_graph",
    "negatives_for_queries",
    "positives_of",
    "query_rows",
    "without_repeats",
]

Kind = Literal["graph", "queries"]
"""``graph`` rows hold two documents, ``queries`` rows a query and a document."""


@dataclass(frozen=True)
class TrainingRows:
    """One dataset of a mixture, column by column.

    Attributes:
        name: Its name, also that of its file.
        task: The task whose prompt its anchors get.
        kind: See :data:`Kind`.
        anchors: Texts on the query side.
        positives: Texts on the document side.
        anchor_ids: Document or query ids.
        positive_ids: Document ids.
        anchor_groups: Sources of the anchors; None for queries.
        positive_groups: Sources of the positives.
        negatives: Texts of the hard negatives of each row; rows may have different numbers.
        negative_ids: Their ids.
        filled: How many of a row's negatives, at the end, were drawn at random.
        blocked_ids: Documents that must not share a batch with the row.
        negative_groups: Sources of the hard negatives; by default none is known.
        info: Provenance (JSON values).
        dropped: Reason -> rows left out.
    """

    name: str
    task: str
    kind: Kind
    anchors: list[str]
    positives: list[str]
    anchor_ids: list[str]
    positive_ids: list[str]
    anchor_groups: list[str | None]
    positive_groups: list[str | None]
    negatives: list[list[str]]
    negative_ids: list[list[str]]
    filled: list[int]
    blocked_ids: list[list[str]]
    negative_groups: list[list[str | None]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    _COLUMNS = (
        "anchors",
        "positives",
        "anchor_ids",
        "positive_ids",
        "anchor_groups",
        "positive_groups",
        "negatives",
        "negative_ids",
        "filled",
        "blocked_ids",
        "negative_groups",
    )

    def __post_init__(self) -> None:
        safe_name(self.name, "name of a training dataset")
        if not self.negative_groups:
            unknown = [[None] * len(row) for row in self.negative_ids]
            object.__setattr__(self, "negative_groups", unknown)
        for column in self._COLUMNS:
            if len(getattr(self, column)) != len(self.anchors):
                raise DataError(
                    f"training dataset {self.name!r}: {len(getattr(self, column))} {column} for "
                    f"{len(self.anchors)} anchors"
                )

    def __len__(self) -> int:
        return len(self.anchors)

    def columns(self, part: slice, negatives: int) -> dict[str, Any]:
        """Some rows as the columns of :func:`obliq_hf.records.train_features`.

        Args:
            part: Which rows.
            negatives: Columns ``negative_1 ..``; rows with fewer have None in the last ones.
        """
        texts = [[*row, *[None] * negatives][:negatives] for row in self.negatives[part]]
        return {
            "anchor": self.anchors[part],
            "positive": self.positives[part],
            **{f"negative_{i + 1}": [row[i] for row in texts] for i in range(negatives)},
            "anchor_id": self.anchor_ids[part],
            "positive_id": self.positive_ids[part],
            "negative_ids": self.negative_ids[part],
            "anchor_group": self.anchor_groups[part],
            "positive_group": self.positive_groups[part],
            "negative_groups": self.negative_groups[part],
            "blocked_ids": self.blocked_ids[part],
        }

    def drop(self, reasons: Mapping[int, str]) -> TrainingRows:
        """The rows without those named, which are counted by their reason."""
        kept = [i for i in range(len(self)) if i not in reasons]
        counts = Counter(self.dropped) + Counter(reasons.values())
        columns: dict[str, Any] = {c: [getattr(self, c)[i] for i in kept] for c in self._COLUMNS}
        return replace(self, **columns, dropped=dict(counts))


def _negative_columns(
    mined: MinedNegatives | None,
    rows: Sequence[int],
    positives: Sequence[str],
    corpus: Corpus,
    texts: Sequence[str],
) -> dict[str, Any]:
    """The columns of hard negatives; ``rows`` says which mined row each one takes.

    A negative that is the row's own positive goes: the control may have drawn it.
    """
    if mined is None:
        return {
            "negatives": [[] for _ in rows],
            "negative_ids": [[] for _ in rows],
            "filled": [0] * len(rows),
        }
    chosen = [
        [(d, rank) for d, rank in zip(mined.ids[i], mined.ranks[i], strict=True) if d != positive]
        for i, positive in zip(rows, positives, strict=True)
    ]
    return {
        "negatives": [[texts[corpus.row[d]] for d, _ in row] for row in chosen],
        "negative_ids": [[d for d, _ in row] for row in chosen],
        "negative_groups": [[corpus.groups[corpus.row[d]] for d, _ in row] for row in chosen],
        "filled": [sum(rank == 0 for _, rank in row) for row in chosen],
    }


def without_repeats(rows: TrainingRows) -> TrainingRows:
    """Leave out, and count, rows whose two texts an earlier row has."""
    seen: set[tuple[bytes, bytes]] = set()
    repeated: dict[int, str] = {}
    for i, (anchor, positive) in enumerate(zip(rows.anchors, rows.positives, strict=True)):
        key = (text_key(anchor), text_key(positive))
        if key in seen:
            repeated[i] = "same texts as an earlier row"
        seen.add(key)
    return rows.drop(repeated) if repeated else rows


def graph_rows(
    graph: Graph,
    corpus: Corpus,
    *,
    task: str,
    name: str | None = None,
    negatives: MinedNegatives | None = None,
) -> TrainingRows:
    """Training rows of a graph's edges, usually of a dose.

    ``blocked_ids`` of a row are its two documents and all that an edge joins to either, in the
    complete graph or in the dose.

    Args:
        graph: The edges.
        corpus: The corpus the graph was built over.
        task: The task they train.
        name: Name of the dataset; default ``<task>-graph``.
        negatives: Hard negatives, one row an edge.

    Raises:
        DataError: The corpus or the negatives belong to another graph.
    """
    from dataset_builders.graph import check_corpus

    check_corpus(graph, corpus)
    if negatives is not None and len(negatives) != len(graph):
        raise DataError(f"{len(negatives)} rows of negatives for {len(graph)} edges")
    documents = corpus.full_texts()
    first = same_text_rows(corpus.texts)
    joined: dict[int, set[int]] = {}
    for edges in (graph, *([graph.complete] if graph.complete is not None else [])):
        ends = zip(first[edges.anchor].tolist(), first[edges.positive].tolist(), strict=True)
        for a, b in ends:
            joined.setdefault(a, set()).add(b)
            joined.setdefault(b, set()).add(a)
    anchors, positives = graph.anchor.tolist(), graph.positive.tolist()
    blocked = []
    for a, p in zip(anchors, positives, strict=True):
        near = joined[int(first[a])] | joined[int(first[p])]
        blocked.append([corpus.ids[i] for i in dict.fromkeys([a, p, *sorted(near)])])
    rows = TrainingRows(
        name=name or f"{task}-graph",
        task=task,
        kind="graph",
        anchors=[corpus.texts[i] for i in anchors],
        positives=[documents[i] for i in positives],
        anchor_ids=[corpus.ids[i] for i in anchors],
        positive_ids=[corpus.ids[i] for i in positives],
        anchor_groups=[corpus.groups[i] for i in anchors],
        positive_groups=[corpus.groups[i] for i in positives],
        blocked_ids=blocked,
        info={"corpus": corpus.fingerprint, "graph": dict(graph.info)},
        **_negative_columns(
            negatives, range(len(graph)), [corpus.ids[i] for i in positives], corpus, documents
        ),
    )
    if negatives is not None:
        rows.info["negatives"] = negatives.report.to_dict()
    return rows


def positives_of(
    queries: Queries, qrels: Qrels, corpus: Corpus
) -> tuple[list[int], list[list[str]]]:
    """The queries that can be trained on, and the documents of the corpus relevant to each.

    Args:
        queries: Queries.
        qrels: Their judgments; grades above 0 are positive.
        corpus: The documents.

    Returns:
        Rows of ``queries`` with at least one positive in the corpus, and these documents' ids.
    """
    rows: list[int] = []
    positives: list[list[str]] = []
    for row, query in enumerate(queries.ids):
        found = [d for d, g in qrels.get(query, {}).items() if g > 0 and d in corpus.row]
        if found:
            rows.append(row)
            positives.append(found)
    return rows, positives


def query_rows(
    queries: Queries,
    qrels: Qrels,
    corpus: Corpus,
    *,
    task: str,
    name: str | None = None,
    negatives: MinedNegatives | None = None,
    graph: Graph | None = None,
) -> TrainingRows:
    """Training rows of queries: one for each query and document relevant to it.

    ``blocked_ids`` of a row are all documents relevant to its query's text, other documents with
    their texts, and their neighbours in the graph.

    Args:
        queries: The queries.
        qrels: Query id -> document id -> grade; grades above 0 are positive.
        corpus: The documents.
        task: The task they train.
        name: Name of the dataset; default ``<task>-queries``.
        negatives: Hard negatives, one row for each query that :func:`positives_of` names.
        graph: A teacher's graph over the corpus.

    Returns:
        The rows. Queries without a positive in the corpus are counted in ``dropped``.

    Raises:
        DataError: No query has a positive in the corpus, or the negatives belong to other rows.
    """
    used, positives = positives_of(queries, qrels, corpus)
    if not used:
        raise DataError(
            f"task {task!r}: none of {len(queries)} queries has a positive judgment of a document "
            "in the corpus; do the ids have one form?"
        )
    if negatives is not None and len(negatives) != len(used):
        raise DataError(f"{len(negatives)} rows of negatives for {len(used)} queries")
    if graph is not None and graph.ids != corpus.ids:
        raise DataError("the graph was built over another corpus than the queries search")
    documents = corpus.full_texts()
    first = same_text_rows(corpus.texts)
    copies: dict[int, list[int]] = {}
    for row in np.flatnonzero(first != np.arange(len(corpus))).tolist():
        copies.setdefault(int(first[row]), []).append(row)
    together: dict[bytes, dict[int, None]] = {}
    keys = [text_key(queries.texts[row]) for row in used]
    for key, ids in zip(keys, positives, strict=True):
        together.setdefault(key, {}).update((corpus.row[d], None) for d in ids)
    joined: dict[int, set[int]] = {}
    if graph is not None:
        relevant = {row for rows in together.values() for row in rows}
        joined = (graph.complete or graph).neighbours(relevant)
    pairs = [(place, d) for place, ids in enumerate(positives) for d in ids]
    blocked = []
    for place, _ in pairs:
        near = dict(together[keys[place]])
        for row in list(near):
            one = int(first[row])
            near.update(dict.fromkeys([one, *copies.get(one, ()), *sorted(joined.get(row, ()))]))
        blocked.append([corpus.ids[i] for i in near])
    rows = TrainingRows(
        name=name or f"{task}-queries",
        task=task,
        kind="queries",
        anchors=[queries.texts[used[place]] for place, _ in pairs],
        positives=[documents[corpus.row[d]] for _, d in pairs],
        anchor_ids=[queries.ids[used[place]] for place, _ in pairs],
        positive_ids=[d for _, d in pairs],
        anchor_groups=[None] * len(pairs),
        positive_groups=[corpus.groups[corpus.row[d]] for _, d in pairs],
        blocked_ids=blocked,
        info={"corpus": corpus.fingerprint, "queries": len(used)},
        **_negative_columns(
            negatives, [place for place, _ in pairs], [d for _, d in pairs], corpus, documents
        ),
    )
    if negatives is not None:
        rows.info["negatives"] = negatives.report.to_dict()
    if len(used) < len(queries):
        rows.dropped["query without a positive in the corpus"] = len(queries) - len(used)
    return without_repeats(rows)


def negatives_for_graph(
    graph: Graph, corpus: Corpus, index: LexicalIndex | None = None, **settings: Any
) -> MinedNegatives:
    """Hard negatives for a graph's edges: BM25 is asked with the anchor's text.

    Args:
        graph: The edges. The random-neighbour control gets the negatives of the teacher's edges
            in whose place it stands, so that only the neighbours differ.
        corpus: The corpus the graph was built over.
        index: BM25 over it; built by default.
        settings: Further settings of :func:`dataset_builders.hard_negatives.mine`.

    Returns:
        One row an edge.
    """
    from dataset_builders.hard_negatives import mine

    graph = graph.teacher_edges()
    anchors = graph.anchor.tolist()
    return mine(
        [corpus.texts[i] for i in anchors],
        [[corpus.ids[i]] for i in graph.positive.tolist()],
        corpus,
        index,
        query_ids=[corpus.ids[i] for i in anchors],
        graph=graph,
        **{"exclude_same_group": True, **settings},
    )


def negatives_for_queries(
    queries: Queries,
    qrels: Qrels,
    corpus: Corpus,
    index: LexicalIndex | None = None,
    *,
    excluded: Mapping[str, Sequence[str]] | None = None,
    **settings: Any,
) -> MinedNegatives:
    """Hard negatives for the queries that can be trained on.

    Args:
        queries: The queries.
        qrels: Their judgments.
        corpus: The documents.
        index: BM25 over them; built by default.
        excluded: Query id -> documents that must not be its negatives.
        settings: Further settings of :func:`dataset_builders.hard_negatives.mine`.

    Returns:
        One row for each query that :func:`positives_of` names.
    """
    from dataset_builders.hard_negatives import mine

    rows, positives = positives_of(queries, qrels, corpus)
    if excluded is not None:
        settings["excluded"] = [
            [d for d in excluded.get(queries.ids[row], ()) if d in corpus.row] for row in rows
        ]
    return mine([queries.texts[row] for row in rows], positives, corpus, index, **settings)

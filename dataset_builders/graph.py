"""A graph over a corpus, as a value and as files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import DataError
from obliq_hf.files import atomic_path, read_json, safe_name, write_json
from obliq_hf.records import edge_features

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from obliq_hf.records import Corpus

__all__ = ["Graph", "check_corpus", "read_graph", "write_graph"]

_WRITE_BLOCK = 20_000


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed edges between the documents of one corpus.

    Attributes:
        ids: The corpus's document ids; rows below count in them.
        anchor: int64 [e], the row an edge starts from.
        positive: int64 [e], the row it leads to; never the anchor itself.
        rank: int32 [e], 1 for the nearest neighbour.
        similarity: float32 [e], cosine under the teacher; NaN where unknown.
        info: How it was made: settings, counts, fingerprints (JSON values).
        complete: The graph with all k edges a document, where this one is a dose of it.
    """

    ids: list[str]
    anchor: NDArray[np.int64]
    positive: NDArray[np.int64]
    rank: NDArray[np.int32]
    similarity: NDArray[np.float32]
    info: dict[str, Any] = field(default_factory=dict)
    complete: Graph | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.anchor), len(self.positive), len(self.rank), len(self.similarity)}
        if len(sizes) != 1:
            raise DataError(f"a graph's columns must be equally long, not {sorted(sizes)}")
        if len(self.anchor):
            ends = np.concatenate([self.anchor, self.positive])
            if ends.min() < 0 or ends.max() >= len(self.ids):
                raise DataError(f"a graph over {len(self.ids)} documents has an edge outside them")
        loops = np.flatnonzero(self.anchor == self.positive)
        if len(loops):
            name = self.ids[int(self.anchor[loops[0]])]
            raise DataError(f"{len(loops)} edges lead from a document to itself (first: {name!r})")

    def __len__(self) -> int:
        return len(self.anchor)

    @property
    def k(self) -> int:
        """Neighbours asked for each document."""
        return int(self.info.get("k") or (self.rank.max() if len(self) else 0))

    @property
    def exclude_same_group(self) -> bool:
        """Whether edges within one source were left out."""
        return bool(self.info.get("exclude_same_group", False))

    def neighbours(self, rows: Iterable[int] | None = None) -> dict[int, set[int]]:
        """Row -> rows joined to it by an edge in either direction.

        Args:
            rows: Only these documents; default all that have an edge.
        """
        anchor, positive = self.anchor, self.positive
        wanted = None if rows is None else np.unique(np.fromiter(rows, dtype=np.int64))
        if wanted is not None:
            touching = np.isin(anchor, wanted) | np.isin(positive, wanted)
            anchor, positive = anchor[touching], positive[touching]
        joined: dict[int, set[int]] = {}
        for a, b in zip(anchor.tolist(), positive.tolist(), strict=True):
            joined.setdefault(a, set()).add(b)
            joined.setdefault(b, set()).add(a)
        if wanted is None:
            return joined
        return {row: joined.get(row, set()) for row in wanted.tolist()}

    def mutual(self) -> NDArray[np.bool_]:
        """Bool [e]: whether the reverse edge is in the graph too."""
        n = len(self.ids)
        return np.isin(self.anchor * n + self.positive, self.positive * n + self.anchor)

    def teacher_edges(self) -> Graph:
        """The teacher's edges of the same anchors and ranks; itself unless it is a control."""
        if self.complete is None or self.info.get("neighbours") != "random":
            return self
        whole = self.complete
        span = int(max(whole.rank.max(), self.rank.max())) + 1
        keys = whole.anchor * span + whole.rank
        order = np.argsort(keys, kind="stable")
        places = order[np.searchsorted(keys[order], self.anchor * span + self.rank)]
        return whole.take(places, {**self.info, "neighbours": "teacher"})

    def take(self, edges: NDArray[np.int64], info: Mapping[str, Any]) -> Graph:
        """The edges at the given places, in that order, as a dose of this graph."""
        return Graph(
            ids=self.ids,
            anchor=self.anchor[edges],
            positive=self.positive[edges],
            rank=self.rank[edges],
            similarity=self.similarity[edges],
            info={**self.info, **info},
            complete=self.complete or self,
        )


def check_corpus(graph: Graph, corpus: Corpus) -> None:
    """Check that a graph belongs to a corpus.

    Raises:
        DataError: It was built over another one.
    """
    if graph.ids != corpus.ids or graph.info.get("corpus_fingerprint", corpus.fingerprint) != (
        corpus.fingerprint
    ):
        raise DataError(
            f"the graph was built over another corpus than this one of {len(corpus)} documents: "
            "ids, texts or groups differ; build it again, or give the group field it was built with"
        )


def _write_edges(path: Path, graph: Graph, corpus: Corpus) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = edge_features().arrow_schema
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, max(len(graph), 1), _WRITE_BLOCK):
            part = slice(start, start + _WRITE_BLOCK)
            anchors, positives = graph.anchor[part].tolist(), graph.positive[part].tolist()
            columns = {
                "anchor_id": [corpus.ids[i] for i in anchors],
                "positive_id": [corpus.ids[i] for i in positives],
                "anchor": [corpus.texts[i] for i in anchors],
                "positive": [corpus.texts[i] for i in positives],
                "rank": graph.rank[part],
                "similarity": graph.similarity[part],
            }
            writer.write_table(pa.table(columns, schema=schema))


def write_graph(
    folder: str | Path,
    graph: Graph,
    corpus: Corpus,
    *,
    reports: Mapping[str, Any] | None = None,
) -> None:
    """Write a graph, at once or not at all.

    Args:
        folder: Gets ``edges.parquet`` (columns of :func:`obliq_hf.records.edge_features`),
            ``graph.json`` and, for a dose, ``complete.parquet`` with all edges.
        graph: The graph.
        corpus: The corpus it was built over.
        reports: Name -> JSON value to write beside it as ``<name>.json``: purity, audit.

    Raises:
        DataError: The corpus is another one.
    """
    check_corpus(graph, corpus)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        _write_edges(temporary / "edges.parquet", graph, corpus)
        value: dict[str, Any] = dict(graph.info)
        if graph.complete is not None:
            _write_edges(temporary / "complete.parquet", graph.complete, corpus)
            value["complete"] = graph.complete.info
        write_json(temporary / "graph.json", value)
        for name, report in (reports or {}).items():
            write_json(temporary / f"{safe_name(name, 'name of a report')}.json", report)


def _read_edges(path: Path, corpus: Corpus, info: dict[str, Any], complete: Graph | None) -> Graph:
    import pyarrow.parquet as pq

    wanted = [name for name in edge_features() if name not in {"anchor", "positive"}]
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    present = pq.read_schema(path).names
    absent = [name for name in wanted if name not in present]
    if absent:
        raise DataError(f"{path}: no column {absent[0]!r} (columns: {', '.join(present)})")
    table = pq.read_table(path, columns=wanted)
    ends: dict[str, NDArray[np.int64]] = {}
    for name in ("anchor_id", "positive_id"):
        values = table.column(name).to_pylist()
        unknown = next((v for v in values if v not in corpus.row), None)
        if unknown is not None:
            raise DataError(f"{path}: {name} {unknown!r} is not in the corpus")
        ends[name] = np.fromiter((corpus.row[v] for v in values), dtype=np.int64, count=len(values))
    return Graph(
        ids=list(corpus.ids),
        anchor=ends["anchor_id"],
        positive=ends["positive_id"],
        rank=table.column("rank").to_numpy().astype(np.int32),
        similarity=table.column("similarity").to_numpy().astype(np.float32),
        info=info,
        complete=complete,
    )


def read_graph(folder: str | Path, corpus: Corpus) -> Graph:
    """Read what :func:`write_graph` wrote.

    Args:
        folder: The folder.
        corpus: The corpus the graph was built over.

    Returns:
        The graph; a dose comes with its ``complete`` graph.

    Raises:
        DataError: A file or column is missing, a document is unknown, an edge leads to itself,
            or the corpus is not the one the graph was built over.
    """
    root = Path(folder)
    info = read_json(root / "graph.json")
    if info.get("corpus_fingerprint", corpus.fingerprint) != corpus.fingerprint:
        raise DataError(
            f"{root}: the graph was built over another corpus than this one of {len(corpus)} "
            "documents: ids, texts or groups differ; build it again, or give the group field it "
            "was built with"
        )
    complete_info = info.pop("complete", None)
    complete = None
    if complete_info is not None:
        complete = _read_edges(root / "complete.parquet", corpus, complete_info, None)
    return _read_edges(root / "edges.parquet", corpus, info, complete)

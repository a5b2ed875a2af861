"""A corpus's vectors on disk, and exact search over them in bounded memory.

An index folder holds::

    index.json              what was encoded by which model, and every shard; written last
    ids.txt                 the document ids, one a line
    rows.npy                where texts repeat: the vector row of each document
    plan.json               what ``obliq encode`` set out to do
    shards/00000.json       a finished shard's record
    shards/00000.safetensors, shards/00000.exact.safetensors

:func:`obliq_hf.search.encoding.encode_corpus` writes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.errors import DataError, ObliqError, nearest
from obliq_hf.files import iter_lines, read_json
from obliq_hf.search.dense import Hits, top_k
from obliq_hf.search.exclusions import flatten_exclusions
from obliq_hf.search.sharded_vectors import ShardedVectors
from obliq_hf.search.shards import Shard, ShardRecord, file_digest
from obliq_hf.search.vectors import check_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from obliq_hf.encoder.text_encoder import TextEncoder

__all__ = ["EncodedBy", "Manifest", "QueryVectors", "VectorIndex", "encode_queries"]

MANIFEST = "index.json"
_AGAIN = "run 'obliq encode' again with the same settings; finished shards are kept"


@dataclass(frozen=True)
class EncodedBy:
    """The model behind vectors.

    Attributes:
        name: Its name.
        fingerprint: Digest of what decides its vectors; see
            :func:`obliq_hf.encoder.fingerprint.model_fingerprint`.
        revision: Its commit on the Hub, where it has one.
        prompt: The prompt that stood before each document.
        max_length: Tokens a text was cut to.
        dimension: Dimension of the vectors.
        query_prompts: Its prompts for queries.
    """

    name: str
    fingerprint: str
    revision: str | None
    prompt: str
    max_length: int | None
    dimension: int
    query_prompts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """Content of ``index.json``.

    Attributes:
        encoding: Digest of the plan: model, prompt, texts, storage and rows of a shard.
        encoded_by: The model.
        documents: Number of documents.
        vectors: Number of different texts, each of which has one vector.
        storage: How vectors are kept.
        exact: Whether the full vectors are kept beside.
        corpus: Digest of ids and texts.
        dropped: Reason -> documents left out.
        shards: The shards in order.
    """

    encoding: str
    encoded_by: EncodedBy
    documents: int
    vectors: int
    storage: str
    exact: bool
    corpus: str
    dropped: dict[str, int]
    shards: tuple[ShardRecord, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"format": 1, **asdict(self), "shards": [asdict(s) for s in self.shards]}

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read an index's manifest.

        Raises:
            DataError: There is none, because the encoding has not been finished, or it is not as
                it must be.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            unfinished = (Path(folder) / "plan.json").is_file()
            raise DataError(
                f"{folder}: the encoding is not finished; {_AGAIN}"
                if unfinished
                else f"{folder}: no index there ({MANIFEST} is missing); 'obliq encode' makes one"
            )
        value = read_json(path)
        if not isinstance(value, dict) or value.get("format") != 1:
            raise DataError(f"{path}: not an index of a format that this version reads (1)")
        value.pop("format")
        try:
            value["shards"] = tuple(ShardRecord(**record) for record in value["shards"])
            value["encoded_by"] = EncodedBy(**value["encoded_by"])
            manifest = cls(**value)
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: not an index's manifest: {error}") from error
        first = 0
        for record in manifest.shards:
            if record.first != first:
                raise DataError(f"{path}: the shard with rows from {first} on is missing; {_AGAIN}")
            first += record.rows
        if first != manifest.vectors:
            raise DataError(f"{path}: shards hold {first} of {manifest.vectors} vectors; {_AGAIN}")
        return manifest


@dataclass(frozen=True)
class QueryVectors:
    """Queries' vectors, and what made them.

    Attributes:
        vectors: Float32 ``[q, d]``.
        model: Fingerprint of the model.
        name: Its name, for messages.
        prompt: The prompt that stood before each query.
    """

    vectors: NDArray[np.float32]
    model: str
    name: str
    prompt: str


def encode_queries(
    encoder: TextEncoder, texts: Sequence[str], *, prompt_name: str | None = None
) -> QueryVectors:
    """Encode queries so that an index can check what made them.

    Args:
        encoder: The model.
        texts: The queries.
        prompt_name: The task, whose prompt is set before them; by default the plain ``query``.

    Raises:
        ObliqError: The model has no such prompt; the nearest are named.
    """
    name = prompt_name or "query"
    prompts = encoder.query_prompts
    if name not in prompts and (prompts or prompt_name is not None):
        raise ObliqError(f"{encoder.name} has no query prompt {name!r}{nearest(name, prompts)}")
    prompt = prompts.get(name, "")
    vectors = encoder.encode(list(texts), prompt=prompt)
    return QueryVectors(vectors, encoder.fingerprint, encoder.name, prompt)


class VectorIndex:
    """An index, opened for search; its files are mapped, not read.

    Args:
        folder: The index's folder.

    Raises:
        DataError: The encoding has not been finished; a shard is missing, cut short, of another
            index or model; or the ids are not as many as recorded. The message says what to do.

    Example:
        >>> index = VectorIndex("runs/wildchat-index")                          # doctest: +SKIP
        >>> queries = encode_queries(encoder, ["..."], prompt_name="wildchat")  # doctest: +SKIP
        >>> hits = index.search(queries, 100)                                   # doctest: +SKIP
        >>> [index.ids[row] for row in hits[0].rows]                            # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = manifest = Manifest.read(folder)
        header = {"encoding": manifest.encoding, "model": manifest.encoded_by.fingerprint}
        self.shards = [
            Shard(
                self.folder / "shards",
                record,
                storage=manifest.storage,  # type: ignore[arg-type]
                dimension=manifest.encoded_by.dimension,
                metadata=header,
            )
            for record in manifest.shards
        ]
        place = self.folder / "rows.npy"
        self._vector_row: NDArray[np.int64] | None = None
        if manifest.documents != manifest.vectors:
            if not place.is_file():
                raise DataError(f"{place}: is missing; {_AGAIN}")
            self._vector_row = np.load(place, mmap_mode="r", allow_pickle=False)
            if self._vector_row.shape != (manifest.documents,):
                raise DataError(f"{place}: does not hold {manifest.documents} rows; {_AGAIN}")

    def __len__(self) -> int:
        return self.manifest.documents

    @cached_property
    def ids(self) -> list[str]:
        """The documents' ids, by row.

        Raises:
            DataError: They are not as many as recorded.
        """
        path = self.folder / "ids.txt"
        found = [line for _, line in iter_lines(path)]
        if len(found) != len(self):
            raise DataError(f"{path}: {len(found)} ids for {len(self)} documents; {_AGAIN}")
        return found

    @cached_property
    def row(self) -> dict[str, int]:
        """Document id -> row."""
        return {document: row for row, document in enumerate(self.ids)}

    def vectors(self, *, unit: bool = False) -> ShardedVectors:
        """The documents' vectors as one matrix; see :class:`ShardedVectors`.

        Args:
            unit: Bring rows to length 1, which rounding has changed a little.
        """
        dimension = self.manifest.encoded_by.dimension
        return ShardedVectors(self.shards, dimension, rows=self._vector_row, unit=unit)

    def verify(self) -> None:
        """Read every file and compare it with its digest.

        Raises:
            DataError: A file was changed after it was written; it is named.
        """
        for record in self.manifest.shards:
            for name, digest in record.sha256.items():
                path = self.folder / "shards" / name
                if file_digest(path) != digest:
                    raise DataError(f"{path}: is not as it was written; remove it and {_AGAIN}")

    def check_queries(self, queries: QueryVectors) -> None:
        """Refuse queries that cannot be compared with the documents.

        Raises:
            ObliqError: Another model made them, or they have none of the model's query prompts.
        """
        known = self.manifest.encoded_by
        if queries.model != known.fingerprint:
            raise ObliqError(
                f"the queries were encoded by {queries.name} ({queries.model[:12]}), the documents "
                f"of {self.folder} by {known.name} ({known.fingerprint[:12]}"
                + (f", revision {known.revision}" if known.revision else "")
                + "); vectors of two models cannot be compared"
            )
        needed = {text for text in known.query_prompts.values() if text}
        if needed and queries.prompt not in known.query_prompts.values():
            names = ", ".join(sorted(known.query_prompts))
            raise ObliqError(
                f"the queries were encoded {'with another' if queries.prompt else 'without a'} "
                f"prompt; {known.name} was trained with a prompt before queries: give prompt_name, "
                f"one of {names}"
            )

    def search(
        self,
        queries: QueryVectors | ArrayLike,
        k: int,
        *,
        excluded: Sequence[Sequence[int]] | None = None,
        block_rows: int | None = None,
    ) -> list[Hits]:
        """Find the ``k`` documents of highest inner product with every query.

        Memory beyond the mapped files: one block (64 MB by default), 2,048 scores per query, and
        some 40 bytes per query and hit. Where full vectors are kept beside smaller ones, the
        result is exactly that over the full ones: the error of every stored vector is known, and
        what lies within it of the k-th is scored again.

        Args:
            queries: Encoded queries, which are checked against the index; or bare vectors
                ``[q, d]``, which only have to be of its dimension.
            k: Documents per query.
            excluded: For every query the rows of documents that may not be returned.
            block_rows: Vectors read at once.

        Returns:
            One ``Hits`` of document rows per query, by descending score, then by row; exactly
            ``min(k, n - excluded)`` entries.

        Raises:
            ObliqError: Queries of another model, without their prompt or of another dimension;
                and as of :func:`obliq_hf.search.dense.search`.
        """
        if isinstance(queries, QueryVectors):
            self.check_queries(queries)
            queries = queries.vectors
        vectors = check_vectors(queries, "queries")
        size = self.manifest.encoded_by.dimension
        if vectors.shape[1] != size:
            raise ObliqError(
                f"queries have {vectors.shape[1]} dimensions, the index {self.folder} has {size}; "
                f"it was encoded by {self.manifest.encoded_by.name}"
            )
        stored = ShardedVectors(self.shards, size)
        if self._vector_row is None:
            rows, scores, counts = top_k(
                vectors, stored, k, excluded=excluded, block_rows=block_rows
            )
            return [
                Hits(found[:count], values[:count])
                for found, values, count in zip(rows, scores, counts.tolist(), strict=True)
            ]
        return self._search_copies(vectors, stored, k, excluded, block_rows)

    @cached_property
    def _copies(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents in order of their vector rows, and where each vector's begin."""
        assert self._vector_row is not None
        order = np.argsort(self._vector_row, kind="stable")
        sizes = np.bincount(self._vector_row, minlength=self.manifest.vectors)
        return order, np.concatenate([[0], np.cumsum(sizes)])

    def _search_copies(
        self,
        vectors: NDArray[np.float32],
        stored: ShardedVectors,
        k: int,
        excluded: Sequence[Sequence[int]] | None,
        block_rows: int | None,
    ) -> list[Hits]:
        """Search where several documents share a vector.

        A vector is left out where all its documents are. Where only some are, its first document
        may be among them, and then it comes later among equals; so as many vectors more are asked
        for as any query has such.
        """
        assert self._vector_row is not None
        order, starts = self._copies
        query, document = flatten_exclusions(excluded, len(vectors), len(self))
        hidden: list[list[int]] = [[] for _ in range(len(vectors))]
        barred: list[set[int]] = [set() for _ in range(len(vectors))]
        more = 0
        for number, row in zip(query.tolist(), document.tolist(), strict=True):
            barred[number].add(row)
        for number, documents in enumerate(barred):
            touched, counts = np.unique(self._vector_row[sorted(documents)], return_counts=True)
            whole = counts == starts[touched + 1] - starts[touched]
            hidden[number] = touched[whole].tolist()
            more = max(more, int((~whole).sum()))
        rows, scores, counts = top_k(
            vectors, stored, k + more, excluded=hidden, block_rows=block_rows
        )
        hits = []
        for number, count in enumerate(counts.tolist()):
            members = [order[starts[r] : starts[r + 1]] for r in rows[number, :count].tolist()]
            found = np.concatenate(members) if members else np.empty(0, dtype=np.int64)
            values = np.repeat(scores[number, :count], [len(m) for m in members])
            if barred[number]:
                allowed = ~np.isin(found, list(barred[number]))
                found, values = found[allowed], values[allowed]
            best = np.lexsort((found, -values))[:k]
            hits.append(Hits(found[best], values[best]))
        return hits

    def describe(self) -> str:
        """One line for people."""
        m = self.manifest
        copies = f" ({m.vectors} different texts)" if m.vectors != m.documents else ""
        exact = ", full vectors beside" if m.exact else ""
        shards = "shard" if len(m.shards) == 1 else "shards"
        return (
            f"{m.documents} documents{copies} of {m.encoded_by.dimension} dimensions by "
            f"{m.encoded_by.name} in {len(m.shards)} {shards} of {m.storage}{exact}"
        )

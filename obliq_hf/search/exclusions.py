"""Per-query exclusions: from document ids to the rows that an engine must leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["excluded_rows", "flatten_exclusions"]


def excluded_rows(
    query_ids: Sequence[str],
    excluded: Mapping[str, Sequence[str]],
    row: Mapping[str, int],
) -> list[list[int]]:
    """The excluded documents of every query as corpus rows.

    Args:
        query_ids: The queries, in the order in which they are searched.
        excluded: Query id to the ids of the documents it may not be given. Queries without an
            entry exclude nothing; entries of other queries are ignored.
        row: Document id to corpus row.

    Returns:
        One ascending list of distinct rows per query. Ids that are not in the corpus cannot be
        returned anyway and are passed over.

    Raises:
        ObliqError: A query id or an excluded id is not a string.
    """
    result = []
    for query_id in query_ids:
        if not isinstance(query_id, str):
            raise ObliqError(f"query ids are strings; {query_id!r} is {type(query_id).__name__}")
        documents = excluded.get(query_id, ())
        for document in (documents,) if isinstance(documents, str) else documents:
            if not isinstance(document, str) or isinstance(documents, str):
                raise ObliqError(
                    f"the exclusions of query {query_id!r} must be a list of document ids "
                    f"(strings), not {documents!r}"
                )
        result.append(sorted({row[document] for document in documents if document in row}))
    return result


def flatten_exclusions(
    excluded: Sequence[Sequence[int]] | None, queries: int, documents: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Exclusions as two parallel arrays, checked.

    Args:
        excluded: For every query the document rows to leave out, or None for no exclusions.
        queries: Number of queries.
        documents: Number of documents.

    Returns:
        ``(query, row)``, int64, ordered by query.

    Raises:
        ObliqError: The number of lists is not the number of queries, or a row does not exist.
    """
    if excluded is None:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty
    if len(excluded) != queries:
        raise ObliqError(
            f"excluded must hold one list of rows per query: {len(excluded)} lists for "
            f"{queries} queries"
        )
    lengths = np.fromiter((len(rows) for rows in excluded), dtype=np.int64, count=queries)
    query = np.repeat(np.arange(queries, dtype=np.int64), lengths)
    parts = [np.asarray(rows) for rows in excluded if len(rows)]
    for part in parts:
        if part.dtype.kind not in "iu" or part.ndim != 1:
            raise ObliqError(f"excluded rows must be lists of integers, not {part[:3].tolist()}")
    row = np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)
    outside = np.flatnonzero((row < 0) | (row >= documents))
    if len(outside):
        first = int(outside[0])
        raise ObliqError(
            f"query {int(query[first])} excludes row {int(row[first])}, but the corpus has rows "
            f"0 to {documents - 1}"
        )
    return query, row

"""What a query may retrieve, read from what mteb hands a search model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["Allowed", "allowed_rows"]


@dataclass(frozen=True)
class Allowed:
    """The rows of a corpus that one query may retrieve.

    Attributes:
        excluded: Rows it may not retrieve, where those are the fewer.
        only: The rows it may retrieve, where those are the fewer; None means all but ``excluded``.
    """

    excluded: list[int]
    only: NDArray[np.int64] | None = None


def allowed_rows(
    top_ranked: Mapping[str, list[str]] | None,
    query_ids: list[str],
    row: Mapping[str, int],
) -> list[Allowed]:
    """Per query, the rows that ``top_ranked`` leaves.

    A mapping with a sparse ``excluded`` (:class:`~eval_mteb.retrieval.AllButExcluded`) is read
    through it; a plain one, as mteb's datasets carry, is turned into whichever side is smaller.

    Args:
        top_ranked: mteb's ``top_ranked``, or None where every document may be retrieved.
        query_ids: The queries, in order.
        row: Document id -> row.

    Returns:
        One entry a query. A query that a plain mapping lacks may retrieve nothing.
    """
    if top_ranked is None:
        return [Allowed([]) for _ in query_ids]
    sparse: Any = getattr(top_ranked, "excluded", None)
    if sparse is not None:
        return [Allowed([row[d] for d in sparse.get(q, ()) if d in row]) for q in query_ids]
    allowed = []
    for query in query_ids:
        rows = np.fromiter(
            (row[d] for d in dict.fromkeys(top_ranked.get(query, ())) if d in row), dtype=np.int64
        )
        if 2 * len(rows) > len(row):
            mask = np.ones(len(row), dtype=bool)
            mask[rows] = False
            allowed.append(Allowed(np.flatnonzero(mask).tolist()))
        else:
            allowed.append(Allowed([], np.sort(rows)))
    return allowed

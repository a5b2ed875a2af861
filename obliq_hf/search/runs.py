"""Runs: for every query the documents found, in order, with scores; and their TREC files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import atomic_path, iter_lines, safe_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from obliq_hf.search.dense import Hits

__all__ = ["Run", "check_run", "read_run", "strictly_decreasing", "to_run", "write_run"]

Run = dict[str, dict[str, float]]
"""Query id -> document id -> score; documents stand in order of rank."""

_SMALLEST_NORMAL = 0x00800000  # bit pattern of the smallest normal float32
_INFINITY = 0x7F800000


def strictly_decreasing(scores: Iterable[float]) -> list[float]:
    """Scores of a ranking, lowered by as little as keeps the order under any evaluator.

    Evaluators sort by score, in single precision, and break ties by document id. A score that
    is not below the one before it is replaced by the next smaller float32.

    Args:
        scores: Finite scores in order of rank.

    Returns:
        Python floats, each exactly a float32 that is zero or a normal number, strictly
        decreasing; they survive float32, nine significant digits of text, and back.

    Raises:
        ObliqError: A score is not finite or beyond float32.
    """
    values = np.asarray(list(scores), dtype=np.float64)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        bad = int(np.flatnonzero(~np.isfinite(single))[0])
        raise ObliqError(f"score {values[bad]} at rank {bad + 1} is not a finite float32 number")
    # Map floats to integers in the same order, subnormal numbers to 0: lowering then is a
    # running minimum.
    bits = single.view(np.int32).astype(np.int64)
    size = bits & 0x7FFFFFFF
    steps = np.where(size < _SMALLEST_NORMAL, 0, size - _SMALLEST_NORMAL + 1)
    steps = np.where(bits < 0, -steps, steps)
    places = np.arange(len(steps))
    lowered = np.minimum.accumulate(steps + places) - places if len(steps) else steps
    size = np.where(lowered == 0, 0, np.abs(lowered) + _SMALLEST_NORMAL - 1)
    if len(size) and int(size.max()) >= _INFINITY:
        raise ObliqError("scores so close to the lowest float32 number leave no room for ties")
    lowered_bits = np.where(lowered < 0, size - (1 << 31), size).astype(np.int32)
    return lowered_bits.view(np.float32).astype(np.float64).tolist()


def to_run(hits: Sequence[Hits], query_ids: Sequence[str], document_ids: Sequence[str]) -> Run:
    """A run from the hits of an engine.

    Args:
        hits: One entry per query.
        query_ids: Ids of the queries, in the same order.
        document_ids: Ids of the corpus, by row.

    Returns:
        The run, with strictly decreasing scores.

    Raises:
        ObliqError: The lengths differ, a query id stands twice, or an id is not a string.
    """
    if len(hits) != len(query_ids):
        raise ObliqError(f"{len(hits)} lists of hits for {len(query_ids)} queries")
    run: Run = {}
    for query_id, found in zip(query_ids, hits, strict=True):
        if query_id in run:
            raise ObliqError(f"query {query_id!r} stands twice in the list of queries")
        scores = strictly_decreasing(found.scores)
        documents = [document_ids[row] for row in found.rows.tolist()]
        run[query_id] = dict(zip(documents, scores, strict=True))
        if len(run[query_id]) != len(documents):
            raise ObliqError(f"query {query_id!r}: the corpus gives one id to several documents")
    check_run(run)
    return run


def check_run(run: Mapping[str, Mapping[str, float]], name: str = "run") -> None:
    """Refuse ids that are not strings and scores that are not finite.

    Raises:
        ObliqError: The message names the query and the document.
    """
    for query_id, documents in run.items():
        if not isinstance(query_id, str):
            raise ObliqError(
                f"{name}: query ids are strings; {query_id!r} is {type(query_id).__name__}"
            )
        for document, score in documents.items():
            if not isinstance(document, str):
                raise ObliqError(
                    f"{name}: document ids are strings; {document!r} of query {query_id!r} is "
                    f"{type(document).__name__}"
                )
            if not math.isfinite(score):
                raise ObliqError(
                    f"{name}: query {query_id!r}, document {document!r} has score {score}"
                )


def write_run(path: str | Path, run: Mapping[str, Mapping[str, float]], *, tag: str) -> None:
    r"""Write a run as a TREC file: ``query  Q0  document  rank  score  tag``, tab-separated.

    Ids may hold spaces. Scores are made strictly decreasing and written with all their digits.
    The file is written atomically; a query without documents leaves no line.

    Args:
        path: The file.
        run: The run; documents in order of rank.
        tag: Name of the system, without whitespace.

    Raises:
        ObliqError: The tag cannot be a file name or holds whitespace, an id is empty or holds a
            tab or a line end, or a score is not finite.
    """
    safe_name(tag, "run tag")
    if any(character.isspace() for character in tag):
        raise ObliqError(f"run tag {tag!r} must not hold whitespace")
    check_run(run)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as out:
        for query_id, documents in run.items():
            _check_id(query_id, "query")
            scores = strictly_decreasing(documents.values())
            for rank, (document, score) in enumerate(zip(documents, scores, strict=True), 1):
                _check_id(document, "document")
                out.write(f"{query_id}\tQ0\t{document}\t{rank}\t{score!r}\t{tag}\n")


def _check_id(identifier: str, kind: str) -> None:
    if not identifier.strip() or any(character in identifier for character in "\t\r\n"):
        raise ObliqError(
            f"{kind} id {identifier!r} cannot stand in a run file: it is blank or holds a tab "
            "or a line end"
        )


def read_run(path: str | Path) -> Run:
    r"""Read a TREC run file, tab-separated or separated by any whitespace.

    A line with a tab is split at tabs alone, so ids may hold spaces. Documents are ordered by
    score, equal scores by rank, equal ranks by line.

    Args:
        path: The file; UTF-8, ``\n`` or ``\r\n``, a byte order mark is dropped.

    Returns:
        The run; queries in the order of their first line.

    Raises:
        DataError: A line does not have six fields, a rank or score is no number, a score is not
            finite, or a document stands twice for a query; the message names file and line.
    """
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for number, line in iter_lines(path):
        if not line.strip():
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) != 6:
            raise DataError(
                f"{path}:{number}: a run line has six fields (query, Q0, document, rank, score, "
                f"tag), tab-separated where ids hold spaces; this one has {len(fields)}"
            )
        query_id, _, document, rank_text, score_text, _ = fields
        try:
            rank, score = float(rank_text), float(score_text)
        except ValueError:
            raise DataError(
                f"{path}:{number}: rank {rank_text!r} or score {score_text!r} is not a number"
            ) from None
        if not (math.isfinite(score) and math.isfinite(rank)):
            raise DataError(f"{path}:{number}: rank {rank} or score {score} is not finite")
        documents = rows.setdefault(query_id, {})
        if document in documents:
            raise DataError(
                f"{path}:{number}: document {document!r} stands twice for query {query_id!r}"
            )
        documents[document] = (-score, rank)
    return {
        query_id: {
            document: -negative
            for document, (negative, _) in sorted(documents.items(), key=lambda item: item[1])
        }
        for query_id, documents in rows.items()
    }

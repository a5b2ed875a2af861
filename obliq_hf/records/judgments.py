"""Judgments and per-query exclusions, and their files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from obliq_hf.errors import DataError
from obliq_hf.files import atomic_path, iter_lines, read_json, write_json
from obliq_hf.records.cleaning import clean_id

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Qrels", "read_excluded", "read_qrels", "write_excluded", "write_qrels"]

Qrels = dict[str, dict[str, int]]
"""Query id -> document id -> grade."""

_HEADERS = {"query-id", "query_id", "qid", "queryid"}


def read_qrels(path: str | Path) -> Qrels:
    """Read judgments: tab-separated, with or without a header, or TREC's four columns.

    Fields are never quoted. Lines without a tab are split at white space. A repeated row with
    the same grade is collapsed.

    Raises:
        DataError: Wrong number of columns, a grade that is no integer, or two grades for one pair.
    """
    qrels: Qrels = {}
    first = True
    for number, line in iter_lines(path):
        if not line.strip():
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [f.strip(" ") for f in fields]
        if first:
            first = False
            if fields[0].lower() in _HEADERS:
                continue
        if len(fields) == 4:
            fields = [fields[0], fields[2], fields[3]]
        if len(fields) != 3:
            raise DataError(
                f"{path}:{number}: {len(fields)} columns; query id, document id and grade needed"
            )
        query = clean_id(fields[0], f"{path}:{number} query id")
        document = clean_id(fields[1], f"{path}:{number} document id")
        try:
            grade = int(fields[2])
        except ValueError:
            as_float = float(fields[2]) if re.fullmatch(r"-?\d+\.0*", fields[2]) else None
            if as_float is None:
                raise DataError(f"{path}:{number}: grade {fields[2]!r} is not an integer") from None
            grade = int(as_float)
        judged = qrels.setdefault(query, {})
        if judged.get(document, grade) != grade:
            raise DataError(
                f"{path}:{number}: query {query!r} and document {document!r} have two grades, "
                f"{judged[document]} and {grade}"
            )
        judged[document] = grade
    return qrels


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Write judgments as tab-separated text with the header ``query-id corpus-id score``."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as out:
        out.write("query-id\tcorpus-id\tscore\n")
        for query, judged in qrels.items():
            for document, grade in judged.items():
                out.write(f"{query}\t{document}\t{grade}\n")


def read_excluded(path: str | Path) -> dict[str, list[str]]:
    """Read per-query exclusions, ``{query id: [document ids]}``.

    Raises:
        DataError: Not an object of lists of strings; the query is named.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path}: an object {{query id: [document ids]}} is needed")
    for query, documents in value.items():
        if not isinstance(documents, list) or not all(isinstance(d, str) for d in documents):
            raise DataError(f"{path}: query {query!r} needs a list of document ids (strings)")
    return value


def write_excluded(path: str | Path, excluded: dict[str, list[str]]) -> None:
    """Write per-query exclusions."""
    write_json(path, excluded)

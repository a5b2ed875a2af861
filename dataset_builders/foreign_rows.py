"""Training rows from a file with columns of its own: JSON lines, a JSON list, or parquet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_builders.near_duplicates import text_key
from dataset_builders.training_rows import TrainingRows, without_repeats
from obliq_hf.errors import DataError, nearest
from obliq_hf.files import content_hash, iter_jsonl, read_json
from obliq_hf.records import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["KNOWN_COLUMNS", "read_foreign_rows"]

KNOWN_COLUMNS: dict[str, tuple[str, ...]] = {
    "anchor": ("anchor", "query", "question"),
    "positive": ("positive", "document", "passage", "answer"),
    "positives": ("positives", "pos", "positive_passages"),
    "negatives": ("negatives", "neg", "negative_passages"),
}
"""Role -> names it goes by where no mapping is given.

``anchor`` and ``positive`` hold a text (``positive`` may also hold a list of texts, one row
each), ``positives`` and ``negatives`` lists of texts.
"""


def _iter_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(where, row)`` for every row of the file."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        if not path.is_file():
            raise DataError(f"{path}: no such file")
        number = 0
        for batch in pq.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield f"{path} row {number}", row
                number += 1
    elif path.suffix == ".json":
        value = read_json(path)
        if not isinstance(value, list):
            raise DataError(f"{path}: a JSON list of objects is needed")
        for number, row in enumerate(value):
            if not isinstance(row, dict):
                raise DataError(f"{path} row {number}: an object is needed, not {row!r:.60}")
            yield f"{path} row {number}", row
    else:
        for number, row in iter_jsonl(path):
            yield f"{path}:{number}", row


def _roles(row: dict[str, Any], columns: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """Role -> column name."""
    if columns is not None:
        for role, column in columns.items():
            if role not in KNOWN_COLUMNS:
                raise DataError(f"no role {role!r} for a column{nearest(role, KNOWN_COLUMNS)}")
            if column not in row:
                raise DataError(f"{where} has no column {column!r}{nearest(column, row)}")
        found = dict(columns)
    else:
        found = {}
        for role, names in KNOWN_COLUMNS.items():
            present = [n for n in names if n in row]
            if len(present) > 1:
                raise DataError(
                    f"{where} has columns {present[0]!r} and {present[1]!r}, both of which could "
                    f"be the {role}; say which, as columns={{{role}: ...}}"
                )
            if present:
                found[role] = present[0]
    missing = "anchor" if "anchor" not in found else None
    if "positive" not in found and "positives" not in found:
        missing = missing or "positive"
    if missing:
        raise DataError(
            f"{where}: which column is the {missing}? Columns: {', '.join(row) or 'none'}; "
            f"say which, as columns={{{missing}: ...}}"
        )
    if "positive" in found and "positives" in found:
        raise DataError(
            f"{where} has both {found['positive']!r} and {found['positives']!r}; name one of them"
        )
    return found


def _text(value: object, where: str) -> str:
    text = clean_text(value, where)
    if not text.strip():
        raise DataError(f"{where} is empty")
    return text


def _texts(value: object, where: str, *, needed: bool) -> list[str]:
    """A list of texts; a bare string is refused, since it would fall into its characters."""
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{where} must be a list of texts, not {type(value).__name__} ({value!r:.60})"
        )
    if needed and not value:
        raise DataError(f"{where} is an empty list; at least one text is needed")
    return [_text(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _identifier(prefix: str, text: str) -> str:
    return f"{prefix}-{content_hash(text_key(text))[:16]}"


def read_foreign_rows(
    path: str | Path,
    *,
    task: str,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    negatives: int | None = None,
    only: Mapping[str, object] | None = None,
) -> TrainingRows:
    """Read training rows whose columns have names of their own.

    Args:
        path: ``.jsonl``, ``.json`` (a list of objects) or ``.parquet``.
        task: The task they train.
        name: Name of the dataset; default the file's.
        columns: Role (``anchor``, ``positive``, ``positives``, ``negatives``) -> column, e.g.
            ``{"anchor": "query", "positive": "pos", "negatives": "neg"}``. By default the names
            of :data:`KNOWN_COLUMNS` are looked for.
        negatives: Negatives kept a row, the first ones; None for as many as every row has.
        only: Column -> value; other rows are passed over.

    Returns:
        One row for each anchor and positive. Ids are made from the texts, so the same text has
        the same id; other columns are left out. A negative that is the anchor or a positive of
        the same anchor elsewhere in the file is left out and counted in ``info``.

    Raises:
        DataError: A column is missing or ambiguous, a text is none, or a list of texts is a bare
            string; file, row and column are named.
    """
    file = Path(path)
    anchors: list[str] = []
    right: list[list[str]] = []
    wrong: list[list[str]] = []
    for where, row in _iter_rows(file):
        for column in only or {}:
            if column not in row:
                raise DataError(f"{where} has no column {column!r}{nearest(column, row)}")
        if any(row[column] != value for column, value in (only or {}).items()):
            continue
        role = _roles(row, columns, where)
        anchors.append(_text(row[role["anchor"]], f"{where} column {role['anchor']!r}"))
        if "positives" in role:
            at = f"{where} column {role['positives']!r}"
            right.append(_texts(row[role["positives"]], at, needed=True))
        else:
            at = f"{where} column {role['positive']!r}"
            value = row[role["positive"]]
            many = isinstance(value, list | tuple)
            right.append(_texts(value, at, needed=True) if many else [_text(value, at)])
        found: list[str] = []
        if "negatives" in role and row[role["negatives"]] is not None:
            at = f"{where} column {role['negatives']!r}"
            found = _texts(row[role["negatives"]], at, needed=False)
        wrong.append(found)
    if not anchors:
        raise DataError(f"{file}: holds no rows")
    together: dict[bytes, dict[bytes, str]] = {}
    keys = [text_key(anchor) for anchor in anchors]
    for key, texts in zip(keys, right, strict=True):
        together.setdefault(key, {}).update((text_key(t), t) for t in texts)
    refused = 0
    for place, texts in enumerate(wrong):
        kept: dict[bytes, str] = {}
        for text in texts:
            key = text_key(text)
            if key in together[keys[place]] or key == keys[place] or key in kept:
                refused += 1
            else:
                kept[key] = text
        wrong[place] = list(kept.values())
    count = min(map(len, wrong)) if negatives is None else negatives
    pairs = [(place, text) for place, texts in enumerate(right) for text in texts]
    chosen = [wrong[place][:count] for place, _ in pairs]
    sizes = Counter(map(len, chosen))
    rows = TrainingRows(
        name=name or file.stem,
        task=task,
        kind="queries",
        anchors=[anchors[place] for place, _ in pairs],
        positives=[text for _, text in pairs],
        anchor_ids=[_identifier("q", anchors[place]) for place, _ in pairs],
        positive_ids=[_identifier("d", text) for _, text in pairs],
        anchor_groups=[None] * len(pairs),
        positive_groups=[None] * len(pairs),
        negatives=chosen,
        negative_ids=[[_identifier("d", text) for text in texts] for texts in chosen],
        filled=[0] * len(pairs),
        blocked_ids=[
            [_identifier("d", text) for text in together[keys[place]].values()]
            for place, _ in pairs
        ],
        info={
            "columns": dict(columns or {}),
            "negatives_refused": refused,
            "rows_short_of_negatives": sum(n for size, n in sizes.items() if size < count),
        },
    )
    return without_repeats(rows)

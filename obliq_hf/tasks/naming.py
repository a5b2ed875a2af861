"""Names that tasks over a corpus folder have in mteb: one rule for evaluation and training."""

from __future__ import annotations

import re
from pathlib import Path

from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json

__all__ = ["GOLD_COUNTERPARTS", "collection_name", "task_class_name"]

GOLD_COUNTERPARTS = {
    f"OBLIQBench{title}Retrieval": f"OBLIQBench{title}GoldRetrieval"
    for title in ("Twitter", "Math", "WildChat")
}
"""mteb's tasks of OBLIQ-Bench with pooled judgments -> the same with gold ones, named here."""


def _camel(text: str) -> str:
    return "".join(w[:1].upper() + w[1:] for w in re.findall(r"[A-Za-z0-9]+", text))[:60]


def task_class_name(collection: str, task: str, judgments: str = "gold") -> str:
    """The mteb name of a folder's task, such as ``ObliqClassicsWriting``.

    Args:
        collection: The corpus's or folder's name.
        task: The task's name.
        judgments: Pooled judgments are marked in the name.

    Returns:
        Letters and digits only, starting with ``Obliq``.

    Raises:
        ObliqError: The task's name holds no letter or digit that could stand in a name.
    """
    if not _camel(task):
        raise ObliqError(f"task name {task!r} has no letter or digit to name an mteb task after")
    suffix = "Pooled" if judgments == "pooled" else ""
    return f"Obliq{_camel(collection)}{_camel(task)}{suffix}"


def collection_name(folder: str | Path) -> str:
    """What a corpus calls itself (``corpus.json``), else its folder's name."""
    here = Path(folder).resolve()
    provenance = here / "corpus.json"
    source = read_json(provenance).get("source") if provenance.is_file() else None
    if isinstance(source, dict):
        builder = source.get("builder")
        source = source.get("name") or (builder if builder not in {"beir", "jsonl"} else None)
    if isinstance(source, str) and _camel(source):
        return source
    return here.parent.name if here.name == "corpus" and here.parent.name else here.name

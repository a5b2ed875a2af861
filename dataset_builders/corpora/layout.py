"""Write a corpus folder in this project's layout, with a record of where it came from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import DataError
from obliq_hf.files import atomic_path, safe_name, write_json
from obliq_hf.records import write_corpus, write_excluded, write_qrels, write_queries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from obliq_hf.records import Corpus, Qrels, Queries

__all__ = ["TaskFiles", "write_folder"]


@dataclass(frozen=True)
class TaskFiles:
    """What a task's folder holds.

    Attributes:
        name: The task.
        queries: Its queries, of all splits.
        qrels: Split -> gold judgments.
        excluded: Query id -> ids of documents it must not retrieve.
        pooled: Split -> pooled judgments.
    """

    name: str
    queries: Queries
    qrels: Mapping[str, Qrels]
    excluded: dict[str, list[str]]
    pooled: Mapping[str, Qrels] | None = None


def write_folder(
    out: str | Path,
    corpus: Corpus,
    tasks: Sequence[TaskFiles],
    *,
    source: Mapping[str, Any],
    counts: Mapping[str, Any] | None = None,
    dropped: Mapping[str, int] | None = None,
) -> None:
    """Write ``corpus.jsonl``, ``tasks/`` and ``corpus.json``, all or nothing.

    Args:
        out: The folder; an existing one is replaced.
        corpus: The documents.
        tasks: The tasks on them.
        source: Where the corpus comes from; no clock, path or user belongs here.
        counts: Further counts.
        dropped: Reason -> how much was left out.

    Raises:
        DataError: There are no documents.
    """
    if not len(corpus):
        raise DataError("the corpus holds no documents, so no folder is written")
    provenance: dict[str, Any] = {
        "source": dict(source),
        "fingerprint": corpus.fingerprint,
        "documents": len(corpus),
        "groups": len({g for g in corpus.groups if g is not None}),
        **(counts or {}),
    }
    if "author" in corpus.metadata:
        authors = Counter(str(a) for a in corpus.metadata["author"])
        provenance["authors"] = {a: authors[a] for a in sorted(authors)}
    provenance["tasks"] = {
        task.name: {
            "queries": {split: len(qrels) for split, qrels in task.qrels.items()},
            "judgments": {
                split: sum(len(judged) for judged in qrels.values())
                for split, qrels in task.qrels.items()
            },
        }
        for task in tasks
    }
    provenance["dropped"] = dict(dropped or {})
    with atomic_path(out) as folder:
        folder.mkdir()
        write_corpus(folder / "corpus.jsonl", corpus)
        for task in tasks:
            place = folder / "tasks" / safe_name(task.name, "task name")
            write_queries(place / "queries.jsonl", task.queries)
            for split, qrels in task.qrels.items():
                write_qrels(place / "qrels" / f"{safe_name(split, 'split')}.tsv", qrels)
            for split, qrels in (task.pooled or {}).items():
                write_qrels(place / "qrels-pooled" / f"{safe_name(split, 'split')}.tsv", qrels)
            if task.excluded:
                write_excluded(place / "excluded.json", task.excluded)
        write_json(folder / "corpus.json", provenance)

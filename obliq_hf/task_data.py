"""All that evaluating one task needs, read from a folder in any of three layouts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

from obliq_hf.errors import DataError, nearest
from obliq_hf.records import (
    Corpus,
    EmptyPolicy,
    Qrels,
    Queries,
    corpus_file,
    read_corpus,
    read_excluded,
    read_qrels,
    read_queries,
)

__all__ = [
    "TaskData",
    "available_splits",
    "available_tasks",
    "read_task_data",
    "task_corpus_file",
    "with_group_exclusions",
]

logger = logging.getLogger(__name__)

_OBLIQ_BENCH = {
    "twitter": "descriptive/twitter",
    "wildchat": "descriptive/wildchat",
    "math": "analogues/math",
    "writing": "analogues/writing",
    "congress": "tip-of-tongue/congress",
}


@dataclass(frozen=True)
class TaskData:
    """A corpus with the queries, judgments and exclusions of one split of one task.

    Attributes:
        name: The task's name.
        split: The split.
        corpus: The documents searched.
        queries: The queries that have at least one positive judgment, gold or pooled.
        qrels: Gold judgments of the queries with a positive one. Judgments of documents that are
            not in the corpus stay: they count as not found.
        pooled: Pooled judgments likewise, or None where there are none.
        excluded: Query id -> ids of documents it must not retrieve.
        left_out: Reason -> number of queries or judgments that do not count, or never can.
    """

    name: str
    split: str
    corpus: Corpus
    queries: Queries
    qrels: Qrels
    pooled: Qrels | None = None
    excluded: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Files:
    corpus: Path
    queries: Path
    gold: dict[str, Path]
    pooled: dict[str, Path]
    excluded: Path | None


def _splits(folder: Path) -> dict[str, Path]:
    return {p.stem: p for p in sorted(folder.glob("*.tsv"))} if folder.is_dir() else {}


def available_tasks(folder: str | Path) -> list[str]:
    """The tasks a folder holds: names below ``tasks/``, OBLIQ-Bench configs, or its own name."""
    root = Path(folder)
    if (root / "tasks").is_dir():
        return sorted(p.name for p in (root / "tasks").iterdir() if (p / "queries.jsonl").is_file())
    configs = [n for n, sub in _OBLIQ_BENCH.items() if (root / sub / "queries+qrels").is_dir()]
    if configs:
        return configs
    if (root / "queries.jsonl").is_file() or (root / "queries+qrels").is_dir():
        return [root.resolve().name]
    return []


def _locate(root: Path, task: str | None) -> tuple[str, _Files]:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    names = available_tasks(root)
    if not names:
        raise DataError(
            f"{root}: no task found; expected tasks/<task>/queries.jsonl, queries.jsonl with "
            "qrels/, or OBLIQ-Bench's queries+qrels/"
        )
    if (root / "tasks").is_dir():
        name = _choose(root, task, names)
        base = root / "tasks" / name
        excluded = base / "excluded.json"
        return name, _Files(
            corpus=base if (base / "corpus.jsonl").is_file() else root,
            queries=base / "queries.jsonl",
            gold=_splits(base / "qrels"),
            pooled=_splits(base / "qrels-pooled"),
            excluded=excluded if excluded.is_file() else None,
        )
    if (root / "queries.jsonl").is_file():
        excluded = root / "excluded.json"
        return task or names[0], _Files(
            corpus=root,
            queries=root / "queries.jsonl",
            gold=_splits(root / "qrels"),
            pooled=_splits(root / "qrels-pooled"),
            excluded=excluded if excluded.is_file() else None,
        )
    if (root / "queries+qrels").is_dir():
        name, base = task or names[0], root
    else:
        name = _choose(root, task, names)
        base = root / _OBLIQ_BENCH[name]
    inner = base / "queries+qrels"
    gold, pooled = inner / "qrels.tsv", inner / "qrels_pool.tsv"
    excluded = inner / "per_query_excluded_ids.json"
    return name, _Files(
        corpus=base,
        queries=inner / "queries.jsonl",
        gold={"test": gold} if gold.is_file() else {},
        pooled={"test": pooled} if pooled.is_file() else {},
        excluded=excluded if excluded.is_file() else None,
    )


def _choose(root: Path, task: str | None, names: list[str]) -> str:
    if task is None:
        if len(names) > 1:
            raise DataError(f"{root} holds several tasks, name one: {', '.join(names)}")
        return names[0]
    if task not in names:
        raise DataError(f"{root} holds no task {task!r}{nearest(task, names)}")
    return task


def _with_positive(qrels: Qrels, left_out: dict[str, int], kind: str) -> Qrels:
    kept = {q: judged for q, judged in qrels.items() if any(g > 0 for g in judged.values())}
    if len(kept) < len(qrels):
        left_out[f"queries without a positive {kind} judgment"] = len(qrels) - len(kept)
    return kept


def available_splits(folder: str | Path, *, task: str | None = None) -> list[str]:
    """The splits that have gold or pooled judgments."""
    _, files = _locate(Path(folder), task)
    return sorted({*files.gold, *files.pooled})


def task_corpus_file(folder: str | Path, *, task: str | None = None) -> Path:
    """The corpus file that a task searches: tasks of one folder may share it.

    Raises:
        DataError: There is no such folder, task or file.
    """
    _, files = _locate(Path(folder), task)
    return corpus_file(files.corpus)


def _known(
    qrels: Qrels, documents: dict[str, int], queries: set[str], left_out: dict[str, int], kind: str
) -> tuple[Qrels, bool]:
    """The judgments of known queries, and whether any of them names a known document."""
    kept = {query: judged for query, judged in qrels.items() if query in queries}
    dangling = sum(d not in documents for judged in kept.values() for d in judged)
    if dangling:
        left_out[f"{kind} judgments of documents not in the corpus, kept as never found"] = dangling
    if len(kept) < len(qrels):
        left_out[f"{kind} judged queries without a text"] = len(qrels) - len(kept)
    return kept, dangling < sum(map(len, kept.values()))


def _judgments(file: Path) -> Qrels:
    """The judgments of a file; lines that end in CR alone would all be read as a header."""
    qrels = read_qrels(file)
    if not qrels:
        content = file.read_bytes()
        if b"\r" in content and b"\n" not in content:
            raise DataError(f"{file}: lines end in CR alone; they must end in LF or CR LF")
    return qrels


def read_task_data(
    folder: str | Path,
    *,
    task: str | None = None,
    split: str = "test",
    group_field: str | None = None,
    empty: EmptyPolicy = "keep",
    corpus: Corpus | None = None,
) -> TaskData:
    """Read one split of one task from a folder of ours, of BEIR's or of OBLIQ-Bench's layout.

    Args:
        folder: The folder.
        task: The task's name where the folder holds several.
        split: The split whose judgments are wanted.
        group_field: See :func:`obliq_hf.records.read_corpus`.
        empty: Likewise; evaluation keeps empty documents.
        corpus: The corpus, where it was read already.

    Returns:
        The task's data. Queries without a positive judgment and judgments of unknown queries are
        left out and counted in ``left_out``; judgments of unknown documents are counted there and
        kept, as every other evaluator keeps them, so that they lower what recall can reach.

    Raises:
        DataError: A file is missing or malformed, the split does not exist (the message lists
            those that do), or no judgment at all matches the corpus and the queries.
    """
    root = Path(folder)
    name, files = _locate(root, task)
    if split not in files.gold and split not in files.pooled:
        present = sorted({*files.gold, *files.pooled})
        raise DataError(
            f"{root}: task {name!r} has no judgments for split {split!r}; "
            f"present: {', '.join(present) or 'none'}"
        )
    if corpus is None:
        corpus = read_corpus(corpus_file(files.corpus), group_field=group_field, empty=empty)
    queries = read_queries(files.queries)
    left_out: dict[str, int] = {}
    texts = set(queries.ids)
    gold = _judgments(files.gold[split]) if split in files.gold else {}
    pooled = _judgments(files.pooled[split]) if split in files.pooled else None
    if not gold and not pooled:
        raise DataError(f"{files.gold.get(split) or files.pooled.get(split)}: holds no judgments")
    known, some = _known(gold, corpus.row, texts, left_out, "gold")
    known_pooled = None
    if pooled is not None:
        known_pooled, more = _known(pooled, corpus.row, texts, left_out, "pooled")
        some = some or more
    if not some:
        sample = next(iter(gold or pooled or {}), "")
        where = f"a query of {files.queries.name} and a document of the corpus"
        raise DataError(
            f"{root}: no judgment of split {split!r} names both {where} "
            f"(first judged query: {sample!r}; first query: "
            f"{queries.ids[0]!r}; first document: {corpus.ids[0]!r}); do the ids have one form?"
        )
    judged_here = set(gold) | set(pooled or {})
    unjudged = len([q for q in queries.ids if q not in judged_here])
    if unjudged:
        left_out["queries without a judgment in this split"] = unjudged
    known = _with_positive(known, left_out, "gold")
    if known_pooled is not None:
        known_pooled = _with_positive(known_pooled, left_out, "pooled")
    positive = {*known, *(known_pooled or {})}
    if not positive:
        raise DataError(f"{root}: no query of split {split!r} has a positive judgment")
    kept = queries.keep(positive)
    excluded: dict[str, list[str]] = {}
    if files.excluded is not None:
        listed = read_excluded(files.excluded)
        unknown = sum(d not in corpus.row for q in kept.ids for d in listed.get(q, ()))
        if unknown:
            left_out["excluded documents not in the corpus"] = unknown
        excluded = {
            q: [d for d in dict.fromkeys(listed[q]) if d in corpus.row]
            for q in kept.ids
            if q in listed
        }
        clash = [(q, d) for q, ds in excluded.items() for d in ds if known.get(q, {}).get(d, 0) > 0]
        if clash:
            logger.warning(
                "%s, task %s: %d positive judgments name a document excluded for their query "
                "(first: %r); they stay in the judgments and can never be found",
                *(root, name, len(clash), clash[0]),
            )
    for reason, count in left_out.items():
        level = logging.WARNING if "never found" in reason else logging.INFO
        logger.log(level, "%s, task %s, split %s: %d %s", root, name, split, count, reason)
    return TaskData(
        name=name,
        split=split,
        corpus=corpus,
        queries=kept,
        qrels={q: known[q] for q in kept.ids if q in known},
        pooled=(
            None
            if known_pooled is None
            else {q: known_pooled[q] for q in kept.ids if q in known_pooled}
        ),
        excluded=excluded,
        left_out=left_out,
    )


def with_group_exclusions(data: TaskData) -> TaskData:
    """Exclude, per query, all documents of the source that the query was cut from.

    Args:
        data: A task's data. A query says its source in ``metadata.group``, a document in its
            corpus's groups.

    Returns:
        The data with these documents added to those excluded already.
    """
    by_group: dict[str, list[str]] = {}
    for document, group in zip(data.corpus.ids, data.corpus.groups, strict=True):
        if group is not None:
            by_group.setdefault(group, []).append(document)
    excluded = {query: list(documents) for query, documents in data.excluded.items()}
    found = 0
    for query, metadata in zip(data.queries.ids, data.queries.metadata, strict=True):
        group = metadata.get("group")
        documents = [] if group is None else by_group.get(str(group), [])
        found += bool(documents)
        if documents:
            listed = set(excluded.get(query, ()))
            excluded.setdefault(query, []).extend(d for d in documents if d not in listed)
    logger.log(
        logging.INFO if found else logging.WARNING,
        "task %s, split %s: %d of %d queries have a source whose documents they must not find",
        *(data.name, data.split, found, len(data.queries)),
    )
    return replace(data, excluded=excluded)

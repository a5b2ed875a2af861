"""A same-label task on a labelled corpus: find what shares a label across sources."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dataset_builders.corpora.layout import TaskFiles
from dataset_builders.corpora.passages import evenly, share
from obliq_hf.errors import DataError, nearest
from obliq_hf.records import Qrels, Queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obliq_hf.records import Corpus

__all__ = ["same_label_task", "split_labels"]


def split_labels(
    corpus: Corpus, label_field: str, *, splits: tuple[str, ...] = ("dev", "test")
) -> dict[str, str]:
    """Deal the labels that occur in two groups or more to splits, in turn, the largest first.

    Raises:
        DataError: No such column, no groups, or no label in two groups.
    """
    labels = _labels(corpus, label_field)
    groups: dict[str, set[str]] = {}
    for label, group in zip(labels, corpus.groups, strict=True):
        if label is not None and group is not None:
            groups.setdefault(label, set()).add(group)
    sizes = Counter(label for label in labels if label is not None)
    usable = [label for label, held in groups.items() if len(held) > 1]
    if not usable:
        raise DataError(
            f"no value of {label_field!r} occurs in two groups, so nothing can be found across "
            "groups; is the field that names the source set?"
        )
    usable.sort(key=lambda label: (-sizes[label], label))
    return {label: splits[i % len(splits)] for i, label in enumerate(usable)}


def same_label_task(
    corpus: Corpus,
    *,
    name: str,
    label_field: str,
    splits: Mapping[str, str],
    per_label: int,
    spread_field: str | None = None,
    prefix: str = "q-",
    undecided: Callable[[int, int], bool] | None = None,
) -> TaskFiles:
    """Queries that are documents of the corpus; positives share the label in another group.

    Args:
        corpus: The documents, with groups.
        name: The task's name.
        label_field: The metadata column with the label.
        splits: Label -> split; labels that are not in it are searched but never asked for.
        per_label: Queries a label at most, shared equally between its works and spread evenly.
        spread_field: The column that says which work a document is from; default the group.
        prefix: Put before a document's id to name the query.
        undecided: ``(query row, document row)`` -> the document is neither right nor wrong.

    Returns:
        The task; a query's own group and undecided documents are excluded for it. A document
        without another group of its label is no query.

    Raises:
        DataError: No such column, or no query comes out of it.
    """
    labels = _labels(corpus, label_field)
    if spread_field is not None and spread_field not in corpus.metadata:
        raise DataError(f"no column {spread_field!r}{nearest(spread_field, corpus.metadata)}")
    works = corpus.groups if spread_field is None else corpus.metadata[spread_field]
    groups = corpus.groups
    ids: list[str] = []
    texts: list[str] = []
    metadata: list[dict[str, str]] = []
    qrels: dict[str, Qrels] = {split: {} for split in sorted(set(splits.values()))}
    excluded: dict[str, list[str]] = {}
    for label, split in splits.items():
        rows = [i for i, value in enumerate(labels) if value == label and groups[i] is not None]
        by_work: dict[str, list[int]] = {}
        for i in rows:
            by_work.setdefault(str(works[i]), []).append(i)
        counts = share([len(held) for held in by_work.values()], per_label)
        if len(by_work) > per_label:
            kept = set(evenly(len(by_work), per_label))
            counts = [int(i in kept) for i in range(len(by_work))]
        for (work, held), count in zip(by_work.items(), counts, strict=True):
            for i in (held[j] for j in evenly(len(held), count)):
                positives = {corpus.ids[j]: 1 for j in rows if groups[j] != groups[i]}
                if not positives:
                    continue
                query = prefix + corpus.ids[i]
                ids.append(query)
                texts.append(corpus.texts[i])
                metadata.append({label_field: label, "work": work})
                qrels[split][query] = positives
                excluded[query] = [
                    document
                    for j, document in enumerate(corpus.ids)
                    if groups[j] == groups[i] or (undecided is not None and undecided(i, j))
                ]
    if not ids:
        raise DataError(f"no query of task {name!r} has a positive: check groups and labels")
    return TaskFiles(name, Queries(ids, texts, list(metadata)), qrels, excluded)


def _labels(corpus: Corpus, label_field: str) -> list[str | None]:
    if label_field not in corpus.metadata:
        raise DataError(f"no column {label_field!r}{nearest(label_field, corpus.metadata)}")
    if not corpus.has_groups:
        raise DataError(f"the corpus has no groups, so {label_field!r} cannot be asked across them")
    return [None if v is None else str(v) for v in corpus.metadata[label_field]]

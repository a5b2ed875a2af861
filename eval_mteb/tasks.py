"""Retrieval tasks for the MTEB harness over any corpus folder of this project's layouts."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import PromptDict, TaskMetadata
from mteb.models import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

from eval_mteb.dense import EncoderSearch
from eval_mteb.ordering import OrderedSearch
from eval_mteb.registry import register
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import content_hash, read_json
from obliq_hf.task_data import TaskData, read_task_data

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from obliq_hf.records import Corpus, Qrels, Queries
    from obliq_hf.tasks import ObliqTask

__all__ = [
    "K_VALUES",
    "AllButExcluded",
    "FolderRetrieval",
    "ObliqRetrieval",
    "Outcome",
    "folder_task",
    "folder_tasks",
    "task_class_name",
]

logger = logging.getLogger(__name__)

K_VALUES = (1, 3, 5, 10, 20, 50, 100, 1000)
"""mteb's cutoffs and 50, at which OBLIQ-Bench is also reported."""

Judgments = Literal["gold", "pooled"]


class AllButExcluded(Mapping[str, list[str]]):
    """What mteb calls ``top_ranked``, for a task with exclusions: all documents but the excluded.

    A plain mteb model reads it as a mapping from query id to the documents it may rank; each list
    is made when it is asked for, so that 500,000 documents x 500 queries never stand in memory.
    Search models of this project read :attr:`excluded`, which is sparse.

    Args:
        documents: All document ids, in corpus order.
        queries: All query ids.
        excluded: Query id -> ids of documents it must not retrieve.
    """

    def __init__(
        self, documents: list[str], queries: list[str], excluded: Mapping[str, list[str]]
    ) -> None:
        self.documents = documents
        self.queries = dict.fromkeys(queries)
        self.excluded = excluded

    def __getitem__(self, query: str) -> list[str]:
        if query not in self.queries:
            raise KeyError(query)
        hidden = set(self.excluded.get(query, ()))
        return [document for document in self.documents if document not in hidden]

    def __iter__(self) -> Iterator[str]:
        return iter(self.queries)

    def __len__(self) -> int:
        return len(self.queries)


@dataclass
class Outcome:
    """What one evaluation of one split left behind.

    Attributes:
        run: Query id -> document id -> score, best first, strictly decreasing.
        per_query: Metric, named as mteb names its mean -> query id -> value.
        costs: What the search model counted: seconds by phase, calls, tokens.
    """

    run: dict[str, dict[str, float]]
    per_query: dict[str, dict[str, float]] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)


_METRICS = {
    "ndcg_cut_": "ndcg_at_",
    "recall_": "recall_at_",
    "map_cut_": "map_at_",
    "P_": "precision_at_",
    "success_": "hit_rate_at_",
}


def _mteb_name(trec_name: str) -> str:
    for prefix, name in _METRICS.items():
        if trec_name.startswith(prefix):
            return name + trec_name.removeprefix(prefix)
    return trec_name


class ObliqRetrieval(AbsTaskRetrieval):
    """An mteb retrieval task in which the order handed over is the order scored.

    Encoders are searched exactly, exclusions come off before the top k, ties go to corpus order,
    a query that the model returned nothing for counts 0, and run and per-query scores of the last
    evaluation are kept in :attr:`outcomes`, by subset and split.
    """

    k_values = K_VALUES
    obliq_task: ObliqTask | None = None
    outcomes: dict[tuple[str, str], Outcome]
    vectors: Path | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outcomes = {}

    def search_model(self, model: Any) -> OrderedSearch:
        """The model as something that searches, its order made strict.

        Raises:
            ObliqError: A cross-encoder without candidates: what a task lists per query are its
                exclusions, so that its scores would be those of a full scan, or meaningless.
        """
        if isinstance(model, OrderedSearch):
            return model
        if isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol):
            return OrderedSearch(
                EncoderSearch(model, obliq_task=self.obliq_task, vectors=self.vectors)
            )
        if isinstance(model, CrossEncoderProtocol) and not isinstance(model, SearchProtocol):
            raise ObliqError(
                f"{self.metadata.name}: a cross-encoder needs candidates from a first stage; "
                "evaluate it as a pipeline with one (eval_mteb.RetrieveAndRerank)"
            )
        return OrderedSearch(model)

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_split: str, hf_subset: str, **kwargs: Any
    ) -> Any:
        relevant = data_split["relevant_docs"]
        positive = {q for q, judged in relevant.items() if any(g > 0 for g in judged.values())}
        if len(positive) < len(relevant):
            logger.warning(
                "%s: %d queries without a positive judgment left out",
                self.metadata.name,
                len(relevant) - len(positive),
            )
            data_split["relevant_docs"] = {q: d for q, d in relevant.items() if q in positive}
        search_model = self.search_model(model)
        scores = super()._evaluate_subset(
            search_model, data_split, hf_split=hf_split, hf_subset=hf_subset, **kwargs
        )
        self.outcomes[(hf_subset, hf_split)].costs = dict(search_model.costs)
        return scores

    def task_specific_scores(
        self, scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str
    ) -> dict[str, float]:
        """Keep the run and the per-query scores of this evaluation; adds no score of its own."""
        per_query: dict[str, dict[str, float]] = {}
        for query, values in scores.items():
            for name, value in values.items():
                per_query.setdefault(_mteb_name(name), {})[query] = float(value)
        self.outcomes[(hf_subset, hf_split)] = Outcome(run=results, per_query=per_query)
        return {}


class FolderRetrieval(ObliqRetrieval):
    """A retrieval task over a corpus folder; made by :func:`folder_task`, one class per folder."""

    data: TaskData
    judgments: Judgments
    split: str

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Hand the folder's documents, queries and judgments to mteb."""
        if self.data_loaded:
            return
        data = self.data
        queries = data.queries.keep(self.qrels)
        self.dataset = {
            "default": {
                self.split: {
                    "corpus": Dataset.from_dict(
                        {
                            "id": data.corpus.ids,
                            "title": data.corpus.titles,
                            "text": data.corpus.texts,
                        }
                    ),
                    "queries": Dataset.from_dict({"id": queries.ids, "text": queries.texts}),
                    "relevant_docs": {q: dict(judged) for q, judged in self.qrels.items()},
                    "top_ranked": (
                        AllButExcluded(data.corpus.ids, queries.ids, data.excluded)
                        if any(data.excluded.values())
                        else None
                    ),
                }
            }
        }
        self.data_loaded = True

    @property
    def qrels(self) -> Qrels:
        """The judgments this task is scored with: gold or pooled."""
        return self.data.qrels if self.judgments == "gold" else self.data.pooled or {}

    @property
    def corpus(self) -> Corpus:
        """The documents searched."""
        return self.data.corpus

    @property
    def queries(self) -> Queries:
        """The queries scored."""
        return self.data.queries.keep(self.qrels)

    @property
    def key(self) -> str:
        """The name of this task's folder in a run: the task's name, ``-pooled`` where it is."""
        return self.data.name + ("-pooled" if self.judgments == "pooled" else "")

    def max_reachable_recall(self) -> float:
        """Mean recall of a perfect ranking: less than 1 where positives are excluded or absent."""
        shares = []
        for query, judged in self.qrels.items():
            positive = [d for d, grade in judged.items() if grade > 0]
            hidden = set(self.data.excluded.get(query, ()))
            found = sum(d in self.corpus.row and d not in hidden for d in positive)
            shares.append(found / len(positive))
        return float(np.mean(shares))


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


def _collection_name(folder: Path) -> str:
    provenance = folder / "corpus.json"
    if provenance.is_file():
        value = read_json(provenance)
        for key in ("name", "source"):
            if isinstance(value, dict) and isinstance(value.get(key), str):
                return value[key]
    return folder.resolve().name


def _with_group_exclusions(data: TaskData, task: ObliqTask) -> TaskData:
    """Exclude, per query, all documents of the source that the query was cut from."""
    by_group: dict[str, list[str]] = {}
    for document, group in zip(data.corpus.ids, data.corpus.groups, strict=True):
        if group is not None:
            by_group.setdefault(group, []).append(document)
    excluded = {q: list(documents) for q, documents in data.excluded.items()}
    for query, metadata in zip(data.queries.ids, data.queries.metadata, strict=True):
        group = metadata.get("group")
        if group is not None and str(group) in by_group:
            listed = excluded.setdefault(query, [])
            listed.extend(d for d in by_group[str(group)] if d not in set(listed))
    logger.info("task %s: %d queries have exclusions", task.name, len(excluded))
    return replace(data, excluded=excluded)


def folder_task(
    folder: str | Path,
    task: ObliqTask | str | None = None,
    *,
    split: str = "test",
    judgments: Judgments = "gold",
    name: str | None = None,
    corpus: Corpus | None = None,
    group_field: str | None = None,
    language: str = "eng-Latn",
    depth: int = 1000,
    vectors: str | Path | None = None,
) -> FolderRetrieval:
    """An mteb task over a corpus folder in our layout, BEIR's or OBLIQ-Bench's.

    Args:
        folder: The folder; see :mod:`obliq_hf.records`.
        task: The task, or its name in the folder where no :class:`ObliqTask` describes it. Its
            instruction becomes the task's prompt, and a model that has a prompt under its name
            gets that prompt.
        split: The split whose judgments count.
        judgments: ``"gold"`` or ``"pooled"``.
        name: The mteb name; by default made from the corpus's and the task's name.
        corpus: The corpus, where it was read already.
        group_field: The corpus field that names a document's source.
        language: Language and script, as mteb writes them.
        depth: Documents kept per query; cutoffs beyond it are not computed.
        vectors: A folder in which document vectors of encoders are kept between evaluations.

    Returns:
        A task instance, registered with mteb under its name, so that prompts and results that
        name it are understood.

    Raises:
        DataError: Missing or malformed data, a split that is not there, or no such judgments.
    """
    made = folder_tasks(
        folder,
        task,
        split=split,
        judgments=[judgments],
        name=name,
        corpus=corpus,
        group_field=group_field,
        language=language,
        depth=depth,
        vectors=vectors,
    )
    if not made:
        raise DataError(
            f"{folder}: no {judgments} judgments with a positive grade in split {split!r}"
        )
    return made[0]


def folder_tasks(
    folder: str | Path,
    task: ObliqTask | str | None = None,
    *,
    split: str = "test",
    judgments: Sequence[str] = ("gold", "pooled"),
    name: str | None = None,
    corpus: Corpus | None = None,
    group_field: str | None = None,
    language: str = "eng-Latn",
    depth: int = 1000,
    vectors: str | Path | None = None,
) -> list[FolderRetrieval]:
    """The tasks of a folder with each kind of judgments it has; see :func:`folder_task`."""
    unknown = [kind for kind in judgments if kind not in {"gold", "pooled"}]
    if unknown:
        raise ObliqError(f"judgments are 'gold' or 'pooled', not {unknown[0]!r}")
    if depth < 1:
        raise ObliqError(f"depth must be at least 1, not {depth}")
    root = Path(folder)
    obliq_task = None if isinstance(task, str) or task is None else task
    data = read_task_data(
        root,
        task=task if isinstance(task, str) or task is None else task.name,
        split=split,
        corpus=corpus,
        group_field=group_field,
    )
    if obliq_task is not None and obliq_task.exclusion == "group":
        data = _with_group_exclusions(data, obliq_task)
    made = []
    for kind, qrels in (("gold", data.qrels), ("pooled", data.pooled)):
        if kind not in judgments or not qrels:
            continue
        class_name = name or task_class_name(_collection_name(root), data.name, kind)
        settings: dict[str, Any] = {"language": language, "depth": depth, "vectors": vectors}
        made.append(_make_task(class_name, data, qrels, kind, obliq_task, **settings))
    return made


def _make_task(
    name: str,
    data: TaskData,
    qrels: Qrels,
    judgments: str,
    obliq_task: ObliqTask | None,
    *,
    language: str,
    depth: int,
    vectors: str | Path | None,
) -> FolderRetrieval:
    revision = content_hash(
        data.corpus.fingerprint,
        [data.queries.ids, data.queries.texts],
        qrels,
        data.excluded,
        [data.split, judgments],
    )[:40]
    k_values = tuple(k for k in K_VALUES if k <= depth)
    about = obliq_task.title if obliq_task is not None else data.name
    metadata = TaskMetadata(
        name=name,
        description=f"{about}: {judgments} judgments, split {data.split}.",
        dataset={"path": f"obliq/{name}", "revision": revision},
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=[data.split],
        eval_langs=[language],
        main_score=f"ndcg_at_{max(k for k in k_values if k <= 10)}",
        prompt=PromptDict(query=obliq_task.instruction) if obliq_task is not None else None,
    )
    cls = type(
        name,
        (FolderRetrieval,),
        {
            "metadata": metadata,
            "data": data,
            "split": data.split,
            "judgments": judgments,
            "obliq_task": obliq_task,
            "k_values": k_values,
            "vectors": None if vectors is None else Path(vectors),
            "__doc__": metadata.description,
            "__module__": __name__,
        },
    )
    register(cls)
    return cls()

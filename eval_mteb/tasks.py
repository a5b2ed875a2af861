"""Retrieval tasks for the MTEB harness over any corpus folder of this project's layouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from datasets import Dataset
from mteb.abstasks.task_metadata import PromptDict, TaskMetadata

from eval_mteb.registry import checked, register
from eval_mteb.retrieval import K_VALUES, AllButExcluded, ObliqRetrieval
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import content_hash
from obliq_hf.task_data import TaskData, read_task_data, with_group_exclusions
from obliq_hf.tasks.naming import collection_name, task_class_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from obliq_hf.records import Corpus, Qrels
    from obliq_hf.tasks import ObliqTask

__all__ = ["FolderRetrieval", "folder_task", "folder_tasks", "task_class_name"]


class FolderRetrieval(ObliqRetrieval):
    """A retrieval task over a corpus folder; made by :func:`folder_task`, one class per folder."""

    data: TaskData
    source: Path

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Hand the folder's documents, queries and judgments to mteb."""
        if self.data_loaded:
            return
        data = self.data
        queries = data.queries.keep(self.qrels)
        self.dataset = {
            self.place[0]: {
                data.split: {
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
    def short_name(self) -> str:
        """The task's name in its folder."""
        return self.data.name

    @property
    def qrels(self) -> Qrels:
        """The judgments this task is scored with: gold or pooled."""
        return self.data.qrels if self.judgments == "gold" else self.data.pooled or {}

    @property
    def document_ids(self) -> list[str]:
        """Ids of the documents searched, in corpus order."""
        return self.data.corpus.ids

    @property
    def query_texts(self) -> dict[str, str]:
        """Query id -> text of the queries scored."""
        return self.data.queries.keep(self.qrels).as_dict()

    @property
    def excluded(self) -> dict[str, list[str]]:
        """Query id -> ids of documents it must not retrieve."""
        return self.data.excluded

    @property
    def folder_name(self) -> str | None:
        """The name, without its path, of the folder the data was read from."""
        return self.source.resolve().name

    @property
    def left_out(self) -> dict[str, int]:
        """Reason -> number of queries or judgments that do not count."""
        return self.data.left_out

    @property
    def query_groups(self) -> dict[str, dict[str, str]]:
        """Metadata columns that put several queries together, each grouping once."""
        queries = self.data.queries.keep(self.qrels)
        columns: dict[str, dict[str, str]] = {}
        for query, metadata in zip(queries.ids, queries.metadata, strict=True):
            for column, value in metadata.items():
                if isinstance(value, str | int) and not isinstance(value, bool):
                    columns.setdefault(column, {})[query] = str(value)
        found: dict[str, dict[str, str]] = {}
        for column, values in columns.items():
            number = len(set(values.values()))
            if len(values) < len(queries) or not 1 < number <= len(queries) / 2:
                continue
            # one work an author: the same groups under another name say nothing new
            if not any(_same_groups(values, other) for other in found.values()):
                found[column] = values
        return found


def _same_groups(a: dict[str, str], b: dict[str, str]) -> bool:
    pairs = {(a[query], b[query]) for query in a}
    return len(pairs) == len(set(a.values())) == len(set(b.values()))


def folder_task(
    folder: str | Path,
    task: ObliqTask | str | None = None,
    *,
    split: str = "test",
    judgments: Literal["gold", "pooled"] = "gold",
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
    rename: Callable[[TaskData, str], tuple[str, str] | None] | None = None,
) -> list[FolderRetrieval]:
    """The tasks of a folder with each kind of judgments it has; see :func:`folder_task`.

    ``rename`` may give a task another name and the subset that mteb files its scores under.
    """
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
        data = with_group_exclusions(data)
    made = []
    for kind, qrels in (("gold", data.qrels), ("pooled", data.pooled)):
        if kind not in judgments or not qrels:
            continue
        class_name = name or task_class_name(collection_name(root), data.name, kind)
        subset = "default"
        if rename is not None:
            class_name, subset = rename(data, kind) or (class_name, subset)
        settings: dict[str, Any] = {
            "subset": subset,
            "language": language,
            "depth": depth,
            "vectors": vectors,
        }
        made.append(_make_task(class_name, root, data, qrels, kind, obliq_task, **settings))
    return made


def _make_task(
    name: str,
    source: Path,
    data: TaskData,
    qrels: Qrels,
    judgments: str,
    obliq_task: ObliqTask | None,
    *,
    subset: str,
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
        eval_langs=[language] if subset == "default" else {subset: [language]},
        main_score=f"ndcg_at_{max(k for k in k_values if k <= 10)}",
        prompt=None if obliq_task is None else PromptDict(query=obliq_task.instruction),  # type: ignore[typeddict-unknown-key]
    )
    cls = type(
        name,
        (FolderRetrieval,),
        {
            "metadata": checked(metadata, [f"ndcg_at_{k}" for k in k_values]),
            "data": data,
            "source": source,
            "judgments": judgments,
            "obliq_task": obliq_task,
            "k_values": k_values,
            "vectors": None if vectors is None else Path(vectors),
            "__doc__": metadata.description,
            "__module__": __name__,
        },
    )
    register(cls, shipped="keep")
    made = cls()
    made.cut(depth)
    return made

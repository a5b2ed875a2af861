"""OBLIQ-Bench as mteb benchmarks: mteb's own tasks with k = 50, and their gold counterparts.

Source: OBLIQ-Bench (arXiv 2605.06235). mteb ships five tasks over its own copy of the data, with
pooled judgments for Twitter, math and WildChat and gold ones for writing and congress. The paper's
headline figures are on gold, so those three have a gold counterpart here, under a name of its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mteb.benchmarks.benchmark import Benchmark
from mteb.tasks.retrieval.eng import obliq_bench_retrieval as stock

import eval_mteb.checkpoints  # noqa: F401 - who knows the tasks knows the checkpoints
from eval_mteb.hub_data import BenchRetrieval, CheckedLoader
from eval_mteb.published_layout import is_published
from eval_mteb.registry import CheckedName, checked, register
from eval_mteb.retrieval import K_VALUES, ObliqRetrieval
from eval_mteb.tasks import folder_tasks, task_class_name
from obliq_hf.errors import DataError, ObliqError, nearest
from obliq_hf.files import content_hash, hash_files
from obliq_hf.records import read_qrels
from obliq_hf.task_data import available_tasks
from obliq_hf.tasks import builtin_task_names, load_task
from obliq_hf.tasks.naming import GOLD_COUNTERPARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mteb.abstasks.task_metadata import TaskMetadata

    from obliq_hf.records import Qrels
    from obliq_hf.task_data import TaskData
    from obliq_hf.tasks import ObliqTask

__all__ = [
    "GOLD_REPOSITORY",
    "GOLD_REVISION",
    "OBLIQ_BENCH",
    "OBLIQ_BENCH_PAPER",
    "PUBLISHED_SIZES",
    "BenchRetrieval",
    "bench_name",
    "bench_tasks",
    "obliq_bench",
    "published_tasks",
]

logger = logging.getLogger(__name__)

GOLD_REPOSITORY = "dianetc/OBLIQ-Bench"
GOLD_REVISION = "main"
"""Where the gold judgments lie that mteb's copy lacks. mteb's copy itself is pinned to a commit by
mteb; of this repository no commit is known here, so the content of the judgments that were read is
part of the task's revision, and their commit is logged and written to ``task.json``. Another
revision can be given to :func:`obliq_bench`."""

PUBLISHED_SIZES = {
    "twitter": (72_122, 281),
    "math": (3_508, 151),
    "writing": (10_389, 512),
    "congress": (213_650, 254),
    "wildchat": (507_729, 40),
}
"""Documents and queries of each configuration as published."""

_CONFIGS = {
    "twitter": ("Twitter", "descriptive/twitter"),
    "math": ("Math", "analogues/math"),
    "writing": ("Writing", "analogues/writing"),
    "congress": ("Congress", "tip-of-tongue/congress"),
    "wildchat": ("WildChat", "descriptive/wildchat"),
}
_POOLED = ("twitter", "math", "wildchat")
_REPORTED = ("twitter", "math", "writing", "congress")
_NDCG = tuple(f"ndcg_at_{k}" for k in K_VALUES)


class _GoldRetrieval(BenchRetrieval):
    """mteb's documents, queries and exclusions with the gold judgments of the source.

    Its revision is mteb's together with the content of the gold judgments, so that results under
    other judgments are never taken for its own. It is known once :meth:`settle` has read them.
    """

    gold_repository = GOLD_REPOSITORY
    gold_revision = GOLD_REVISION
    gold_file = ""
    gold: Qrels | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name = CheckedName(self.metadata.name, revision=self.settle, metrics=_NDCG)
        self.metadata = self.metadata.model_copy(update={"name": name})

    def settle(self) -> str:
        """Read the gold judgments, without the data, and make them part of the revision."""
        if self.gold is None:
            from huggingface_hub import hf_hub_download

            file = Path(
                hf_hub_download(
                    self.gold_repository,
                    self.gold_file,
                    repo_type="dataset",
                    revision=self.gold_revision,
                )
            )
            if "snapshots" in file.parts:
                self.gold_commit = file.parts[file.parts.index("snapshots") + 1]
                logger.info("%s: gold judgments of commit %s", self.metadata.name, self.gold_commit)
            self.gold = read_qrels(file)
            source = self.metadata.dataset
            revision = content_hash(source["revision"], self.gold)[:40]
            self.metadata = self.metadata.model_copy(
                update={"dataset": {**source, "revision": revision}}
            )
        return self.metadata.revision

    def loader(self) -> CheckedLoader:
        """What reads mteb's copy, with the gold judgments in place of the pooled ones."""
        self.settle()
        subset, split = self.place
        source = type(self).metadata.dataset
        return CheckedLoader(
            source["path"], source["revision"], split=split, config=subset, gold=self.gold
        )


def _metadata(source: TaskMetadata, **changes: Any) -> TaskMetadata:
    return checked(source.model_copy(update=changes), _NDCG)


def _hub_task(config: str, judgments: str, gold_revision: str) -> type[ObliqRetrieval]:
    title, folder = _CONFIGS[config]
    base = getattr(stock, f"OBLIQBench{title}Retrieval")
    common = {"obliq_task": load_task(config), "judgments": judgments, "__module__": __name__}
    if (judgments == "pooled") == (config in _POOLED):
        members = {**common, "metadata": _metadata(base.metadata)}
        return type(base.__name__, (BenchRetrieval, base), members)
    name = GOLD_COUNTERPARTS[base.__name__]
    description = base.metadata.description.replace(
        "Relevance is evaluated against pooled judgments.", "Relevance uses gold judgments."
    ).replace("relevance is evaluated against pooled judgments", "relevance uses gold judgments")
    members = {
        **common,
        "metadata": _metadata(base.metadata, name=name, description=description),
        "gold_file": f"{folder}/queries+qrels/qrels.tsv",
        "gold_revision": gold_revision,
    }
    cls: type[ObliqRetrieval] = type(name, (_GoldRetrieval, base), members)
    register(cls)
    return cls


class _PublishedRetrieval(BenchRetrieval):
    """A task in the layout in which this project publishes corpora, in a repository or folder."""

    @property
    def short_name(self) -> str:
        """The name in the configuration."""
        return self.place[0]

    def loader(self) -> CheckedLoader:
        """Gold judgments as mteb reads them, pooled ones from the configuration beside them."""
        subset, split = self.place
        source = self.metadata.dataset
        return CheckedLoader(
            source["path"],
            source["revision"],
            split=split,
            config=subset,
            pooled=self.judgments == "pooled",
            strict=True,
        )


def _commit(repository: str, revision: str | None) -> str:
    """The commit that a repository's revision stands for, or its name where no hub answers."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(repository, revision=revision).sha or revision or "main"
    except OfflineModeIsEnabled:
        return revision or "main"


def published_tasks(
    source: str | Path,
    *,
    revision: str | None = None,
    split: str = "test",
    tasks: Sequence[ObliqTask] = (),
    only: Sequence[str] | None = None,
    judgments: Sequence[str] = ("gold", "pooled"),
    name: str | None = None,
) -> list[ObliqRetrieval]:
    """The tasks of a repository, or a folder laid out as one, that this project published.

    Args:
        source: Repository id or folder; its configs are ``{task}-corpus``, ``-queries``,
            ``-qrels`` and maybe ``-qrels-pooled`` and ``-top_ranked``.
        revision: The repository's revision.
        split: The split whose judgments count.
        tasks: Descriptions of tasks that are not built in.
        only: Names of the tasks wanted; by default all.
        judgments: ``gold``, ``pooled`` or both.
        name: What the collection is called in mteb names; by default the repository's name.

    Returns:
        One task per configuration and kind of judgments.

    Raises:
        DataError: There is no configuration with a corpus, queries and judgments.
    """
    from datasets import get_dataset_config_names

    configs = get_dataset_config_names(str(source), revision)
    known = {task.name: task for task in tasks}
    for builtin in builtin_task_names():
        known.setdefault(builtin, load_task(builtin))
    found: list[ObliqRetrieval] = []
    there = False
    local = Path(source).is_dir()
    commit = hash_files(source)[:40] if local else _commit(str(source), revision)
    collection = name or (Path(source).resolve() if local else Path(source)).name
    for config in configs:
        task = config.removesuffix("-corpus")
        if task == config or f"{task}-queries" not in configs:
            continue
        for kind, suffix in (("gold", "-qrels"), ("pooled", "-qrels-pooled")):
            if task + suffix not in configs:
                continue
            there = True
            if kind not in judgments or (only is not None and task not in only):
                continue
            mteb_name = task_class_name(collection, task, kind)
            metadata = stock.OBLIQBenchMathRetrieval.metadata.model_copy(
                update={
                    "name": mteb_name,
                    "description": f"{task}: {kind} judgments.",
                    "dataset": {"path": str(source), "revision": commit},
                    "eval_langs": {task: ["eng-Latn"]},
                    "eval_splits": [split],
                    "domains": None,
                    "license": None,
                }
            )
            members = {
                "metadata": checked(metadata, _NDCG),
                "judgments": kind,
                "obliq_task": known.get(task),
                "__module__": __name__,
            }
            cls: type[ObliqRetrieval] = type(mteb_name, (_PublishedRetrieval,), members)
            register(cls)
            found.append(cls())
    if not there:
        raise DataError(
            f"{source}: no configuration <task>-corpus with <task>-queries and <task>-qrels among "
            f"{', '.join(configs)}"
        )
    return found


def bench_name(data: TaskData, judgments: str) -> tuple[str, str] | None:
    """Name and subset in mteb for a copy of the benchmark itself; None for other data."""
    if (len(data.corpus), len(data.queries)) != PUBLISHED_SIZES.get(data.name):
        return None
    title, _ = _CONFIGS[data.name]
    name = f"OBLIQBench{title}Retrieval"
    return GOLD_COUNTERPARTS.get(name, name) if judgments == "gold" else name, data.name


def bench_tasks(
    configs: Sequence[str] = tuple(_CONFIGS),
    *,
    judgments: Sequence[str] = ("gold", "pooled"),
    data: str | Path | None = None,
    gold_revision: str = GOLD_REVISION,
    split: str = "test",
    depth: int = 1000,
    vectors: str | Path | None = None,
    **settings: Any,
) -> list[ObliqRetrieval]:
    """OBLIQ-Bench's tasks.

    Args:
        configs: Names of configurations.
        judgments: ``gold``, ``pooled`` or both.
        data: A copy of the data: a folder in OBLIQ-Bench's own layout or in the one this project
            publishes, or a repository in the latter. By default mteb's copy on the Hub.
        gold_revision: The revision of the gold judgments on the Hub.
        split: The split whose judgments count; mteb's copy has only ``test``.
        depth: Documents kept per query; cutoffs beyond it are not computed.
        vectors: A folder in which document vectors of encoders are kept between evaluations.
        settings: For a folder, further arguments of :func:`eval_mteb.tasks.folder_tasks`.

    Returns:
        Task instances, gold before pooled in each configuration. Over a folder of other data than
        the benchmark's (told by the number of documents and queries) they have names of their own.

    Raises:
        ObliqError: An unknown configuration, or a setting that the data cannot have.
    """
    for config in configs:
        if config not in _CONFIGS:
            raise ObliqError(f"OBLIQ-Bench has no task {config!r}{nearest(config, _CONFIGS)}")
    made: list[ObliqRetrieval] = []
    if data is None or is_published(data):
        if settings:
            raise ObliqError(f"{next(iter(settings))} can be set for a folder of files alone")
        if data is not None:
            made = published_tasks(data, split=split, only=configs, judgments=judgments)
        elif split != "test":
            raise ObliqError(f"mteb's copy of OBLIQ-Bench has no split {split!r}; present: test")
        else:
            made = [
                _hub_task(config, kind, gold_revision)()
                for config in configs
                for kind in ("gold", "pooled")
                if kind in judgments and (kind == "gold" or config in _POOLED)
            ]
        for task in made:
            task.cut(depth)
            task.vectors = None if vectors is None else Path(vectors)
        return made
    present = available_tasks(data)
    for config in configs:
        if config in present:
            made += folder_tasks(
                data,
                load_task(config),
                judgments=judgments,
                rename=bench_name,
                split=split,
                depth=depth,
                vectors=vectors,
                **settings,
            )
    if not made:
        raise DataError(f"{data}: none of {', '.join(configs)} is there (found: {present})")
    return made


def obliq_bench(
    data: str | Path | None = None,
    *,
    configs: Sequence[str] = tuple(_CONFIGS),
    judgments: Sequence[str] = ("gold", "pooled"),
    name: str = "OBLIQ-Bench",
    **settings: Any,
) -> Benchmark:
    """OBLIQ-Bench, or a part of it, as an mteb benchmark.

    Args:
        data: See :func:`bench_tasks`.
        configs: Names of configurations.
        judgments: ``gold``, ``pooled`` or both.
        name: The benchmark's name.
        settings: See :func:`bench_tasks`.

    Returns:
        A benchmark for :func:`mteb.evaluate`.
    """
    return Benchmark(
        name=name,
        tasks=bench_tasks(configs, judgments=judgments, data=data, **settings),
        description=(
            "Retrieval by latent attributes: implicit stance, proof strategy, authorial style, "
            "the dynamic of an exchange, a chat's failure mode. Gold and pooled judgments are "
            "separate tasks."
        ),
        reference="https://arxiv.org/abs/2605.06235",
        citation=stock._CITATION,
    )


OBLIQ_BENCH = obliq_bench()
"""All five tasks, gold and, where there are any, pooled judgments."""

OBLIQ_BENCH_PAPER = obliq_bench(configs=_REPORTED, judgments=["gold"], name="OBLIQ-Bench (paper)")
"""The four tasks that OBLIQ-IR reports, with gold judgments."""

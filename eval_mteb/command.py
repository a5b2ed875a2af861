"""What ``obliq evaluate`` does, for use from code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_mteb.evaluation import evaluate_system
from eval_mteb.models import default_name
from eval_mteb.published_layout import published_names
from eval_mteb.systems import (
    System,
    bm25_system,
    encoder_system,
    fusion_system,
    multihop_system,
    oracle_system,
    rewriter_system,
    teacher_system,
)
from eval_mteb.tasks import FolderRetrieval, folder_tasks
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.search.fusion import FUSION_METHODS
from obliq_hf.task_data import available_tasks
from obliq_hf.tasks import builtin_task_names, load_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eval_mteb.retrieval import ObliqRetrieval
    from obliq_hf.llm import ChatClient
    from obliq_hf.tasks import ObliqTask

__all__ = ["BASELINES", "LLMSettings", "evaluate_command"]

BASELINES = ("bm25", "teacher", "rewriter", "multihop", "oracle")
_ASK = ("rewriter", "multihop", "oracle")


@dataclass(frozen=True)
class LLMSettings:
    """The language model of the baselines that need one.

    Attributes:
        endpoint: Address of an OpenAI-compatible server.
        model: The model's name there.
        revision: Its revision, where known.
        concurrency: Requests in flight.
    """

    endpoint: str
    model: str
    revision: str | None = None
    concurrency: int = 16

    def client(self, cache: Path) -> ChatClient:
        """A client that keeps every answer in ``cache``."""
        from obliq_hf.llm import CachedClient, EndpointClient

        endpoint = EndpointClient(
            self.endpoint,
            model=self.model,
            revision=self.revision,
            concurrency=self.concurrency,
        )
        cache.parent.mkdir(parents=True, exist_ok=True)
        return CachedClient(endpoint, cache)


def _chosen_tasks(data: Path, names: Sequence[str]) -> list[ObliqTask | str]:
    """The tasks asked for, described where a description is known."""
    present = published_names(data) or available_tasks(data)
    if not present:
        raise ObliqError(f"{data}: no task found there")
    chosen: list[ObliqTask | str] = []
    for name in names or present:
        if name.endswith((".yaml", ".yml")) or name in builtin_task_names():
            task = load_task(name)
            if task.name not in present and (len(present) > 1 or published_names(data)):
                raise ObliqError(f"{data} holds no task {task.name!r}{nearest(task.name, present)}")
            chosen.append(task)
        elif name in present:
            own = data / "tasks" / name / "task.yaml"
            chosen.append(load_task(own) if own.is_file() else name)
        else:
            raise ObliqError(f"{data} holds no task {name!r}{nearest(name, present)}")
    return chosen


def _model_name(model: str, taken: Sequence[str]) -> str:
    base = default_name(model) if Path(model).is_dir() else model.rsplit("/", 1)[-1]
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def _check(models: Sequence[str], baselines: Sequence[str], llm: LLMSettings | None) -> None:
    if not models and not baselines:
        raise ObliqError("nothing to measure: give --model, --baseline or both")
    for name in baselines:
        kind = name.partition(":")[0]
        if kind not in BASELINES:
            raise ObliqError(f"unknown baseline {name!r}{nearest(kind, BASELINES)}")
        if kind in _ASK and llm is None:
            raise ObliqError(
                f"baseline {kind!r} asks a language model: give --llm URL and --llm-model NAME"
            )


def evaluate_command(
    *,
    data: Path | None,
    models: Sequence[str],
    tasks: Sequence[str],
    baselines: Sequence[str],
    out: Path,
    teacher: str = "stylometric",
    fusions: Sequence[str] = (),
    fusion_method: str = "zscore",
    llm: LLMSettings | None = None,
    client: ChatClient | None = None,
    first_stage: str | None = None,
    split: str = "test",
    judgments: Sequence[str] = ("gold", "pooled"),
    depth: int = 1000,
    batch_size: int = 32,
    max_length: int | None = None,
    prompts: str = "own",
    device: str | None = None,
    show_progress: bool = True,
) -> list[Path]:
    """Measure models and baselines on tasks.

    Args:
        data: A corpus folder, or one that was published; None for OBLIQ-Bench as mteb's copy on
            the Hub has it.
        models: Checkpoint folders, hub names or ``embedded``.
        tasks: Names or YAML files; none for all tasks.
        baselines: ``bm25``, ``bm25:<setting>``, ``teacher``, ``rewriter``, ``multihop``,
            ``oracle``.
        out: The folder for results.
        teacher: The teacher baseline.
        fusions: ``name+name`` of systems measured here.
        fusion_method: How their scores are fused, ``zscore`` or ``rrf``.
        llm: The language model of the baselines that ask one.
        client: A client in its stead.
        first_stage: The system that those baselines search with; by default the first model, or
            BM25 where there is none.
        split: The split whose judgments count.
        judgments: ``gold``, ``pooled`` or both.
        depth: Documents kept per query.
        batch_size: Texts an encoder takes at once.
        max_length: Longest input in tokens.
        prompts: ``own``, ``none``, or the name of a template for the tasks.
        device: The device of encoders.
        show_progress: Whether encoders show a bar.

    Returns:
        The folders of all results.

    Raises:
        ObliqError: Nothing to measure, or an unknown task, baseline or system.
    """
    given = llm or (LLMSettings("http://given", client.model) if client is not None else None)
    _check(models, baselines, given)
    if fusion_method not in FUSION_METHODS:
        raise ObliqError(
            f"no way to fuse {fusion_method!r}{nearest(fusion_method, FUSION_METHODS)}"
        )
    if data is None:
        unknown = [t for t in tasks if t not in builtin_task_names()]
        if unknown:
            raise ObliqError(
                f"without --data the tasks are OBLIQ-Bench's, not {unknown[0]!r}"
                f"{nearest(unknown[0], builtin_task_names())}"
            )
        described = [load_task(name) for name in tasks or builtin_task_names()]
        chosen: list[ObliqTask | str] = [*described]
    else:
        chosen = _chosen_tasks(data, tasks)
        described = [task for task in chosen if not isinstance(task, str)]
    fixed = _fixed_systems(
        models, baselines, described, max_length=max_length, prompts=prompts, device=device
    )
    names = [system.name for system in fixed] + (["teacher"] if "teacher" in baselines else [])
    pairs = [fusion.split("+") for fusion in fusions]
    for part in [part for parts in pairs for part in parts]:
        if part not in names:
            raise ObliqError(f"no system {part!r} to fuse{nearest(part, names)}")
    asking = [name for name in baselines if name in _ASK]
    if asking:
        base = _first_stage(first_stage, models, fixed)
        talk = client if client is not None else given.client(out / "llm.sqlite")  # type: ignore[union-attr]
        makers: dict[str, Callable[[System, ChatClient], System]] = {
            "rewriter": rewriter_system,
            "multihop": multihop_system,
            "oracle": oracle_system,
        }
        fixed += [makers[name](base, talk) for name in asking]
    if len(models) == 1:
        fixed = [system.kept() for system in fixed]
    folders: list[Path] = []
    settings: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress}
    for task in chosen:
        for mteb_task in _mteb_tasks(data, task, split, judgments, depth, out / "vectors"):
            systems = list(fixed)
            if "teacher" in baselines:
                systems.insert(0, teacher_system(_teacher(teacher, mteb_task)))
            for system in systems:
                folders.append(evaluate_system(system, mteb_task, out, **settings))
            for parts in pairs:
                kind = ["fusion"] if fusion_method == "zscore" else ["fusion", fusion_method]
                name = "-".join([*kind, *parts])
                fused = fusion_system(out, mteb_task, parts, name=name, method=fusion_method)
                folders.append(evaluate_system(fused, mteb_task, out, **settings))
            if mteb_task.data_loaded:
                mteb_task.unload_data()
    if not folders:
        raise ObliqError(f"{data}: no {' or '.join(judgments)} judgments to score with")
    return folders


def _fixed_systems(
    models: Sequence[str],
    baselines: Sequence[str],
    described: Sequence[ObliqTask],
    *,
    max_length: int | None,
    prompts: str,
    device: str | None,
) -> list[System]:
    fixed: list[System] = []
    for name in baselines:
        kind, _, setting = name.partition(":")
        if kind == "bm25":
            label = f"bm25-{setting}" if setting else "bm25"
            fixed.append(bm25_system(setting or "english", name=label))
    encoders: dict[str, Any] = {"max_length": max_length, "device": device}
    if prompts == "none":
        encoders["prompts"] = {}
    elif prompts != "own":
        encoders.update(tasks=described, template=prompts)
    for model in models:
        label = _model_name(model, [system.name for system in fixed])
        fixed.append(encoder_system(label, model, about=model, **encoders))
    return fixed


def _first_stage(name: str | None, models: Sequence[str], fixed: Sequence[System]) -> System:
    by_name = {system.name: system for system in fixed}
    if name is None:
        encoders = [s for s in fixed if models and not s.name.startswith("bm25")]
        return encoders[0] if encoders else by_name.get("bm25") or bm25_system()
    if name == "bm25" and name not in by_name:
        return bm25_system()
    if name not in by_name:
        raise ObliqError(f"no system {name!r} for the first stage{nearest(name, by_name)}")
    return by_name[name]


def _mteb_tasks(
    data: Path | None,
    task: ObliqTask | str,
    split: str,
    judgments: Sequence[str],
    depth: int,
    vectors: Path,
) -> Sequence[ObliqRetrieval]:
    from eval_mteb.benchmark import bench_name, bench_tasks, published_tasks

    settings: dict[str, Any] = {"split": split, "depth": depth, "vectors": vectors}
    name = task if isinstance(task, str) else task.name
    if data is None:
        return bench_tasks([name], judgments=judgments, **settings)
    if not published_names(data):
        return folder_tasks(data, task, judgments=judgments, rename=bench_name, **settings)
    described = [] if isinstance(task, str) else [task]
    made = published_tasks(data, tasks=described, only=[name], judgments=judgments, split=split)
    for mteb_task in made:
        mteb_task.cut(depth)
        mteb_task.vectors = vectors
    return made


def _teacher(spec: str, task: ObliqRetrieval) -> Any:
    from eval_mteb.dense import document_texts
    from obliq_hf.teachers import load_teacher

    if isinstance(task, FolderRetrieval):
        texts = task.data.corpus.full_texts()
    else:
        texts = document_texts(task.part["corpus"])
    return load_teacher(spec, corpus_texts=texts)

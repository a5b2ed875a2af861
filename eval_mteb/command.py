"""What ``obliq evaluate`` does, for use from code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_mteb.evaluation import (
    System,
    bm25_system,
    encoder_system,
    evaluate_system,
    fusion_system,
    teacher_system,
)
from eval_mteb.models import default_name
from eval_mteb.tasks import folder_tasks
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.task_data import available_tasks
from obliq_hf.tasks import builtin_task_names, load_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval_mteb.tasks import FolderRetrieval
    from obliq_hf.tasks import ObliqTask

__all__ = ["evaluate_command"]

BASELINES = ("bm25", "teacher")


def _chosen_tasks(data: Path, names: Sequence[str]) -> list[ObliqTask | str]:
    """The tasks asked for, described where a description is known."""
    present = available_tasks(data)
    if not present:
        raise ObliqError(f"{data}: no task found there")
    chosen: list[ObliqTask | str] = []
    for name in names or present:
        if name.endswith((".yaml", ".yml")) or name in builtin_task_names():
            task = load_task(name)
            if task.name not in present and len(present) > 1:
                raise ObliqError(f"{data} holds no task {task.name!r}{nearest(task.name, present)}")
            chosen.append(task)
        elif name in present:
            own = data / "tasks" / name / "task.yaml"
            chosen.append(load_task(own) if own.is_file() else name)
        else:
            raise ObliqError(f"{data} holds no task {name!r}{nearest(name, present)}")
    return chosen


def _model_name(model: str, taken: set[str]) -> str:
    base = default_name(model) if Path(model).is_dir() else model.rsplit("/", 1)[-1]
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name)
    return name


def evaluate_command(
    *,
    data: Path | None,
    models: Sequence[str],
    tasks: Sequence[str],
    baselines: Sequence[str],
    out: Path,
    teacher: str = "stylometric",
    fusions: Sequence[str] = (),
    split: str = "test",
    judgments: Sequence[str] = ("gold", "pooled"),
    depth: int = 1000,
    batch_size: int = 32,
    max_length: int | None = None,
    prompts: str = "own",
    device: str | None = None,
    show_progress: bool = True,
) -> list[Path]:
    """Measure models and baselines on a folder's tasks.

    Args:
        data: The corpus folder.
        models: Checkpoint folders, hub names or ``embedded``.
        tasks: Names or YAML files; none for all tasks of the folder.
        baselines: ``bm25``, ``bm25:<setting>``, ``teacher``.
        out: The folder for results.
        teacher: The teacher baseline.
        fusions: ``name+name`` of systems measured here.
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
    if data is None:
        raise ObliqError("give the data: --data FOLDER")
    if not models and not baselines:
        raise ObliqError("nothing to measure: give --model, --baseline or both")
    chosen = _chosen_tasks(data, tasks)
    described = [task for task in chosen if not isinstance(task, str)]
    for name in baselines:
        kind = name.partition(":")[0]
        if kind not in BASELINES:
            raise ObliqError(f"unknown baseline {name!r}{nearest(kind, BASELINES)}")
    taken: set[str] = set()
    fixed: list[System] = []
    for name in baselines:
        kind, _, setting = name.partition(":")
        if kind == "bm25":
            label = "bm25" if not setting else f"bm25-{setting}"
            taken.add(label)
            fixed.append(bm25_system(setting or "english", name=label))
    encoders: dict[str, Any] = {"max_length": max_length, "device": device}
    if prompts == "none":
        encoders["prompts"] = {}
    elif prompts != "own":
        encoders.update(tasks=described, template=prompts)
    for model in models:
        fixed.append(encoder_system(_model_name(model, taken), model, about=model, **encoders))
    known = [system.name for system in fixed] + (["teacher"] if "teacher" in baselines else [])
    pairs = [fusion.split("+") for fusion in fusions]
    for parts in pairs:
        for part in parts:
            if part not in known:
                raise ObliqError(f"no system {part!r} to fuse{nearest(part, known)}")
    folders: list[Path] = []
    settings: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress}
    for task in chosen:
        for mteb_task in folder_tasks(
            data, task, split=split, judgments=judgments, depth=depth, vectors=out / "vectors"
        ):
            systems = list(fixed)
            if "teacher" in baselines:
                systems.insert(0, teacher_system(_teacher(teacher, mteb_task)))
            for system in systems:
                folders.append(evaluate_system(system, mteb_task, out, **settings))
            for parts in pairs:
                name = "-".join(["fusion", *parts])
                fused = fusion_system(out, mteb_task, parts, name=name)
                folders.append(evaluate_system(fused, mteb_task, out, **settings))
    if not folders:
        raise ObliqError(f"{data}: no {' or '.join(judgments)} judgments to score with")
    return folders


def _teacher(spec: str, task: FolderRetrieval) -> Any:
    from obliq_hf.teachers import load_teacher

    return load_teacher(spec, corpus_texts=task.corpus.full_texts())

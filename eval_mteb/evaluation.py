"""Measuring systems on a folder's tasks, one folder of results per task and system.

Results lie in ``<out>/<task>/<system>/``::

    run.trec        the ranking, tab-separated
    per_query.json  metric -> query id -> value
    result.json     mteb's own result file (``ceiling.json`` for what uses the judgments)
    cost.json       seconds by phase, calls, tokens
    system.json     what was measured: a finished system with the same content is not run again

and beside the systems ``task.json``, ``qrels.tsv`` and ``excluded.json``, so that reports and
comparisons need neither the corpus nor the models.
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mteb
from tqdm.auto import tqdm

from eval_mteb.systems import (
    System,
    bm25_system,
    encoder_system,
    fusion_system,
    teacher_system,
)
from eval_mteb.tasks import folder_tasks
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import atomic_path, read_json, safe_name, write_json
from obliq_hf.metrics import per_query
from obliq_hf.records import read_corpus, write_excluded, write_qrels
from obliq_hf.search.runs import write_run
from obliq_hf.task_data import available_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval_mteb.retrieval import ObliqRetrieval
    from obliq_hf.tasks import ObliqTask
    from obliq_hf.teachers import Teacher

__all__ = [
    "SYSTEMS",
    "choose_base",
    "evaluate_folder",
    "evaluate_system",
    "write_task_files",
]

logger = logging.getLogger(__name__)

SYSTEMS = ("bm25", "teacher", "base", "student", "fusion")
"""The systems of a training run's evaluation, in the order in which they are measured."""

REPORTED_KS = (10, 50, 100)
"""The cutoffs reported."""


def write_task_files(task: ObliqRetrieval, out: str | Path) -> Path:
    """Write what reports need to know of a task: ``task.json`` and ``qrels.tsv``.

    Returns:
        The task's folder below ``out``.
    """
    folder = Path(out) / safe_name(task.key, "task name")
    folder.mkdir(parents=True, exist_ok=True)
    about = task.obliq_task
    qrels = task.qrels
    write_json(
        folder / "task.json",
        {
            "name": task.short_name,
            "mteb_name": str(task.metadata.name),
            "title": about.title if about else task.short_name,
            "mechanism": about.mechanism if about else None,
            "attribute": about.attribute if about else None,
            "instruction": about.instruction if about else None,
            "split": task.place[1],
            "judgments": task.judgments,
            "revision": task.metadata.revision,
            **{key: value for key, value in _gold_source(task).items() if value is not None},
            "folder": task.folder_name,
            "documents": len(task.document_ids),
            "queries": len(qrels),
            "judged": sum(len(judged) for judged in qrels.values()),
            "left_out": task.left_out,
            "excluded": sum(len(task.excluded.get(query, ())) for query in qrels),
            "max_reachable_recall": round(task.max_reachable_recall(), 6),
            "groups": task.query_groups,
        },
    )
    write_qrels(folder / "qrels.tsv", qrels)
    hidden = {q: list(task.excluded[q]) for q in qrels if task.excluded.get(q)}
    if hidden:
        write_excluded(folder / "excluded.json", hidden)
    return folder


def _gold_source(task: ObliqRetrieval) -> dict[str, str | None]:
    """Where gold judgments come from that do not lie beside the task's data."""
    return {"gold_repository": task.gold_repository, "gold_commit": task.gold_commit}


def _identity(system: System, task: ObliqRetrieval) -> dict[str, Any]:
    return {
        "system": system.name,
        "fingerprint": system.fingerprint,
        "task": task.metadata.name,
        "task_revision": task.metadata.revision,
        "prompt_names": list(task.prompt_names),
        "instruction": None if task.obliq_task is None else task.obliq_task.instruction,
        "k_values": list(task.k_values),
        "depth": task._top_k,
        "mteb": mteb.__version__,
    }


def evaluate_system(
    system: System,
    task: ObliqRetrieval,
    out: str | Path,
    *,
    batch_size: int = 32,
    show_progress: bool = True,
    overwrite: bool = False,
) -> Path:
    """Measure one system on one task through :func:`mteb.evaluate`, or find its result.

    Args:
        system: The system.
        task: The task.
        out: The folder of all results; this one's is ``<out>/<task>/<system>``.
        batch_size: Texts an encoder takes at once.
        show_progress: Whether encoders show a bar.
        overwrite: Measure again even where the result is there.

    Returns:
        The result's folder, written whole or not at all.
    """
    task.settle()
    folder = Path(out) / safe_name(task.key, "task name") / safe_name(system.name, "system name")
    identity = _identity(system, task)
    record = folder / "system.json"
    if record.is_file() and not overwrite:
        known = read_json(record)
        if {key: known.get(key) for key in identity} == identity:
            logger.info("%s on %s: already measured", system.name, task.key)
            return folder
    write_task_files(task, out)
    if show_progress:
        tqdm.write(f"{task.key}: {system.name}", file=sys.stderr)
    model = system.load(task)
    results = mteb.evaluate(
        model,
        task,
        cache=None,
        co2_tracker=False,
        encode_kwargs={"batch_size": batch_size, "show_progress_bar": show_progress},
        show_progress_bar=False,
    )
    outcome = task.outcome
    scores = per_query(outcome.run, task.qrels, ks=tuple(k for k in task.k_values))
    for metric, values in outcome.per_query.items():
        scores.setdefault(metric, {query: values.get(query, 0.0) for query in task.qrels})
    ceiling = system.ceiling or bool(getattr(model, "ceiling", False))
    result = results.task_results[0].model_copy(update={"date": None})
    with atomic_path(folder) as temporary:
        temporary.mkdir(parents=True)
        write_run(temporary / "run.trec", outcome.run, tag=system.name)
        write_json(temporary / "per_query.json", scores)
        result.to_disk(temporary / ("ceiling.json" if ceiling else "result.json"))
        write_json(temporary / "cost.json", _cost(outcome.costs, task))
        write_json(
            temporary / "system.json",
            {
                **identity,
                "about": system.about,
                "ceiling": ceiling,
                "model": str(results.model_name),
                "model_revision": str(results.model_revision),
            },
        )
    return folder


def _cost(costs: dict[str, Any], task: ObliqRetrieval) -> dict[str, Any]:
    seconds = {k: round(float(v), 4) for k, v in costs.get("seconds", {}).items()}
    queries = len(task.qrels)
    per = {
        phase: round(1000 * seconds[phase] / queries, 3)
        for phase in ("encode queries", "search")
        if phase in seconds
    }
    if "search_seconds" in costs:
        per["total"] = round(1000 * costs["search_seconds"] / queries, 3)
    rest = {k: v for k, v in costs.items() if k not in {"seconds", "search_seconds"}}
    return {
        "queries": queries,
        "documents": len(task.document_ids),
        "seconds": seconds,
        "milliseconds_per_query": per,
        **rest,
    }


def _mean(folder: Path, metric: str) -> float:
    values = read_json(folder / "per_query.json")[metric]
    return sum(values.values()) / len(values)


def choose_base(
    out: str | Path, task: ObliqRetrieval, candidates: Sequence[str], *, name: str = "base"
) -> Path:
    """Make the better of several results the one called ``base``.

    The choice is made on the very queries reported, in the baseline's favour.

    Args:
        out: The folder of all results.
        task: The task.
        candidates: The systems to choose from, measured already.
        name: The name of the choice.

    Returns:
        The folder ``<out>/<task>/<name>``; its ``chosen.json`` says which it is.
    """
    metric = str(task.metadata.main_score)
    root = Path(out) / task.key
    scores = {candidate: _mean(root / candidate, metric) for candidate in candidates}
    best = max(candidates, key=lambda candidate: scores[candidate])
    target = root / safe_name(name, "system name")
    record = {"chosen": best, "metric": metric, "scores": scores}
    source = read_json(root / best / "system.json")
    chosen = target / "chosen.json"
    same = (target / "system.json").is_file() and read_json(target / "system.json") == source
    if same and chosen.is_file() and read_json(chosen) == record:
        return target
    with atomic_path(target) as temporary:
        shutil.copytree(root / best, temporary)
        write_json(temporary / "chosen.json", record)
    return target


def evaluate_folder(
    folder: str | Path,
    tasks: Sequence[ObliqTask],
    out: str | Path,
    *,
    split: str = "test",
    systems: Sequence[str] = SYSTEMS,
    base: str | Path | None = None,
    base_revision: str | None = None,
    student: str | Path | None = None,
    teacher: Teacher | None = None,
    template: str = "instruct",
    include_prompt: bool | None = None,
    max_length: int | None = None,
    fusion: Sequence[str] = ("student", "teacher"),
    fusion_method: str = "zscore",
    bm25_setting: str = "english",
    judgments: Sequence[str] = ("gold", "pooled"),
    group_field: str | None = None,
    depth: int = 1000,
    vectors: str | Path | None = None,
    batch_size: int = 32,
    device: str | None = None,
    show_progress: bool = True,
) -> list[Path]:
    """Measure a run's systems on all its tasks; what is there already is not measured again.

    ``base`` is measured with the tasks' prompts (``base-prompt``) and without any
    (``base-plain``); the better of the two becomes ``base``.

    Args:
        folder: The corpus folder.
        tasks: The tasks, each present in the folder.
        out: Where results go; see the module.
        split: The split whose judgments count.
        systems: Which of :data:`SYSTEMS` to measure.
        base: The untrained encoder: a folder, hub name or ``embedded``.
        base_revision: Its hub revision.
        student: The trained checkpoint's folder.
        teacher: The frozen teacher.
        template: The prompt template that ``base-prompt`` uses.
        include_prompt: Whether pooling counts the prompt, for ``base-prompt``.
        max_length: Longest input in tokens of ``base``; by default its own.
        fusion: The two systems fused.
        fusion_method: ``zscore`` or ``rrf``.
        bm25_setting: BM25's tokeniser setting.
        judgments: Judgments to score with, where a task has them.
        group_field: The corpus field that names a document's source.
        depth: Documents kept per query.
        vectors: Where document vectors are kept; by default ``<out>/../vectors``.
        batch_size: Texts an encoder takes at once.
        device: The device of encoders.
        show_progress: Whether encoders show a bar.

    Returns:
        The folders of all results.

    Raises:
        ObliqError: An unknown system, or one whose model was not given; said before anything runs.
    """
    unknown = [s for s in systems if s not in SYSTEMS]
    if unknown:
        raise ObliqError(f"unknown system {unknown[0]!r}{nearest(unknown[0], SYSTEMS)}")
    needed = {"base": base, "student": student, "teacher": teacher}
    for name, given in needed.items():
        if name in systems and given is None:
            raise ObliqError(f"system {name!r} is to be measured, but no {name} was given")
    if "fusion" in systems and not set(fusion) <= set(systems):
        raise ObliqError(f"a fusion of {' and '.join(fusion)} needs both among the systems")
    absent = [t.name for t in tasks if t.name not in available_tasks(folder)]
    if absent and len(available_tasks(folder)) > 1:
        raise ObliqError(
            f"{folder} holds no task {absent[0]!r}{nearest(absent[0], available_tasks(folder))}"
        )
    corpus = None
    if (Path(folder) / "corpus.jsonl").is_file():
        corpus = read_corpus(folder, group_field=group_field, empty="keep")
    store = Path(vectors) if vectors is not None else Path(out).parent / "vectors"
    made: list[System] = []
    if "bm25" in systems:
        made.append(bm25_system(bm25_setting))
    if "teacher" in systems and teacher is not None:
        made.append(teacher_system(teacher))
    if "base" in systems and base is not None:
        common: dict[str, Any] = {
            "max_length": max_length,
            "revision": base_revision,
            "device": device,
        }
        made.append(
            encoder_system("base-plain", base, prompts={}, about="the base, no prompt", **common)
        )
        made.append(
            encoder_system(
                "base-prompt",
                base,
                tasks=tasks,
                template=template,
                include_prompt=include_prompt,
                about="the base with the tasks' prompts",
                **common,
            )
        )
    if "student" in systems and student is not None:
        made.append(encoder_system("student", student, device=device, about="the trained student"))
    mteb_tasks = [
        mteb_task
        for task in tasks
        for mteb_task in folder_tasks(
            folder,
            task,
            split=split,
            judgments=judgments,
            corpus=corpus,
            group_field=group_field,
            depth=depth,
            vectors=store,
        )
    ]
    settings: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress}
    folders: list[Path] = []
    for system in made:
        kept = system.kept()  # one model at a time, loaded once for all tasks
        folders += [evaluate_system(kept, mteb_task, out, **settings) for mteb_task in mteb_tasks]
        del kept
    for mteb_task in mteb_tasks:
        if "base" in systems:
            folders.append(choose_base(out, mteb_task, ["base-plain", "base-prompt"]))
        if "fusion" in systems:
            fused = fusion_system(out, mteb_task, fusion, method=fusion_method)
            folders.append(evaluate_system(fused, mteb_task, out, **settings))
    return folders

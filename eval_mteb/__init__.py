"""Evaluation through the MTEB harness: tasks, benchmarks, models, baselines, statistics, reports.

Nothing heavy is imported until a name is used::

    import mteb, eval_mteb
    results = mteb.evaluate(model, eval_mteb.OBLIQ_BENCH)

``eval_mteb.register_all()`` makes the tasks and checkpoints known to ``mteb.get_task`` and
``mteb.get_model``; until then nothing in mteb is touched.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "OBLIQ_BENCH": "eval_mteb.benchmark",
    "OBLIQ_BENCH_PAPER": "eval_mteb.benchmark",
    "bench_tasks": "eval_mteb.benchmark",
    "obliq_bench": "eval_mteb.benchmark",
    "published_tasks": "eval_mteb.benchmark",
    "RetrieveAndRerank": "eval_mteb.pipeline",
    "folder_task": "eval_mteb.tasks",
    "load_encoder": "eval_mteb.models",
    "EncoderSearch": "eval_mteb.dense",
    "register": "eval_mteb.registry",
    "evaluate_folder": "eval_mteb.evaluation",
    "evaluate_system": "eval_mteb.evaluation",
    "write_report": "eval_mteb.report",
}

__all__ = ["register_all", *sorted(_WHERE)]


def register_all() -> None:
    """Make OBLIQ-Bench's tasks and the published checkpoints known to mteb; nothing happens twice.

    ``mteb.get_task`` then finds the gold tasks, ``mteb.get_model`` loads the checkpoints with
    their prompts, and what they were trained on is known. Any use of the benchmarks does the same.
    """
    import_module("eval_mteb.benchmark")


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})

"""Retrieval tasks as data: what a query asks for and what every stage has to know about it."""

from __future__ import annotations

from obliq_hf.tasks.task import (
    EXCLUSIONS,
    LENSES,
    MECHANISMS,
    RERANKERS,
    ObliqTask,
    builtin_task_names,
    load_task,
    load_tasks,
)

__all__ = [
    "EXCLUSIONS",
    "LENSES",
    "MECHANISMS",
    "RERANKERS",
    "ObliqTask",
    "builtin_task_names",
    "load_task",
    "load_tasks",
]

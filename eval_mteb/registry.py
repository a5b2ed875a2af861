"""Making tasks and models of this project known to mteb, without touching what it ships.

mteb has no interface for tasks from outside. Its table of tasks is read when a model's prompts
are checked and when results are summarised, so a task that is not in it loses its prompts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mteb.get_tasks import _TASKS_REGISTRY

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from mteb.abstasks.abstask import AbsTask

__all__ = ["register", "registered"]

logger = logging.getLogger(__name__)

_OURS: set[str] = set()


def register(cls: type[AbsTask]) -> type[AbsTask]:
    """Make a task class known to ``mteb.get_task`` and to prompt checks.

    Registering the same name again replaces our own earlier entry, never one of mteb's.

    Args:
        cls: A task class with metadata that can be made without arguments.

    Returns:
        The class, so that this can decorate it.

    Raises:
        ObliqError: mteb itself ships a task of that name.
    """
    name = cls.metadata.name
    if name in _TASKS_REGISTRY and name not in _OURS:
        raise ObliqError(f"mteb ships a task named {name!r}; it is never overwritten: rename ours")
    _TASKS_REGISTRY[name] = cls
    _OURS.add(name)
    return cls


def registered() -> list[str]:
    """Names of the tasks registered here."""
    return sorted(_OURS)

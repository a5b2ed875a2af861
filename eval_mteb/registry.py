"""Making tasks and models of this project known to mteb, without touching what it ships.

mteb has no interface for tasks from outside. Its table of tasks is read when a model's prompts
are checked and when results are summarised, so a task that is not in it loses its prompts. Its
result cache goes by the task's name alone, so that a result over other data, or without a cutoff
that the task reports, would be taken for this task's.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Literal

from mteb.cache import ResultCache
from mteb.get_tasks import _TASKS_REGISTRY
from mteb.models.model_meta import ModelMeta

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mteb.abstasks.abstask import AbsTask
    from mteb.abstasks.task_metadata import TaskMetadata

__all__ = [
    "CheckedName",
    "checked",
    "known_model",
    "known_task",
    "register",
    "register_model",
    "registered",
]

logger = logging.getLogger(__name__)

_OURS: set[str] = set()


class CheckedName(str):
    """A task's name that carries what a cached result must have to be that task's.

    It is an ordinary string everywhere; mteb's result cache, where it is asked for a name of this
    class, refuses results of another dataset revision, without one of the metrics, or of a model
    that has no name and revision of its own.
    """

    __slots__ = ("metrics", "revision")

    revision: str | Callable[[], str]
    metrics: tuple[str, ...]

    def __new__(
        cls, name: str, *, revision: str | Callable[[], str], metrics: Sequence[str]
    ) -> CheckedName:
        """Name, dataset revision (or what finds it out), and the metrics a result must have."""
        made = super().__new__(cls, name)
        made.revision = revision
        made.metrics = tuple(metrics)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies keep the requirements."""
        return _rebuild, (str(self), self.revision, self.metrics)


def _rebuild(name: str, revision: str | Callable[[], str], metrics: tuple[str, ...]) -> CheckedName:
    return CheckedName(name, revision=revision, metrics=metrics)


def _named(model: Any) -> bool:
    """Whether a model's metadata tell it from every other model."""
    if not isinstance(model, ModelMeta):
        return True
    unknown = {None, "no_model_name/available", "no_revision_available"}
    return model.name not in unknown and model.revision not in unknown


def _acceptable(name: CheckedName, result: Any) -> bool:
    revision = name.revision() if callable(name.revision) else name.revision
    if result.dataset_revision != revision:
        logger.warning(
            "cached result of %s is over revision %s, not %s: measured again",
            *(str(name), result.dataset_revision, revision),
        )
        return False
    for split in result.scores.values():
        for scores in split:
            missing = [metric for metric in name.metrics if metric not in scores]
            if missing:
                logger.warning(
                    "cached result of %s lacks %s: measured again", str(name), ", ".join(missing)
                )
                return False
    return True


def _guard_cache() -> None:
    """Have mteb's result cache check results for a :class:`CheckedName`; does nothing twice."""
    stock = ResultCache.load_task_result
    if getattr(stock, "checks_names", False):
        return

    @functools.wraps(stock)
    def load_task_result(
        self: ResultCache, task_name: str, model_name: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(task_name, CheckedName) and not _named(model_name):
            logger.warning(
                "%s: the model has no name and revision of its own, so that no cached result can "
                "be told to be its; eval_mteb.load_encoder gives it both",
                str(task_name),
            )
            return None
        result = stock(self, task_name, model_name, *args, **kwargs)
        if isinstance(task_name, CheckedName) and result is not None:
            return result if _acceptable(task_name, result) else None
        return result

    load_task_result.checks_names = True  # type: ignore[attr-defined]
    ResultCache.load_task_result = load_task_result  # type: ignore[method-assign]


def checked(metadata: TaskMetadata, metrics: Sequence[str]) -> TaskMetadata:
    """Metadata whose name has cached results checked for revision and metrics."""
    _guard_cache()
    name = CheckedName(metadata.name, revision=metadata.revision, metrics=metrics)
    return metadata.model_copy(update={"name": name})


def register(cls: type[AbsTask], *, shipped: Literal["error", "keep"] = "error") -> type[AbsTask]:
    """Make a task class known to ``mteb.get_task`` and to prompt checks.

    Registering the same name again replaces our own earlier entry, never one of mteb's.

    Args:
        cls: A task class with metadata that can be made without arguments.
        shipped: What to do where mteb itself ships a task of that name: an error, or keep its
            entry, for a class that is the same task read from elsewhere.

    Returns:
        The class, so that this can decorate it.

    Raises:
        ObliqError: mteb itself ships a task of that name.
    """
    name = str(cls.metadata.name)
    if name in _TASKS_REGISTRY and name not in _OURS:
        if shipped == "keep":
            return cls
        raise ObliqError(f"mteb ships a task named {name!r}; it is never overwritten: rename ours")
    _TASKS_REGISTRY[name] = cls
    _OURS.add(name)
    return cls


def known_task(name: str) -> type[AbsTask] | None:
    """The class of a task that mteb knows by this name, its own or one of ours."""
    return _TASKS_REGISTRY.get(name)


def registered() -> list[str]:
    """Names of the tasks registered here."""
    return sorted(_OURS)


def known_model(name: str) -> ModelMeta | None:
    """The metadata that mteb has of a model, its own or registered here."""
    from mteb.models.model_implementations import MODEL_REGISTRY

    return MODEL_REGISTRY.get(name)


def register_model(meta: ModelMeta) -> ModelMeta:
    """Make a model's metadata known to ``mteb.get_model``; an entry of mteb's own stays."""
    from mteb.models.model_implementations import MODEL_REGISTRY

    if meta.name is not None:
        MODEL_REGISTRY.setdefault(meta.name, meta)
    return meta

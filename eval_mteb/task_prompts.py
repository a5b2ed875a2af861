"""Which prompt of an encoder a task's queries and documents are encoded with."""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

from mteb.models.abs_encoder import get_prompt_name
from mteb.types import PromptType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["log_prompts", "used_prompt", "with_task_prompt"]

logger = logging.getLogger(__name__)

_FALLBACK = {
    PromptType.query: ("query",),
    PromptType.document: ("document", "passage", "corpus"),
}
"""What ``encode_query`` and ``encode_document`` of sentence-transformers take by themselves."""


def _own_prompts(model: Any) -> dict[Any, str | None] | None:
    prompts = getattr(getattr(model, "model", None), "prompts", None)
    return prompts if isinstance(prompts, dict) else None


def _carried(
    prompts: Mapping[str, str | None], names: Sequence[str], kind: PromptType
) -> str | None:
    """The name under which a model carries a task's prompt; None where it has none."""
    keys = [f"{name}-{kind.value}" for name in names]
    keys += names if kind is PromptType.query else []
    return next((key for key in keys if prompts.get(key) is not None), None)


def with_task_prompt(model: Any, names: Sequence[str], metadata: Any) -> Any:
    """A model that uses the prompt it carries for our task also under the name mteb calls it by.

    mteb finds a prompt by the name of *its* task. A checkpoint of ours knows the task by its
    short name (``scene``) and, for the built-in five, by the name of mteb's own task; a folder's
    task is called otherwise. Only models with sentence-transformers prompts are concerned.

    Args:
        model: An mteb encoder.
        names: Names that a model may know the task by, the first one found counts; see
            :attr:`eval_mteb.retrieval.ObliqRetrieval.prompt_names`.
        metadata: The metadata of the mteb task.

    Returns:
        ``model``, or a shallow copy of it with one prompt more.
    """
    prompts = _own_prompts(model)
    if not names or prompts is None:
        return model
    known = dict(getattr(model, "model_prompts", None) or {})
    added = {}
    for kind in (PromptType.query, PromptType.document):
        key = f"{metadata.name}-{kind.value}"
        found = _carried(prompts, names, kind)
        if key not in known and found is not None:
            added[key] = prompts[found]
    if not added:
        return model
    wrapper = copy(model)
    wrapper.model_prompts = {**known, **added}
    return wrapper


def used_prompt(
    model: Any, names: Sequence[str], metadata: Any, kind: PromptType
) -> tuple[str | None, str]:
    """The prompt that a task's queries or documents are encoded with.

    Args:
        model: An mteb encoder.
        names: Names that a model may know the task by.
        metadata: The metadata of the mteb task.
        kind: Whether queries or documents are asked about.

    Returns:
        Its name among the model's prompts, None where it takes none, and its text.
    """
    own = _own_prompts(model) or {}
    known = getattr(model, "model_prompts", None) or {}
    prompts = getattr(with_task_prompt(model, names, metadata), "model_prompts", None) or {}
    name = get_prompt_name(prompts, metadata, kind)
    if name is not None:
        return name if name in known else _carried(own, names, kind), prompts[name] or ""
    default = getattr(getattr(model, "model", None), "default_prompt_name", None)
    fallback = next((name for name in (*_FALLBACK[kind], default) if name in own), None)
    return fallback, own.get(fallback) or ""


def log_prompts(model: Any, names: Sequence[str], metadata: Any) -> None:
    """Say in the log which prompts a model encodes a task's queries and documents with.

    Nothing is said of a model whose prompts cannot be read, such as BM25.
    """
    if _own_prompts(model) is None:
        return
    said = []
    for what, kind in (("queries", PromptType.query), ("documents", PromptType.document)):
        name, text = used_prompt(model, names, metadata, kind)
        said.append(f"{what} with " + ("no prompt" if name is None else f"{name!r}: {text!r}"))
    logger.info("%s on %s: %s", model.mteb_model_meta.name, metadata.name, ", ".join(said))

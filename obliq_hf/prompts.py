"""Prompt templates, and the prompts of tasks made from them: one text for every use.

The same dictionary goes into the saved model, the trainer and MTEB. The instruction stands on the
query side only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.tasks import builtin_task_names, load_task, load_tasks
from obliq_hf.tasks.task import MTEB_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from obliq_hf.tasks import ObliqTask

__all__ = [
    "GENERIC_INSTRUCTION",
    "TEMPLATES",
    "PromptTemplate",
    "check_prompt_name",
    "checked_prompts",
    "get_template",
    "is_query_prompt",
    "prompts_for",
]

GENERIC_INSTRUCTION = "Given a query, retrieve relevant passages"
"""Instruction of the plain ``query`` prompt, for tasks the model was not told about."""

_PLACEHOLDER = re.compile(r"\{[A-Za-z_]*\}")
_DOCUMENT_NAMES = ("document", "passage", "corpus")


@dataclass(frozen=True)
class PromptTemplate:
    """The two parts that are set before texts.

    Attributes:
        query: Before queries; ``{instruction}`` stands for the task's instruction. It ends in a
            line break so that no tokenizer merges its last token with the first of the text.
        document: Before documents, often empty.

    Raises:
        ObliqError: A part that is no text, or a placeholder other than ``{instruction}``.
    """

    query: str
    document: str = ""

    def __post_init__(self) -> None:
        for part, allowed in (("query", {"{instruction}"}), ("document", set())):
            text = getattr(self, part)
            if not isinstance(text, str):
                raise ObliqError(f"template part {part!r} must be text, not {text!r:.60}")
            for found in _PLACEHOLDER.findall(text):
                if found not in allowed:
                    raise ObliqError(
                        f"template part {part!r} holds {found}; only {{instruction}} in the query "
                        "part is filled in"
                    )

    def query_prompt(self, instruction: str) -> str:
        """The query part for one instruction."""
        return self.query.replace("{instruction}", instruction)


TEMPLATES: dict[str, PromptTemplate] = {
    "instruct": PromptTemplate(query="Instruct: {instruction}\nQuery:\n"),
    "reasonir": PromptTemplate(
        query="<|user|>\n{instruction}\n<|embed|>\n", document="<|embed|>\n"
    ),
    "none": PromptTemplate(query=""),
}
"""Templates by name: instruction and query on lines of their own; ReasonIR's two elements
(arXiv 2504.20595); no prompt at all."""


def get_template(template: str | PromptTemplate | Mapping[str, str]) -> PromptTemplate:
    """A template by name, as it is, or from its two parts ``query`` and ``document``.

    Raises:
        ObliqError: No template of that name, or unknown parts.
    """
    if isinstance(template, PromptTemplate):
        return template
    if isinstance(template, Mapping):
        for key in template:
            if key not in {"query", "document"}:
                raise ObliqError(f"template part {key!r} is unknown; valid: query, document")
        if "query" not in template:
            raise ObliqError("template part 'query' is missing")
        return PromptTemplate(**template)
    if template not in TEMPLATES:
        raise ObliqError(f"no template {template!r}{nearest(str(template), TEMPLATES)}")
    return TEMPLATES[template]


def prompts_for(
    tasks: Iterable[str | Path | ObliqTask] | str | Path | ObliqTask,
    template: str | PromptTemplate | Mapping[str, str] = "instruct",
) -> dict[str, str]:
    """The prompts of a model that serves the given tasks.

    Args:
        tasks: Tasks, or names and files of tasks.
        template: Name of a template, a template, or its two parts.

    Returns:
        ``query`` (with a generic instruction), ``document``, each task's name, and for the mteb
        task that evaluates it, where there is one, ``<mteb name>-query``, with
        ``<mteb name>-document`` where documents have a prompt. Tasks over folders get the prompt
        of their task's name (:func:`eval_mteb.task_prompts.with_task_prompt`).
    """
    parts = get_template(template)
    prompts = {"query": parts.query_prompt(GENERIC_INSTRUCTION), "document": parts.document}
    for task in load_tasks(tasks):
        text = parts.query_prompt(task.instruction)
        prompts[task.name] = text
        if task.mteb_name is not None:
            prompts[f"{task.mteb_name}-query"] = text
            if parts.document:
                prompts[f"{task.mteb_name}-document"] = parts.document
    return prompts


def is_query_prompt(name: str) -> bool:
    """Whether a prompt name stands for the query side."""
    return name not in _DOCUMENT_NAMES and not name.endswith(
        tuple(f"-{side}" for side in _DOCUMENT_NAMES)
    )


def check_prompt_name(
    name: str, prompts: Mapping[str, str | None], *, document: bool = False
) -> None:
    """Refuse a prompt name that would mean no prompt, or the wrong side's.

    Args:
        name: The ``prompt_name`` asked for.
        prompts: The model's prompts.
        document: Whether documents are to be encoded.

    Raises:
        ObliqError: No prompt has this name; or it is a query's and documents are encoded.
    """
    if name not in prompts:
        raise ObliqError(f"the model has no prompt {name!r}{nearest(str(name), prompts)}")
    if document and prompts[name] and is_query_prompt(name):
        raise ObliqError(
            f"prompt {name!r} is a query's; documents of every task take 'document' (the default)"
        )


def _known_names() -> set[str]:
    names = {"query", "document"}
    mteb_names = set(MTEB_TYPES)
    for name in builtin_task_names():
        task = load_task(name)
        names.add(task.name)
        if task.mteb_name is not None:
            mteb_names.add(task.mteb_name)
    return names | mteb_names | {f"{n}-{s}" for n in mteb_names for s in ("query", "document")}


def checked_prompts(
    prompts: Mapping[str, str | None], *, saved: Iterable[str] = ()
) -> dict[str, str | None]:
    """Map other names of the document prompt to ``document``, and refuse names nobody looks up.

    Args:
        prompts: Prompt name -> text, as given by a user.
        saved: Names that the checkpoint itself carries; they are valid as well.

    Returns:
        The prompts under valid names.

    Raises:
        ObliqError: A name that is no task's, or two different texts for documents.
    """
    valid = _known_names() | set(saved)
    result: dict[str, str | None] = {}
    for given, text in prompts.items():
        name = given
        if given in ("passage", "corpus"):
            name = "document"
        elif given.endswith("-passage"):
            name = given.removesuffix("passage") + "document"
        if name not in valid:
            raise ObliqError(f"prompts: no task is called {given!r}{nearest(given, valid)}")
        if text is not None and not isinstance(text, str):
            raise ObliqError(f"prompts: the text of {given!r} must be text, not {text!r:.60}")
        if result.get(name, text) != text:
            raise ObliqError(f"prompts: two different texts for {name!r}")
        result[name] = text
    return result

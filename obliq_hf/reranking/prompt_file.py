"""Prompt files: how a reranker asks, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.tasks import ObliqTask

__all__ = [
    "ANSWERS",
    "JOBS",
    "RerankPrompt",
    "complete",
    "fill",
    "load_prompt",
    "prepare",
    "prompt_names",
]

JOBS = ("select", "rank")
"""Choose some of the documents; order all of them."""
ANSWERS = ("text", "schema", "logprobs")
"""Identifiers in brackets; a JSON object that the server enforces; one letter with its
log-probabilities."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_KNOWN = frozenset(
    ("unit", "attribute", "instruction", "ignoring", "ignore", "query", "documents", "count",
     "picks", "answer")
)  # fmt: skip


def fill(template: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled; what is filled in is not searched again."""
    return _PLACEHOLDER.sub(lambda m: values.get(m.group(1), m.group(0)), template)


def prepare(template: str, values: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """A template filled in part: pairs of text and the placeholder after it that is left open."""
    parts: list[tuple[str, str | None]] = []
    text, last = "", 0
    for match in _PLACEHOLDER.finditer(template):
        text += template[last : match.start()]
        last = match.end()
        if match.group(1) in values:
            text += values[match.group(1)]
        else:
            parts.append((text, match.group(1)))
            text = ""
    return [*parts, (text + template[last:], None)]


def complete(parts: Sequence[tuple[str, str | None]], values: Mapping[str, str]) -> str:
    """What :func:`prepare` left open, filled."""
    return "".join(
        text if name is None else f"{text}{values.get(name, f'{{{name}}}')}" for text, name in parts
    )


@dataclass(frozen=True)
class RerankPrompt:
    """A prompt file.

    Attributes:
        name: Its name.
        system: The system message.
        jobs: Job -> template of the user message.
        ignore: The sentence that says what must not count.
        answers: ``{job}-{form}`` -> the sentence that says how to answer.
        fingerprint: SHA-256 of all this.
    """

    name: str
    system: str
    jobs: Mapping[str, str]
    ignore: str
    answers: Mapping[str, str]
    fingerprint: str = field(default="")

    def task_values(self, task: ObliqTask) -> dict[str, str]:
        """What a task fills into the templates."""
        words = task.reranking_ignore.rstrip(". ")
        values = {
            "unit": task.unit,
            "attribute": task.attribute,
            "instruction": task.instruction.rstrip(". "),
        }
        values["ignoring"] = fill(self.ignore, {**values, "ignore": words}) if words else ""
        return values


def prompt_names() -> list[str]:
    """Names of the prompt files that come with the package."""
    folder = resources.files("obliq_hf.reranking") / "prompts"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


@cache
def load_prompt(name_or_path: str) -> RerankPrompt:
    """Load a prompt file.

    Args:
        name_or_path: ``task``, ``generic``, or the path of a file of the same shape.

    Raises:
        ObliqError: No such prompt, or a file with missing or unknown keys or placeholders.
    """
    if name_or_path.lower().endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        if not path.is_file():
            raise ObliqError(f"{path}: no such prompt file")
        return _read(path.read_text(encoding="utf-8"), path.stem, str(path))
    if name_or_path not in prompt_names():
        raise ObliqError(f"no prompt {name_or_path!r}{nearest(name_or_path, prompt_names())}")
    file = resources.files("obliq_hf.reranking") / "prompts" / f"{name_or_path}.yaml"
    return _read(file.read_text(encoding="utf-8"), name_or_path, f"prompts/{name_or_path}.yaml")


def _read(text: str, name: str, source: str) -> RerankPrompt:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ObliqError(f"{source}: not readable as YAML: {error}") from error
    if not isinstance(values, dict):
        raise ObliqError(f"{source}: a prompt file holds keys and values")
    keys = ("version", "system", "ignore", *JOBS, "answers")
    for key in values:
        if key not in keys:
            raise ObliqError(f"{source}: unknown key {key!r}{nearest(str(key), keys)}")
    for key in keys:
        if key not in values:
            raise ObliqError(f"{source}: missing key {key!r}")
    texts: dict[str, Any] = {key: values[key] for key in ("system", "ignore", *JOBS)}
    answers = values["answers"]
    forms = [f"{job}-{form}" for job in JOBS for form in ANSWERS]
    if not isinstance(answers, dict) or set(answers) != set(forms):
        raise ObliqError(f"{source}: key 'answers' must have exactly {', '.join(forms)}")
    for key, content in {**texts, **{f"answers.{k}": v for k, v in answers.items()}}.items():
        if not isinstance(content, str):
            raise ObliqError(f"{source}: key {key!r} must be text")
        for placeholder in _PLACEHOLDER.findall(content):
            if placeholder not in _KNOWN:
                raise ObliqError(
                    f"{source}: key {key!r} has the unknown placeholder {{{placeholder}}}"
                    f"{nearest(placeholder, _KNOWN)}"
                )
    for job in JOBS:
        for needed in ("query", "documents", "answer"):
            if f"{{{needed}}}" not in values[job]:
                raise ObliqError(f"{source}: key {job!r} lacks the placeholder {{{needed}}}")
    return RerankPrompt(
        name,
        values["system"],
        {job: values[job] for job in JOBS},
        values["ignore"],
        answers,
        content_hash(values),
    )

"""The prompts of the baselines that ask a language model, read from their file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.llm import ChatRequest

if TYPE_CHECKING:
    from obliq_hf.tasks import ObliqTask

__all__ = ["BaselinePrompt", "cut", "load_prompt", "task_words"]


@dataclass(frozen=True)
class BaselinePrompt:
    """One prompt.

    Attributes:
        name: Its name in the file.
        system: The system message.
        user: The user message with its placeholders.
        schema: The JSON schema of the answer.
    """

    name: str
    system: str
    user: str
    schema: dict[str, Any]

    @property
    def required(self) -> tuple[str, ...]:
        """The fields an answer must have."""
        return tuple(self.schema["required"])

    def request(self, identifier: str, *, max_tokens: int, **values: str) -> ChatRequest:
        """The prompt with its placeholders filled in.

        Args:
            identifier: The request's id.
            max_tokens: Longest answer.
            values: What stands for each placeholder; braces inside stay as they are.

        Returns:
            A greedy request.
        """
        return ChatRequest(
            id=identifier,
            messages=[
                {"role": "system", "content": self.system},
                {"role": "user", "content": self.user.format(**values)},
            ],
            max_tokens=max_tokens,
            schema=self.schema,
            purpose=self.name,
        )


_KINDS = {
    "string": {"type": "string"},
    "array": {"type": "array", "items": {"type": "integer"}},
}


@cache
def load_prompt(name: str) -> BaselinePrompt:
    """A prompt by its name in ``prompts/baselines.yaml``."""
    file = resources.files("eval_mteb") / "prompts" / "baselines.yaml"
    entry = yaml.safe_load(file.read_text(encoding="utf-8"))[name]
    fields = {field: _KINDS[kind] for field, kind in entry["fields"].items()}
    schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return BaselinePrompt(name, entry["system"], entry["user"], schema)


def task_words(task: ObliqTask) -> dict[str, str]:
    """What a task fills into the prompts."""
    return {
        "attribute": task.attribute,
        "instruction": task.instruction,
        "unit": task.unit,
        "mechanism": task.mechanism,
        "ignore": task.reranking_ignore or "length, quality, or words shared with the query",
    }


def cut(text: str, words: int) -> str:
    """The first words of a text, on one line."""
    parts = text.split()
    return " ".join(parts) if len(parts) <= words else " ".join(parts[:words]) + " …"

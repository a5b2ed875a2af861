r"""Getting the answer out of what a model wrote: thinking blocks, fences, prose around JSON.

The order is strict first: the whole text as JSON; then one tolerant parse that takes the last
complete object in the text (fences, prose before and after, trailing commas and raw line breaks in
strings are put up with); else a :class:`ParseFailure` with its reason. Never a number, a string or
a list where an object is due, and never a draft from inside a thinking block. Strings that JSON's
escapes make unfit for a file, with NUL or a lone surrogate, are cleaned as a corpus's texts are.

    >>> parse_object('For {project}: {"q": "x",}', ["q"])
    {'q': 'x'}
    >>> parse_object('<think>{"q": "draft"}</think>{"q": "final"}', ["q"])
    {'q': 'final'}
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.records import clean_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.llm.chat import ChatAnswer

__all__ = ["ParseFailure", "answer_object", "declines", "parse_object", "strip_thinking"]

_OPEN = re.compile(r"<(think|thinking|reasoning)>", re.IGNORECASE)
_CLOSE = re.compile(r"</(think|thinking|reasoning)>", re.IGNORECASE)
_BLOCK = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.IGNORECASE | re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_REFUSAL = re.compile(
    r"\b(?:sorry|apologi[sz]e|as an ai\b|i (?:can(?:['’]?t|not)|could not|won['’]?t|"
    r"am (?:not able|unable)|must decline)|unable to|not able to|not comfortable|"
    r"can(?:['’]t|not) (?:help|assist|comply|rank|do))",
    re.IGNORECASE,
)
"""How models begin an answer in which they decline."""
_LONGEST = 200_000
_MOST_STEPS = 1_000_000
"""Characters looked at in search of objects, so that nested braces cost no quadratic time."""


class ParseFailure(ObliqError):
    """An answer that cannot be used.

    Attributes:
        reason: `refused`, `truncated`, `empty`, `no-object`, `missing-field`, `wrong-type` or the
            error kind of the call; what is counted in reports.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def strip_thinking(text: str) -> tuple[str, str | None]:
    """Part a text from its thinking blocks.

    A closing tag without an opening one ends a block that the chat template opened; an opening tag
    without a closing one means that the answer never came.

    Args:
        text: What the model wrote.

    Returns:
        The answer, stripped, and the thinking, or None where there is none.
    """
    if not (_OPEN.search(text) or _CLOSE.search(text)):
        return text.strip(), None
    thinking: list[str] = []

    def keep(match: re.Match[str]) -> str:
        thinking.append(match.group(0))
        return ""

    rest = _BLOCK.sub(keep, text)
    closes = list(_CLOSE.finditer(rest))
    if closes:
        thinking.insert(0, rest[: closes[-1].start()])
        rest = rest[closes[-1].end() :]
    opened = _OPEN.search(rest)
    if opened:
        thinking.append(rest[opened.start() :])
        rest = rest[: opened.start()]
    plain = [_CLOSE.sub("", _OPEN.sub("", t)).strip() for t in thinking]
    return rest.strip(), "\n".join(t for t in plain if t) or None


def declines(answer: str) -> bool:
    """Whether an answer without the form that was asked for begins by declining.

    Args:
        answer: The answer without its thinking.
    """
    return _REFUSAL.search(answer[:600]) is not None


def parse_object(text: str, required: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object in a model's answer.

    Args:
        text: The answer, with or without thinking, fences and prose.
        required: Fields that must be there and be non-empty text.

    Returns:
        The object, other fields included, with NUL and lone surrogates replaced by U+FFFD.

    Raises:
        ParseFailure: There is no such object; `reason` says of what kind the answer is.
    """
    answer, _ = strip_thinking(text)
    if not answer:
        raise ParseFailure("empty", "no text outside the thinking")
    value = _strict(answer)
    if not isinstance(value, dict):
        objects = _objects(answer[-_LONGEST:])
        fitting = [o for o in objects if all(field in o for field in required)]
        if not objects:
            kind = "refused" if declines(answer) else "no-object"
            raise ParseFailure(kind, _short(answer))
        value = (fitting or objects)[-1]
    for field in required:
        if field not in value:
            raise ParseFailure("missing-field", f"{field!r} is not in {sorted(value)}")
        if not isinstance(value[field], str) or not value[field].strip():
            raise ParseFailure("wrong-type", f"{field!r} must be non-empty text")
    return value


def answer_object(answer: ChatAnswer, required: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object of an answer that may be taken: no error, not cut, not empty.

    Args:
        answer: An answer of a client.
        required: As for :func:`parse_object`.

    Raises:
        ParseFailure: The call failed, the answer was cut, filtered or empty, or it has no object.
    """
    if answer.error is not None:
        raise ParseFailure(answer.error_kind or "error", answer.error)
    if answer.truncated:
        raise ParseFailure("truncated", "the answer was cut at its token limit")
    if not answer.text:
        raise ParseFailure("empty", "the answer is empty")
    if not answer.usable:
        raise ParseFailure("refused", f"finish reason {answer.finish_reason!r}")
    return parse_object(answer.text, required)


def _strict(text: str) -> Any:
    try:
        return clean_metadata(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost complete `{...}` of the text that reads as an object, in order."""
    found: list[dict[str, Any]] = []
    position = text.find("{")
    steps = 0
    while position >= 0 and steps < _MOST_STEPS:
        end = _closing(text, position)
        steps += (len(text) if end is None else end + 1) - position
        value = None if end is None else _tolerant(text[position : end + 1])
        if isinstance(value, dict) and end is not None:
            found.append(value)
            position = text.find("{", end + 1)
        else:
            position = text.find("{", position + 1)
    return found


def _closing(text: str, start: int) -> int | None:
    """Where the brace at `start` is closed, strings respected; None if it is not."""
    depth, quoted, escaped = 0, False, False
    for index in range(start, len(text)):
        letter = text[index]
        if quoted:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == '"':
                quoted = False
        elif letter == '"':
            quoted = True
        elif letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return index
    return None


def _tolerant(text: str) -> Any:
    for candidate in (text, _without_commas(text)):
        try:
            return clean_metadata(json.loads(candidate, strict=False))
        except (ValueError, RecursionError):
            continue
    return None


def _without_commas(text: str) -> str:
    """`text` without trailing commas, those inside strings left alone."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text, flags=re.DOTALL)
    joined = "\x00".join(p for p in parts[::2])
    plain = _TRAILING_COMMA.sub(r"\1", joined).split("\x00")
    if len(plain) != len(parts[::2]):
        return text
    merged: list[str] = []
    for index, piece in enumerate(plain):
        merged.append(piece)
        if 2 * index + 1 < len(parts):
            merged.append(parts[2 * index + 1])
    return "".join(merged)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 120 else flat[:117] + "..."


def schema_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """The JSON schema of an object of text fields: name -> description."""
    return {
        "type": "object",
        "properties": {n: {"type": "string", "description": d} for n, d in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }

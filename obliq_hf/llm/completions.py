"""The OpenAI chat-completion form: a request as a body, and a reply as an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from obliq_hf.llm.chat import ChatAnswer
from obliq_hf.llm.parsing import strip_thinking
from obliq_hf.llm.retries import Fault
from obliq_hf.records import clean_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.llm.chat import ChatRequest

__all__ = ["STRUCTURED", "completion_body", "prompt_bound", "read_completion", "tokens_told"]

_TEMPLATE_TOKENS = 128
"""What chat templates add by themselves: a system text of their own, the opening of the answer."""

_MESSAGE_TOKENS = 8
"""What chat templates put around a message: its role and its marks."""

_CUT = ("max_tokens", "max_length", "model_length")
"""Other servers' words for `length`."""

STRUCTURED = ("response_format", "structured_outputs", "none")
"""Ways to ask for an answer of a given form: the standard one, vLLM's own, not at all."""


def completion_body(request: ChatRequest, *, structured: str = "response_format") -> dict[str, Any]:
    """The body of a chat-completion request, without the model's name and without empty fields.

    Contents are made encodable, as texts from outside are.

    Args:
        request: The request.
        structured: One of :data:`STRUCTURED`.
    """
    body: dict[str, Any] = {
        "messages": [
            {"role": m["role"], "content": clean_metadata(m["content"])} for m in request.messages
        ],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
    }
    schema = None if request.schema is None else dict(request.schema)
    choices = None if request.choices is None else list(request.choices)
    if structured == "structured_outputs" and (schema or choices):
        body["structured_outputs"] = {"json": schema} if schema else {"choice": choices}
    elif structured == "response_format" and (schema or choices):
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": schema or _choice_schema(choices or []),
                "strict": True,
            },
        }
    optional = {
        "top_p": request.top_p,
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "logprobs": True if request.logprobs is not None else None,
        "top_logprobs": request.logprobs,
    }
    return {**body, **{name: value for name, value in optional.items() if value is not None}}


def _choice_schema(choices: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": choices}},
        "required": ["choice"],
        "additionalProperties": False,
    }


def prompt_bound(request: ChatRequest) -> int:
    """Most tokens that the prompt can have, for reserving budget.

    A token of a byte-level tokenizer stands for at least one byte, so there are no more tokens
    than bytes, however rare the text; digits often take one each. The form that is asked for
    counts too, since some servers write it into the prompt, and so does what a chat template adds.
    """
    told = [m["content"] for m in request.messages]
    form = request.schema or (None if request.choices is None else list(request.choices))
    if form is not None:
        told.append(json.dumps(form, default=dict))
    size = sum(len(clean_metadata(text).encode()) for text in told)
    return size + _MESSAGE_TOKENS * len(request.messages) + _TEMPLATE_TOKENS


def read_completion(
    request: ChatRequest, output: Mapping[str, Any]
) -> tuple[ChatAnswer | None, tuple[int, int], Fault | None]:
    """Read a chat completion.

    Args:
        request: What was asked.
        output: The body of the reply.

    Returns:
        The answer or None; prompt and completion tokens; the fault for which there is no answer.
    """
    prompt, completion = tokens_told(output)
    paid = (prompt or 0, completion or 0)
    choices = output.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None, paid, Fault("malformed", "the reply has no choices")
    choice = choices[0]
    message = choice.get("message") or {}
    content = message.get("content")
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    text, inline = strip_thinking(content) if isinstance(content, str) else ("", None)
    thinking = "\n".join(part for part in (reasoning, inline) if part) or None
    finish = str(choice.get("finish_reason") or "stop").lower()
    finish = "length" if finish in _CUT else finish
    if not text and finish not in ("length", "content_filter"):
        return (
            None,
            paid,
            Fault("empty", "the reply has no text", finish_reason=finish, thinking=thinking),
        )
    if request.choices is not None:
        text = _unwrap_choice(text, request.choices)
    return (
        ChatAnswer(
            id=request.id,
            text=text or None,
            thinking=thinking,
            finish_reason=finish,
            logprobs=_logprobs(choice),
        ),
        paid,
        None,
    )


def tokens_told(output: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Prompt and completion tokens by the reply's `usage`; None where it does not say."""
    usage = output.get("usage")
    values = [
        usage.get(name) if isinstance(usage, dict) else None
        for name in ("prompt_tokens", "completion_tokens")
    ]
    prompt, completion = (v if isinstance(v, int) and v >= 0 else None for v in values)
    return prompt, completion


def _unwrap_choice(text: str, choices: Sequence[str]) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    chosen = value.get("choice") if isinstance(value, dict) else None
    return chosen if isinstance(chosen, str) and chosen in choices else text


def _logprobs(choice: Mapping[str, Any]) -> tuple[dict[str, Any], ...] | None:
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        return None
    return tuple(
        {
            "token": clean_metadata(entry.get("token")),
            "logprob": entry.get("logprob"),
            "top": [
                [clean_metadata(t.get("token")), t.get("logprob")]
                for t in entry.get("top_logprobs") or []
            ],
        }
        for entry in content
    )

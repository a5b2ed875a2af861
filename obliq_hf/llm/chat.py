"""The values and seams of talking to a language model: requests, answers, sessions, clients.

A :class:`ChatClient` is anything with a model name that can open a :class:`ChatSession`. A session
takes requests as they come up (`submit`) and gives answers as they arrive, in any order (`wait`),
matched by the request's id; every request gets exactly one answer. Most callers need neither: they
hand a list to :meth:`SessionClient.complete_all`, or write what they want as a generator and leave
the scheduling to :func:`obliq_hf.llm.flows.run_flows`.

    >>> from obliq_hf.llm import ChatRequest, EndpointClient, CachedClient
    >>> client = CachedClient(EndpointClient("http://127.0.0.1:8000/v1", model="m"), "llm.sqlite")
    >>> request = ChatRequest(id="q1", messages=[{"role": "user", "content": "Hello"}])
    >>> answer = client.complete_all([request])["q1"]      # doctest: +SKIP
    >>> answer.usable, answer.text, answer.error           # doctest: +SKIP
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from obliq_hf.errors import ObliqError
from obliq_hf.records import clean_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from obliq_hf.llm.accounting import Accounting

__all__ = [
    "BatchPending",
    "ChatAnswer",
    "ChatClient",
    "ChatRequest",
    "ChatSession",
    "LLMError",
    "SessionClient",
    "request_key",
]

KEY_VERSION = 1
"""Part of every cache key; raised only when the meaning of a stored answer changes."""

_ROLES = ("system", "user", "assistant")
_INCOMPLETE = frozenset(
    ("length", "content_filter", "tool_calls", "function_call", "error", "abort", "cancelled")
)


class LLMError(ObliqError):
    """The model cannot be used at all: wrong address, key or name, or it stopped answering.

    Everything answered before is in the cache, so the same command can be run again.
    """


class BatchPending(LLMError):
    """Requests stand in a batch file and wait for their answers; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question to a chat model.

    Args:
        id: Unique within one session; the answer carries it. Not part of the cache key.
        messages: `{"role": "system" | "user" | "assistant", "content": str}`, in order.
        max_tokens: Largest number of tokens of the answer, thinking included.
        temperature: 0 is greedy.
        top_p: Nucleus sampling; None leaves it to the server.
        seed: Passed to the server and part of the cache key: another seed is another request.
        schema: JSON schema the answer must satisfy, enforced where the server can.
        choices: The answer must be one of these strings; excludes `schema`.
        stop: Strings that end the answer.
        logprobs: Number of alternatives a token whose log-probabilities are returned; None: none.
        purpose: A label for the accounting (`"stage_a"`); not part of the cache key.

    Raises:
        ObliqError: A field is not of the stated kind; the message names the request.
    """

    id: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int = 1024
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    schema: Mapping[str, Any] | None = None
    choices: Sequence[str] | None = None
    stop: Sequence[str] = ()
    logprobs: int | None = None
    purpose: str = "chat"

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ObliqError(f"a request's id must be a non-empty string, not {self.id!r}")
        if isinstance(self.messages, str) or not self.messages:
            raise ObliqError(f"request {self.id!r}: messages must be a non-empty list of messages")
        for number, message in enumerate(self.messages):
            role, content = message.get("role"), message.get("content")
            if role not in _ROLES:
                raise ObliqError(
                    f"request {self.id!r}, message {number}: role is {role!r}; valid: "
                    + ", ".join(_ROLES)
                )
            if not isinstance(content, str):
                raise ObliqError(
                    f"request {self.id!r}, message {number}: content must be text, not "
                    f"{type(content).__name__}"
                )
        if self.max_tokens < 1:
            raise ObliqError(f"request {self.id!r}: max_tokens is {self.max_tokens}; at least 1")
        if not 0 <= self.temperature <= 2:
            raise ObliqError(f"request {self.id!r}: temperature {self.temperature} is not in 0..2")
        if self.schema is not None and self.choices is not None:
            raise ObliqError(f"request {self.id!r}: give schema or choices, not both")
        if isinstance(self.stop, str):
            raise ObliqError(f"request {self.id!r}: stop must be a list of strings")


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What became of one request.

    Its words are made encodable as those of a corpus are: NUL and lone surrogates, which JSON
    allows, become U+FFFD wherever the answer comes from, a cache included.

    Attributes:
        id: The request's id.
        text: The answer without its thinking; None where there is none.
        thinking: The model's reasoning, from its own field or from a leading thinking block.
        finish_reason: `"stop"`, `"length"` (cut: never to be taken for an answer), or the
            server's own word.
        prompt_tokens: Tokens paid for on the way in, over all attempts.
        completion_tokens: Tokens paid for on the way out, over all attempts.
        seconds: Time from being sent to being answered, waits between attempts included.
        error: `"kind: detail"` of what went wrong, None after a success. Kinds: `http-<status>`,
            `timeout`, `connection`, `malformed`, `empty`, `too-long`, `budget`, `engine`,
            `missing`, `pending`.
        cached: Answered from the cache.
        attempts: Calls made; 0 when cached.
        logprobs: A token a row: `{"token", "logprob", "top": [[token, logprob], ...]}`.
    """

    id: str
    text: str | None = None
    thinking: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None
    cached: bool = False
    attempts: int = 0
    logprobs: tuple[dict[str, Any], ...] | None = field(default=None)

    def __post_init__(self) -> None:
        for name in ("text", "thinking", "finish_reason", "error"):
            object.__setattr__(self, name, clean_metadata(getattr(self, name)))

    @property
    def usable(self) -> bool:
        """Whether there is a complete text: no error, not empty, not cut, not filtered."""
        return self.error is None and bool(self.text) and self.finish_reason not in _INCOMPLETE

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut at `max_tokens`."""
        return self.finish_reason == "length"

    @property
    def error_kind(self) -> str | None:
        """The part of `error` before the colon."""
        return None if self.error is None else self.error.split(":", 1)[0]


@runtime_checkable
class ChatSession(Protocol):
    """A conversation with a client: requests in, answers out as they arrive. Not thread-safe."""

    @property
    def pending(self) -> int:
        """Requests submitted whose answers have not been handed out yet."""

    @property
    def capacity(self) -> int:
        """How many pending requests keep the engine busy; submitting more only takes memory."""

    def submit(self, request: ChatRequest) -> None:
        """Hand over a request; returns at once where the engine works on its own."""

    def wait(self) -> list[ChatAnswer]:
        """Block until at least one answer is there and return all that are; [] if none pends."""

    def close(self) -> None:
        """Give up what is still pending, keeping every answer that was paid for."""


@runtime_checkable
class ChatClient(Protocol):
    """A language model that answers chat requests; subclass :class:`SessionClient` to write one."""

    model: str
    revision: str | None
    accounting: Accounting

    @property
    def identity(self) -> dict[str, Any]:
        """What, beside the request, decides an answer: model, revision, fixed extra parameters."""

    def open(self) -> ChatSession:
        """Start a session."""

    def complete(self, requests: Iterable[ChatRequest]) -> Iterator[ChatAnswer]:
        """Answer requests in any order; see :meth:`SessionClient.complete`."""

    def complete_all(self, requests: Sequence[ChatRequest]) -> dict[str, ChatAnswer]:
        """Answer all requests; see :meth:`SessionClient.complete_all`."""

    def close(self) -> None:
        """Release connections and engines."""


class SessionClient(abc.ABC):
    """Base of the clients: everything follows from :meth:`open`."""

    model: str
    revision: str | None
    accounting: Accounting

    @property
    def identity(self) -> dict[str, Any]:
        """What, beside the request, decides an answer."""
        return {"model": self.model, "revision": self.revision}

    @abc.abstractmethod
    def open(self) -> ChatSession:
        """Start a session."""

    def complete(self, requests: Iterable[ChatRequest]) -> Iterator[ChatAnswer]:
        """Answer requests as they finish, reading the iterable only as fast as they are sent.

        Args:
            requests: Requests with ids unique within this call; two ids with equal messages are
                two requests and give two answers.

        Yields:
            Exactly one answer a request, in any order.

        Raises:
            ObliqError: Two requests share an id.
            LLMError: The model cannot be used at all.
            BatchPending: Some requests stand in a batch file and wait for their answers.
        """
        source = iter(requests)
        seen: set[str] = set()
        waiting = deque[ChatAnswer]()
        pending = ""
        session = self.open()
        try:
            exhausted = False
            while True:
                while not exhausted and session.pending < session.capacity:
                    request = next(source, None)
                    if request is None:
                        exhausted = True
                        break
                    if request.id in seen:
                        raise ObliqError(f"two requests have the id {request.id!r}")
                    seen.add(request.id)
                    session.submit(request)
                if not session.pending:
                    break
                for answer in session.wait():
                    if answer.error_kind == "pending":
                        pending = answer.error or ""
                    else:
                        waiting.append(answer)
                while waiting:
                    yield waiting.popleft()
        finally:
            session.close()
        if pending:
            raise BatchPending(pending.partition(": ")[2])

    def complete_all(self, requests: Sequence[ChatRequest]) -> dict[str, ChatAnswer]:
        """Answer all requests and return the answers by id, in the order asked.

        Args:
            requests: Requests with ids unique within this call.

        Returns:
            Request id -> answer; failures are answers with an `error`.
        """
        answers = {answer.id: answer for answer in self.complete(requests)}
        return {request.id: answers[request.id] for request in requests}

    def close(self) -> None:  # noqa: B027 - nothing to release by default
        """Release connections and engines."""

    def __enter__(self) -> SessionClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request_key(identity: Mapping[str, Any], request: ChatRequest) -> str:
    """The cache key of a request: SHA-256 over everything that decides its answer.

    Args:
        identity: :attr:`ChatClient.identity`.
        request: The request; its id and purpose do not count.

    Returns:
        64 hexadecimal digits.
    """
    parts = (
        KEY_VERSION,
        identity,
        [(m["role"], m["content"]) for m in request.messages],
        request.max_tokens,
        float(request.temperature),
        request.top_p,
        request.seed,
        request.schema,
        None if request.choices is None else list(request.choices),
        list(request.stop),
        request.logprobs,
    )
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode("ascii")).hexdigest()

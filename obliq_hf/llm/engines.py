"""Clients that run a model in this process: batches, and what to do when the engine fails.

An engine answers a batch all at once or not at all. Outputs are checked against the requests they
are for; after a fault the engine is built anew, since one that failed may hand out old outputs, and
the batch is run again in halves until the request that breaks it stands alone.
"""

from __future__ import annotations

import abc
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.llm.accounting import Accounting
from obliq_hf.llm.chat import ChatAnswer, LLMError, SessionClient
from obliq_hf.llm.parsing import strip_thinking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obliq_hf.llm.chat import ChatRequest, ChatSession

__all__ = ["EngineClient", "EngineFault", "EngineOutput"]

logger = logging.getLogger(__name__)


class EngineFault(Exception):
    """The engine failed on a batch; raised by :meth:`EngineClient.generate`."""


@dataclass(frozen=True)
class EngineOutput:
    """What an engine made of one request.

    Attributes:
        text: The text, thinking included.
        finish_reason: `stop` or `length`.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        logprobs: As in :class:`obliq_hf.llm.ChatAnswer`.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[dict[str, Any], ...] | None = None


class EngineClient(SessionClient):
    """Base of the clients with an engine of their own.

    Args:
        model: The model's name, part of the cache key.
        revision: Its revision, likewise.
        batch: Requests given to the engine at a time.
        most_faults: Faults of the engine, one after another, before giving up.
    """

    def __init__(
        self, *, model: str, revision: str | None = None, batch: int = 8, most_faults: int = 25
    ) -> None:
        self.model = model
        self.revision = revision
        self.batch = batch
        self.most_faults = most_faults
        self.accounting = Accounting()
        self._built = False
        self._faults = 0

    @abc.abstractmethod
    def build(self) -> None:
        """Load the model; called before the first batch and after a fault."""

    @abc.abstractmethod
    def release(self) -> None:
        """Drop the model and what it still holds."""

    @abc.abstractmethod
    def too_long(self, request: ChatRequest) -> str | None:
        """Why a request does not fit the model, or None."""

    @abc.abstractmethod
    def generate(self, requests: Sequence[ChatRequest]) -> list[EngineOutput]:
        """Answer a batch, one output a request in their order.

        Raises:
            EngineFault: The engine failed, or its outputs are not those of these requests.
        """

    def open(self) -> ChatSession:
        """Start a session."""
        return _EngineSession(self)

    def close(self) -> None:
        """Drop the model."""
        if self._built:
            self.release()
            self._built = False

    def _ready(self) -> None:
        if not self._built:
            self.build()
            self._built = True

    def answer_batch(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer]:
        """Answer requests, each for itself: none fails for the sake of another."""
        self._ready()
        answers: list[ChatAnswer] = []
        fitting: list[ChatRequest] = []
        for request in requests:
            reason = self.too_long(request)
            if reason is None:
                fitting.append(request)
            else:
                answers.append(ChatAnswer(request.id, error=f"too-long: {reason}"))
        return answers + (self._halving(fitting) if fitting else [])

    def _halving(self, requests: Sequence[ChatRequest], again: bool = True) -> list[ChatAnswer]:
        started = time.monotonic()
        try:
            self._ready()
            outputs = self.generate(requests)
            if len(outputs) != len(requests):
                raise EngineFault(f"{len(outputs)} outputs for {len(requests)} requests")
        except EngineFault as fault:
            logger.warning(
                "%s: a batch of %d failed (%s); the engine is built anew",
                self.model,
                len(requests),
                fault,
            )
            self._rebuild(fault)
            if len(requests) == 1:
                if again:
                    return self._halving(requests, again=False)
                return [ChatAnswer(requests[0].id, error=f"engine: {fault}", attempts=2)]
            middle = len(requests) // 2
            return self._halving(requests[:middle]) + self._halving(requests[middle:])
        self._faults = 0
        seconds = (time.monotonic() - started) / len(requests)
        return [_as_answer(r, o, seconds) for r, o in zip(requests, outputs, strict=True)]

    def _rebuild(self, fault: EngineFault) -> None:
        self._faults += 1
        if self._faults > self.most_faults:
            raise LLMError(
                f"{self.model}: the engine failed {self._faults} times in a row, last: {fault}"
            )
        self.close()


def _as_answer(request: ChatRequest, output: EngineOutput, seconds: float) -> ChatAnswer:
    text, thinking = strip_thinking(output.text)
    empty = not text and output.finish_reason != "length"
    return ChatAnswer(
        id=request.id,
        text=text or None,
        thinking=thinking,
        finish_reason=output.finish_reason,
        prompt_tokens=output.prompt_tokens,
        completion_tokens=output.completion_tokens,
        seconds=seconds,
        attempts=1,
        error="empty: the model wrote nothing" if empty else None,
        logprobs=output.logprobs,
    )


class _EngineSession:
    def __init__(self, owner: EngineClient) -> None:
        self._owner = owner
        self._waiting: list[ChatRequest] = []

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def capacity(self) -> int:
        return 2 * self._owner.batch

    def submit(self, request: ChatRequest) -> None:
        self._waiting.append(request)

    def wait(self) -> list[ChatAnswer]:
        batch = self._waiting[: self._owner.batch]
        if not batch:
            return []
        answers = self._owner.answer_batch(batch)
        del self._waiting[: len(batch)]
        asked = {request.id: request for request in batch}
        for answer in answers:
            self._owner.accounting.record(asked[answer.id], answer)
        return answers

    def close(self) -> None:
        self._waiting.clear()

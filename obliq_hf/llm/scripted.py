"""A client whose answers come from a function: for trying a pipeline out without a model.

>>> from obliq_hf.llm import ChatRequest
>>> client = ScriptedClient(lambda request: request.messages[-1]["content"].upper())
>>> client.complete_all([ChatRequest("a", [{"role": "user", "content": "hi"}])])["a"].text
'HI'
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from obliq_hf.llm.accounting import Accounting
from obliq_hf.llm.chat import ChatAnswer, SessionClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from obliq_hf.llm.chat import ChatRequest, ChatSession

__all__ = ["ScriptedClient"]


class ScriptedClient(SessionClient):
    """Answers every request with what a function returns.

    Args:
        script: Request -> the text of the answer, or a whole answer.
        model: Name of the model, part of the cache key.
        revision: Its revision.
        batch: Requests answered at a time.
    """

    def __init__(
        self,
        script: Callable[[ChatRequest], str | ChatAnswer],
        *,
        model: str = "scripted",
        revision: str | None = None,
        batch: int = 64,
    ) -> None:
        self.script = script
        self.model = model
        self.revision = revision
        self.batch = batch
        self.accounting = Accounting()

    def open(self) -> ChatSession:
        """Start a session."""
        return _ScriptedSession(self)


class _ScriptedSession:
    def __init__(self, owner: ScriptedClient) -> None:
        self._owner = owner
        self._waiting: list[ChatRequest] = []

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def capacity(self) -> int:
        return self._owner.batch

    def submit(self, request: ChatRequest) -> None:
        self._waiting.append(request)

    def wait(self) -> list[ChatAnswer]:
        batch = self._waiting[: self._owner.batch]
        del self._waiting[: self._owner.batch]
        answers = []
        for request in batch:
            said = self._owner.script(request)
            if isinstance(said, str):
                said = ChatAnswer(
                    request.id,
                    text=said,
                    finish_reason="stop",
                    prompt_tokens=sum(len(m["content"].split()) for m in request.messages),
                    completion_tokens=len(said.split()),
                )
            answer = replace(said, id=request.id, attempts=max(1, said.attempts))
            self._owner.accounting.record(request, answer)
            answers.append(answer)
        return answers

    def close(self) -> None:
        self._waiting.clear()

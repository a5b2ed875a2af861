"""A client that answers from a cache and asks another client only what is new."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.llm.accounting import Accounting
from obliq_hf.llm.cache import AnswerCache, decode_answer
from obliq_hf.llm.chat import ChatAnswer, SessionClient, request_key

if TYPE_CHECKING:
    from pathlib import Path

    from obliq_hf.llm.chat import ChatClient, ChatRequest, ChatSession

__all__ = ["CachedClient"]

logger = logging.getLogger(__name__)


class CachedClient(SessionClient):
    """A client that answers from a cache and asks another client for the rest.

    Equal requests that are under way at the same time are asked once.

    Args:
        client: Whom to ask.
        cache: An :class:`AnswerCache` or the path of one.
        readonly: Answer from the cache, never store.
    """

    def __init__(
        self, client: ChatClient, cache: AnswerCache | str | Path, *, readonly: bool = False
    ) -> None:
        self.client = client
        self.cache = cache if isinstance(cache, AnswerCache) else AnswerCache(cache)
        self.readonly = readonly
        self.model = client.model
        self.revision = client.revision
        self.accounting = Accounting(client.accounting.price)

    @property
    def identity(self) -> dict[str, Any]:
        """That of the client behind the cache."""
        return self.client.identity

    def open(self) -> ChatSession:
        """Start a session."""
        return _CachedSession(self)

    def close(self) -> None:
        """Close the client behind and the cache file."""
        self.client.close()
        self.cache.close()


class _CachedSession:
    """Collects submissions, looks them up together, and passes on what is not there."""

    def __init__(self, owner: CachedClient) -> None:
        self._owner = owner
        self._inner = owner.client.open()
        self._identity = owner.client.identity
        self._new: list[tuple[str, ChatRequest]] = []
        self._ready = deque[ChatAnswer]()
        self._asked: dict[str, str] = {}  # id of a request under way -> its key
        self._waiting: dict[str, list[ChatRequest]] = {}  # key -> all requests that want it
        self._open = 0
        self._unsaved: list[tuple[str, ChatAnswer]] = []

    @property
    def pending(self) -> int:
        return len(self._new) + len(self._ready) + self._open

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    def submit(self, request: ChatRequest) -> None:
        self._new.append((request_key(self._identity, request), request))

    def _look_up(self) -> None:
        new, self._new = self._new, []
        found = self._owner.cache.get_many(list({key for key, _ in new}))
        for key, request in new:
            body = found.get(key)
            if body is not None:
                answer = decode_answer(body, request.id)
                self._owner.accounting.record(request, answer)
                self._ready.append(answer)
                continue
            self._open += 1
            if key in self._waiting:
                self._waiting[key].append(request)
            else:
                self._waiting[key] = [request]
                self._asked[request.id] = key
                self._inner.submit(request)

    def wait(self) -> list[ChatAnswer]:
        if self._new:
            self._look_up()
        if not self._ready:
            if not self._waiting:
                return []
            self._take(self._inner.wait())
        ready = list(self._ready)
        self._ready.clear()
        return ready

    def _take(self, answers: list[ChatAnswer]) -> None:
        """Store fresh answers, then hand them to every request that wants them."""
        fresh = [(self._asked[answer.id], answer) for answer in answers]
        final: dict[str, str] = {}
        if not self._owner.readonly:
            self._unsaved += [pair for pair in fresh if pair[1].error is None]
            if self._unsaved:
                if not self._owner.cache.put_many(self._unsaved):
                    final = self._owner.cache.get_many([key for key, _ in self._unsaved])
                self._unsaved = []
        for key, answer in fresh:
            del self._asked[answer.id]
            for request in self._waiting.pop(key):
                self._open -= 1
                if request.id == answer.id:
                    given = self._first(final.get(key), answer)
                elif answer.error is None:
                    given = replace(
                        self._first(final.get(key), answer),
                        id=request.id,
                        cached=True,
                        attempts=0,
                        seconds=0.0,
                    )
                else:
                    given = replace(
                        answer,
                        id=request.id,
                        attempts=0,
                        prompt_tokens=0,
                        completion_tokens=0,
                        seconds=0.0,
                    )
                self._owner.accounting.record(request, given)
                self._ready.append(given)

    @staticmethod
    def _first(stored: str | None, answer: ChatAnswer) -> ChatAnswer:
        """The answer as stored: that of another process if it was first."""
        if stored is None:
            return answer
        kept = decode_answer(stored, answer.id)
        return replace(
            answer,
            text=kept.text,
            thinking=kept.thinking,
            finish_reason=kept.finish_reason,
            logprobs=kept.logprobs,
        )

    def close(self) -> None:
        """Store every answer that was paid for and not handed out, then close the client behind."""
        try:
            rescue = getattr(self._inner, "drain", None)
            answers: list[ChatAnswer] = rescue() if rescue is not None else []
            if not self._owner.readonly:
                self._unsaved += [
                    (self._asked[a.id], a)
                    for a in answers
                    if a.error is None and a.id in self._asked
                ]
                self._save_or_tell()
        finally:
            self._inner.close()

    def _save_or_tell(self) -> None:
        unsaved, self._unsaved = self._unsaved, []
        try:
            self._owner.cache.put_many(unsaved)
        except ObliqError as error:
            logger.error("some of %d answers could not be stored: %s", len(unsaved), error)

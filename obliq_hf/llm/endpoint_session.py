"""One stream of requests to an endpoint: handed to its loop, answered in whatever order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from typing import TYPE_CHECKING

from obliq_hf.llm.chat import ChatAnswer

if TYPE_CHECKING:
    from obliq_hf.llm.chat import ChatRequest
    from obliq_hf.llm.endpoint import EndpointClient

__all__ = ["EndpointSession"]


class EndpointSession:
    """Hands requests to the client's loop and collects answers from it.

    An answer is kept until the caller comes back for more, so that an interrupt, wherever it
    strikes, loses none that was paid for: ``drain`` gives them again.

    Args:
        owner: The client whose loop asks.
    """

    def __init__(self, owner: EndpointClient) -> None:
        self._owner = owner
        self._done: queue.SimpleQueue[tuple[ChatRequest, ChatAnswer | BaseException]] = (
            queue.SimpleQueue()
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._unclaimed: dict[str, ChatAnswer] = {}  # until the caller comes back for more
        self._handed: list[str] = []
        self._error: BaseException | None = None
        self._pending = 0

    @property
    def pending(self) -> int:
        """Requests handed in and not yet answered."""
        return self._pending

    @property
    def capacity(self) -> int:
        """How many may be pending before the caller should wait."""
        return 2 * self._owner.concurrency

    def submit(self, request: ChatRequest) -> None:
        """Hand a request in; it goes out as soon as a place is free."""
        loop = self._owner._start()
        self._pending += 1
        loop.call_soon_threadsafe(self._launch, loop, request)

    def _launch(self, loop: asyncio.AbstractEventLoop, request: ChatRequest) -> None:
        task = loop.create_task(self._work(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, request: ChatRequest) -> None:
        try:
            answer = self._unclaimed[request.id] = await self._owner._answer(request)
            self._done.put((request, answer))
        except BaseException as error:
            self._done.put((request, error))
            if isinstance(error, asyncio.CancelledError):
                raise

    def wait(self) -> list[ChatAnswer]:
        """The answers that came since; waits for one, and gives none where none is pending.

        Raises:
            LLMError: The endpoint refuses everything, or has been silent too long.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        for handed in self._handed:
            self._unclaimed.pop(handed, None)
        self._handed = []
        if not self._pending:
            return []
        while True:
            try:
                # a time limit keeps Ctrl-C working on every system
                items = [self._done.get(timeout=1.0)]
                break
            except queue.Empty:
                continue
        answers = self._collect(items)
        if not answers and self._error is not None:
            error, self._error = self._error, None
            raise error
        self._handed = [answer.id for answer in answers]
        return answers

    def _collect(
        self, items: list[tuple[ChatRequest, ChatAnswer | BaseException]]
    ) -> list[ChatAnswer]:
        while True:
            try:
                items.append(self._done.get_nowait())
            except queue.Empty:
                break
        answers = []
        for request, item in items:
            self._pending -= 1
            if isinstance(item, ChatAnswer):
                self._owner.accounting.record(request, item)
                answers.append(item)
            else:
                self._error = item
        return answers

    def drain(self) -> list[ChatAnswer]:
        """Stop sending, and wait for calls under way, which are paid for, within a time limit.

        Returns:
            Their answers, and those that an interrupt kept from being handed out or used.
        """
        loop = self._owner._loop
        if loop is None:
            return []
        if self._pending:
            settled = asyncio.run_coroutine_threadsafe(self._settle(), loop)
            try:
                settled.result(self._owner.drain_seconds)
            except concurrent.futures.TimeoutError:
                settled.cancel()
            self._collect([])
        return list(self._unclaimed.values())

    async def _settle(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            if task not in self._owner._calling:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Give up what is pending."""
        loop = self._owner._loop
        if loop is not None and self._pending:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

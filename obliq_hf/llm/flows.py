"""Many small conversations at once: each written as a generator, all sharing one session.

A flow yields lists of requests and is sent their answers; what it returns is its result. Flows
advance independently: the second request of one goes out as soon as its first is answered, however
far the others are. At most a stated number of flows is open at once, so the source of the flows is
read as fast as they finish and memory does not grow with their number.

    def ask_twice(text):
        answers = yield [ChatRequest(id="a", messages=[{"role": "user", "content": text}])]
        answers = yield [ChatRequest(id="b", messages=... answers["a"].text ...)]
        return answers["b"].text

    for key, result in run_flows(client, ((t, ask_twice(t)) for t in texts)): ...

Ids need be unique within one list only: the scheduler gives requests ids of its own and maps the
answers back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from obliq_hf.errors import ObliqError
from obliq_hf.llm.chat import BatchPending, ChatAnswer, ChatRequest

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable, Iterable, Iterator

    from obliq_hf.llm.chat import ChatClient, ChatSession

__all__ = ["Flow", "run_flow", "run_flows"]

Result = TypeVar("Result")
Key = TypeVar("Key", bound="Hashable")
if TYPE_CHECKING:
    Flow = Generator[list[ChatRequest], dict[str, ChatAnswer], Result]
else:
    Flow = "Flow"


@dataclass(eq=False)
class _Open:
    key: Any
    flow: Any
    number: int
    outstanding: int = 0
    answers: dict[str, ChatAnswer] = field(default_factory=dict)


def run_flows(
    client: ChatClient,
    flows: Iterable[tuple[Key, Flow[Result]]],
    *,
    window: int | None = None,
    progress: str | None = None,
    total: int | None = None,
) -> Iterator[tuple[Key, Result]]:
    """Run flows together and yield their results as they finish, in any order.

    Args:
        client: Whom to ask.
        flows: Pairs of a key of the caller's and a generator; read lazily.
        window: Most flows open at once; None takes the capacity of the client's session.
        progress: Label of a progress bar; None shows none.
        total: Number of flows, for the progress bar.

    Yields:
        Key and result of each flow.

    Raises:
        BatchPending: The client writes batch files and some flows wait for answers; all flows have
            gone as far as they can.
        LLMError: The model cannot be used at all.
        ObliqError: A flow yields two requests with one id.
    """
    source = iter(flows)
    session = client.open()
    bar = _bar(progress, total, client)
    opened: dict[str, tuple[_Open, str]] = {}  # id given to a request -> its flow, its own id
    running = 0
    parked: set[int] = set()
    started = 0
    last_pending = ""
    results = deque[tuple[Key, Result]]()

    def advance(state: _Open, answers: dict[str, ChatAnswer] | None) -> bool:
        """Send answers into a flow; True when it has ended."""
        try:
            while True:
                requests = next(state.flow) if answers is None else state.flow.send(answers)
                answers = {}
                if requests:
                    break
        except StopIteration as stop:
            results.append((state.key, stop.value))
            bar.update()
            return True
        state.answers = {}
        state.outstanding = len(requests)
        ids = {request.id for request in requests}
        if len(ids) != len(requests):
            raise ObliqError(f"flow {state.key!r} asks two requests with one id")
        for request in requests:
            given = f"{state.number}/{request.id}"
            opened[given] = (state, request.id)
            session.submit(replace(request, id=given))
        return False

    try:
        limit = max(1, window if window is not None else session.capacity)
        exhausted = False
        while True:
            while not exhausted and running < limit:
                pair = next(source, None)
                if pair is None:
                    exhausted = True
                    break
                started += 1
                state = _Open(pair[0], pair[1], started)
                running += not advance(state, None)
                if len(results) >= limit:
                    break
            while results:
                yield results.popleft()
            if not running:
                if exhausted:
                    break
                continue
            for answer in session.wait():
                state, own_id = opened.pop(answer.id)
                if answer.error_kind == "pending":
                    last_pending = answer.error or ""
                    if state.number not in parked:
                        parked.add(state.number)
                        state.flow.close()
                        running -= 1
                    continue
                if state.number in parked:
                    continue
                state.answers[own_id] = replace(answer, id=own_id)
                state.outstanding -= 1
                if not state.outstanding:
                    running -= advance(state, state.answers)
    finally:
        bar.close()
        session.close()
    if parked:
        raise BatchPending(last_pending.partition(": ")[2] or last_pending)


def run_flow(client: ChatClient, flow: Flow[Result]) -> Result:
    """Run one flow to its end and return its result."""
    ((_, result),) = list(run_flows(client, [(0, flow)]))
    return result


class _Bar:
    """A progress bar with calls, tokens and rate, or nothing at all."""

    def __init__(self, label: str | None, total: int | None, client: ChatClient) -> None:
        self._client = client
        self._bar: Any = None
        if label is not None:
            from huggingface_hub.utils import are_progress_bars_disabled
            from tqdm.auto import tqdm

            if not are_progress_bars_disabled():
                self._bar = tqdm(desc=label, total=total, disable=None, mininterval=0.5)

    def update(self) -> None:
        if self._bar is not None:
            usage = self._client.accounting.total
            self._bar.set_postfix(
                {
                    "calls": usage.calls,
                    "cached": usage.cached,
                    "failed": usage.failed,
                    "tokens": usage.prompt_tokens + usage.completion_tokens,
                },
                refresh=False,
            )
            self._bar.update()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(label: str | None, total: int | None, client: ChatClient) -> _Bar:
    return _Bar(label, total, client)


def ask_all(session: ChatSession, requests: list[ChatRequest]) -> dict[str, ChatAnswer]:
    """Submit requests to an open session and wait for all of their answers."""
    for request in requests:
        session.submit(request)
    answers: dict[str, ChatAnswer] = {}
    while len(answers) < len(requests):
        answers.update({answer.id: answer for answer in session.wait()})
    return answers

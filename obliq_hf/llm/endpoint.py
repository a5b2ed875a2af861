"""Chat models behind an OpenAI-compatible address: a vLLM server, a Hub provider, any other.

Built on :class:`huggingface_hub.AsyncInferenceClient`, so providers, routing and billing of the
Hub work as they do there. Calls run on one background loop, up to `concurrency` at once, whatever
thread or notebook the caller is in.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from obliq_hf.errors import ObliqError
from obliq_hf.llm.accounting import Accounting, Budget, Ledger, Price
from obliq_hf.llm.chat import ChatAnswer, LLMError, SessionClient
from obliq_hf.llm.completions import (
    STRUCTURED,
    completion_body,
    prompt_bound,
    read_completion,
    tokens_told,
)
from obliq_hf.llm.endpoint_session import EndpointSession
from obliq_hf.llm.retries import Fault, RetryPolicy, fault_of, spread, transport_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obliq_hf.llm.chat import ChatRequest, ChatSession

__all__ = ["API_KEY_VARIABLE", "EndpointClient"]

logger = logging.getLogger(__name__)

API_KEY_VARIABLE = "OBLIQ_LLM_API_KEY"
"""Environment variable read for the key of an endpoint when none is given."""

_ARGUMENTS = frozenset(
    (
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "logprobs",
        "top_logprobs",
        "response_format",
    )
)


class EndpointClient(SessionClient):
    """Asks a chat model over HTTP.

    Args:
        base_url: Address of an OpenAI-compatible server, with or without `/v1`; None asks the
            Hub's inference providers for `model`.
        model: The name the server knows the model by.
        revision: Commit or tag of the served weights, where known; part of the cache key.
        api_key: Key for `base_url`; None reads `OBLIQ_LLM_API_KEY`. The user's Hub token is sent
            to the Hub's providers only, never to `base_url`.
        provider: A provider of the Hub, or None for its automatic choice; only without `base_url`.
        concurrency: Most calls at once.
        timeout: Seconds before a call counts as lost.
        retry: When and how often a failed call is repeated.
        budget: Limits in calls, tokens, money; requests beyond them are answered with the error
            `budget` and calls under way are finished. A request waits where these may leave room
            for it. A call of which nobody says what it took
            (no `usage` in the reply, lost on the way) counts with its largest size.
        price: Of a million tokens, for the budget and the accounting.
        structured: How a schema is enforced: `"response_format"` (the standard), vLLM's own
            `"structured_outputs"`, or `"none"` where the server has nothing of the kind.
        extra_body: Further fields of every request's body, such as
            `{"chat_template_kwargs": {"enable_thinking": False}}`; part of the cache key.
        drain_seconds: After an interrupt, how long to wait for calls under way, which are paid
            for, before giving them up.

    Raises:
        ObliqError: The address is not an http(s) URL or carries a password or key.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str,
        revision: str | None = None,
        api_key: str | None = None,
        provider: str | None = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        retry: RetryPolicy | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
        structured: str = "response_format",
        extra_body: Mapping[str, Any] | None = None,
        drain_seconds: float = 30.0,
    ) -> None:
        if base_url is not None:
            _check_url(base_url)
            if provider is not None:
                raise ObliqError("give base_url or provider, not both")
        if not model:
            raise ObliqError("name the model the endpoint serves")
        if concurrency < 1:
            raise ObliqError(f"concurrency is {concurrency}; it must be at least 1")
        if structured not in STRUCTURED:
            raise ObliqError(f"structured is {structured!r}; valid: {', '.join(STRUCTURED)}")
        self.base_url = None if base_url is None else base_url.rstrip("/")
        self.model = model
        self.revision = revision
        self.provider = provider
        self.concurrency = concurrency
        self.timeout = timeout
        self.retry = retry or RetryPolicy()
        self.structured = structured
        self.extra_body = dict(extra_body or {})
        self.drain_seconds = drain_seconds
        self.accounting = Accounting(price)
        self._api_key = api_key or os.environ.get(API_KEY_VARIABLE) or None
        self._ledger = Ledger(budget or Budget(), self.accounting.price)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._http: Any = None
        self._slots: asyncio.Semaphore | None = None
        self._settled: asyncio.Event | None = None
        self._pause_until = 0.0
        self._last_success: float | None = None
        self._fatal: LLMError | None = None
        self._calling: set[Any] = set()

    def __repr__(self) -> str:
        return f"EndpointClient({self.base_url or self.provider or 'hub'!r}, model={self.model!r})"

    @property
    def identity(self) -> dict[str, Any]:
        """Model, revision, fixed extra parameters, and how schemas are enforced."""
        extra = {"extra_body": self.extra_body} if self.extra_body else {}
        form = {} if self.structured == "response_format" else {"structured": self.structured}
        return {"model": self.model, "revision": self.revision, **extra, **form}

    # -- life

    def open(self) -> ChatSession:
        """Start a session; the background loop starts with the first."""
        self._start()
        return EndpointSession(self)

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            from obliq_hf.llm.inference import build_client

            self._http = build_client(
                base_url=self.base_url,
                provider=self.provider,
                api_key=self._api_key,
                timeout=self.timeout,
                connections=self.concurrency,
                model=self.model,
            )
            loop = asyncio.new_event_loop()
            self._slots = asyncio.Semaphore(self.concurrency)
            self._settled = asyncio.Event()
            self._thread = threading.Thread(target=loop.run_forever, name="obliq-llm", daemon=True)
            self._thread.start()
            self._loop = loop
        return self._loop

    def close(self) -> None:
        """Close the connections and stop the background loop; a later call starts them again."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        asyncio.run_coroutine_threadsafe(self._http.close(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(timeout=10)
        loop.close()

    # -- one request

    async def _answer(self, request: ChatRequest) -> ChatAnswer:
        """Ask until there is an answer or no use in asking again."""
        started: float | None = None
        spent_in = spent_out = attempts = repeats = 0
        first_outage: float | None = None
        fault: Fault | None = None
        while True:
            assert self._slots is not None
            async with self._slots:
                reserved = (prompt_bound(request), request.max_tokens)
                refusal = await self._admit(*reserved)
                if refusal is not None:
                    fault = Fault("budget", refusal, final=True)
                    break
                started = started or time.monotonic()
                attempts += 1
                paid, charged = (0, 0), reserved
                answer: ChatAnswer | None = None
                task = asyncio.current_task()
                self._calling.add(task)
                try:
                    output = await self._http.ask(self._arguments(request))
                except transport_errors() as error:
                    fault = fault_of(error, self._api_key)
                    if fault.refused:
                        charged = paid
                else:
                    answer, paid, fault = read_completion(request, output)
                    told = tokens_told(output)
                    charged = (
                        reserved[0] if told[0] is None else told[0],
                        reserved[1] if told[1] is None else told[1],
                    )
                finally:
                    self._ledger.settle(reserved, charged)
                    self._wake()
                    self._calling.discard(task)
            spent_in, spent_out = spent_in + paid[0], spent_out + paid[1]
            now = time.monotonic()
            if fault is None and answer is not None:
                self._last_success = now
                return replace(
                    answer,
                    prompt_tokens=spent_in,
                    completion_tokens=spent_out,
                    seconds=now - started,
                    attempts=attempts,
                )
            assert fault is not None
            if fault.fatal:
                self._fatal = LLMError(f"{self!r}: {fault.detail}")
                raise self._fatal
            if fault.final:
                break
            if fault.outage:
                first_outage = first_outage or now
                if now - first_outage > 4 * self.retry.patience:
                    break
                if self._given_up(fault, first_outage, now):
                    self._fatal = LLMError(
                        f"{self!r} does not answer ({fault.kind}: {fault.detail}), waited "
                        f"{now - first_outage:.0f} s; answers so far are kept: see to the server, "
                        "then run the same command again"
                    )
                    raise self._fatal
            else:
                repeats += 1
                if repeats >= self.retry.attempts:
                    break
            wait = fault.retry_after
            if wait is None:
                wait = self.retry.wait(attempts) * spread(request.id, attempts)
            elif fault.outage:
                self._pause_until = max(self._pause_until, now + wait)
            logger.debug("%s: %s, asked again in %.1f s", request.id, fault.kind, wait)
            await asyncio.sleep(wait)
        return ChatAnswer(
            id=request.id,
            error=f"{fault.kind}: {fault.detail}",
            attempts=attempts,
            prompt_tokens=spent_in,
            completion_tokens=spent_out,
            seconds=0.0 if started is None else time.monotonic() - started,
            finish_reason=fault.finish_reason,
            thinking=fault.thinking,
        )

    def _given_up(self, fault: Fault, first_outage: float, now: float) -> bool:
        """Whether the server has been silent, for everybody, longer than the patience."""
        if (fault.retry_after or 0) > self.retry.patience:
            return True
        if self._last_success is None and fault.outage == "down":
            return now - first_outage > self.retry.first_patience
        return now - max(first_outage, self._last_success or 0.0) > self.retry.patience

    async def _admit(self, prompt_tokens: int, completion_tokens: int) -> str | None:
        """Reserve room for a call, waiting for that of calls under way; else why there is none."""
        while True:
            await self._pause()
            if self._fatal is not None:
                raise self._fatal
            refusal = self._ledger.reserve(prompt_tokens, completion_tokens)
            if refusal is None or not self._ledger.may_fit_later(prompt_tokens, completion_tokens):
                return refusal
            assert self._settled is not None
            await self._settled.wait()

    def _wake(self) -> None:
        """Let those that wait for room in the budget look again."""
        settled, self._settled = self._settled, asyncio.Event()
        if settled is not None:
            settled.set()

    async def _pause(self) -> None:
        while (wait := self._pause_until - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        """The arguments of `chat_completion`: the body, with what it does not know as extra."""
        body = completion_body(request, structured=self.structured)
        known = {name: body[name] for name in body if name in _ARGUMENTS}
        extra = {**{n: v for n, v in body.items() if n not in _ARGUMENTS}, **self.extra_body}
        return {**known, "model": self.model, "extra_body": extra or None}


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ObliqError(
            "the endpoint must be an address such as http://127.0.0.1:8000/v1"
            + (f", not {url!r}" if "@" not in url else "")
        )
    secrets = [n for n, _ in parse_qsl(parts.query) if "key" in n.lower() or "token" in n.lower()]
    if parts.username or parts.password or secrets:
        raise ObliqError(
            f"the address of {parts.hostname} carries a password or key; give it as api_key or in "
            f"{API_KEY_VARIABLE}, where it does not reach logs"
        )

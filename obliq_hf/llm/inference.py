"""The Hub's asynchronous inference client, fitted for thousands of calls to one address.

Imported only when a call is about to be made. Three things differ from the stock client: the
connection pool is as large as the number of calls at once (the stock pool keeps 20 alive); a
server at an address of the user's own is reached in offline mode too, which is about the Hub; and
a JSON schema reaches such a server in the standard form, not in the form of one server.
"""

from __future__ import annotations

import contextlib
from typing import Any

import httpx2
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.inference._providers import get_provider_helper

from obliq_hf.llm.chat import LLMError
from obliq_hf.llm.retries import redact

__all__ = ["InferenceClient", "build_client"]


class InferenceClient(AsyncInferenceClient):
    """An :class:`huggingface_hub.AsyncInferenceClient` with a pool of its own.

    Args:
        connections: Connections kept open.
        **options: As for the base class.
    """

    def __init__(self, *, connections: int, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._own_server = bool(options.get("base_url"))

    async def _get_async_client(self) -> httpx2.AsyncClient:
        if not self._own_server:
            return await super()._get_async_client()
        if self._async_client is None:
            limits = httpx2.Limits(
                max_connections=self._connections, max_keepalive_connections=self._connections
            )
            self._async_client = await self.exit_stack.enter_async_context(
                httpx2.AsyncClient(limits=limits, timeout=self.timeout, follow_redirects=False)
            )
        return self._async_client

    async def _inner_post(self, request_parameters: Any, *, stream: bool = False) -> Any:
        body = request_parameters.json
        if self._own_server and isinstance(body, dict):
            form = body.get("response_format")
            if isinstance(form, dict) and form.get("type") == "json_object" and "value" in form:
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": form["value"], "strict": True},
                }
        return await super()._inner_post(request_parameters, stream=stream)

    async def ask(self, body: dict[str, Any]) -> Any:
        """One chat completion as plain values; `body` has the arguments of `chat_completion`."""
        return _plain(await self.chat_completion(**body))

    async def close(self) -> None:
        """Close the connections; errors while closing are of no interest any more."""
        with contextlib.suppress(httpx2.HTTPError, OSError):
            await super().close()


def _plain(value: Any) -> Any:
    """The Hub's reply types as dicts, with the fields they do not know (`reasoning_content`)."""
    if isinstance(value, dict):
        fields = {**value, **getattr(value, "__dict__", {})}
        return {name: _plain(item) for name, item in fields.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def build_client(
    *,
    base_url: str | None,
    provider: str | None,
    api_key: str | None,
    timeout: float,
    connections: int,
    model: str | None = None,
) -> InferenceClient:
    """A client for an address, or for the Hub's providers where there is none.

    Without a key of its own an address gets no authorization at all; the base class would send
    it the user's Hub token.

    Raises:
        LLMError: No provider of the Hub serves the model, or there is no token for it.
    """
    if base_url is None:
        try:
            helper = get_provider_helper(provider, task="conversational", model=model)  # type: ignore[arg-type]
            helper.prepare_request(
                inputs=[], parameters={}, headers={}, model=model, api_key=api_key
            )
        except (ValueError, OSError) as error:
            raise LLMError(
                f"the Hub's providers cannot be asked for {model!r}: {redact(str(error), api_key)}"
            ) from None
        return InferenceClient(
            connections=connections, provider=provider, token=api_key, timeout=timeout
        )
    headers: Any = None if api_key else {"authorization": None}
    return InferenceClient(
        connections=connections, base_url=base_url, token=api_key, timeout=timeout, headers=headers
    )

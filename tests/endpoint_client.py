"""Requests, and an endpoint client that waits little, for the scripted server."""

from __future__ import annotations

from llm_server import ScriptedServer

from obliq_hf.llm import (
    ChatRequest,
    EndpointClient,
    RetryPolicy,
)

FAST = RetryPolicy(attempts=5, first_wait=0.01, max_wait=0.05, patience=2.0, first_patience=0.2)


SECRET = "hf_" + "x" * 34


def ask(text: str, **options) -> ChatRequest:
    options.setdefault("id", "r")
    return ChatRequest(messages=[{"role": "user", "content": text}], **options)


def many(count: int) -> list[ChatRequest]:
    return [ask(f"t{i}", id=str(i)) for i in range(count)]


def client_of(server: ScriptedServer, **options) -> EndpointClient:
    options.setdefault("retry", FAST)
    return EndpointClient(server.url, model="m", **options)


def one(script, request: ChatRequest | None = None, **options):
    """The answer of a server with this script, and the server."""
    with ScriptedServer(script) as server, client_of(server, **options) as client:
        return client.complete_all([request or ask("hello")])["r"], server

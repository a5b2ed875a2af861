"""A small OpenAI-compatible chat server on the loopback address, scripted reply by reply."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request


@dataclass
class Reply:
    """One reply: a chat completion, or whatever the fields say instead."""

    text: str | None = "ok"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    finish: str = "stop"
    reasoning: str | None = None
    usage: tuple[int, int] | None = (10, 5)
    logprobs: list[dict[str, Any]] | None = None
    raw: bytes | None = None
    drop: bool = False


class _Dropped(Response):
    """Promises more bytes than it sends, so that the connection is cut."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b'{"choices"', "more_body": False})


class ScriptedServer:
    """Serves `script(body, number)`; `number` counts the calls from 0.

    Use as a context manager. `bodies` and `headers` hold what was received, `most_at_once` the
    largest number of calls under way together.
    """

    def __init__(
        self, script: Callable[[dict[str, Any], int], Reply | str], *, delay: float = 0.0,
        keep: bool = True,
    ) -> None:
        self.script = script
        self.delay = delay
        self.keep = keep
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.calls = 0
        self.most_at_once = 0
        self._at_once = 0
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        number, self.calls = self.calls, self.calls + 1
        if self.keep:
            self.bodies.append(body)
            self.headers.append(dict(request.headers))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            reply = self.script(body, number)
            if isinstance(reply, str):
                reply = Reply(reply)
            if self.delay or reply.delay:
                await asyncio.sleep(self.delay + reply.delay)
        finally:
            self._at_once -= 1
        if reply.drop:
            return _Dropped()
        if reply.raw is not None:
            return Response(reply.raw, reply.status, reply.headers)
        if reply.status != 200:
            return JSONResponse({"error": {"message": reply.text}}, reply.status, reply.headers)
        message = {"role": "assistant", "content": reply.text}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reply.finish}
        if reply.logprobs is not None:
            choice["logprobs"] = {"content": reply.logprobs}
        usage = None
        if reply.usage is not None:
            usage = {"prompt_tokens": reply.usage[0], "completion_tokens": reply.usage[1],
                     "total_tokens": sum(reply.usage)}
        return JSONResponse({
            "id": f"chat-{number}", "object": "chat.completion", "created": 0,
            "model": body.get("model"), "choices": [choice], "usage": usage,
        })

    def start(self) -> ScriptedServer:
        app = Starlette(routes=[Route("/v1/chat/completions", self._chat, methods=["POST"])])
        # the protocol is named so that asyncio turns Nagle's algorithm off on it
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        config = uvicorn.Config(app, log_level="critical", lifespan="off", access_log=False,
                                timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [sock]}, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > deadline:
                raise RuntimeError("the scripted server did not start")
            time.sleep(0.002)
        self._sock = sock
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            self._thread.join(timeout=10)
            self._sock.close()
            self._server = self._thread = None

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def prompt_of(body: dict[str, Any]) -> str:
    """All message texts of a request's body, joined."""
    return "\n".join(m["content"] for m in body["messages"])


def text_logprobs(words: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Log-probabilities of one token position with these alternatives."""
    top = [{"token": w, "logprob": p} for w, p in words]
    return [{"token": words[0][0], "logprob": words[0][1], "top_logprobs": top}]

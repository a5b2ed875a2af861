"""A small OpenAI-compatible chat server on the loopback address, scripted reply by reply."""

from __future__ import annotations

import asyncio
import json
import random
import re
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
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"1000")],
            }
        )
        await send({"type": "http.response.body", "body": b'{"choices"', "more_body": False})


class ScriptedServer:
    """Serves `script(body, number)`; `number` counts the calls from 0.

    Use as a context manager. `bodies` and `headers` hold what was received, `most_at_once` the
    largest number of calls under way together. With `together`, nobody is answered before so
    many calls are there at once (or half a minute has passed).
    """

    def __init__(
        self,
        script: Callable[[dict[str, Any], int], Reply | str],
        *,
        delay: float = 0.0,
        keep: bool = True,
        together: int = 0,
    ) -> None:
        self.script = script
        self.together = together
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
            until = time.monotonic() + 30
            while self.most_at_once < self.together and time.monotonic() < until:
                await asyncio.sleep(0.005)
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
            usage = {
                "prompt_tokens": reply.usage[0],
                "completion_tokens": reply.usage[1],
                "total_tokens": sum(reply.usage),
            }
        return JSONResponse(
            {
                "id": f"chat-{number}",
                "object": "chat.completion",
                "created": 0,
                "model": body.get("model"),
                "choices": [choice],
                "usage": usage,
            }
        )

    def start(self) -> ScriptedServer:
        app = Starlette(routes=[Route("/v1/chat/completions", self._chat, methods=["POST"])])
        # the protocol is named so that asyncio turns Nagle's algorithm off on it
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        config = uvicorn.Config(
            app, log_level="critical", lifespan="off", access_log=False, timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [sock]}, daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > deadline:
                raise RuntimeError("the scripted server did not start")
            time.sleep(0.002)
        self._sock = sock
        return self

    def stop(self, *, wait: bool = True) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            if wait:
                self._thread.join(timeout=10)
                self._sock.close()
            self._server = self._thread = None

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(wait=False)


def prompt_of(body: dict[str, Any]) -> str:
    """All message texts of a request's body, joined."""
    return "\n".join(m["content"] for m in body["messages"])


def text_logprobs(words: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Log-probabilities of one token position with these alternatives."""
    top = [{"token": w, "logprob": p} for w, p in words]
    return [{"token": words[0][0], "logprob": words[0][1], "top_logprobs": top}]


_OPENINGS = ("looking for", "i remember", "show me", "there was", "find all of", "somebody had")
_SUBJECTS = """a person|the speaker|an author|one side|a writer|somebody|a voice|the teller|an old
hand|a guest|the elder one|a doubter|a stranger|the younger man|her friend|a worker|the keeper|the
host|a mother|his neighbour|a teacher|the visitor|a listener|the first one""".replace("\n", " ")
_VERBS = """holds back|gives way|keeps asking|turns away|speaks softly|grows impatient|smiles at|
insists on|never answers|makes light of|praises|builds up|walks around|takes apart|puts off|brings
home|looks for|lets go of|hides|repeats|defends|regrets|wishes for|counts on""".replace("\n", "")
_OBJECTS = """the point|every answer|a promise|the whole matter|small things|what was said|the other
side|an easy way out|their own part|good advice|the quiet room|long waiting|a heavy load|the open
door|some old debt|the last word|a new road|common sense|the cold morning|a careful plan|her good
name|the broken chair|his patience|the evening meal""".replace("\n", " ")
_TURNS = ("and then", "while", "because", "until", "so that", "although", "before", "as if")


def oblique_text(key: str, characters: int) -> str:
    """Plain words without names or numbers, another text for another key."""
    dice = random.Random(key)
    subjects, verbs, objects = (
        dice.sample(words.split("|"), 6) for words in (_SUBJECTS, _VERBS, _OBJECTS)
    )
    turns = dice.sample(_TURNS, 3)
    text = dice.choice(_OPENINGS)
    while len(text) < characters:
        text += (
            f" {dice.choice(subjects)} who {dice.choice(verbs)} {dice.choice(objects)} "
            f"{dice.choice(turns)}"
        )
    return text.rsplit(" ", 2)[0] + "."


def oblique_reply(body: dict[str, Any]) -> str:
    """What a good model would answer to a prompt of either stage, as JSON."""
    prompt = prompt_of(body)
    size = re.search(r"about (\d+) characters", prompt)
    if '"query"' in prompt.rsplit("Answer with a JSON object", 1)[-1]:
        characters = int(size.group(1)) if size else 300
        return json.dumps({"query": oblique_text(prompt + str(body.get("seed")), characters)})
    return json.dumps(
        {
            "attribute": oblique_text("a" + prompt, 30),
            "evidence": oblique_text("e" + prompt, 60),
            "description": oblique_text("d" + prompt, 160),
        }
    )

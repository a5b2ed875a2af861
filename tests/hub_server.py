"""A small Hugging Face Hub on loopback, enough of one for the clients that these tests drive.

It keeps repositories with commits, branches, tags and pull requests in memory and large files on
disk, checks tokens, and can be told to fail: :meth:`LocalHub.fail` answers a request with a status,
drops its connection, or holds it until a test lets it go on. Every request is logged in the form
of ``tests/obliq_hf/hub/hub_requests.txt``.

Run alone with ``python tests/hub_server.py --store FOLDER``; it prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import uvicorn
from hub_endpoints import HubEndpoints
from hub_state import (
    OWNER,
    Entry,
    HubError,
)
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request


class _Dropped(Exception):
    pass


_CONNECTIONS: dict[tuple[str, int], asyncio.Transport] = {}


class _Protocol(H11Protocol):
    """Remembers each connection's transport, so that a fault can cut it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client:
            _CONNECTIONS[tuple(self.client)] = transport  # type: ignore[index]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client:
            _CONNECTIONS.pop(tuple(self.client), None)  # type: ignore[arg-type]
        super().connection_lost(exc)


class LocalHub(HubEndpoints):
    """A Hub: routes, faults and the request log around the endpoints."""

    def __init__(self, store: Path, *, page: int = 1000, part_bytes: int = 1 << 62) -> None:
        super().__init__(store, page=page, part_bytes=part_bytes)
        self.routes = [(m, re.compile(p), f) for m, p, f in self.table()]

    async def handle(self, request: Request) -> Response:
        """Answer one request: the fault set for it, or the handler of its route."""
        raw = request.scope["raw_path"].decode("ascii")
        query = request.scope["query_string"].decode("ascii")
        shown = raw + ("?" + query if query else "")
        try:
            response = await self._fault(request, shown) or await self._route(request, raw)
        except HubError as error:
            response = JSONResponse(
                {"error": error.message}, status_code=error.status, headers=error.headers
            )
        except _Dropped:
            self._note(request, shown, 0)
            _CONNECTIONS[tuple(request.scope["client"])].abort()
            return Response(status_code=500)
        self._note(request, shown, response.status_code)
        return response

    def _note(self, request: Request, shown: str, status: int) -> None:
        get = request.headers.get
        self.log.append(
            Entry(
                request.method, shown, status, get("authorization") is not None,
                get("content-type"), get("range"), get("x-section", ""),
            )
        )  # fmt: skip

    async def _fault(self, request: Request, shown: str) -> Response | None:
        for fault in self.faults:
            if fault.method != request.method or not fault.path.search(shown) or not fault.times:
                continue
            if fault.after:
                fault.after -= 1
                return None
            fault.times -= 1
            if fault.gate is not None:
                while not fault.gate.is_set():
                    await asyncio.sleep(0.005)
                return None
            if fault.drop:
                wanted = int(request.headers.get("content-length") or 0) // 2
                seen = 0
                async for chunk in request.stream():
                    seen += len(chunk)
                    if seen >= wanted:
                        break
                raise _Dropped
            return Response(fault.body, status_code=fault.status or 500, headers=fault.headers)
        return None

    async def _route(self, request: Request, raw: str) -> Response:
        for method, pattern, handler in self.routes:
            match = pattern.fullmatch(raw)
            if match and method == request.method:
                found = {k: v for k, v in match.groupdict().items() if v is not None}
                if "name" in found or "/resolve/" in raw:
                    found.setdefault("kind", "model")
                return await handler(request, **{k: unquote(v) for k, v in found.items()})
        raise HubError(404, f"no such endpoint: {request.method} {raw}")


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Leave signals to the process that runs the tests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Likewise."""
        yield


@contextlib.contextmanager
def running_hub(store: Path | None = None, *, port: int = 0, **settings: Any) -> Iterator[LocalHub]:
    """Serve a hub on a free port of the loopback address, in a thread of this process."""
    folder = store or Path(tempfile.mkdtemp(prefix="obliq-hub-"))
    hub = LocalHub(folder, **settings)
    methods = ["GET", "HEAD", "POST", "PUT", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", hub.handle, methods=methods)])
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, http=_Protocol, ws="none", lifespan="off",
        log_level="critical", timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the test hub did not start")
        time.sleep(0.005)
    hub.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield hub
    finally:
        server.should_exit = True
        for fault in hub.faults:
            if fault.gate is not None:
                fault.gate.set()
        thread.join(timeout=10)
        if store is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a small Hub on the loopback address.")
    parser.add_argument("--store", type=Path, default=None, help="folder for large files")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    with running_hub(arguments.store, port=arguments.port) as served:
        print(f"{served.url}  token {OWNER}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()

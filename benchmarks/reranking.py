"""Reranking by tournaments beside a bare loop that sends the same batches to the same server.

    python -m benchmarks.reranking [--scale 0.2]

The server answers after a fixed latency, in a process of its own. Measured are one query with
unlimited slots, many queries under 64 slots, and the algorithm written plainly, one call after
another. What TourRank itself costs is measured in processor time, with a judge that answers at
once; so other work on the machine does not count there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.table import Row, by_size, fastest, markdown

if TYPE_CHECKING:
    from collections.abc import Callable

    from obliq_hf.llm import ChatRequest, EndpointClient
    from obliq_hf.reranking import Pool

__all__ = ["measure"]

LATENCY = 0.1
POOL = 100
ROUNDS = 5
SLOTS = 64
QUERIES = 240
_BARE = "the same batches, bare"
_ORDER = " > ".join(f"[{i}]" for i in range(1, 11))
_TEXT = "what was said in the old house by the road, and what nobody said that night " * 8


async def _reply(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency: float
) -> None:
    """Answer the requests of one connection, each after the latency."""
    message = {"role": "assistant", "content": _ORDER}
    body = json.dumps(
        {
            "id": "0", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    ).encode()  # fmt: skip
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
    )
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in request.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            await asyncio.sleep(latency)
            writer.write(head + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve(latency: float, port: Any) -> None:
    async def main() -> None:
        server = await asyncio.start_server(
            lambda r, w: _reply(r, w, latency), "127.0.0.1", 0, limit=2**24, backlog=1024
        )
        port.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        await asyncio.get_running_loop().run_in_executor(None, port.recv)
        server.close()

    asyncio.run(main())


class _Server:
    """The server in a process of its own."""

    def __init__(self, latency: float) -> None:
        self._latency = latency

    def __enter__(self) -> str:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._latency, other), daemon=True)
        self._process.start()
        url: str = self._pipe.recv()
        return url

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(timeout=5)


def _pools(count: int) -> list[Pool]:
    from obliq_hf.reranking import Candidate, Pool

    return [
        Pool(
            f"q{i}",
            f"query {i}: {_TEXT}",
            tuple(Candidate(f"d{j}", f"{i} {j} {_TEXT}", 1 - j / 1000) for j in range(POOL)),
        )
        for i in range(count)
    ]


def _batches(pools: list[Pool], *, plain: bool = False) -> list[list[ChatRequest]]:
    """The requests that TourRank makes: five batches of all queries, or one after another."""
    from obliq_hf.llm import ChatAnswer
    from obliq_hf.reranking import Asking, TourRank
    from obliq_hf.tasks import load_task

    task = load_task("congress")
    reranker = TourRank(ROUNDS, asking=Asking(documents=None, query=None))
    batches: list[list[ChatRequest]] = []
    for pool in pools:
        flow = reranker.rank(pool, task)
        asked = next(flow)
        for number in range(5):
            if plain:
                batches += [[request] for request in asked]
            else:
                if number == len(batches):
                    batches.append([])
                batches[number] += [replace(r, id=f"{pool.query_id}/{r.id}") for r in asked]
            answers = {r.id: ChatAnswer(r.id, text=_ORDER, finish_reason="stop") for r in asked}
            try:
                asked = flow.send(answers)
            except StopIteration:
                break
    return batches


def _calls(client: EndpointClient, count: int, slots: int) -> dict[str, Callable[[], object]]:
    """Our scheduler and a bare loop, both through the same client."""
    from obliq_hf.reranking import Asking, TourRank, rerank
    from obliq_hf.tasks import load_task

    task, pools = load_task("congress"), _pools(count)
    reranker = TourRank(ROUNDS, asking=Asking(documents=None, query=None))
    batches = _batches(pools)
    client.complete_all(batches[0][:slots])  # connections are open

    def ours() -> None:
        done = rerank(reranker, pools, task, client=client)
        assert not done.failed

    def bare() -> None:
        for batch in batches:
            client.complete_all(batch)

    return {"ours": ours, _BARE: bare}


def _what(slots: int) -> str:
    calls = f"calls of {LATENCY * 1000:.0f} ms"
    return f"TourRank Y={ROUNDS}, {POOL} candidates, {calls}, {slots} slots"


def _least(count: int, slots: int) -> str:
    """What no scheduler can do better."""
    requests = count * sum(map(len, _batches(_pools(1))))
    seconds = max(5 * LATENCY, requests * LATENCY / slots)
    return f"{requests:,} calls; no less than {seconds:.2f} s is possible"


def _one_query(slots: int, repeats: int) -> Row:
    """A single query, also with one call after another."""
    from obliq_hf.llm import EndpointClient

    one_by_one = _batches(_pools(1), plain=True)
    with _Server(LATENCY) as url, EndpointClient(url, model="m", concurrency=slots) as client:
        taken = fastest(_calls(client, 1, slots), repeats)

        def plain() -> None:
            for batch in one_by_one:
                client.complete_all(batch)

        taken |= fastest({"one call after another": plain}, 1)
    ours = taken.pop("ours")
    note = _least(1, slots)
    return Row(_what(slots), "1 query", ours, taken, aims={_BARE: 1.05}, note=note)


def _many_queries(count: int, slots: int, repeats: int) -> Row:
    """Many queries under few slots, a quarter and a half of them before."""
    from obliq_hf.llm import EndpointClient

    first = max(2, count // 4)
    with _Server(LATENCY) as url, EndpointClient(url, model="m", concurrency=slots) as client:
        return by_size(
            _what(slots),
            [first, 2 * first, 4 * first],
            lambda n: _calls(client, n, slots),
            unit="queries",
            aims={_BARE: 1.05},
            rounds=min(2, repeats),
            note=_least(4 * first, slots),
        )


def _overhead(count: int) -> Row:
    """Processor time of all but the judge, in seconds a query."""
    from obliq_hf.llm import ChatAnswer
    from obliq_hf.llm.scripted import ScriptedClient
    from obliq_hf.reranking import Asking, TourRank, rerank
    from obliq_hf.tasks import load_task

    task, pools = load_task("congress"), _pools(count)
    client = ScriptedClient(
        lambda r: ChatAnswer(r.id, text=_ORDER, finish_reason="stop"), batch=10_000
    )
    reranker = TourRank(ROUNDS, asking=Asking(documents=None, query=None))
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        rerank(reranker, pools, task, client=client)
        best = min(best, (time.process_time() - started) / count)
    return Row(
        what=f"TourRank Y={ROUNDS}, {POOL} candidates, without server and tokenisation",
        size="1 query",
        seconds=best,
        beside={"10 ms": 0.010},
        aims={"10 ms": 1.0},
        note="processor time: prompts, shuffles, scheduling, parsing",
    )


def measure(*, scale: float = 1.0, repeats: int = 3) -> list[Row]:
    """Three rows.

    Args:
        scale: Share of the usual number of queries, for trials.
        repeats: Times each side is run, in turns, many queries twice at most; the fastest counts.
    """
    return [
        _one_query(256, repeats),
        _many_queries(int(QUERIES * scale), SLOTS, repeats),
        _overhead(max(5, int(40 * scale))),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(markdown(measure(scale=options.scale, repeats=options.repeats)))

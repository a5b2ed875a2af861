"""What the scheduling of language-model calls costs: side-by-side measurements.

    python -m benchmarks.llm_scheduling

Against a server of fixed latency on this machine, in a process of its own: two stages for each
document through :func:`obliq_hf.llm.run_flows` (with and without the answer cache, and the whole
of `synthesize` up to its files), beside a bare asyncio loop over the same HTTP client that sends
as many requests of the same size through a semaphore.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCUMENTS = 2000
SLOTS = 64
LATENCY = 0.2


def _serve(latency: float, port: Any) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from llm_server import ScriptedServer, oblique_reply

    with ScriptedServer(lambda body, _: oblique_reply(body), delay=latency, keep=False) as server:
        port.send(server.url)
        port.recv()


class _Server:
    """The scripted server in a process of its own."""

    def __init__(self, latency: float) -> None:
        self.latency = latency

    def __enter__(self) -> str:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self.latency, other), daemon=True)
        self._process.start()
        url: str = self._pipe.recv()
        return url

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(timeout=5)


def _corpus(documents: int) -> Any:
    from obliq_hf.records import Corpus

    filler = "and the others went on with what they had been doing before it all began " * 8
    texts = [f"Number {i} said that nothing would change, {filler}" for i in range(documents)]
    return Corpus([f"d{i}" for i in range(documents)], texts)


def _requests(documents: int) -> Any:
    from dataset_builders.lenses import load_lens

    lens = load_lens("descriptive")
    corpus = _corpus(documents)
    first = [
        lens.stage_a.messages({"document": text, "unit": "tweet", "attribute": "stance"})
        for text in corpus.texts
    ]
    return first, lens


async def _bare(url: str, documents: int, slots: int) -> float:
    """Stage A then stage B of every document through the same HTTP client and a semaphore."""
    from obliq_hf.llm.inference import build_client

    client = build_client(base_url=url, provider=None, api_key=None, timeout=60, connections=slots)
    first, lens = _requests(documents)
    gate = asyncio.Semaphore(slots)

    async def call(messages: Any, seed: int) -> Any:
        async with gate:
            output = await client.ask(
                {
                    "messages": messages,
                    "model": "m",
                    "max_tokens": 1024,
                    "temperature": 0.7,
                    "seed": seed,
                }
            )
        return json.loads(output["choices"][0]["message"]["content"])

    async def document(messages: Any) -> None:
        described = await call(messages, 0)
        await call(
            lens.stage_b.messages(
                {
                    "description": described["description"],
                    "unit": "tweet",
                    "attribute": "stance",
                    "length": "about 300 characters",
                }
            ),
            0,
        )

    started = time.perf_counter()
    await asyncio.gather(*(document(messages) for messages in first))
    seconds = time.perf_counter() - started
    await client.close()
    return seconds


def _flows(url: str, documents: int, slots: int, cache: Path | None) -> float:
    """The same work through flows, with the checks of the queries."""
    from dataset_builders.lenses import load_lens
    from dataset_builders.query_checks import CorpusWords, QueryChecker
    from dataset_builders.query_flow import QueryWriter
    from obliq_hf.llm import CachedClient, EndpointClient, run_flows
    from obliq_hf.tasks import load_task

    corpus, task, lens = _corpus(documents), load_task("twitter"), load_lens("descriptive")
    form = lens.form_for(task)
    writer = QueryWriter(task, lens, form, QueryChecker(form, CorpusWords.of(corpus.texts)))
    client: Any = EndpointClient(url, model="m", concurrency=slots)
    if cache is not None:
        client = CachedClient(client, cache)
    client.complete_all([])
    started = time.perf_counter()
    flows = ((i, writer.write(i, text)) for i, text in enumerate(corpus.texts))
    done = sum(outcome.query is not None for _, outcome in run_flows(client, flows))
    seconds = time.perf_counter() - started
    client.close()
    if done < 0.98 * documents:
        raise RuntimeError(f"{done} of {documents} documents got a query")
    return seconds


def _lookups(cache: Path, count: int) -> tuple[float, float]:
    """Seconds to fill a cache with `count` answers, and to answer them all from it."""
    from obliq_hf.llm import CachedClient, ChatRequest
    from obliq_hf.llm.scripted import ScriptedClient

    text = "some text of a document that is asked about " * 40
    requests = [
        ChatRequest(id=str(i), messages=[{"role": "user", "content": f"{i} {text}"}])
        for i in range(count)
    ]
    client = CachedClient(ScriptedClient(lambda _: "answer " * 60, batch=256), cache)
    times = []
    for _ in range(2):
        started = time.perf_counter()
        client.complete_all(requests)
        times.append(time.perf_counter() - started)
    client.close()
    return times[0], times[1]


def _memory(documents: int) -> int:
    """Peak resident kilobytes of a process that writes queries for so many documents."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_grow, args=(documents, other))
    process.start()
    peak: int = pipe.recv()
    process.join()
    return peak


def _grow(documents: int, port: Any) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from llm_server import oblique_reply

    from dataset_builders.lenses import load_lens
    from dataset_builders.query_checks import CorpusWords, QueryChecker
    from dataset_builders.query_flow import QueryWriter
    from dataset_builders.synthetic_queries import _Spool
    from obliq_hf.llm import CachedClient, run_flows
    from obliq_hf.llm.scripted import ScriptedClient
    from obliq_hf.tasks import load_task

    task, lens = load_task("twitter"), load_lens("descriptive")
    form = lens.form_for(task)
    texts = _corpus(1000).texts
    writer = QueryWriter(task, lens, form, QueryChecker(form, CorpusWords.of(texts)))
    with tempfile.TemporaryDirectory() as folder:
        client = CachedClient(
            ScriptedClient(lambda r: oblique_reply({"messages": r.messages, "seed": r.seed})),
            Path(folder) / "c.sqlite",
        )
        spool = _Spool(documents)
        flows = ((i, writer.write(i, f"{i} {texts[i % 1000]}")) for i in range(documents))
        for place, outcome in run_flows(client, flows):
            spool.put(place, outcome)
        client.close()
    port.send(_peak_kilobytes())


def _peak_kilobytes() -> int:
    """Peak resident memory of this process; `ru_maxrss` would count its parent's before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
        if found:
            return int(found.group(1))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(
    *, documents: int = DOCUMENTS, slots: int = SLOTS, latency: float = LATENCY, rounds: int = 2
) -> list[dict[str, Any]]:
    """Measure everything and return rows of name, value, unit and what it is compared with.

    Args:
        documents: Documents of two stages each.
        slots: Calls at once.
        latency: Seconds a call takes at the server.
        rounds: Times each is run; the fastest counts.
    """
    ideal = 2 * documents * latency / slots
    with tempfile.TemporaryDirectory() as folder:
        with _Server(latency) as url:
            bare, plain, cached = [], [], []
            for number in range(rounds):
                bare.append(asyncio.run(_bare(url, documents, slots)))
                plain.append(_flows(url, documents, slots, None))
                cached.append(_flows(url, documents, slots, Path(folder) / f"{number}.sqlite"))
            warm_started = time.perf_counter()
            _flows(url, documents, slots, Path(folder) / "0.sqlite")
            warm = time.perf_counter() - warm_started
        filled, answered = _lookups(Path(folder) / "lookups.sqlite", 20_000)
    small, large = _memory(1000), _memory(10_000)
    name = f"{documents} documents, two stages, {latency * 1000:.0f} ms, {slots} slots"
    return [
        {"name": f"{name}: bare asyncio loop", "seconds": min(bare), "to_ideal": min(bare) / ideal},
        {
            "name": f"{name}: flows with checks",
            "seconds": min(plain),
            "to_bare": min(plain) / min(bare),
            "to_ideal": min(plain) / ideal,
        },
        {
            "name": f"{name}: flows with checks and cache",
            "seconds": min(cached),
            "to_bare": min(cached) / min(bare),
            "to_ideal": min(cached) / ideal,
        },
        {"name": f"{documents} documents again, all cached", "seconds": warm},
        {"name": "cache: 20,000 answers stored", "seconds": filled},
        {"name": "cache: 20,000 requests answered", "seconds": answered},
        {"name": "peak memory, 1,000 documents", "megabytes": small / 1024},
        {
            "name": "peak memory, 10,000 documents",
            "megabytes": large / 1024,
            "to_1000": large / small,
        },
    ]


if __name__ == "__main__":
    for row in measure():
        values = "  ".join(f"{k} {v:.3f}" for k, v in row.items() if k != "name")
        print(f"{row['name']:<75} {values}")

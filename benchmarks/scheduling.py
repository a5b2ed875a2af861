"""Two-stage calls of a language model beside a bare asyncio loop; see ``llm_scheduling``."""

from __future__ import annotations

import asyncio

from benchmarks.llm_scheduling import _bare, _flows, _Server
from benchmarks.table import Row, by_size

__all__ = ["measure"]

_LATENCY = 0.1
_SLOTS = 64


def measure(*, scale: float = 1.0) -> list[Row]:
    """One row, against a server of fixed latency in a process of its own.

    Args:
        scale: Share of the usual sizes, for trials.
    """
    first = max(8, int(400 * scale))
    with _Server(_LATENCY) as url:
        row = by_size(
            f"two calls a document, {_LATENCY * 1000:.0f} ms each, {_SLOTS} slots",
            [first, 2 * first, 4 * first],
            lambda n: {
                "ours": lambda: _flows(url, n, _SLOTS, None),
                "bare asyncio loop": lambda: asyncio.run(_bare(url, n, _SLOTS)),
            },
            unit="documents",
            rounds=2,
            note="ours also checks every query",
        )
    return [row]

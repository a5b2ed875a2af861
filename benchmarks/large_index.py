"""WildChat's size on one machine: 507,729 x 3,072 in half precision, searched in bounded memory.

    python -m benchmarks.large_index [--documents 507729] [--folder FOLDER]

Generates the vectors (3.1 GB on disk), then searches for 40 queries beside the least that must be
done: reading every file once and multiplying. Prints both times and the most anonymous memory that
the search held beyond the mapped files. The aims are 1.3 times and 1 GB.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.vectors import read_and_multiply, unit_vectors, write_index

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["anonymous_bytes", "measure"]

_DIMENSIONS = 3072


def anonymous_bytes() -> int:
    """Anonymous memory of this process now (Linux)."""
    with open("/proc/self/status", encoding="utf-8") as lines:  # noqa: PTH123 - no path of ours
        for line in lines:
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0


def _most_anonymous(function: Callable[[], object]) -> tuple[float, int]:
    """Seconds of a call, and by how much anonymous memory grew at most while it ran."""
    before, most, done = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    function()
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return seconds, max(0, most - before)


def measure(
    folder: Path, documents: int = 507_729, *, queries: int = 40, k: int = 100, rounds: int = 3
) -> dict[str, float]:
    """Write the index where it is not there yet, and search it.

    Returns:
        Seconds of the search and of the least, their ratio, and the anonymous bytes.
    """
    index = write_index(folder, documents, _DIMENSIONS)
    asked = unit_vectors(queries, _DIMENSIONS, 6)
    ours, least, most = [], [], 0
    for _ in range(rounds):
        seconds, grown = _most_anonymous(lambda: index.search(asked, k))
        ours.append(seconds)
        most = max(most, grown)
        started = time.perf_counter()
        read_and_multiply(folder, _DIMENSIONS, asked)
        least.append(time.perf_counter() - started)
    return {
        "seconds": min(ours),
        "least": min(least),
        "ratio": min(ours) / min(least),
        "anonymous_bytes": float(most),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=507_729)
    parser.add_argument("--folder", type=Path, help="keeps the index; default a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(options.folder or Path(temporary) / "index", options.documents)
    print(
        f"{options.documents:,} x {_DIMENSIONS:,} fp16, 40 queries: {found['seconds']:.2f} s; one "
        f"read and the matrix product {found['least']:.2f} s; ratio {found['ratio']:.2f}; at most "
        f"{found['anonymous_bytes'] / 1e6:.0f} MB of anonymous memory"
    )


if __name__ == "__main__":
    main()

"""``python -m benchmarks``: every comparison, side by side, as one table.

Aims are judged by the fastest of alternating runs; run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.table import NOT_INSTALLED, Row, environment, markdown
from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MODULES", "main"]

MODULES = {
    "start": "benchmarks.start",
    "search": "benchmarks.vectors",
    "mining": "benchmarks.mining",
    "statistics": "benchmarks.inference",
    "encoding": "benchmarks.encoding",
    "training": "benchmarks.training_step",
    "scheduling": "benchmarks.scheduling",
    "reranking": "benchmarks.reranking",
}
"""Name -> module with a function ``measure(scale=...)`` that gives rows."""


def _measured(name: str, scale: float) -> tuple[list[Row], str | None]:
    """The rows of a module, or why there are none."""
    try:
        module = importlib.import_module(MODULES[name])
        return list(module.measure(scale=scale)), None
    except (ImportError, ObliqError) as error:
        return [], f"{name}: not measured: {error}"


def main(words: Sequence[str]) -> int:
    """Measure and print.

    Returns:
        The exit status: 1 where an aim was missed, growth is faster, or a module measured nothing.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--only", help=f"comma-separated: {', '.join(MODULES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual sizes")
    parser.add_argument("--out", type=Path, help="also write rows and versions as JSON")
    options = parser.parse_args(words)
    chosen = [n.strip() for n in options.only.split(",")] if options.only else list(MODULES)
    unknown = [name for name in chosen if name not in MODULES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(MODULES)}")
    os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1")
    rows: list[Row] = []
    notes: list[str] = []
    unmeasured: list[str] = []
    started = time.perf_counter()
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        measured, note = _measured(name, options.scale)
        rows += measured
        if note:
            notes.append(note)
            unmeasured.append(f"{name}, not measured")
    seconds = time.perf_counter() - started
    print(markdown(rows))
    about = environment()
    absent = [package for package, found in about.items() if found == NOT_INSTALLED]
    if absent:
        notes.append(f"not installed, so not measured beside ours: {', '.join(absent)}")
    for note in notes:
        print(f"- {note}")
    print(f"{', '.join(f'{k} {v}' for k, v in about.items())}; {seconds / 60:.1f} minutes")
    if options.out is not None:
        content: dict[str, Any] = {
            "environment": about, "seconds": seconds, "rows": [row.to_dict() for row in rows],
        }  # fmt: skip
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    missed = [what for row in rows for what in row.missed] + unmeasured
    for what in missed:
        print(f"missed: {what}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

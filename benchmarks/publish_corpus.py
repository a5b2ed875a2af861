"""Publish a generated corpus to a folder and to the Hub of the tests; time and peak memory.

``python -m benchmarks.publish_corpus`` writes 500,000 documents of 2,000 characters below a
temporary folder, publishes them in a process of their own, publishes them again (which finds
nothing to do), and removes everything. The Hub runs in another process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
NAME = "acme/large"


def write_corpus(folder: Path, rows: int, characters: int) -> int:
    """Write a corpus folder of random words with one task; returns the size of its corpus file."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(
        ["".join(rng.choice(letters, n)) for n in rng.integers(2, 11, size=20_000)], dtype=object
    )
    task = folder / "tasks" / "writing"
    (task / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8", newline="\n") as out:
        for row in range(rows):
            text = " ".join(words[rng.integers(len(words), size=characters // 6)])[:characters]
            document = {
                "_id": f"d{row}",
                "title": "",
                "text": text,
                "metadata": {"group": f"w{row // 50}", "author": f"a{row % 997}"},
            }
            out.write(json.dumps(document) + "\n")
    with (task / "queries.jsonl").open("w", encoding="utf-8", newline="\n") as out:
        for row in range(100):
            out.write(json.dumps({"_id": f"q{row}", "text": f"query {row}"}) + "\n")
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(100)), ""]
    (task / "qrels" / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    return (folder / "corpus.jsonl").stat().st_size


def publish(folder: str, to: str, endpoint: str, token: str) -> None:
    """Publish in this process; print seconds, peak memory and what was done as JSON."""
    from model_cards.publishing import PublishOptions, publish_dataset

    given = {"endpoint": endpoint, "token": token} if endpoint else {}
    options = PublishOptions(to=to, licence="cc0-1.0", **given)  # type: ignore[arg-type]
    started = time.perf_counter()
    pushed = publish_dataset(folder, NAME, options)
    print(
        json.dumps(
            {
                "seconds": round(time.perf_counter() - started, 1),
                "cpu_seconds": round(sum(os.times()[:2]), 1),
                "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
                "changed": pushed.changed,
                "files": len(pushed.added),
            }
        )
    )


def _run(folder: Path, scratch: Path, to: str, url: str = "", token: str = "") -> dict[str, Any]:
    environment = os.environ | {
        "HF_HOME": str(scratch / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TMPDIR": str(scratch),
    }  # fmt: skip
    environment.pop("HF_HUB_OFFLINE", None)
    words = ["-m", "benchmarks.publish_corpus", "--publish", str(folder), to, url, token]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Generate, publish twice to each place, print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--characters", type=int, default=2_000)
    parser.add_argument("--publish", nargs=4, metavar=("FOLDER", "TO", "URL", "TOKEN"))
    arguments = parser.parse_args()
    if arguments.publish:
        publish(*arguments.publish)
        return
    with tempfile.TemporaryDirectory(prefix="obliq-benchmark-") as place:
        scratch = Path(place)
        size = write_corpus(scratch / "corpus", arguments.rows, arguments.characters)
        print(f"{arguments.rows:,} documents, {size / 1e9:.2f} GB of JSON lines", flush=True)
        server = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "hub_server.py"), "--store", str(scratch / "h")],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            url, _, token = server.stdout.readline().split()
            for label, more in (
                ("folder", (f"folder:{scratch / 'laid-out'}",)),
                ("folder, again", (f"folder:{scratch / 'laid-out'}",)),
                ("Hub", ("hub", url, token)),
                ("Hub, again", ("hub", url, token)),
            ):
                found = _run(scratch / "corpus", scratch, *more)
                print(
                    f"{label:<14} {found['seconds']:>7.1f} s ({found['cpu_seconds']:.0f} s of CPU) "
                    f"peak {found['peak_gb']:.2f} GB, {found['files']} files written",
                    flush=True,
                )
        finally:
            server.terminate()
            server.wait(timeout=10)


if __name__ == "__main__":
    main()

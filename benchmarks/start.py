"""Import and start of the command line, beside Python itself and the libraries below."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.table import Row, fastest

__all__ = ["measure"]


def _run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, capture_output=True)


def measure(*, scale: float = 1.0) -> list[Row]:
    """Two rows, each the fastest of some fresh processes.

    Args:
        scale: Below 1, fewer processes.
    """
    rounds = max(1, round(5 * scale))
    imported = fastest(
        {
            "ours": lambda: _run("-c", "import obliq_hf"),
            "python alone": lambda: _run("-c", "pass"),
            "import numpy": lambda: _run("-c", "import numpy"),
        },
        rounds,
    )
    shown = fastest(
        {
            "ours": lambda: _run("-m", "obliq_hf.cli", "--help"),
            "python alone": lambda: _run("-c", "pass"),
            "import sentence_transformers": lambda: _run("-c", "import sentence_transformers"),
        },
        rounds,
    )
    return [
        Row("import obliq_hf", "a fresh process", imported.pop("ours"), imported),
        Row(
            "obliq --help", "a fresh process", shown.pop("ours"), shown,
            aims={"import sentence_transformers": 1.0},
        ),
    ]  # fmt: skip

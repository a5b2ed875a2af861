"""A saved checkpoint, loaded by stock libraries in a process of its own, must be the trained model.

Run as a script by :func:`check_reloaded`; it imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["PROBES", "ReloadReport", "check_reloaded", "compare_vectors"]

PROBES = (
    "The sea was calm.",
    "He would not say why, and she did not ask; they walked on along the wall in silence.",
    "1, 2, 3",
)
"""Texts on which models are compared; none comes from any data."""


@dataclass(frozen=True)
class ReloadReport:
    """How a reloaded checkpoint compares; differences are of single numbers of embeddings.

    Attributes:
        max_difference: Largest difference from the trained model.
        min_cosine: Smallest cosine with it.
        max_change: Largest difference from the untrained base.
    """

    max_difference: float
    min_cosine: float
    max_change: float


def check_reloaded(
    folder: Path,
    prompts: Sequence[str],
    *,
    trained: np.ndarray,
    base: np.ndarray,
    tolerance: float,
) -> ReloadReport:
    """Load a folder with plain ``SentenceTransformer`` in a fresh process and compare it.

    Args:
        folder: The saved model.
        prompts: Names of the prompts under which every probe is encoded.
        trained: The trained model's float32 embeddings, [prompts * probes, d], prompt by prompt.
        base: The untrained model's.
        tolerance: Largest ``1 - cosine`` that counts as equal.

    Raises:
        ObliqError: The folder does not load, is not the trained model, or equals the base.
    """
    given = _vectors_elsewhere(folder, prompts)
    return compare_vectors(given, trained=trained, base=base, tolerance=tolerance)


def _vectors_elsewhere(folder: Path, prompts: Sequence[str]) -> np.ndarray:
    import numpy as np

    from obliq_hf.errors import ObliqError

    with tempfile.TemporaryDirectory(prefix="obliq-") as scratch:
        result = Path(scratch) / "vectors.npy"
        request = {"folder": str(folder.resolve()), "prompts": list(prompts), "out": str(result)}
        environment = {
            key: value
            for key, value in os.environ.items()
            # a child must not join the launcher's process group
            if key not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}
            and not key.startswith(("ACCELERATE_", "TORCHELASTIC_", "FSDP_"))
        }
        done = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=scratch,
            env={**environment, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ObliqError(f"the saved model does not load in a fresh process: {reason[0]}")
        return np.load(result, allow_pickle=False)


def compare_vectors(
    given: np.ndarray, *, trained: np.ndarray, base: np.ndarray, tolerance: float
) -> ReloadReport:
    """Compare a reloaded model's embeddings with the trained model's and the base's.

    Raises:
        ObliqError: They are not the trained model's, or are the base's.
    """
    import numpy as np

    from obliq_hf.errors import ObliqError

    # half precision also rounds the length of the vectors, which is of no matter here
    lengths = np.linalg.norm(given, axis=1) * np.linalg.norm(trained, axis=1)
    report = ReloadReport(
        max_difference=float(np.abs(given - trained).max()),
        min_cosine=float(((given * trained).sum(axis=1) / lengths).min()),
        max_change=float(np.abs(given - base).max()),
    )
    if not report.min_cosine >= 1 - tolerance:
        raise ObliqError(
            f"the saved model is not the trained one: smallest cosine {report.min_cosine:.6f}"
        )
    if not report.max_change > 1e-6:
        raise ObliqError(
            "the trained model equals its base; training changed nothing "
            "(is training.learning_rate too low, or every step within the warm-up?)"
        )
    return report


def _main() -> None:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    request = json.loads(sys.stdin.read())
    model = SentenceTransformer(request["folder"], device="cpu", local_files_only=True)
    for name in request["prompts"]:
        if name not in model.prompts:
            raise SystemExit(f"prompt {name!r} was not saved")
    vectors = [
        model.encode(list(PROBES), prompt_name=name, show_progress_bar=False)
        for name in request["prompts"]
    ]
    if "obliq_hf" in sys.modules:
        raise SystemExit("loading the model imported obliq_hf")
    np.save(request["out"], np.concatenate(vectors).astype(np.float32), allow_pickle=False)


if __name__ == "__main__":
    _main()

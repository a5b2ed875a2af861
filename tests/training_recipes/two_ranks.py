"""Trains the cases of ``test_distributed.py`` in this process, alone or as one of two ranks.

Under torchrun: ``two_ranks.py REQUEST.json``; what each step gave goes to ``<out>/rank<r>.pt``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

RANK = int(os.environ.get("RANK", "0"))


class Stopped(Exception):
    """Stands for a kill."""


def run_cases(request: dict[str, Any]) -> dict[str, Any]:
    """Case -> the rows, loss and gradients of every step."""
    from obliq_hf.tasks import load_tasks
    from training_recipes.sections import LoraConfig, TrainingConfig
    from training_recipes.train import train
    from training_recipes.trainer import ObliqTrainer, PlannedRows

    steps: list[dict[str, Any]] = []
    rows: list[Any] = []
    stop_at: int | None = None
    step, items = ObliqTrainer.training_step, PlannedRows.__getitems__

    def recorded_step(self: ObliqTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == stop_at:
            raise Stopped
        loss = step(self, *args, **kwargs)
        parameters = self.model.named_parameters()
        gradients = {n: p.grad.clone() for n, p in parameters if p.grad is not None}
        steps.append({"loss": float(loss), "gradients": gradients})
        return loss

    def recorded_items(self: PlannedRows, batch: list[tuple[int, int, int]]) -> Any:
        rows.append(batch)
        return items(self, batch)

    results: dict[str, Any] = {}
    ObliqTrainer.training_step = recorded_step  # type: ignore[method-assign]
    PlannedRows.__getitems__ = recorded_items  # type: ignore[method-assign]
    try:
        for case in request["cases"]:
            steps.clear()
            rows.clear()
            stop_at = case.get("stop_at")
            settings = dict(case["settings"])
            if settings.get("lora"):
                settings["lora"] = LoraConfig(**settings["lora"])
            with contextlib.suppress(Stopped):
                train(
                    TrainingConfig(**settings),
                    case["mixture"],
                    Path(request["out"]) / case["name"],
                    tasks=load_tasks(["writing"]),
                    reload_check=False,
                    show_progress=False,
                )
            name = case["name"] + case.get("part", "")
            results[name] = {"steps": list(steps), "rows": list(rows)}
    finally:
        ObliqTrainer.training_step = step  # type: ignore[method-assign]
        PlannedRows.__getitems__ = items  # type: ignore[method-assign]
    return results


def main(request: dict[str, Any]) -> None:
    """Run the cases and note what this process writes."""
    written: list[str] = []
    watched = str(Path(request["out"]).resolve())

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
            written.append(str(arguments[0]))
        if event in {"os.mkdir", "os.rename", "os.remove", "shutil.rmtree"}:
            written.append(str(arguments[0]))

    from obliq_hf.encoder import ObliqSentenceTransformer

    saved: list[str] = []
    save = ObliqSentenceTransformer.save

    def counted_save(self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        saved.append(str(path))  # weights are written outside Python, where no hook sees them
        save(self, path, *args, **kwargs)

    ObliqSentenceTransformer.save = counted_save  # type: ignore[method-assign]
    sys.addaudithook(audit)
    results = run_cases(request)
    own = [p for p in written if p.startswith(watched)]
    record = {"results": results, "written": own, "saved": len(saved)}
    torch.save(record, Path(request["out"]) / f"rank{RANK}.pt")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

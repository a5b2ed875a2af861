"""A finished run of two tasks and four systems, with scores that are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.files import write_json
from obliq_hf.records import write_qrels

if TYPE_CHECKING:
    from pathlib import Path


def write_run_folder(root: Path, *, queries: int = 60, shift: float = 0.1) -> Path:
    """A finished run: two tasks, four systems, scores that are known."""
    rng = np.random.default_rng(0)
    for task in ("writing", "scene"):
        ids = [f"q{i}" for i in range(queries)]
        folder = root / "eval" / task
        write_json(
            folder / "task.json",
            {
                "name": task,
                "mteb_name": f"Obliq{task}",
                "title": task,
                "mechanism": "analogue",
                "attribute": "style",
                "split": "test",
                "judgments": "gold",
                "revision": "r1",
                "documents": 100,
                "queries": queries,
                "judged": queries,
                "left_out": {"queries without a judgment in this split": 3},
                "excluded": 0,
                "max_reachable_recall": 0.5,
                "groups": {"author": {q: f"a{i % 6}" for i, q in enumerate(ids)}},
            },
        )
        write_qrels(folder / "qrels.tsv", {q: {"d1": 1} for q in ids})
        level = rng.uniform(0.1, 0.6, queries)
        for system, gain in (
            ("bm25", 0.0),
            ("base-plain", 0.0),
            ("base-prompt", -0.02),
            ("base", 0.0),
            ("student", shift),
        ):
            values = {
                f"{m}_at_{k}": dict(zip(ids, (level + gain).round(6).tolist(), strict=True))
                for m in ("ndcg", "recall")
                for k in (1, 3, 5, 10, 20, 50, 100, 1000)
            }
            write_json(folder / system / "per_query.json", values)
            run = "".join(f"{q}\tQ0\td1\t1\t1\t{system}\n" for q in ids)
            (folder / system / "run.trec").write_text(run, encoding="utf-8", newline="\n")
        write_json(
            folder / "base" / "chosen.json",
            {
                "chosen": "base-plain",
                "metric": "ndcg_at_10",
                "scores": {"base-plain": 0.3, "base-prompt": 0.28},
            },
        )
    write_json(
        root / "graph" / "purity.json",
        {
            "label": "author",
            "k": 3,
            "verdict": "Recommended.",
            "confident": [],
            "at": [
                {
                    "k": 3,
                    "edges": 30,
                    "purity": 0.4,
                    "ci95": [0.3, 0.5],
                    "random_rate": 0.1,
                    "lift": 4.0,
                    "lift_ci95": [3.0, 5.0],
                }
            ],
        },
    )
    write_json(
        root / "training.json",
        {
            "settings": {"base": "embedded", "learning_rate": 1e-4, "lora": {"r": 16}},
            "base": {"id": "sentence-transformers/all-MiniLM-L6-v2", "revision": None},
            "steps": 12,
            "batches": {"datasets": [{"name": "scene", "rows": 96}]},
        },
    )
    write_json(root / "graph" / "graph.json", {"corpus": "searched", "k": 3})
    write_json(
        root / "graph" / "audit.json",
        {
            "columns": [
                {
                    "column": "work",
                    "share": 0.0,
                    "share_ci95": [0.0, 0.0],
                    "random_rate": 0.1,
                    "ratio": 0.0,
                    "note": "",
                }
            ]
        },
    )
    (root / "model").mkdir()
    (root / "model" / "modules.json").write_text("[]", encoding="utf-8")
    return root

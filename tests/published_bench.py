"""A task of a benchmark tree as a folder laid out like a published repository."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from datasets import Dataset

from obliq_hf.files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def publish(bench: Path, out: Path, spoil: Callable[[dict], None] | None = None) -> Path:
    """The math task of a benchmark tree as a folder laid out like a published repository."""
    inner = bench / "analogues" / "math"
    corpus = [
        {"_id": row["_id"], "title": "", "text": row["text"]}
        for row in map(json.loads, (inner / "corpus/corpus.jsonl").read_text().splitlines())
    ]
    queries = [
        {"_id": row["_id"], "text": row["text"]}
        for row in map(json.loads, (inner / "queries+qrels/queries.jsonl").read_text().splitlines())
    ]
    excluded = read_json(inner / "queries+qrels/per_query_excluded_ids.json")
    parts = {"math-corpus": corpus, "math-queries": queries}
    for config, file in (("math-qrels", "qrels.tsv"), ("math-qrels-pooled", "qrels_pool.tsv")):
        lines = (inner / "queries+qrels" / file).read_text().split("\n")[1:]
        rows = [line.rstrip("\r").split("\t") for line in lines if line.strip()]
        parts[config] = [{"query-id": q, "corpus-id": d, "score": int(s)} for q, d, s in rows]
    parts["math-top_ranked"] = [
        {
            "query-id": q["_id"],
            "corpus-ids": [d["_id"] for d in corpus if d["_id"] not in excluded.get(q["_id"], [])],
        }
        for q in queries
    ]
    if spoil is not None:
        spoil(parts)
    yaml = ["---", "configs:"]
    for config, rows in parts.items():
        (out / config).mkdir(parents=True)
        Dataset.from_list(rows).to_parquet(str(out / config / "test-00000-of-00001.parquet"))
        yaml += [f"- config_name: {config}", "  data_files:", "  - split: test"]
        yaml += [f"    path: {config}/test-*.parquet"]
    (out / "README.md").write_text("\n".join([*yaml, "---", ""]), encoding="utf-8")
    return out

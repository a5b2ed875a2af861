"""A run folder with everything that cards draw on, made on the spot around a tiny encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer
from obliq_hf.encoder.sources import BaseRecord
from obliq_hf.files import write_json, write_jsonl
from obliq_hf.hub.parquet import rows_to_tables
from obliq_hf.records import edge_features, train_features

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "Quoth the planted raven seven score times"
BASE = "acme/base"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

REPORT: dict[str, Any] = {
    "metrics": ["ndcg_at_10", "recall_at_100"],
    "systems": {
        "writing": {
            "bm25": {"ndcg_at_10": 0.301, "recall_at_100": 0.5},
            "base": {"ndcg_at_10": 0.311, "recall_at_100": 0.51},
            "student": {"ndcg_at_10": 0.412, "recall_at_100": 0.61},
        }
    },
    "intervals": {
        "writing": {
            "bm25": {"ndcg_at_10": [0.28, 0.32]},
            "base": {"ndcg_at_10": [0.29, 0.33]},
            "student": {"ndcg_at_10": [0.39, 0.43]},
        }
    },
    "comparisons": [
        {"task": "writing", "a": "student", "b": "base", "metric": "ndcg_at_10", "by": "query",
         "delta": 0.101, "ci95": [0.08, 0.12], "p": 0.0001}
    ],
    "tasks": {"writing": {"split": "test", "queries": 144}},
    "corpus": {"source": {"builder": "classics"}},
}  # fmt: skip


def write_parquet(path: Path, features: Any, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.concat_tables(rows_to_tables(lambda: rows, features, str(path))()), path)


def make_corpus(folder: Path) -> Path:
    """A corpus folder with two tasks, exclusions, pooled judgments and odd metadata."""
    passages = [
        f"passage {i} of the sea and the old man, {PLANTED if i == 3 else ''}" for i in range(8)
    ]
    write_jsonl(
        folder / "corpus.jsonl",
        (
            {
                "_id": name,
                "title": "",
                "text": text,
                "metadata": {
                    "group": f"work {i // 2}", "author": f"writer-{i % 3}", "year": 1800 + i,
                    "translator": None, "title": "T", "places": ["sea"],
                    "mixed": i if i % 2 else "x",
                },
            }
            for i, (name, text) in enumerate(
                zip(["0012", "NA", "null", "1e5", "a b", "d5", "d6", "d7"], passages, strict=True)
            )
        ),
    )  # fmt: skip
    for task, excluded in (("scene", None), ("writing", {"w1": ["0012", "NA"], "w2": []})):
        place = folder / "tasks" / task
        name = task[0]
        write_jsonl(
            place / "queries.jsonl",
            ({"_id": f"{name}{i}", "text": f"query {i}", "metadata": {}} for i in range(1, 5)),
        )
        for kind in ("qrels", "qrels-pooled") if task == "writing" else ("qrels",):
            (place / kind).mkdir(parents=True)
            (place / kind / "test.tsv").write_text(
                f"query-id\tcorpus-id\tscore\n{name}1\ta b\t1\n{name}2\tNA\t2\n", encoding="utf-8"
            )
            (place / kind / "dev.tsv").write_text(
                f"query-id\tcorpus-id\tscore\n{name}3\t1e5\t1\n{name}4\t0012\t0\n", encoding="utf-8"
            )
        (place / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
        if excluded:
            write_json(place / "excluded.json", excluded)
    write_json(
        folder / "corpus.json",
        {"source": {"builder": "classics", "version": "0.1.0"}, "documents": 8, "groups": 4,
         "fingerprint": "f" * 64, "dropped": {"too short": 3}, "tasks": {"writing": {}}},
    )  # fmt: skip
    return folder


def make_graph(folder: Path) -> Path:
    """A graph folder: a dose of two edges of four, with purity and audit."""
    rows = [
        {"anchor_id": f"d{i}", "positive_id": f"d{i + 1}", "anchor": f"text {i} {PLANTED}",
         "positive": f"text {i + 1}", "rank": 1, "similarity": 0.9 - i / 10}
        for i in range(4)
    ]  # fmt: skip
    folder.mkdir(parents=True)
    write_parquet(folder / "edges.parquet", edge_features(), rows[:2])
    write_parquet(folder / "complete.parquet", edge_features(), rows)
    info = {"teacher": "stylometric", "teacher_fingerprint": "t" * 64, "k": 3, "documents": 8,
            "exclude_same_group": True, "edges": 4, "corpus_fingerprint": "f" * 64}  # fmt: skip
    dose = {**info, "dose": 2, "selection": "confident", "neighbours": "teacher"}
    write_json(folder / "graph.json", {**dose, "complete": info})
    at = {"k": 1, "edges": 4, "purity": 0.5, "ci95": [0.4, 0.6], "random_rate": 0.1, "lift": 5.0,
          "lift_ci95": [4.0, 6.0]}  # fmt: skip
    screen = {"label": "author", "k": 3, "at": [at], "verdict": "Recommended: lift 5."}
    confident = [{"edges": 2, "purity": 0.9, "least_similarity": 0.8}]
    write_json(folder / "purity.json", {**screen, "confident": confident})
    write_json(folder / "dose_purity.json", screen)
    column = {"column": "author", "share": 0.5, "share_ci95": [0.4, 0.6], "random_rate": 0.1,
              "ratio": 5.0, "ratio_ci95": [4.0, 6.0], "note": ""}  # fmt: skip
    write_json(folder / "audit.json", {"edges": 2, "columns": [column]})
    return folder


def make_mixture(folder: Path) -> Path:
    """A mixture of graph pairs and of queries with two hard negatives."""
    folder.mkdir(parents=True)
    entries = []
    for name, kind, negatives in (("writing-graph", "graph", 0), ("scene", "queries", 2)):
        rows = [
            {
                "anchor": f"anchor {i} {PLANTED}", "positive": f"positive {i}",
                **{f"negative_{n + 1}": f"negative {n}" for n in range(negatives)},
                "anchor_id": f"a{i}", "positive_id": f"p{i}",
                "negative_ids": [f"n{n}" for n in range(negatives)],
                "anchor_group": None, "positive_group": "w", "blocked_ids": [f"a{i}"],
            }
            for i in range(3)
        ]  # fmt: skip
        write_parquet(folder / f"{name}.parquet", train_features(negatives), rows)
        entries.append(
            {"name": name, "task": name.split("-")[0], "kind": kind, "path": f"{name}.parquet",
             "rows": 3, "negatives": negatives, "dropped": {}, "fingerprint": "e" * 64,
             "source": {"evaluation_texts": {"anchor is an evaluation query": 1}}}
        )  # fmt: skip
    write_json(
        folder / "mixture.json",
        {"datasets": entries, "rows": 6, "seed": 13, "corpus": "f" * 64, "recipe": "c" * 64,
         "leak_check": {"queries": 4, "passages": 0, "graph_rows": False}},
    )  # fmt: skip
    return folder


def make_queries(folder: Path) -> Path:
    """Recorded training queries that name passages of the corpus."""
    write_jsonl(
        folder / "scene.jsonl",
        (
            {"id": f"s{i}", "split": "train", "passage_id": name, "stage_a": f"about {i}",
             "query": f"I remember {i}"}
            for i, name in enumerate(["NA", "d5"])
        ),
    )  # fmt: skip
    return folder


def make_checkpoints(folder: Path, base_folder: Path, *, named: bool = True) -> dict[str, Any]:
    """``model/`` (merged) and ``adapter/`` with an effect, and the record of their training.

    Returns:
        Vectors of probe texts by the merged model.
    """
    model = ObliqSentenceTransformer.from_base(
        base_folder, tasks=["writing", "congress"], lora=LoraSettings(r=2), device="cpu"
    )
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    if named:
        model.base = BaseRecord(id=BASE, revision=COMMIT)
        config = model[0].model.peft_config["default"]
        config.base_model_name_or_path, config.revision = BASE, COMMIT
    model.save(folder / "adapter")
    merged = model.merged("float32")
    merged.save(folder / "model")
    report = merged.merge_report
    assert report is not None
    write_json(
        folder / "training.json",
        {
            "fingerprint": "a" * 64, "recipe": "c" * 64, "mixture": "d" * 64, "seed": 13,
            "processes": 1, "device": "cpu", "steps": 5, "seconds": 12.5, "losses": [{"loss": 1.0}],
            "settings": {"base": "base", "max_length": 96, "include_prompt": False,
                         "lora": {"r": 2, "alpha": 32}, "learning_rate": 1e-4},
            "base": {"id": BASE, "revision": COMMIT, "layers": None, "bidirectional": None},
            "merge": {"layers": report.layers, "max_difference": report.max_difference,
                      "max_embedding_change": report.max_embedding_change},
            "versions": {"torch": "2"},
        },
    )  # fmt: skip
    probes = ["the sea was calm", "he would not say why"]
    return {"probes": probes, "vectors": merged.encode_query(probes, prompt_name="writing")}


def make_run(folder: Path, base_folder: Path) -> dict[str, Any]:
    """The whole run folder; returns probe vectors."""
    folder.mkdir(parents=True, exist_ok=True)
    make_corpus(folder / "corpus")
    make_graph(folder / "graph")
    make_mixture(folder / "mixture")
    make_queries(folder / "queries")
    write_json(folder / "report.json", REPORT)
    return make_checkpoints(folder, base_folder)

"""What evaluating through mteb adds to encoding and one matrix search of the same texts.

    python benchmarks/evaluation_harness.py [--documents 600] [--queries 100]

Both sides encode the same texts with the packaged MiniLM, in alternating order; processor time is
compared, so that other work on the machine does not count. The aim is a ratio of at most 1.05.
Also timed: 10,000 bootstrap resamples over 512 queries x 10 metrics (aim: under 2 s).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from eval_mteb.evaluation import evaluate_system
from eval_mteb.models import load_encoder
from eval_mteb.systems import System
from eval_mteb.tasks import folder_task
from obliq_hf.files import write_jsonl
from obliq_hf.records import write_qrels
from obliq_hf.statistics import compare_metrics


def write_folder(root: Path, documents: int, queries: int) -> None:
    """Random words under a few hundred authors, judged by author."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("aeiourstlnm"), 5)) for _ in range(3000)])

    def text() -> str:
        return " ".join(rng.choice(words, 90))

    write_jsonl(root / "corpus.jsonl", ({"_id": f"d{i}", "text": text()} for i in range(documents)))
    write_jsonl(root / "queries.jsonl", ({"_id": f"q{i}", "text": text()} for i in range(queries)))
    qrels = {
        f"q{i}": {f"d{j}": 1 for j in rng.choice(documents, 10, replace=False).tolist()}
        for i in range(queries)
    }
    write_qrels(root / "qrels" / "test.tsv", qrels)


def main() -> None:
    """Time both sides alternately and print the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    encoder = load_encoder("embedded")
    bare: list[float] = []
    harness: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        write_folder(root / "data", options.documents, options.queries)
        task = folder_task(root / "data")
        texts, asked = task.data.corpus.texts, list(task.query_texts.values())
        system = System("minilm", "content", lambda _: encoder)
        for repeat in range(options.repeats):
            start = time.process_time()
            documents = encoder.model.encode_document(texts, show_progress_bar=False)
            scores = encoder.model.encode_query(asked, show_progress_bar=False) @ documents.T
            depth = min(1000, len(texts))
            np.argpartition(-scores, depth - 1, axis=1)[:, :depth].sort(axis=1)
            bare.append(time.process_time() - start)
            start = time.process_time()
            evaluate_system(system, task, root / f"eval-{repeat}", show_progress=False)
            harness.append(time.process_time() - start)
    ratio = np.median(harness) / np.median(bare)
    print(
        f"encoding and matrix search {np.median(bare):.2f} s, through the harness "
        f"{np.median(harness):.2f} s: {ratio:.3f} times"
    )
    rng = np.random.default_rng(0)
    a, b = (
        {f"m{m}": {f"q{q}": float(v) for q, v in enumerate(rng.random(512))} for m in range(10)}
        for _ in range(2)
    )
    start = time.process_time()
    compare_metrics(a, b, resamples=10_000)
    print(f"10,000 resamples, 512 queries x 10 metrics: {time.process_time() - start:.2f} s")


if __name__ == "__main__":
    main()

"""A recipe over a few passages with queries of its own, and the folder it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

HABITS = {
    "ann": "the old king said upon the night that he would then come home and it was cold",
    "ben": "we saw red fire over the blue sea while they sang a song of war and peace",
    "cat": "my little son my dear daughter there is no love without fear in this house",
    "dan": "who would open the door when the horse is gone from the green field by the river",
}


def write_source(folder: Path) -> Path:
    """A labelled folder: 4 hands x 4 works x 5 passages, queries of the user's own task."""
    rng = np.random.default_rng(5)
    words = " ".join(HABITS.values()).split()
    rows, qrels, queries = [], [], []
    for author, habit in HABITS.items():
        own = habit.split()
        for work in range(4):
            for i in range(5):
                picked = [str(rng.choice(own if rng.random() < 0.7 else words)) for _ in range(40)]
                rows.append(
                    {
                        "_id": f"{author} {work}-{i}",
                        "text": " ".join(picked),
                        "metadata": {"author": author, "group": f"{author}-{work}", "one": "same"},
                    }
                )
    for i, row in enumerate(rows[::8]):
        half = row["text"].split()[5:20]
        queries.append({"_id": f"q{i}", "text": "i remember " + " ".join(half), "metadata": {}})
        qrels.append(f"q{i}\t{row['_id']}\t1")
    base = folder / "tasks" / "echo"
    (base / "qrels").mkdir(parents=True)
    for name, lines in (("corpus.jsonl", rows), ("tasks/echo/queries.jsonl", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    (base / "qrels" / "test.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    training = [
        {"query": "who can find " + " ".join(r["text"].split()[20:30]), "passage_id": r["_id"]}
        for r in rows[1::4]
    ]
    (folder / "echo.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in training), encoding="utf-8", newline="\n"
    )
    return folder


RECIPE = """\
name: small
seed: 3
tasks: [echo.yaml]
corpus: {{source: beir, path: {source}}}
queries: {{source: path, path: {source}/echo.jsonl, tasks: [echo]}}
graph: {{task: echo, k: 2, dose: 40, label: author}}
training:
  base: {base}
  max_length: 96
  learning_rate: 1.0e-3
  batch_size: 8
  repeat: {{queries: 2}}
  save_steps: 2
evaluation: {{depth: 50}}
"""

"""A small folder in OBLIQ-Bench's layout: two tasks with corpora of their own, a third beside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

HABITS = {
    "ann": "the old king said upon the night that he would then come home and it was cold",
    "ben": "we saw red fire over the blue sea while they sang a song of war and peace",
    "cat": "my little son my dear daughter there is no love without fear in this house",
}


def _lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file.write_text(text, encoding="utf-8", newline="\n")


def _qrels(file: Path, header: str, pairs: list[tuple[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(f"{query}\t{document}\t1" for query, document in pairs)]
    file.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")


def _passages(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    words = " ".join(HABITS.values()).split()
    return [" ".join(rng.choice(words, 30)) for _ in range(count)]


def write_bench(root: Path) -> Path:
    """``writing`` and ``congress`` below ``root``, ``topical`` in BEIR's layout in ``root/plain``.

    ``root/synthetic/congress.jsonl`` holds training queries.
    """
    rng = np.random.default_rng(5)
    rows, queries, pairs, excluded = [], [], [], {}
    for author, habit in HABITS.items():
        for work in range(4):
            for i in range(4):
                text = " ".join(rng.choice(habit.split(), 30))
                row = {"_id": f"{author}{work}-{i}", "text": text}
                rows.append({**row, "metadata": {"work": f"{author}-{work}", "author": author}})
        own = [row["_id"] for row in rows if row["_id"].startswith(f"{author}0")]
        excluded[f"w-{author}"] = own
        text = " ".join(rng.choice(habit.split(), 30))
        queries.append({"_id": f"w-{author}", "text": text, "metadata": {}})
        others = [r["_id"] for r in rows if r["_id"].startswith(author) and r["_id"] not in own]
        pairs += [(f"w-{author}", document) for document in others]
    place = root / "analogues" / "writing"
    _lines(place / "corpus" / "corpus.jsonl", rows)
    _lines(place / "queries+qrels" / "queries.jsonl", queries)
    _qrels(place / "queries+qrels" / "qrels.tsv", "query_id\tcorpus_id\tscore", pairs)
    (place / "queries+qrels" / "per_query_excluded_ids.json").write_text(json.dumps(excluded))

    texts = _passages(7, 40)
    rows = [
        {"_id": f"c {i}", "text": text, "metadata": {"hearing": f"h{i // 5}"}}
        for i, text in enumerate(texts)
    ]
    place = root / "tip-of-tongue" / "congress"
    _lines(place / "corpus" / "corpus.jsonl", rows)
    asked = [
        {"_id": f"q{i}", "text": "who said " + " ".join(texts[i].split()[:8]), "metadata": {}}
        for i in range(0, 12, 3)
    ]
    _lines(place / "queries+qrels" / "queries.jsonl", asked)
    gold = [(f"q{i}", f"c {i}") for i in range(0, 12, 3)]
    _qrels(place / "queries+qrels" / "qrels.tsv", "query-id\tcorpus-id\tscore", gold)
    training = [
        {"doc_id": f"c {i}", "query": "a hearing where " + " ".join(texts[i].split()[10:18])}
        for i in range(15, 40)
    ]
    _lines(root / "synthetic" / "congress.jsonl", training)

    texts = _passages(11, 12)
    plain = root / "plain"
    _lines(plain / "corpus.jsonl", [{"_id": f"p{i}", "text": t} for i, t in enumerate(texts)])
    asked = [{"_id": f"t{i}", "text": " ".join(texts[i].split()[:6])} for i in range(4)]
    _lines(plain / "queries.jsonl", asked)
    _qrels(plain / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", [
        (f"t{i}", f"p{i}") for i in range(4)
    ])  # fmt: skip
    return root

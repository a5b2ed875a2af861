from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dataset_builders.authorship_graph import build_graph, random_neighbours, take_dose
from dataset_builders.cli import graph as graph_command
from dataset_builders.diagnostics.purity import purity
from dataset_builders.graph import read_graph
from obliq_hf.errors import ObliqError
from obliq_hf.records import Corpus, write_corpus
from obliq_hf.search.encoding import encode_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROWS = 120


class Drawn:
    """Vectors drawn by the number in each text."""

    name = "drawn"
    fingerprint = "f" * 64
    revision = None
    dimension = 16
    max_length = None
    document_prompt = ""
    query_prompts: dict[str, str] = {}  # noqa: RUF012

    def encode(self, texts: Sequence[str], *, prompt: str, progress: Any = None) -> np.ndarray:
        drawn = [np.random.default_rng(int(t.split()[1])).standard_normal(16) for t in texts]
        vectors = np.array(drawn, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def corpus() -> Corpus:
    """Every fourth document is a copy of an earlier one."""
    texts = [f"passage {i - 40 if i % 4 == 0 and i >= 40 else i}" for i in range(ROWS)]
    groups: list[str | None] = [f"work {i // 6}" for i in range(ROWS)]
    authors = {"author": [f"author {i // 12}" for i in range(ROWS)]}
    return Corpus([f"d{i}" for i in range(ROWS)], texts, groups=groups, metadata=authors)


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_the_graph_over_shards_is_the_graph_over_one_array(corpus, tmp_path, storage):
    index = encode_corpus(Drawn(), corpus, tmp_path / "i", storage=storage, shard_rows=25)
    vectors = index.vectors(unit=True)
    over_shards = build_graph(corpus, vectors, k=4)
    over_array = build_graph(corpus, vectors[:], k=4)
    for column in ("anchor", "positive", "rank", "similarity"):
        wanted = getattr(over_array, column)
        np.testing.assert_array_equal(getattr(over_shards, column), wanted)
    assert purity(over_shards, corpus, "author", vectors=vectors).to_dict() == (
        purity(over_array, corpus, "author", vectors=vectors[:]).to_dict()
    )
    dose = take_dose(over_shards, 50)
    drawn = random_neighbours(dose, corpus, seed=1, vectors=vectors)
    assert np.isfinite(drawn.similarity).all()


def test_the_command_takes_an_index_of_the_same_documents(corpus, tmp_path: Path):
    encode_corpus(Drawn(), corpus, tmp_path / "i", shard_rows=25)
    write_corpus(tmp_path / "corpus.jsonl", corpus)
    graph_command(tmp_path / "corpus.jsonl", out=tmp_path / "g", index=tmp_path / "i", k=2)
    found = read_graph(tmp_path / "g", corpus)
    assert found.info["teacher"] == "drawn"
    assert len(found) == 2 * ROWS
    write_corpus(tmp_path / "other.jsonl", corpus.select(range(ROWS - 1)))
    with pytest.raises(ObliqError, match="in their order"):
        graph_command(tmp_path / "other.jsonl", out=tmp_path / "h", index=tmp_path / "i")

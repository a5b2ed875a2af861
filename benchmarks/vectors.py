"""Exact search, the kNN graph and sharded indexes beside other engines, on the same vectors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.table import Row, by_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["measure", "write_index"]

Calls = dict[str, "Callable[[], object]"]


def unit_vectors(rows: int, dimensions: int, seed: int) -> NDArray[np.float32]:
    """Random vectors of length 1 around a few hundred centres, as embeddings are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((256, dimensions), dtype=np.float32)
    vectors = centres[rng.integers(0, 256, rows)]
    vectors += rng.standard_normal((rows, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _mteb_search(queries: NDArray[Any], documents: NDArray[Any], k: int) -> Callable[[], object]:
    """The search of mteb itself over vectors that are there already."""
    import torch
    from datasets import Dataset
    from mteb.models.model_meta import ModelMeta
    from mteb.models.search_wrappers import SearchEncoderWrapper
    from mteb.types import PromptType

    corpus = Dataset.from_dict(
        {"id": [f"d{i}" for i in range(len(documents))], "text": [""] * len(documents)}
    )
    asked = Dataset.from_dict(
        {"id": [f"q{i}" for i in range(len(queries))], "text": [""] * len(queries)}
    )

    class Given:
        """Gives vectors in order, chunk by chunk."""

        mteb_model_meta = ModelMeta.create_empty(overwrites={"name": "local/given"})

        def __init__(self) -> None:
            self.place = 0

        def encode(self, inputs: Any, *, prompt_type: Any, **_: Any) -> torch.Tensor:
            if prompt_type == PromptType.query:
                return torch.from_numpy(queries)
            start, self.place = self.place, self.place + len(inputs.dataset)
            return torch.from_numpy(documents[start : self.place])

        def similarity(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b.T

    import mteb

    metadata = mteb.get_task("SciFact").metadata

    def run() -> object:
        wrapper = SearchEncoderWrapper(Given())  # type: ignore[arg-type]
        where: dict[str, Any] = {
            "task_metadata": metadata, "hf_split": "test", "hf_subset": "default",
            "encode_kwargs": {"batch_size": 1024},
        }  # fmt: skip
        wrapper.index(corpus, **where)  # type: ignore[arg-type]
        return wrapper.search(asked, top_k=k, **where)  # type: ignore[arg-type]

    return run


def _search_calls(rows: int, *, dimensions: int, queries: int, k: int) -> Calls:
    import faiss
    import torch
    from sentence_transformers.util import semantic_search

    from obliq_hf.search.dense import search

    documents = unit_vectors(rows, dimensions, 0)
    asked = unit_vectors(queries, dimensions, 1)
    corpus, question = torch.from_numpy(documents), torch.from_numpy(asked)
    index = faiss.IndexFlatIP(dimensions)
    index.add(documents)

    def with_numpy() -> object:
        scores = asked @ documents.T
        best = np.argpartition(-scores, k, axis=1)[:, :k]
        found = np.take_along_axis(scores, best, axis=1)
        return np.take_along_axis(best, np.argsort(-found, axis=1), axis=1)

    return {
        "ours": lambda: search(asked, documents, k),
        "torch matmul + topk": lambda: torch.topk(question @ corpus.T, k),
        "faiss IndexFlatIP": lambda: index.search(asked, k),
        "numpy argpartition": with_numpy,
        "semantic_search": lambda: semantic_search(question, corpus, top_k=k),
        "mteb": _mteb_search(asked, documents, k),
    }


def _graph_calls(rows: int, *, dimensions: int, group: int, k: int) -> Calls:
    """The graph beside its bare engine, asked for as many more as a group may take away."""
    import faiss

    from dataset_builders.authorship_graph import build_graph
    from obliq_hf.records import Corpus
    from obliq_hf.search import dense

    vectors = unit_vectors(rows, dimensions, 2)
    corpus = Corpus(
        [f"d{i}" for i in range(rows)],
        [f"text {i}" for i in range(rows)],
        groups=[f"g{i // group}" for i in range(rows)],
    )
    more = k + group
    index = faiss.IndexFlatIP(dimensions)
    index.add(vectors)

    def bare() -> None:
        for start in range(0, rows, 4096):
            dense.top_k(vectors[start : start + 4096], vectors, more)

    return {
        "ours": lambda: build_graph(corpus, vectors, k=k),
        "the bare engine": bare,
        "faiss IndexFlatIP": lambda: index.search(vectors, more),
    }


def write_index(folder: Path, rows: int, dimensions: int, *, shard_rows: int = 16_384) -> Any:
    """An index of generated half-precision vectors, written shard by shard."""
    from obliq_hf.records import Corpus
    from obliq_hf.search.encoding import encode_corpus

    rng = np.random.default_rng(4)

    class Generated:
        """Vectors that no text decides."""

        name, fingerprint, revision = "generated", "0" * 64, None
        dimension, max_length, document_prompt = dimensions, None, ""
        query_prompts: dict[str, str] = {}  # noqa: RUF012

        def encode(self, texts: Any, *, prompt: str, progress: Any = None) -> NDArray[np.float32]:
            vectors = rng.standard_normal((len(texts), dimensions), dtype=np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            return vectors

    names = [str(i) for i in range(rows)]
    return encode_corpus(Generated(), Corpus(names, names), folder, shard_rows=shard_rows)


def read_and_multiply(folder: Path, dimensions: int, queries: NDArray[np.float32]) -> None:
    """The least that a search must do: read every file once, and multiply."""
    from obliq_hf.search.tensors import cast_half

    columns = np.ascontiguousarray(queries.T)
    single = np.empty((2048, dimensions), dtype=np.float32)
    for file in sorted((folder / "shards").glob("*[0-9].safetensors")):
        with file.open("rb") as stream:
            stream.seek(8 + int.from_bytes(stream.read(8), "little"))
            while piece := stream.read(2048 * dimensions * 2):
                half = np.frombuffer(piece, dtype=np.float16).reshape(-1, dimensions)
                cast_half(half, single[: len(half)])
                np.matmul(single[: len(half)], columns)


def _index_calls(rows: int, *, dimensions: int, queries: int, k: int, place: Path) -> Calls:
    folder = place / str(rows)
    index = write_index(folder, rows, dimensions)
    asked = unit_vectors(queries, dimensions, 5)
    return {
        "ours": lambda: index.search(asked, k),
        "one read + matrix product": lambda: read_and_multiply(folder, dimensions, asked),
    }


def measure(*, scale: float = 1.0) -> list[Row]:
    """The three comparisons.

    Args:
        scale: Share of the usual sizes, for trials.
    """

    def sizes(smallest: int) -> list[int]:
        first = max(64, int(smallest * scale))
        return [first, 2 * first, 4 * first]

    searched = by_size(
        "exact search, 500 queries, top 100",
        sizes(50_000),
        lambda n: _search_calls(n, dimensions=384, queries=500, k=min(100, n // 2)),
        unit="x 384",
        aims={
            "torch matmul + topk": 1.15,
            "faiss IndexFlatIP": 1.0,
            "semantic_search": 1.0,
            "mteb": 1.0,
        },
    )
    graph = by_size(
        "kNN graph, k = 3, groups of 20 excluded",
        sizes(5000),
        lambda n: _graph_calls(n, dimensions=512, group=20, k=3),
        unit="x 512",
        aims={"the bare engine": 1.1},
        rounds=2,
    )
    with tempfile.TemporaryDirectory() as place:
        index = by_size(
            "search over shards on disk, fp16, 40 queries, top 100",
            sizes(12_500),
            lambda n: _index_calls(n, dimensions=3072, queries=40, k=100, place=Path(place)),
            unit="x 3,072",
            aims={"one read + matrix product": 1.3},
        )
    return [searched, graph, index]

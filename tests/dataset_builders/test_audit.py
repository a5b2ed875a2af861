"""The audit of what else a graph's neighbours share."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dataset_builders.authorship_graph import build_graph
from dataset_builders.diagnostics.audit import ColumnAudit, audit
from obliq_hf.errors import DataError
from obliq_hf.records import Corpus


@pytest.fixture(scope="module")
def marked() -> tuple[Corpus, np.ndarray]:
    """A corpus whose vectors show the dialect, not the town, of each document."""
    rng = np.random.default_rng(0)
    n = 200
    dialect = rng.integers(4, size=n)
    town = rng.integers(4, size=n)
    vectors = rng.standard_normal((n, 12))
    vectors[np.arange(n), dialect] += 3
    corpus = Corpus(
        ids=[f"d{i}" for i in range(n)],
        texts=[f"post {i}" for i in range(n)],
        groups=[f"thread{i % 50}" for i in range(n)],
        metadata={
            "dialect": [int(x) for x in dialect],
            "town": [f"t{x}" for x in town],
            "language": ["en"] * n,
            "url": [f"u{i}" for i in range(n)],
            "nothing": [None] * n,
            "some": [None if i % 2 else {"k": [int(dialect[i])]} for i in range(n)],
        },
    )
    return corpus, vectors


def columns_of(marked: tuple[Corpus, np.ndarray]) -> dict[str, ColumnAudit]:
    corpus, vectors = marked
    return {c.column: c for c in audit(build_graph(corpus, vectors), corpus).columns}


def test_a_column_the_neighbours_share_stands_out_and_another_does_not(marked) -> None:
    columns = columns_of(marked)
    assert columns["dialect"].ratio_ci95[0] > 2
    low, high = columns["town"].ratio_ci95
    assert low < 1 < high


def test_the_field_that_groups_were_read_from_is_audited_once() -> None:
    groups = ["a", "a", "b", "b", "c", "c"]
    corpus = Corpus(
        [f"d{i}" for i in range(6)], [f"t{i}" for i in range(6)], groups=groups,
        metadata={"source": list(groups), "form": list("xyxyxy")},
    )  # fmt: skip
    vectors = np.eye(6, dtype=np.float32)
    assert list(columns_of((corpus, vectors))) == ["form", "group"]


def test_shares_and_random_rates_are_counted_over_the_same_pairs(marked) -> None:
    corpus, vectors = marked
    graph = build_graph(corpus, vectors)
    values = corpus.metadata["dialect"]
    same = [values[a] == values[p] for a, p in zip(graph.anchor, graph.positive, strict=True)]
    rates = []
    for a in range(len(corpus)):
        others = [b for b in range(len(corpus)) if corpus.groups[a] != corpus.groups[b]]
        rates.append(np.mean([values[a] == values[b] for b in others]))
    found = columns_of(marked)["dialect"]
    assert found.share == pytest.approx(np.mean(same))
    assert found.random_rate == pytest.approx(np.mean(rates))
    assert found.ratio == pytest.approx(found.share / found.random_rate)
    assert found.share_ci95[0] < found.share < found.share_ci95[1]


def test_constant_unique_empty_and_group_columns_say_why_they_say_nothing(marked) -> None:
    columns = columns_of(marked)
    assert columns["language"].ratio == pytest.approx(1)
    assert "one value only" in columns["language"].note
    assert columns["url"].ratio is None
    assert "value of its own" in columns["url"].note
    assert columns["nothing"].share is None
    assert columns["nothing"].missing == 200
    assert "by construction" in columns["group"].note
    assert columns["dialect"].note == ""


def test_missing_values_are_left_out_and_nested_values_compared(marked) -> None:
    found = columns_of(marked)["some"]
    assert found.missing == 100
    assert found.values == 4
    assert 0 < found.edges < 400
    assert found.ratio > 2


def test_named_columns_only_and_unknown_names_are_errors(marked) -> None:
    corpus, vectors = marked
    graph = build_graph(corpus, vectors)
    assert [c.column for c in audit(graph, corpus, ["town"]).columns] == ["town"]
    with pytest.raises(DataError, match="no column 'twn'; did you mean 'town'"):
        audit(graph, corpus, ["twn"])


def test_a_corpus_without_metadata_has_an_empty_audit() -> None:
    corpus = Corpus(["a", "b", "c"], ["one", "two", "three"])
    graph = build_graph(corpus, np.eye(3), k=1)
    assert audit(graph, corpus).columns == []


def test_the_audit_is_plain_json(marked) -> None:
    corpus, vectors = marked
    value = audit(build_graph(corpus, vectors), corpus, resamples=20).to_dict()
    assert json.loads(json.dumps(value, allow_nan=False))["edges"] == 600

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dataset_builders.diagnostics.leakage import (
    coverage,
    distinct_ngrams,
    distribution_overlap,
    leakage,
    self_retrieval_ranks,
)
from dataset_builders.diagnostics.query_report import compare_with_official
from dataset_builders.query_checks import CorpusWords
from dataset_builders.recorded_queries import load_recorded
from obliq_hf.errors import DataError
from obliq_hf.records import Corpus, read_corpus

if TYPE_CHECKING:
    from pathlib import Path


def test_coverage_counts_different_content_words_of_the_query_only():
    assert coverage("the captain and the sailor", "A captain stood there.") == 0.5
    assert coverage("the and of with", "the and of with") == 0.0
    assert coverage("Storm storm storm sea", "no storm") == 0.5


def test_self_retrieval_finds_a_copied_document_first_and_a_foreign_query_nowhere():
    corpus = Corpus(["a", "b", "c"], ["red boats sail", "green hills roll", "blue skies shine"])
    ranks = self_retrieval_ranks(["green hills roll", "something else"], ["b", "c"], corpus)
    assert ranks.tolist() == [1, 4]


def test_distinct_ngrams_fall_with_repetition():
    assert distinct_ngrams(["a b c d", "e f g h"], 1) == 1.0
    assert distinct_ngrams(["a b a b", "a b a b"], 2) < 0.5
    assert distinct_ngrams([], 2) == 0.0


def test_overlap_is_one_for_equal_and_nought_for_apart_samples():
    assert distribution_overlap([1, 2, 3], [1, 2, 3]) == pytest.approx(1.0)
    assert distribution_overlap([1, 1.1], [9, 9.1]) == 0.0
    assert distribution_overlap([5, 5], [5]) == pytest.approx(1.0)


def test_leaks_are_counted_as_shares_of_the_queries():
    documents = ["When Darcy came, and Bingley too, all was well", "we saw Anna there at last"]
    figures = leakage(["a visit of Darcy in the evening", "somebody was seen"], documents)
    assert figures.entity_leakage == 0.5
    assert figures.queries == 2
    assert json.dumps(figures.to_dict())


def test_queries_and_documents_must_be_as_many():
    with pytest.raises(DataError, match="2 queries and 1"):
        leakage(["a", "b"], ["c"])


def test_a_query_that_copies_an_official_one_is_counted():
    official = ["find all the scenes in which somebody waits for a ship that never comes home"]
    queries = [official[0] + " again", "something quite different is asked for here, by another"]
    found = compare_with_official(queries, official)
    assert found["near_copies_of_official"] == 1


@pytest.mark.parametrize(
    ("task", "source", "bound"),
    [
        ("congress", "mini_obliq/tip-of-tongue/congress", 0.2),
        ("math", "mini_obliq/analogues/math", 0.3),
        ("twitter", "mini_obliq/descriptive/twitter", 0.3),
        ("writing", "authorship/corpus.jsonl", 0.1),
    ],
)
def test_recorded_queries_hardly_leak(shared_data: Path, task, source, bound):
    corpus = read_corpus(shared_data / source)
    path = shared_data / "mini_obliq" / "synthetic" / f"{task}.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [corpus.texts[corpus.row[row["doc_id"]]] for row in rows]
    figures = leakage([row["query"] for row in rows], texts)
    assert figures.entity_leakage < 0.05
    assert figures.quotations == 0
    assert figures.near_copies == 0
    assert 0 < figures.coverage < bound


@pytest.mark.parametrize(("splits", "count"), [(("train",), 504), (("dev", "test"), 132)])
def test_the_demos_recorded_queries_hardly_leak(classics_corpus: Corpus, splits, count):
    rows = [row for s in splits for row in load_recorded("scene", classics_corpus, split=s)]
    documents = [row.passage_id for row in rows]
    queries = [row.query for row in rows]
    ranks = self_retrieval_ranks(queries, documents, classics_corpus)
    texts = classics_corpus.full_texts()
    figures = leakage(
        queries,
        [texts[classics_corpus.row[i]] for i in documents],
        words=CorpusWords.of(texts),
        ranks=ranks,
        searched=len(texts),
    )
    assert figures.queries == count
    assert (figures.entity_leakage, figures.rare_word_leakage, figures.quotations) == (0, 0, 0)
    assert figures.near_copies == 0
    assert 0 < figures.coverage < 0.2
    assert figures.self_retrieval["rank_10"] < 0.6

from __future__ import annotations

import numpy as np
import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.search.bm25 import SETTINGS, BM25Index

CORPUS = ["foo", "dog", "baz", "quick god", "quick fox"]


def rows(hits):
    return [found.rows.tolist() for found in hits]


def lucene_bm25(documents, query, k1=1.5, b=0.75):
    """The formula on lists of terms, term by term."""
    n = len(documents)
    average = sum(map(len, documents)) / n
    scores = []
    for terms in documents:
        total = 0.0
        for term in query:
            containing = sum(term in other for other in documents)
            frequency = terms.count(term)
            idf = np.log(1 + (n - containing + 0.5) / (containing + 0.5))
            total += idf * frequency / (frequency + k1 * (1 - b + b * len(terms) / average))
        scores.append(total)
    return scores


def test_scores_are_those_of_the_formula():
    rng = np.random.default_rng(0)
    words = ["wolf", "river", "lamp", "stone", "cloud", "tiger"]
    documents = [rng.choice(words, size=rng.integers(1, 15)).tolist() for _ in range(30)]
    index = BM25Index([" ".join(d) for d in documents], setting="plain")
    query = ["wolf", "lamp", "lamp", "unknown"]
    found = index.search([" ".join(query)], 30)[0]
    expected = lucene_bm25(documents, query)
    np.testing.assert_allclose(found.scores, np.array(expected)[found.rows], rtol=1e-5)
    assert (np.diff(found.scores) <= 0).all()


def test_documents_that_share_the_term_tie_and_come_first_then_the_rest_in_corpus_order():
    found = BM25Index(CORPUS).search(["quick"], 5)[0]
    assert found.rows.tolist() == [3, 4, 0, 1, 2]
    assert found.scores[0] == found.scores[1] > 0
    assert found.scores[2:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("query", ["", "   ", "the of and", "zebra", "\x00", "🏳️‍🌈", "a b c"])
def test_a_query_without_known_terms_returns_the_corpus_from_its_start(query):
    found = BM25Index(CORPUS).search([query], 3)[0]
    assert found.rows.tolist() == [0, 1, 2]
    assert found.scores.tolist() == [0, 0, 0]


@pytest.mark.parametrize("corpus", [["", ""], ["the", "of"], ["  ", "\x00"]])
def test_a_corpus_without_terms_is_ranked_in_its_order(corpus):
    assert rows(BM25Index(corpus).search(["quick", ""], 10)) == [[0, 1], [0, 1]]


def test_empty_documents_match_nothing():
    index = BM25Index(["", "river", "", "river stone"])
    assert rows(index.search(["river", ""], 4)) == [[1, 3, 0, 2], [0, 1, 2, 3]]


def test_more_hits_than_documents_asked_for_gives_them_all():
    assert rows(BM25Index(CORPUS).search(["dog"], 10)) == [[1, 0, 2, 3, 4]]


def test_exclusions_are_applied_before_the_cut():
    index = BM25Index(CORPUS)
    excluded = [[3, 3, 0], list(range(5)), []]
    assert rows(index.search(["quick"] * 3, 3, excluded=excluded)) == [[4, 1, 2], [], [3, 4, 0]]


def test_ties_at_the_cut_go_to_the_earlier_rows():
    index = BM25Index(["stone river"] * 40 + ["river"])
    assert rows(index.search(["river"], 4)) == [[40, 0, 1, 2]]


def test_batches_of_queries_equal_single_ones():
    index = BM25Index(CORPUS)
    queries = ["fox quick", "dog baz", "quick", "nothing"]
    together = index.search(queries, 4)
    alone = [index.search([query], 4)[0] for query in queries]
    assert rows(together) == rows(alone)
    for a, b in zip(together, alone, strict=True):
        assert a.scores.tolist() == b.scores.tolist()


def test_settings_differ_in_stop_words_and_stems():
    corpus = ["running dogs", "with the"]
    assert BM25Index(corpus).search(["a dog runs"], 1)[0].scores[0] > 0
    assert BM25Index(corpus, setting="plain").search(["a dog runs"], 1)[0].scores[0] == 0
    assert rows(BM25Index(corpus, setting="plain").search(["with"], 1)) == [[1]]
    assert rows(BM25Index(corpus, setting="stopwords").search(["with"], 1)) == [[0]]
    assert BM25Index(corpus, setting="stemmed").search(["with dog"], 2)[0].scores.min() > 0
    for name in SETTINGS:
        assert BM25Index(corpus, setting=name).describe()["name"] == name


def test_search_agrees_with_bm25s_itself():
    import bm25s
    import Stemmer

    rng = np.random.default_rng(1)
    words = [f"w{i}ing" for i in range(300)] + ["the", "with"]
    corpus = [" ".join(rng.choice(words, 30)) for _ in range(200)]
    queries = [" ".join(rng.choice(words, 8)) for _ in range(10)]
    stemmer = Stemmer.Stemmer("english")
    bare = bm25s.BM25()
    bare.index(
        bm25s.tokenize(corpus, stopwords="en", stemmer=stemmer, show_progress=False),
        show_progress=False,
    )
    tokens = bm25s.tokenize(queries, stopwords="en", stemmer=stemmer, show_progress=False)
    _, scores = bare.retrieve(tokens, k=20, show_progress=False)
    for found, expected in zip(BM25Index(corpus).search(queries, 20), scores, strict=True):
        np.testing.assert_allclose(found.scores, expected, rtol=1e-6)


def test_bad_arguments_are_named():
    with pytest.raises(ObliqError, match="no documents"):
        BM25Index([])
    with pytest.raises(ObliqError, match="document 1 is NoneType"):
        BM25Index(["a", None])
    with pytest.raises(ObliqError, match="english"):
        BM25Index(["a"], setting="englsh")
    index = BM25Index(CORPUS)
    with pytest.raises(ObliqError, match="query 0 is float"):
        index.search([float("nan")], 1)
    with pytest.raises(ObliqError, match="k must"):
        index.search(["a"], 0)
    with pytest.raises(ObliqError, match="excludes row 9"):
        index.search(["a"], 1, excluded=[[9]])
    assert index.search([], 3) == []

"""The kNN graph, its doses and its random control."""

from __future__ import annotations

import numpy as np
import pytest

from dataset_builders.authorship_graph import (
    Graph,
    build_graph,
    random_neighbours,
    read_graph,
    take_dose,
    write_graph,
)
from obliq_hf.errors import DataError
from obliq_hf.records import Corpus


def make_corpus(n: int = 60, groups: int = 12, *, seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = [
        f"text {i} " + " ".join("".join(rng.choice(list(letters), 5)) for _ in range(12))
        for i in range(n)
    ]
    return Corpus(
        ids=[f"d{i}" for i in range(n)],
        texts=texts,
        groups=[f"g{i % groups}" for i in range(n)],
        metadata={"author": [f"a{i % 4}" for i in range(n)]},
    )


def make_vectors(n: int = 60, dim: int = 8, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def edges_of(graph: Graph) -> list[tuple[str, str, int]]:
    columns = (graph.anchor.tolist(), graph.positive.tolist(), graph.rank.tolist())
    return [(graph.ids[a], graph.ids[p], r) for a, p, r in zip(*columns, strict=True)]


def brute_force(
    corpus: Corpus, vectors: np.ndarray, k: int, *, exclude: bool
) -> list[tuple[str, str, int]]:
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    scores = unit @ unit.T
    found = []
    for a in range(len(corpus)):
        others = [
            b
            for b in range(len(corpus))
            if b != a and not (exclude and corpus.groups[a] == corpus.groups[b])
        ]
        others.sort(key=lambda b, a=a: (-scores[a, b], b))
        found += [(corpus.ids[a], corpus.ids[b], r) for r, b in enumerate(others[:k], 1)]
    return found


@pytest.mark.parametrize("exclude", [True, False])
def test_neighbours_are_the_exact_nearest_admissible_documents(exclude: bool) -> None:
    corpus, vectors = make_corpus(), make_vectors()
    graph = build_graph(corpus, vectors, k=3, exclude_same_group=exclude)
    assert edges_of(graph) == brute_force(corpus, vectors, 3, exclude=exclude)
    assert len(graph) == 3 * len(corpus)


def test_similarities_are_the_cosines_of_the_pairs() -> None:
    corpus, vectors = make_corpus(), 5 * make_vectors()
    graph = build_graph(corpus, vectors)
    a, b = vectors[graph.anchor], vectors[graph.positive]
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(graph.similarity, (a * b).sum(axis=1) / norms, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1e6])
def test_scaling_the_vectors_changes_nothing(scale: float) -> None:
    corpus, vectors = make_corpus(), make_vectors()
    per_row = np.random.default_rng(1).uniform(0.5, 2, size=(len(corpus), 1))
    plain = build_graph(corpus, vectors)
    scaled = build_graph(corpus, vectors * scale * per_row)
    assert edges_of(plain) == edges_of(scaled)
    np.testing.assert_allclose(plain.similarity, scaled.similarity, atol=1e-6)


def test_double_half_and_mapped_vectors_give_the_same_neighbours(tmp_path) -> None:
    corpus = make_corpus()
    vectors = make_vectors().astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    expected = edges_of(build_graph(corpus, vectors.astype(np.float64)))
    assert edges_of(build_graph(corpus, mapped)) == expected


def test_blocks_do_not_change_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, vectors = make_corpus(), make_vectors()
    whole = build_graph(corpus, vectors)
    monkeypatch.setattr("dataset_builders.authorship_graph._QUERY_BLOCK", 7)
    assert edges_of(build_graph(corpus, vectors)) == edges_of(whole)
    monkeypatch.setattr("dataset_builders.authorship_graph._EXCLUSION_BLOCK", 11)
    assert edges_of(build_graph(corpus, vectors)) == edges_of(whole)


def test_a_document_is_removed_by_identity_even_where_another_has_the_same_vector() -> None:
    corpus, vectors = make_corpus(), make_vectors()
    vectors[5] = vectors[17]  # both are each other's equal: neither may lose the other
    graph = build_graph(corpus, vectors, exclude_same_group=False)
    assert ("d5", "d17", 1) in edges_of(graph)
    assert ("d17", "d5", 1) in edges_of(graph)
    assert all(a != b for a, b, _ in edges_of(graph))


def test_a_copy_of_the_text_under_another_id_is_no_neighbour_and_is_counted() -> None:
    corpus, vectors = make_corpus(), make_vectors()
    texts = list(corpus.texts)
    texts[17] = "  " + texts[5].upper() + "\n"
    vectors[17] = vectors[5]
    corpus = Corpus(corpus.ids, texts, groups=corpus.groups)
    graph = build_graph(corpus, vectors, exclude_same_group=False)
    pairs = {(a, b) for a, b, _ in edges_of(graph)}
    assert ("d5", "d17") not in pairs
    assert ("d17", "d5") not in pairs
    assert graph.info["copies"] == 1
    assert len(graph) == 3 * len(corpus)  # three neighbours still come back for everyone


def test_neighbours_of_one_anchor_have_different_texts() -> None:
    corpus, vectors = make_corpus(), make_vectors()
    texts = list(corpus.texts)
    for copy in (7, 8, 9, 10):
        texts[copy] = texts[6]
        vectors[copy] = vectors[6]
    corpus = Corpus(corpus.ids, texts)
    graph = build_graph(corpus, vectors)
    for anchor in range(len(corpus)):
        found = [texts[p] for p in graph.positive[graph.anchor == anchor]]
        assert len(found) == len(set(found)) == 3
        assert texts[anchor] not in found


def test_a_copy_of_an_own_group_text_is_left_out_with_the_group() -> None:
    corpus, vectors = make_corpus(), make_vectors()
    texts = list(corpus.texts)
    texts[13] = texts[12]  # d12 and d0 are in g0, the copy d13 in g1
    vectors[12] = vectors[13] = vectors[0]
    corpus = Corpus(corpus.ids, texts, groups=corpus.groups)
    graph = build_graph(corpus, vectors)
    pairs = {(a, b) for a, b, _ in edges_of(graph)}
    assert not {("d0", "d12"), ("d0", "d13")} & pairs


def test_group_exclusion_comes_before_the_k_are_taken() -> None:
    n = 20
    corpus = Corpus(
        ids=[f"d{i}" for i in range(n)],
        texts=[f"text number {i}" for i in range(n)],
        groups=["big"] * 15 + ["a", "b", "c", "d", "e"],
    )
    vectors = np.ones((n, 4)) + np.random.default_rng(0).normal(0, 0.01, (n, 4))
    vectors[15:] += np.eye(4)[[0, 1, 2, 3, 0]]
    graph = build_graph(corpus, vectors, k=5)
    first = graph.positive[graph.anchor == 0]
    assert sorted(first.tolist()) == [15, 16, 17, 18, 19]


def test_documents_with_too_few_admissible_neighbours_are_counted() -> None:
    corpus = Corpus(
        ids=["a", "b", "c", "d", "e"],
        texts=["one", "two", "three", "four", "five"],
        groups=["g", "g", "g", "g", "h"],
    )
    graph = build_graph(corpus, make_vectors(5), k=3)
    assert graph.info["documents_short"] == 4
    assert graph.info["edges_missing"] == 8
    assert len(graph) == 7


def test_k_beyond_the_corpus_gives_all_there_is() -> None:
    corpus = make_corpus(6, 6)
    graph = build_graph(corpus, make_vectors(6), k=50)
    assert len(graph) == 30
    assert graph.info["edges_missing"] == 270


def test_documents_without_a_group_exclude_only_themselves() -> None:
    corpus = Corpus(["a", "b", "c"], ["one", "two", "three"], groups=[None, None, "g"])
    graph = build_graph(corpus, make_vectors(3), k=2)
    assert len(graph) == 6


def test_one_group_only_is_an_error_that_says_what_to_do() -> None:
    corpus = Corpus(["a", "b"], ["one", "two"], groups=["w", "w"])
    with pytest.raises(DataError, match=r"one group 'w'.*exclude_same_group=False"):
        build_graph(corpus, make_vectors(2))
    assert len(build_graph(corpus, make_vectors(2), k=1, exclude_same_group=False)) == 2


def test_one_text_only_is_an_error() -> None:
    with pytest.raises(DataError, match="at least two"):
        build_graph(Corpus(["a", "b"], ["same", "Same "]), make_vectors(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_vectors_that_are_not_finite_or_zero_are_named_by_id(bad: float) -> None:
    vectors = make_vectors()
    vectors[3] = bad
    vectors[42, :] = bad
    with pytest.raises(DataError, match=r"2 documents.*'d3', 'd42'"):
        build_graph(make_corpus(), vectors)


def test_vectors_of_the_wrong_shape_and_k_below_one_are_errors() -> None:
    with pytest.raises(DataError, match="60 documents"):
        build_graph(make_corpus(), make_vectors(59))
    with pytest.raises(DataError, match="k must be at least 1"):
        build_graph(make_corpus(), make_vectors(), k=0)


def test_confident_dose_takes_the_highest_similarities() -> None:
    graph = build_graph(make_corpus(), make_vectors())
    dose = take_dose(graph, 40)
    assert dose.similarity.min() >= np.sort(graph.similarity)[-40]
    assert (np.diff(dose.similarity) <= 0).all()


def test_mutual_dose_takes_reciprocal_edges_first() -> None:
    graph = build_graph(make_corpus(), make_vectors())
    mutual = int(graph.mutual().sum())
    assert 0 < mutual < len(graph)
    dose = take_dose(graph, mutual + 10, selection="mutual")
    pairs = {(a, b) for a, b, _ in edges_of(graph)}
    reverse = [(b, a) in pairs for a, b, _ in edges_of(dose)]
    assert reverse == [True] * mutual + [False] * 10
    assert dose.info["mutual_edges"] == mutual
    assert (np.diff(dose.similarity[:mutual]) <= 0).all()
    assert (np.diff(dose.similarity[mutual:]) <= 0).all()


@pytest.mark.parametrize("selection", ["confident", "random", "mutual"])
def test_a_smaller_dose_is_the_beginning_of_a_larger_one(selection) -> None:
    graph = build_graph(make_corpus(), make_vectors())
    large = edges_of(take_dose(graph, 100, selection=selection, seed=3))
    assert edges_of(take_dose(graph, 30, selection=selection, seed=3)) == large[:30]
    assert len(set(large)) == 100


def test_random_dose_depends_on_its_seed_alone() -> None:
    graph = build_graph(make_corpus(), make_vectors())
    one = edges_of(take_dose(graph, 30, selection="random", seed=1))
    assert one == edges_of(take_dose(graph, 30, selection="random", seed=1))
    assert one != edges_of(take_dose(graph, 30, selection="random", seed=2))


def test_a_dose_larger_than_the_graph_names_both_counts() -> None:
    graph = build_graph(make_corpus(), make_vectors())
    with pytest.raises(DataError, match=r"dose of 181 .* graph of 180"):
        take_dose(graph, 181)
    with pytest.raises(DataError, match="0 to 180"):
        take_dose(graph, -1)
    with pytest.raises(DataError, match="confident"):
        take_dose(graph, 5, selection="confidant")  # type: ignore[arg-type]
    assert len(take_dose(graph, 180)) == len(take_dose(graph, None)) == 180
    assert len(take_dose(graph, 0)) == 0


def test_random_control_keeps_anchors_ranks_and_dose_and_replaces_the_neighbours() -> None:
    corpus, vectors = make_corpus(), make_vectors()
    dose = take_dose(build_graph(corpus, vectors), 90)
    control = random_neighbours(dose, corpus, seed=5, vectors=vectors)
    assert control.anchor.tolist() == dose.anchor.tolist()
    assert control.rank.tolist() == dose.rank.tolist()
    joined = dose.complete.neighbours()
    for a, p in zip(control.anchor.tolist(), control.positive.tolist(), strict=True):
        assert p != a
        assert p not in joined[a]
        assert corpus.groups[p] != corpus.groups[a]
    assert len({(a, b) for a, b, _ in edges_of(control)}) == 90
    assert control.similarity.mean() < dose.similarity.mean()


def test_random_control_is_seeded_and_honours_rows_to_avoid() -> None:
    corpus, vectors = make_corpus(), make_vectors()
    dose = take_dose(build_graph(corpus, vectors), 90)
    one = random_neighbours(dose, corpus, seed=5)
    assert edges_of(one) == edges_of(random_neighbours(dose, corpus, seed=5))
    assert edges_of(one) != edges_of(random_neighbours(dose, corpus, seed=6))
    avoid = [list(range(0, 60, 2))] * 90
    odd = random_neighbours(dose, corpus, seed=5, avoid=avoid)
    assert set((odd.positive % 2).tolist()) == {1}


def test_random_control_draws_all_admissible_documents_equally_often() -> None:
    corpus, vectors = make_corpus(10, 5), make_vectors(10)
    dose = take_dose(build_graph(corpus, vectors, k=1), None)
    counts = np.zeros((10, 10))
    for seed in range(2000):
        control = random_neighbours(dose, corpus, seed=seed)
        counts[control.anchor, control.positive] += 1
    joined = dose.complete.neighbours()
    for a in range(10):
        allowed = [
            b for b in range(10) if b not in joined[a] and corpus.groups[a] != corpus.groups[b]
        ]
        assert set(np.flatnonzero(counts[a])) == set(allowed)
        expected = 2000 / len(allowed)
        assert np.abs(counts[a, allowed] - expected).max() < 5 * np.sqrt(expected)


def test_random_control_says_when_the_corpus_is_too_small() -> None:
    corpus = make_corpus(4, 4)
    dose = take_dose(build_graph(corpus, make_vectors(4), k=3), None)
    with pytest.raises(DataError, match="too small for the control"):
        random_neighbours(dose, corpus, seed=0)


def test_neighbours_are_undirected_and_can_be_asked_for_some_rows() -> None:
    graph = build_graph(make_corpus(), make_vectors())
    joined = graph.neighbours()
    for a, b in zip(graph.anchor.tolist(), graph.positive.tolist(), strict=True):
        assert b in joined[a]
        assert a in joined[b]
    assert graph.neighbours([3, 7]) == {3: joined[3], 7: joined[7]}


def test_a_dose_survives_writing_and_reading_with_its_complete_graph(tmp_path) -> None:
    corpus, vectors = make_corpus(), make_vectors()
    graph = build_graph(corpus, vectors, info={"teacher": "test", "corpus": "searched"})
    dose = take_dose(graph, 50)
    write_graph(tmp_path / "graph", dose, corpus)
    again = read_graph(tmp_path / "graph", corpus)
    assert edges_of(again) == edges_of(dose)
    assert edges_of(again.complete) == edges_of(graph)
    assert again.info == dose.info
    assert again.similarity.tolist() == dose.similarity.tolist()
    assert (again.info["teacher"], again.info["corpus"]) == ("test", "searched")


def test_written_edges_load_as_a_dataset_with_the_declared_columns(tmp_path) -> None:
    from datasets import load_dataset

    from obliq_hf.records import edge_features

    corpus, vectors = make_corpus(), make_vectors()
    graph = build_graph(corpus, vectors)
    write_graph(tmp_path / "graph", graph, corpus)
    rows = load_dataset(
        "parquet",
        data_files=str(tmp_path / "graph" / "edges.parquet"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert rows.features == edge_features()
    assert rows.num_rows == len(graph)
    assert rows[4]["anchor"] == corpus.texts[corpus.row[rows[4]["anchor_id"]]]


def test_a_graph_is_refused_with_another_corpus(tmp_path) -> None:
    corpus, vectors = make_corpus(), make_vectors()
    write_graph(tmp_path / "graph", build_graph(corpus, vectors), corpus)
    changed = Corpus(corpus.ids, [*corpus.texts[:-1], "changed"], groups=corpus.groups)
    with pytest.raises(DataError, match="another corpus"):
        read_graph(tmp_path / "graph", changed)
    with pytest.raises(DataError, match="another corpus"):
        write_graph(tmp_path / "other", build_graph(corpus, vectors), changed)


def test_ids_that_look_like_numbers_or_missing_values_survive(tmp_path) -> None:
    corpus = Corpus(["0012", "NA", "1e5", "an id"], ["one", "two", "three", "four"])
    graph = build_graph(corpus, make_vectors(4), k=2)
    write_graph(tmp_path / "graph", graph, corpus)
    assert edges_of(read_graph(tmp_path / "graph", corpus)) == edges_of(graph)


def test_a_self_edge_is_refused() -> None:
    rows = np.array([0, 1])
    with pytest.raises(DataError, match=r"to itself.*'b'"):
        Graph(["a", "b"], rows, np.array([1, 1]), np.ones(2, np.int32), np.ones(2, np.float32))


def test_a_half_written_graph_is_never_seen(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus()
    graph = build_graph(corpus, make_vectors())

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dataset_builders.graph.write_json", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_graph(tmp_path / "graph", graph, corpus)
    assert list(tmp_path.iterdir()) == []

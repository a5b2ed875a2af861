"""The purity screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dataset_builders.authorship_graph import build_graph, random_neighbours, take_dose
from dataset_builders.diagnostics.purity import purity
from dataset_builders.graph import Graph
from obliq_hf.errors import DataError
from obliq_hf.files import iter_jsonl
from obliq_hf.records import Corpus

if TYPE_CHECKING:
    from pathlib import Path


def authors(n: int = 240, *, works: int = 3, hands: int = 6, seed: int = 0) -> Corpus:
    """Passages by author (hand) and work; a work belongs to one author."""
    rng = np.random.default_rng(seed)
    hand = rng.integers(hands, size=n)
    work = rng.integers(works, size=n)
    return Corpus(
        ids=[f"d{i}" for i in range(n)],
        texts=[f"passage number {i}" for i in range(n)],
        groups=[f"h{h}-w{w}" for h, w in zip(hand, work, strict=True)],
        metadata={"author": [f"h{h}" for h in hand], "year": [1800 + int(h) for h in hand]},
    )


def teacher(corpus: Corpus, *, hand: float = 0.0, work: float = 0.0, seed: int = 0) -> np.ndarray:
    """Vectors of noise in which author and work stand out as strongly as asked."""
    rng = np.random.default_rng(seed)
    keys = [*set(corpus.groups), *set(corpus.metadata["author"])]
    centre = {key: rng.standard_normal(32) for key in sorted(keys)}
    vectors = rng.standard_normal((len(corpus), 32))
    for i, (group, author) in enumerate(zip(corpus.groups, corpus.metadata["author"], strict=True)):
        vectors[i] += hand * centre[author] + work * centre[group]
    return vectors


def brute_rate(corpus: Corpus, label: str, *, exclude: bool) -> float:
    rates = []
    values = corpus.metadata[label]
    for a in range(len(corpus)):
        admissible = [
            b
            for b in range(len(corpus))
            if a != b and not (exclude and corpus.groups[a] == corpus.groups[b])
        ]
        rates.append(np.mean([values[a] == values[b] for b in admissible]))
    return float(np.mean(rates))


@pytest.mark.parametrize("exclude", [True, False])
def test_purity_and_random_rate_are_counted_over_the_same_admissible_pairs(exclude: bool) -> None:
    corpus = authors(120)
    graph = build_graph(corpus, teacher(corpus, hand=0.6), exclude_same_group=exclude)
    result = purity(graph, corpus, "author", resamples=50)
    values = corpus.metadata["author"]
    for at in result.at:
        chosen = graph.rank <= at.k
        same = [
            values[a] == values[p]
            for a, p in zip(graph.anchor[chosen], graph.positive[chosen], strict=True)
        ]
        assert at.edges == len(same) == 120 * at.k
        assert at.purity == pytest.approx(np.mean(same))
        assert at.random_rate == pytest.approx(brute_rate(corpus, "author", exclude=exclude))
        assert at.lift == pytest.approx(at.purity / at.random_rate)
    assert [at.k for at in result.at] == [1, 2, 3]


def test_same_source_neighbours_do_not_count_as_the_attribute() -> None:
    corpus = authors()
    topical = teacher(corpus, work=2.0)  # knows the book, not the hand
    naive = purity(build_graph(corpus, topical, exclude_same_group=False), corpus, "author")
    screened = purity(build_graph(corpus, topical), corpus, "author")
    assert naive.at[-1].purity > 0.9
    assert screened.at[-1].lift_ci95[0] < 1.3
    assert not screened.recommended


def test_a_graph_is_recommended_only_when_the_interval_of_its_lift_lies_above_one() -> None:
    corpus = authors()
    vectors = teacher(corpus, hand=1.0)
    graph = build_graph(corpus, vectors)
    good = purity(graph, corpus, "author")
    low, high = good.at[-1].lift_ci95
    assert 1 < low < good.at[-1].lift < high
    assert good.recommended
    assert good.verdict.startswith("Recommended")
    control = random_neighbours(take_dose(graph, 300), corpus, seed=1, vectors=vectors)
    bad = purity(control, corpus, "author")
    assert bad.at[-1].lift_ci95[0] <= 1
    assert not bad.recommended
    assert bad.verdict.startswith("Not recommended")


def test_the_random_control_scores_the_random_rate_on_average() -> None:
    corpus = authors(120)
    vectors = np.random.default_rng(0).standard_normal((120, 16))
    dose = take_dose(build_graph(corpus, vectors, k=1), None)
    lifts = []
    for seed in range(40):
        control = random_neighbours(dose, corpus, seed=seed)
        lifts.append(purity(control, corpus, "author", resamples=2).at[0].lift)
    assert np.mean(lifts) == pytest.approx(1, abs=0.1)


def test_scaling_the_vectors_changes_no_number() -> None:
    corpus = authors(120)
    vectors = teacher(corpus, hand=1.0)
    one = purity(build_graph(corpus, vectors), corpus, "author", vectors=vectors)
    other = purity(build_graph(corpus, 50 * vectors), corpus, "author", vectors=50 * vectors)
    assert one.at == other.at
    assert one.structure.similarity_gap == pytest.approx(other.structure.similarity_gap, rel=1e-5)


def test_the_most_confident_edges_are_purer_under_a_good_teacher() -> None:
    corpus = authors(400)
    graph = build_graph(corpus, teacher(corpus, hand=0.5))
    result = purity(graph, corpus, "author", confident=(100, 600, 5000))
    assert [dose.edges for dose in result.confident] == [100, 600]
    assert result.confident[0].purity > result.confident[1].purity
    values = corpus.metadata["author"]
    first = take_dose(graph, 100)
    same = [
        values[a] == values[p]
        for a, p in zip(first.anchor.tolist(), first.positive.tolist(), strict=True)
    ]
    assert result.confident[0].purity == pytest.approx(np.mean(same))


def test_without_labels_it_says_what_it_can_and_cannot_tell() -> None:
    corpus = authors()
    vectors = teacher(corpus, hand=1.0)
    result = purity(build_graph(corpus, vectors), corpus, vectors=vectors)
    assert result.recommended is None
    assert result.at == []
    assert "What can be told" in result.verdict
    assert "What cannot" in result.verdict
    assert result.structure.reciprocity > 10 * result.structure.reciprocity_random
    assert result.structure.similarity_gap > 1


def test_a_hub_shows_in_the_structure() -> None:
    n = 60
    corpus = Corpus([f"d{i}" for i in range(n)], [f"text {i}" for i in range(n)])
    rows = np.arange(1, n)
    hub = Graph(
        corpus.ids, rows, np.zeros(n - 1, np.int64), np.ones(n - 1, np.int32), np.ones(n - 1, "f4"),
        info={"k": 1},
    )  # fmt: skip
    structure = purity(hub, corpus).structure
    assert structure.in_degree_max == n - 1
    assert structure.in_degree_gini > 0.95 > structure.in_degree_gini_random
    assert structure.never_chosen == pytest.approx((n - 1) / n)
    assert structure.reciprocity == 0


def test_documents_without_a_label_are_left_out_of_both_rates_and_counted() -> None:
    corpus = authors(120)
    labels = list(corpus.metadata["author"])
    for i in range(0, 120, 3):
        labels[i] = [None, "", float("nan")][(i // 3) % 3]
    corpus = Corpus(corpus.ids, corpus.texts, groups=corpus.groups, metadata={"author": labels})
    graph = build_graph(corpus, np.random.default_rng(0).standard_normal((120, 8)))
    result = purity(graph, corpus, "author", resamples=20)
    assert result.unlabelled == 40
    known = {i for i in range(120) if i % 3}
    ends = zip(graph.anchor.tolist(), graph.positive.tolist(), strict=True)
    assert result.at[-1].edges == sum(a in known and p in known for a, p in ends)


def test_a_label_that_no_admissible_pair_shares_cannot_be_recommended() -> None:
    corpus = authors(120)
    works = Corpus(
        corpus.ids, corpus.texts, groups=corpus.groups, metadata={"work": list(corpus.groups)}
    )
    graph = build_graph(works, np.random.default_rng(0).standard_normal((120, 8)))
    result = purity(graph, works, "work", resamples=20)
    assert result.at[-1].lift is None
    assert result.recommended is False
    assert "no admissible pair" in result.verdict


def test_intervals_are_seeded_and_wider_by_group_where_sources_differ() -> None:
    corpus = authors(300)
    vectors = teacher(corpus, hand=0.4, work=0.2)
    strong = np.array([g.endswith("w0") for g in corpus.groups])
    vectors[strong] += 2 * teacher(corpus, hand=1.0, seed=0)[strong]
    graph = build_graph(corpus, vectors)
    one = purity(graph, corpus, "author", seed=3)
    assert one.at == purity(graph, corpus, "author", seed=3).at
    by_group = purity(graph, corpus, "author", seed=3, by="group").at[-1].lift_ci95
    by_anchor = one.at[-1].lift_ci95
    assert by_group[1] - by_group[0] > by_anchor[1] - by_anchor[0]


def test_the_result_is_plain_json() -> None:
    corpus = authors(60)
    graph = build_graph(corpus, np.random.default_rng(0).standard_normal((60, 8)))
    value = purity(graph, corpus, "author", resamples=20).to_dict()
    assert json.loads(json.dumps(value, allow_nan=False))["label"] == "author"


def test_unknown_labels_and_foreign_corpora_are_errors() -> None:
    corpus = authors(60)
    graph = build_graph(corpus, np.random.default_rng(0).standard_normal((60, 8)))
    with pytest.raises(DataError, match="did you mean 'author'"):
        purity(graph, corpus, "autor")
    with pytest.raises(DataError, match="another corpus"):
        purity(graph, authors(61), "author")
    with pytest.raises(DataError, match="without edges"):
        purity(take_dose(graph, 0), corpus, "author")


def test_the_stylometric_teacher_finds_the_hand_across_works(shared_data: Path) -> None:
    from obliq_hf.teachers import load_teacher

    rows = [
        row
        for _, row in iter_jsonl(shared_data / "authorship" / "corpus.jsonl")
        if row["split"] == "train"
    ]
    rows = rows[::6]
    corpus = Corpus(
        ids=[row["_id"] for row in rows],
        texts=[row["text"] for row in rows],
        groups=[row["work"] for row in rows],
        metadata={"author": [row["author"] for row in rows]},
    )
    teacher = load_teacher("stylometric", corpus_texts=corpus.texts)
    graph = build_graph(corpus, teacher.encode(corpus.texts))
    result = purity(graph, corpus, "author", resamples=200)
    assert result.at[-1].lift > 3
    assert result.recommended

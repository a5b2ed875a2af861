"""Training rows and the mixture folder."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataset_builders.authorship_graph import build_graph, random_neighbours, take_dose
from dataset_builders.hard_negatives import mine
from dataset_builders.mixture import LeakCheck, build_mixture, mixture_features, read_mixture
from dataset_builders.training_rows import (
    TrainingRows,
    graph_rows,
    negatives_for_graph,
    negatives_for_queries,
    positives_of,
    query_rows,
)
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.records import Corpus, Qrels, Queries

WORDS = [f"word{i}" for i in range(300)]


def sentences(n: int, length: int = 25, *, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, length)) for _ in range(n)]


@pytest.fixture
def corpus() -> Corpus:
    return Corpus(
        ids=[f"d{i}" for i in range(40)],
        texts=sentences(40),
        titles=["A title" if i == 3 else "" for i in range(40)],
        groups=[f"g{i % 10}" for i in range(40)],
    )


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((40, 8))


@pytest.fixture
def queries() -> tuple[Queries, Qrels]:
    texts = sentences(6, 12, seed=9)
    texts[5] = texts[4]
    qrels = {
        "q0": {"d0": 1},
        "q1": {"d1": 2, "d2": 1, "d3": 0},
        "q2": {"d3": 1},
        "q3": {"elsewhere": 1},
        "q4": {"d4": 1},
        "q5": {"d5": 1},
    }
    return Queries([f"q{i}" for i in range(6)], texts), qrels


def pairs_of(rows: TrainingRows) -> list[tuple[str, str]]:
    return list(zip(rows.anchor_ids, rows.positive_ids, strict=True))


def test_graph_rows_hold_the_texts_ids_and_groups_of_the_edges(corpus, vectors) -> None:
    dose = take_dose(build_graph(corpus, vectors), 20)
    rows = graph_rows(dose, corpus, task="writing")
    assert len(rows) == 20
    for i, (a, p) in enumerate(zip(dose.anchor.tolist(), dose.positive.tolist(), strict=True)):
        assert rows.anchors[i] == corpus.texts[a]
        assert rows.positives[i] == corpus.full_texts()[p]
        assert (rows.anchor_ids[i], rows.positive_ids[i]) == (f"d{a}", f"d{p}")
        assert (rows.anchor_groups[i], rows.positive_groups[i]) == (
            corpus.groups[a],
            corpus.groups[p],
        )


def test_rows_say_the_sources_of_their_negatives(corpus, vectors, queries, tmp_path) -> None:
    dose = take_dose(build_graph(corpus, vectors), 8)
    mined = negatives_for_graph(dose, corpus, n=2, first_rank=1)
    graph = graph_rows(dose, corpus, task="writing", negatives=mined)
    asked = query_rows(
        *queries, corpus, task="scene",
        negatives=negatives_for_queries(*queries, corpus, n=2, first_rank=1),
    )  # fmt: skip
    for rows, entry in zip((graph, asked), build_mixture(tmp_path, [graph, asked]), strict=True):
        table = pq.read_table(entry.path)
        found = table.column("negative_groups").to_pylist()
        assert found == [[corpus.groups[corpus.row[d]] for d in ids] for ids in rows.negative_ids]
        assert any(found)


def test_graph_rows_block_all_neighbours_of_both_ends_in_the_complete_graph(
    corpus, vectors
) -> None:
    graph = build_graph(corpus, vectors)
    rows = graph_rows(take_dose(graph, 20), corpus, task="writing")
    joined = graph.neighbours()
    for anchor, positive, blocked in zip(
        rows.anchor_ids, rows.positive_ids, rows.blocked_ids, strict=True
    ):
        a, p = corpus.row[anchor], corpus.row[positive]
        assert set(blocked) == {corpus.ids[i] for i in {a, p} | joined[a] | joined[p]}
        assert len(blocked) == len(set(blocked))


def test_rows_of_the_random_control_block_what_the_teacher_joined_as_well(corpus, vectors) -> None:
    graph = build_graph(corpus, vectors)
    control = random_neighbours(take_dose(graph, 20), corpus, seed=1)
    rows = graph_rows(control, corpus, task="writing")
    joined = graph.neighbours()
    for (anchor, positive), blocked in zip(pairs_of(rows), rows.blocked_ids, strict=True):
        a, p = corpus.row[anchor], corpus.row[positive]
        assert {corpus.ids[i] for i in {a, p} | joined[a] | joined[p]} <= set(blocked)


def test_copies_of_a_text_share_what_they_block(corpus, vectors) -> None:
    texts = list(corpus.texts)
    texts[20], texts[21] = texts[0], texts[0]
    corpus = Corpus(corpus.ids, texts)
    graph = build_graph(corpus, vectors)
    rows = graph_rows(graph, corpus, task="writing")
    of = {}
    for (anchor, _), blocked in zip(pairs_of(rows), rows.blocked_ids, strict=True):
        of.setdefault(anchor, set()).update(blocked)
    for anchor in ("d0", "d20", "d21"):
        positives = {p for a, p in pairs_of(rows) if a == anchor}
        assert positives <= of["d0"] & of["d20"] & of["d21"]


def test_dropping_nothing_the_control_has_the_same_anchors_negatives_and_dose(
    corpus, vectors
) -> None:
    dose = take_dose(build_graph(corpus, vectors), 30)
    mined = mine(
        [corpus.texts[a] for a in dose.anchor],
        [[corpus.ids[p]] for p in dose.positive],
        corpus,
        query_ids=[corpus.ids[a] for a in dose.anchor],
        graph=dose,
        n=2,
        first_rank=1,
    )
    avoid = [[corpus.row[d] for d in ids] for ids in mined.ids]
    control = random_neighbours(dose, corpus, seed=4, avoid=avoid)
    true = graph_rows(dose, corpus, task="writing", negatives=mined)
    false = graph_rows(control, corpus, task="writing", negatives=mined)
    for column in ("anchors", "anchor_ids", "anchor_groups", "negatives", "negative_ids"):
        assert getattr(true, column) == getattr(false, column)
    assert len(true) == len(false) == 30
    assert true.positive_ids != false.positive_ids
    for positive, negatives in zip(false.positive_ids, false.negative_ids, strict=True):
        assert positive not in negatives


def test_negatives_of_the_control_are_those_of_the_teachers_dose(corpus, vectors) -> None:
    dose = take_dose(build_graph(corpus, vectors), 30, selection="random", seed=3)
    control = random_neighbours(dose, corpus, seed=4)
    settings = {"n": 12, "first_rank": 1}
    mined = negatives_for_graph(dose, corpus, **settings)
    assert negatives_for_graph(control, corpus, **settings).ids == mined.ids
    assert control.teacher_edges().positive.tolist() == dose.positive.tolist()
    true = graph_rows(dose, corpus, task="writing", negatives=mined)
    false = graph_rows(control, corpus, task="writing", negatives=mined)
    collisions = 0
    for positive, kept, all_ids in zip(
        false.positive_ids, false.negative_ids, true.negative_ids, strict=True
    ):
        assert kept == [d for d in all_ids if d != positive]
        collisions += kept != all_ids
    assert collisions > 0


def test_query_rows_are_one_for_each_positive_and_count_what_is_left_out(corpus, queries) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    assert pairs_of(rows) == [
        ("q0", "d0"), ("q1", "d1"), ("q1", "d2"), ("q2", "d3"), ("q4", "d4"), ("q5", "d5"),
    ]  # fmt: skip
    assert rows.dropped == {"query without a positive in the corpus": 1}
    assert rows.positives[3] == "A title " + corpus.texts[3]
    assert rows.positive_groups[0] == "g0"
    assert rows.anchor_groups == [None] * 6


def test_query_rows_block_every_positive_of_the_same_query_text(corpus, queries, vectors) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    assert set(rows.blocked_ids[1]) == set(rows.blocked_ids[2]) == {"d1", "d2"}
    assert set(rows.blocked_ids[4]) == set(rows.blocked_ids[5]) == {"d4", "d5"}
    graph = build_graph(corpus, vectors)
    rows = query_rows(*queries, corpus, task="scene", graph=graph)
    expected = {corpus.ids[i] for i in {0} | graph.neighbours()[0]}
    assert set(rows.blocked_ids[0]) == expected


def test_query_rows_block_other_documents_with_the_text_of_a_positive(corpus, queries) -> None:
    texts = list(corpus.texts)
    texts[30] = texts[31] = texts[0]
    rows = query_rows(*queries, Corpus(corpus.ids, texts), task="scene")
    assert set(rows.blocked_ids[0]) == {"d0", "d30", "d31"}


def test_the_same_pair_of_texts_is_kept_once(corpus, queries) -> None:
    texts, qrels = queries
    qrels = {**qrels, "q5": {"d4": 1}}  # q4 and q5 ask the same
    rows = query_rows(texts, qrels, corpus, task="scene")
    assert rows.dropped["same texts as an earlier row"] == 1
    assert pairs_of(rows)[-1] == ("q4", "d4")


def test_queries_without_any_positive_in_the_corpus_are_an_error(corpus, queries) -> None:
    with pytest.raises(DataError, match="none of 6 queries"):
        query_rows(queries[0], {"q0": {"x": 1}}, corpus, task="scene")


def test_a_mixture_has_the_declared_columns_and_reads_back(tmp_path, corpus, queries, vectors):
    texts, qrels = queries
    mined = negatives_for_queries(
        texts, qrels, corpus, n=2, first_rank=1, excluded={"q0": ["d9", "gone"]}
    )
    used, _ = positives_of(texts, qrels, corpus)
    assert len(mined) == len(used) == 5
    parts = [
        query_rows(texts, qrels, corpus, task="scene", negatives=mined),
        graph_rows(take_dose(build_graph(corpus, vectors), 15), corpus, task="writing"),
    ]
    written = build_mixture(tmp_path / "mixture", parts, seed=13, provenance={"recipe": "abc"})
    assert written == read_mixture(tmp_path / "mixture")
    assert [(d.name, d.task, d.kind, d.rows) for d in written] == [
        ("scene-queries", "scene", "queries", 6),
        ("writing-graph", "writing", "graph", 15),
    ]
    value = json.loads((tmp_path / "mixture" / "mixture.json").read_text())
    assert value["recipe"] == "abc"
    assert value["seed"] == 13
    for dataset, rows in zip(written, parts, strict=True):
        table = pq.read_table(dataset.path)
        assert table.schema.equals(mixture_features(dataset.negatives).arrow_schema)
        assert table.column("anchor").to_pylist() == rows.anchors
        assert table.column("blocked_ids").to_pylist() == rows.blocked_ids
        for i in range(dataset.negatives):
            column = table.column(f"negative_{i + 1}").to_pylist()
            assert column == [row[i] if len(row) > i else None for row in rows.negatives]


def test_the_batch_planner_reads_a_mixture_with_short_rows(tmp_path, corpus, vectors) -> None:
    from datasets import Dataset

    from training_recipes import conflicts

    dose = take_dose(build_graph(corpus, vectors), 30)
    mined = mine(
        [corpus.texts[a] for a in dose.anchor],
        [[corpus.ids[p]] for p in dose.positive],
        corpus,
        query_ids=[corpus.ids[a] for a in dose.anchor],
        graph=dose,
        n=28,
        first_rank=1,
    )
    assert mined.report.missing > 0
    rows = graph_rows(dose, corpus, task="writing", negatives=mined)
    (entry,) = build_mixture(tmp_path / "m", [rows])
    assert entry.info["rows_with_fewer_negatives"] > 0
    dataset = Dataset.from_parquet(str(entry.path), cache_dir=str(tmp_path / "cache"))
    read = conflicts.read_conflicts(dataset, name=entry.name, kind="graph")
    assert read.negative_counts.tolist() == [len(row) for row in mined.ids]


def test_the_same_inputs_give_the_same_bytes(tmp_path, corpus, vectors) -> None:
    for name in ("a", "b"):
        dose = take_dose(build_graph(corpus, vectors), 15, selection="random", seed=2)
        build_mixture(tmp_path / name, [graph_rows(dose, corpus, task="writing")], seed=1)
    for file in ("mixture.json", "writing-graph.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_training_queries_like_evaluation_queries_are_dropped_and_counted(corpus, queries) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    texts = queries[0].texts
    nearly = " ".join([*texts[1].split()[:-1], "other"])
    check = LeakCheck(queries=[texts[0].upper(), nearly, "nothing alike at all"])
    kept = check.apply(rows)
    assert pairs_of(kept) == [("q2", "d3"), ("q4", "d4"), ("q5", "d5")]
    assert kept.dropped["anchor is an evaluation query"] == 1
    assert kept.dropped["anchor is nearly an evaluation query"] == 2
    assert kept.dropped["query without a positive in the corpus"] == 1


def test_rows_whose_positive_is_a_held_out_passage_are_dropped_and_counted(corpus, queries) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    kept = LeakCheck(passages=[corpus.texts[2] + "\n"]).apply(rows)
    assert ("q1", "d2") not in pairs_of(kept)
    assert ("q1", "d1") in pairs_of(kept)
    assert kept.dropped["positive is a held-out passage"] == 1


def test_graph_rows_of_evaluation_texts_are_counted_and_dropped_only_if_told(
    corpus, vectors
) -> None:
    rows = graph_rows(build_graph(corpus, vectors), corpus, task="writing")
    touching = sum("d7" in pair for pair in pairs_of(rows))
    check = LeakCheck(queries=[corpus.texts[7]])
    counted = check.apply(rows)
    assert len(counted) == len(rows)
    assert sum(counted.info["evaluation_texts"].values()) == touching
    dropped = replace(check, graph_rows=True).apply(rows)
    assert len(dropped) == len(rows) - touching
    assert all("d7" not in pair for pair in pairs_of(dropped))


def test_a_dataset_left_without_rows_is_an_error_that_says_why(tmp_path, corpus, queries) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    with pytest.raises(DataError, match=r"no rows left.*6 x anchor is an evaluation query"):
        build_mixture(tmp_path / "m", [rows], leaks=LeakCheck(queries=queries[0].texts))
    assert not (tmp_path / "m").exists()
    with pytest.raises(DataError, match="at least one dataset"):
        build_mixture(tmp_path / "m", [])


def test_names_are_checked(tmp_path, corpus, queries) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    with pytest.raises(DataError, match="two training datasets are named 'scene-queries'"):
        build_mixture(tmp_path / "m", [rows, replace(rows, name="Scene-Queries")])
    for name in ("../x", "a/b", "C:x", "nul"):
        with pytest.raises(ObliqError, match="cannot be part of a path"):
            replace(rows, name=name)


def test_a_changed_or_missing_file_is_noticed(tmp_path, corpus, queries) -> None:
    rows = query_rows(*queries, corpus, task="scene")
    (entry,) = build_mixture(tmp_path / "m", [rows])
    table = pq.read_table(entry.path)
    pq.write_table(table.slice(0, 2), entry.path)
    with pytest.raises(DataError, match=r"2 rows, but .* records 6"):
        read_mixture(tmp_path / "m")
    entry.path.unlink()
    with pytest.raises(DataError, match=r"scene-queries.parquet: no such file"):
        read_mixture(tmp_path / "m")

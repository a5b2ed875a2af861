from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from datasets import Dataset

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.records import train_features
from training_recipes.batches import plan_batches
from training_recipes.conflicts import Conflicts, read_conflicts

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows_of(
    pairs: Sequence[tuple[str, str]],
    *,
    texts: dict[str, str] | None = None,
    groups: dict[str, str] | None = None,
    neighbours: Sequence[tuple[str, str]] = (),
    negatives: dict[int, list[str]] | None = None,
) -> Dataset:
    """A training dataset whose documents' texts are their ids unless told otherwise."""
    text = {name: f"text of {name}" for pair in pairs for name in pair} | (texts or {})
    near: dict[str, set[str]] = {}
    for a, b in neighbours:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    lists = [(negatives or {}).get(i, []) for i in range(len(pairs))]
    most = max(map(len, lists), default=0)
    columns: dict[str, Any] = {
        "anchor": [text[a] for a, _ in pairs],
        "positive": [text[b] for _, b in pairs],
        **{
            f"negative_{j + 1}": [
                text.get(ids[j], f"text of {ids[j]}") if j < len(ids) else None for ids in lists
            ]
            for j in range(most)
        },
        "anchor_id": [a for a, _ in pairs],
        "positive_id": [b for _, b in pairs],
        "negative_ids": lists,
        "anchor_group": [(groups or {}).get(a) for a, _ in pairs],
        "positive_group": [(groups or {}).get(b) for _, b in pairs],
        "negative_groups": [[(groups or {}).get(n) for n in ids] for ids in lists],
        "blocked_ids": [
            sorted({a, b} | near.get(a, set()) | near.get(b, set())) if neighbours else []
            for a, b in pairs
        ],
    }
    return Dataset.from_dict(columns, features=train_features(most))


def batches_of(dataset: Dataset, kind: Any = "graph", **settings: Any) -> list[set[int]]:
    conflicts = read_conflicts(dataset, name="d", kind=kind)
    plan = plan_batches([conflicts], **{"repeat": [1], "seed": 0, **settings})
    return [set(b.rows) for b in plan.batches]


def together(dataset: Dataset, kind: Any = "graph") -> set[tuple[int, int]]:
    """Pairs of rows that may share a batch."""
    conflicts = read_conflicts(dataset, name="d", kind=kind)
    pairs = itertools.combinations(range(len(dataset)), 2)
    return {(a, b) for a, b in pairs if conflicts.admits(a, b)}


def test_edges_joined_by_a_graph_edge_never_meet() -> None:
    pairs = [("a", "b"), ("a", "c"), ("b", "a"), ("d", "e")]
    dataset = rows_of(pairs, neighbours=pairs)
    assert together(dataset) == {(0, 3), (1, 3), (2, 3)}
    for seed in range(8):
        (batch,) = batches_of(dataset, batch_size=2, seed=seed)
        assert 3 in batch


def test_neighbours_of_the_documents_keep_rows_apart() -> None:
    # c -> d is admissible beside a -> b unless b and d are neighbours in the graph
    pairs = [("a", "b"), ("c", "d")]
    assert together(rows_of(pairs, neighbours=pairs)) == {(0, 1)}
    assert together(rows_of(pairs, neighbours=[*pairs, ("b", "d")])) == set()


def test_a_shared_source_keeps_graph_rows_apart_but_not_query_rows() -> None:
    groups = {"a": "w1", "b": "w2", "c": "w3", "d": "w1"}
    dataset = rows_of([("a", "b"), ("c", "d")], groups=groups)
    assert together(dataset, "graph") == set()
    assert together(dataset, "queries") == {(0, 1)}
    free = read_conflicts(dataset, name="d", kind="graph", separate_groups=False)
    assert free.admits(0, 1)


def test_unknown_sources_do_not_count_as_one_source() -> None:
    assert together(rows_of([("a", "b"), ("c", "d")], groups={"a": "w"})) == {(0, 1)}


def test_the_same_text_under_another_id_is_the_same_document() -> None:
    pairs = [("q1", "paris-1"), ("q2", "paris-2"), ("q3", "rome"), ("q4", "paris-1")]
    texts = {"paris-1": "Paris", "paris-2": " PARIS\n"}
    assert together(rows_of(pairs, texts=texts), "queries") == {(0, 2), (1, 2), (2, 3)}


def test_a_query_id_that_equals_a_document_id_is_another_thing() -> None:
    pairs = [("x", "d1"), ("q2", "x")]
    texts = {"x": "one text", "d1": "d1"}
    dataset = rows_of(pairs, texts=texts)
    documents = [dict(row, positive="another text") for row in dataset]
    documents[0]["positive"] = "d1"
    assert together(Dataset.from_list(documents, features=dataset.features), "queries") == {(0, 1)}


def test_a_negative_that_is_anothers_positive_keeps_rows_apart_and_shared_negatives_do_not() -> (
    None
):
    pairs = [("q1", "d1"), ("q2", "d2"), ("q3", "d3")]
    negatives = {0: ["d2"], 1: ["n"], 2: ["n"]}
    assert together(rows_of(pairs, negatives=negatives), "queries") == {(0, 2), (1, 2)}


def test_a_negative_that_is_anothers_neighbour_keeps_rows_apart() -> None:
    pairs = [("a", "b"), ("c", "d")]
    assert together(rows_of(pairs, neighbours=pairs, negatives={0: ["n"], 1: ["m"]})) == {(0, 1)}
    near = [*pairs, ("d", "n")]
    assert together(rows_of(pairs, neighbours=near, negatives={0: ["n"], 1: ["m"]})) == set()


def test_a_negative_from_the_source_of_anothers_document_keeps_graph_rows_apart() -> None:
    pairs = [("a", "b"), ("c", "d"), ("e", "f")]
    groups = {"a": "w1", "b": "w2", "c": "w3", "d": "w4", "e": "w5", "f": "w6", "n": "w4"}
    negatives = {0: ["n"], 1: ["m"], 2: ["n"]}
    dataset = rows_of(pairs, groups=groups, negatives=negatives)
    assert together(dataset) == {(0, 2)}
    assert together(dataset, "queries") == {(0, 1), (0, 2), (1, 2)}
    assert read_conflicts(dataset, name="d", kind="graph", separate_groups=False).admits(0, 1)
    for seed in range(8):
        assert batches_of(dataset, batch_size=2, seed=seed) == [{0, 2}]
    without = dataset.remove_columns("negative_groups")
    assert together(without) == {(0, 1), (0, 2), (1, 2)}


def random_graph(documents: int, sources: int, *, k: int = 3, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    source = rng.integers(sources, size=documents)
    edges = [
        (a, int(b))
        for a in range(documents)
        for b in rng.choice(documents, size=k, replace=False)
        if a != b and source[a] != source[b]
    ]
    pairs = [(str(a), str(b)) for a, b in edges]
    groups = {str(i): f"w{s}" for i, s in enumerate(source)}
    return rows_of(pairs, groups=groups, neighbours=pairs)


@pytest.mark.parametrize("sources", [12, 60, 100_000])
def test_no_batch_holds_a_false_negative_and_every_row_is_accounted_for(sources: int) -> None:
    dataset = random_graph(120, sources)
    conflicts = read_conflicts(dataset, name="d", kind="graph")
    plan = plan_batches([conflicts], batch_size=16, repeat=[1], seed=3)
    for batch in plan.batches:
        assert all(conflicts.admits(a, b) for a, b in itertools.combinations(batch.rows, 2))
        assert 4 <= len(batch.rows) <= 16
        assert len(batch.rows) % 2 == 0
    rows = [row for batch in plan.batches for row in batch.rows]
    assert len(rows) == len(set(rows))
    (counts,) = plan.datasets
    assert counts.used == len(rows)
    assert counts.used + counts.dropped == len(dataset)
    assert counts.never_used == counts.dropped
    if sources == 100_000:
        assert counts.dropped < 4


def test_the_plan_depends_on_the_seed_alone() -> None:
    dataset = random_graph(60, 1000)
    assert batches_of(dataset, batch_size=8) == batches_of(dataset, batch_size=8)
    assert batches_of(dataset, batch_size=8) != batches_of(dataset, batch_size=8, seed=1)


def plain(name: str, rows: int, negatives: Sequence[int] | int = 0) -> Conflicts:
    counts = np.full(rows, negatives) if isinstance(negatives, int) else np.array(negatives)
    empty: list[list[int]] = [[] for _ in range(rows)]
    return Conflicts(name, empty, empty, empty, counts)


def test_datasets_take_turns_in_proportion_and_passes_do_not_mix() -> None:
    plan = plan_batches(
        [plain("queries", 16), plain("graph", 64)], batch_size=8, repeat=[4, 1], seed=0
    )
    turns = [batch.dataset for batch in plan.batches]
    assert (turns.count(0), turns.count(1)) == (8, 8)
    assert 2 <= sum(turns[:8]) <= 6
    own = [batch.rows for batch in plan.batches if batch.dataset == 0]
    for start in range(0, 8, 2):
        assert sorted(row for rows in own[start : start + 2] for row in rows) == list(range(16))
    assert own[:2] != own[2:4]


def test_rows_without_a_place_come_first_in_the_next_pass() -> None:
    (conflicts,) = [plain("d", 11)]
    plan = plan_batches([conflicts], batch_size=8, repeat=[2], seed=0, min_batch_size=8)
    first, second = (set(b.rows) for b in plan.batches)
    assert set(range(11)) - first <= second
    assert plan.datasets[0].dropped == 6
    assert plan.datasets[0].never_used == 0


def test_short_batches_and_the_smallest_allowed() -> None:
    sizes = [len(b) for b in batches_of(rows_of([(f"a{i}", f"b{i}") for i in range(11)]),
                                        batch_size=4)]  # fmt: skip
    assert sorted(sizes) == [2, 4, 4]
    with pytest.raises(ObliqError, match="min_batch_size"):
        plan_batches([plain("d", 8)], batch_size=4, repeat=[1], seed=0, min_batch_size=5)
    with pytest.raises(ObliqError, match="no batch of at least 8 rows can be filled from d 7 rows"):
        plan_batches([plain("d", 7)], batch_size=8, repeat=[1], seed=0, min_batch_size=8)


def test_processes_share_every_batch_equally_and_from_one_dataset() -> None:
    datasets = [plain("a", 22), plain("b", 41)]
    one = plan_batches(datasets, batch_size=8, repeat=[1, 1], seed=0)
    two = plan_batches(datasets, batch_size=8, repeat=[1, 1], seed=0, world=2)
    assert one.batches == two.batches
    shares = list(zip(two.shares(0, 2), two.shares(1, 2), strict=True))
    assert len(shares) == len(two)
    for batch, (left, right) in zip(two.batches, shares, strict=True):
        assert len(left) == len(right)
        assert [row for _, row, _ in left + right] == list(batch.rows)
        assert {d for d, _, _ in left + right} == {batch.dataset}
    for world in (2, 4):
        plan = plan_batches(datasets, batch_size=8, repeat=[1, 1], seed=0, world=world)
        assert all(len(b.rows) % world == 0 for b in plan.batches)
    with pytest.raises(ObliqError, match=r"batch_size: 8 rows .* 3 processes"):
        plan_batches(datasets, batch_size=8, repeat=[1, 1], seed=0, world=3)


def test_a_batch_uses_as_many_negatives_as_all_its_rows_have() -> None:
    counts = [4] * 9 + [1] * 3 + [4] * 4
    plan = plan_batches([plain("d", 16, counts)], batch_size=4, repeat=[1], seed=0)
    assert sorted(b.negatives for b in plan.batches) == [1, 4, 4, 4]
    assert plan.datasets[0].negatives_cut == 3
    assert plan.datasets[0].negatives == (7, 16.0, 19)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"anchor": None}, "row 1: anchor is None"),
        ({"positive": "  "}, "row 1: positive is '  '"),
        ({"negative_1": ""}, "row 1: an empty negative before the last"),
        ({"negative_ids": ["n1"]}, "row 1: 1 negative_ids for 2 negatives"),
        ({"negative_1": "text of d2"}, "row 1: a negative is its own anchor or positive"),
    ],
)
def test_bad_rows_are_named(change: dict[str, Any], said: str) -> None:
    pairs = [("q1", "d1"), ("q2", "d2")]
    dataset = rows_of(pairs, negatives={0: ["n1", "n2"], 1: ["n1", "n2"]})
    rows = list(dataset)
    rows[1] = rows[1] | change
    with pytest.raises(DataError, match=f"dataset 'd' {said}"):
        read_conflicts(Dataset.from_list(rows, features=dataset.features), name="d", kind="queries")
    with pytest.raises(DataError, match="no column positive_id"):
        read_conflicts(dataset.remove_columns("positive_id"), name="d", kind="queries")

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from obliq_hf.errors import ObliqError
from obliq_hf.search import candidates, dense
from obliq_hf.search.dense import search, top_k
from obliq_hf.search.vectors import Block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", params=["single precision", "bfloat16"], autouse=True)
def nominator(request: pytest.FixtureRequest) -> Iterator[str]:
    """All of it holds for both products, of which few queries take the first."""
    native = request.param == "bfloat16"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "bfloat16_is_native", lambda: native)  # torch multiplies it anywhere
        patch.setattr(dense, "_NATIVE_QUERIES", 1)
        patch.setattr(dense, "_THREAD_QUERIES", 1)
        yield request.param


def unit(rng: np.random.Generator, rows: int, dims: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, dims)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def reference(queries, documents, k, excluded=None):
    """Sort everything in double precision: score rounded to float32 descending, then row."""
    out = []
    for i, query in enumerate(np.asarray(queries, np.float64)):
        scores = np.array([float((query * row).sum()) for row in np.asarray(documents, np.float64)])
        scores = scores.astype(np.float32)
        hidden = set(excluded[i]) if excluded else set()
        rows = [r for r in range(len(documents)) if r not in hidden]
        rows.sort(key=lambda r: (-scores[r], r))
        out.append((rows[:k], [scores[r] for r in rows[:k]]))
    return out


def assert_same(hits, expected):
    assert len(hits) == len(expected)
    for found, (rows, scores) in zip(hits, expected, strict=True):
        assert found.rows.tolist() == rows
        np.testing.assert_array_equal(found.scores, np.array(scores, np.float32))


@pytest.mark.parametrize("block_rows", [1, 2, 7, 300, None])
@pytest.mark.parametrize("k", [1, 5, 299, 300, 1000])
def test_every_block_size_gives_the_exact_order(block_rows, k):
    rng = np.random.default_rng(3)
    documents, queries = unit(rng, 300, 24), unit(rng, 7, 24)
    hits = search(queries, documents, k, block_rows=block_rows)
    assert_same(hits, reference(queries, documents, k))
    assert hits[0].rows.dtype == np.int64
    assert hits[0].scores.dtype == np.float32


def test_blocks_and_query_groups_larger_than_one_tile_give_the_exact_order(monkeypatch):
    monkeypatch.setattr(candidates, "TILE_ROWS", 32)
    monkeypatch.setattr(dense, "_QUERY_ROWS", 4)
    rng = np.random.default_rng(4)
    documents, queries = unit(rng, 1000, 16), unit(rng, 11, 16)
    excluded = [rng.choice(1000, size=40, replace=False).tolist() for _ in range(11)]
    hits = search(queries, documents, 9, excluded=excluded, block_rows=100)
    assert_same(hits, reference(queries, documents, 9, excluded))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 45),
    st.integers(1, 45),
    st.sampled_from([1, 2, 3]),
)
def test_coarse_scores_with_many_ties_equal_a_full_sort(seed, n, q, k, block_rows, levels):
    rng = np.random.default_rng(seed)
    documents = rng.integers(-levels, levels + 1, (n, 3)).astype(np.float32) / 3
    queries = rng.integers(-levels, levels + 1, (q, 3)).astype(np.float32)
    excluded = [rng.integers(0, n, rng.integers(0, n + 1)).tolist() for _ in range(q)]
    hits = search(queries, documents, k, excluded=excluded, block_rows=block_rows)
    assert_same(hits, reference(queries, documents, k, excluded))


@pytest.mark.parametrize("block_rows", [1, 3, 64, None])
def test_equal_vectors_tie_and_come_in_row_order(block_rows):
    rng = np.random.default_rng(5)
    documents = unit(rng, 1, 100).repeat(5000, axis=0)
    documents[4321] = documents[0] * np.float32(1.001)
    queries = documents[:1]
    hits = search(queries, documents, 10, block_rows=block_rows)[0]
    assert hits.rows.tolist() == [4321, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert len(set(hits.scores[1:].tolist())) == 1


def test_repeated_documents_scattered_through_a_large_corpus_keep_row_order():
    rng = np.random.default_rng(6)
    base = unit(rng, 400, 48)
    documents = base[rng.integers(0, 400, 9000)]
    queries = unit(rng, 20, 48)
    for found in search(queries, documents, 150):
        pairs = list(zip((-found.scores).tolist(), found.rows.tolist(), strict=True))
        assert pairs == sorted(pairs)
        lowest = found.scores[-1]
        vectors = {documents[r].tobytes() for r in found.rows[found.scores == lowest]}
        assert len(vectors) == 1
        copies = np.flatnonzero((documents == documents[found.rows[-1]]).all(axis=1))
        taken = found.rows[found.scores == lowest]
        assert taken.tolist() == copies[: len(taken)].tolist()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_documents_that_differ_by_less_than_a_product_shows_are_told_apart(scale):
    rng = np.random.default_rng(11)
    documents = unit(rng, 1, 64) + rng.standard_normal((3000, 64)).astype(np.float32) * 1e-5
    documents = np.concatenate([unit(rng, 3000, 64), documents]) * np.float32(scale)
    queries = documents[[3000, 3001, 17, 4500]] / np.float32(scale)
    assert_same(search(queries, documents, 20), reference(queries, documents, 20))


def close_together(rng: np.random.Generator, rows: int, dims: int) -> np.ndarray:
    vectors = rng.standard_normal((rows, dims)) + 4 * np.ones(dims)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("late", [False, True])
def test_scores_that_lie_close_together_cost_few_exact_products(monkeypatch, late):
    rng = np.random.default_rng(13)
    queries, documents = close_together(rng, 150, 64), close_together(rng, 9000, 64)
    if late:
        documents[:4000] = -unit(rng, 4000, 64)
    counted = []
    exact = candidates.CandidatePool._exact
    monkeypatch.setattr(
        candidates.CandidatePool,
        "_exact",
        lambda pool, query, row: counted.append(len(query)) or exact(pool, query, row),
    )
    found = search(queries, documents, 40)
    assert_same(found[:3], reference(queries[:3], documents, 40))
    assert sum(counted) < 45 * 150 * 40


def test_documents_whose_squares_underflow_are_ranked():
    rng = np.random.default_rng(14)
    queries = rng.standard_normal((5, 64)).astype(np.float32)
    beside, _ = np.linalg.qr(queries[:4].astype(float).T)
    documents = rng.standard_normal((1000, 64))
    documents = ((documents - documents @ beside @ beside.T * (1 - 1e-3)) * 1e-25).astype("f4")
    assert_same(search(queries, documents, 10), reference(queries, documents, 10))


def test_scores_near_the_largest_number_are_all_found():
    documents = np.full((3, 4), 9.2e18, np.float32)
    documents[1:] = 9.21e18
    documents[2, 0] = 9.22e18
    queries = np.tile(np.float32([[-9.22e18] * 4]), (3, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(found) for found in search(queries, documents, 3)] == [3, 3, 3]


@pytest.mark.parametrize("threads", [1, 2])
def test_autocast_around_a_search_changes_nothing(threads):
    rng = np.random.default_rng(15)
    queries, documents = unit(rng, 8, 32), unit(rng, 3000, 32) * np.float32(1e5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            found = search(queries, documents, 10)
    finally:
        torch.set_num_threads(before)
    assert_same(found, reference(queries, documents, 10))


def test_searches_side_by_side_do_not_disturb_each_other():
    rng = np.random.default_rng(16)
    queries, documents = unit(rng, 40, 24), unit(rng, 5000, 24)
    expected = reference(queries, documents, 5)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: search(queries, documents, 5), range(8)):
            assert_same(found, expected)


def test_what_a_thread_raises_is_raised():
    class Failing:
        shape = (3000, 8)

        def blocks(self, rows: int) -> Iterator[Block]:
            yield Block(0, np.ones((3000, 8), np.float32))

        def take(self, rows: np.ndarray) -> np.ndarray:
            raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        search(np.ones((6, 8)), Failing(), 2)


FORKED = """
import multiprocessing, sys
import numpy as np, torch
from obliq_hf.search import dense

dense.bfloat16_is_native = lambda: True
torch.set_num_threads(2)
rng = np.random.default_rng(0)
documents = rng.standard_normal((3000, 384)).astype(np.float32)
queries = rng.standard_normal((512, 384)).astype(np.float32)
torch.ones(1000, 1000).add(1)
dense.search(queries, documents, 5)
child = multiprocessing.get_context("fork").Process(
    target=dense.search, args=(queries, documents, 5)
)
child.start()
child.join(60)
print(child.exitcode)
child.kill()
"""


def test_a_forked_process_can_search_as_its_parent_did(nominator):
    if nominator != "bfloat16" or not hasattr(os, "fork"):
        pytest.skip("concerns the threads of torch")
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "0"


def test_the_threads_of_a_search_leave_those_of_torch_and_numpy_as_they_were():
    from threadpoolctl import threadpool_info

    rng = np.random.default_rng(12)
    documents, queries = unit(rng, 3000, 16), unit(rng, 200, 16)
    before = threadpool_info(), torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        documents.flags.writeable = False
        found = search(queries, documents, 3)
    assert (threadpool_info(), torch.get_num_threads()) == before
    assert_same(found[:20], reference(queries[:20], documents, 3))


def test_exclusions_are_applied_before_the_cut_so_that_k_hits_come_back():
    rng = np.random.default_rng(7)
    documents, queries = unit(rng, 50, 8), unit(rng, 3, 8)
    plain = search(queries, documents, 50)
    excluded = [plain[0].rows[:20].tolist() * 2, [], list(range(49))]
    hits = search(queries, documents, 10, excluded=excluded)
    assert hits[0].rows.tolist() == plain[0].rows[20:30].tolist()
    assert hits[1].rows.tolist() == plain[1].rows[:10].tolist()
    assert hits[2].rows.tolist() == [49]


def test_a_query_that_excludes_everything_gets_nothing():
    hits = search(np.eye(2), np.eye(2), 5, excluded=[[0, 1], []])
    assert [len(found) for found in hits] == [0, 2]


def test_more_hits_than_documents_asked_for_gives_all_documents_and_no_padding():
    hits = search(np.eye(3), np.eye(3), 10)
    assert [sorted(found.rows.tolist()) for found in hits] == [[0, 1, 2]] * 3
    assert np.isfinite([found.scores for found in hits]).all()


def test_inner_product_is_not_taken_for_cosine():
    hits = search([[1, 1]], [[10, 0], [1, 1]], 2)[0]
    assert hits.rows.tolist() == [0, 1]
    assert hits.scores.tolist() == [10.0, 2.0]


def test_negative_and_zero_scores_are_ranked_like_any_other():
    hits = search([[1.0]], [[-0.2], [-0.1], [0.0], [-0.1]], 4)[0]
    assert hits.rows.tolist() == [2, 1, 3, 0]


def test_zero_vectors_are_ranked_in_row_order():
    documents = np.zeros((3000, 4), np.float32)
    assert search(np.ones((1, 4)), documents, 3)[0].rows.tolist() == [0, 1, 2]
    assert search(np.zeros((1, 4)), documents, 3)[0].rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_memory_map_is_searched_like_the_array_in_its_precision(tmp_path: Path, dtype):
    rng = np.random.default_rng(8)
    documents = unit(rng, 500, 20).astype(dtype)
    np.save(tmp_path / "vectors.npy", documents)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    queries = unit(rng, 5, 20)
    expected = reference(queries, documents.astype(np.float32), 12)
    for block_rows in (1, 64, None):
        assert_same(search(queries, mapped, 12, block_rows=block_rows), expected)


def test_other_memory_layouts_give_the_same_hits():
    rng = np.random.default_rng(9)
    documents, queries = unit(rng, 100, 10), unit(rng, 4, 10)
    expected = reference(queries, documents, 5)
    assert_same(search(np.asfortranarray(queries), np.asfortranarray(documents), 5), expected)
    wide = np.repeat(documents, 2, axis=1)[:, ::2]
    assert_same(search(queries.tolist(), wide, 5), expected)


def test_arrays_hold_the_hits_of_search():
    rng = np.random.default_rng(10)
    documents, queries = unit(rng, 20, 6), unit(rng, 3, 6)
    excluded = [[], list(range(18)), [5]]
    rows, scores, counts = top_k(queries, documents, 4, excluded=excluded)
    assert counts.tolist() == [4, 2, 4]
    for i, found in enumerate(search(queries, documents, 4, excluded=excluded)):
        assert rows[i, : counts[i]].tolist() == found.rows.tolist()
        assert scores[i, : counts[i]].tolist() == found.scores.tolist()


def test_no_queries_give_no_hits():
    assert search(np.zeros((0, 3)), np.eye(3), 2) == []


@pytest.mark.parametrize("queries", [1, 25])
def test_an_empty_corpus_is_refused(queries):
    with pytest.raises(ObliqError, match="no documents"):
        search(np.ones((queries, 4)), np.zeros((0, 4)), 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_row_that_is_not_finite_is_named(value, dtype):
    documents = np.ones((5000, 4), dtype)
    documents[4100, 2] = value
    with pytest.raises(ObliqError, match="documents row 4100 holds NaN or infinity"):
        search(np.ones((1, 4)), documents, 3)
    with pytest.raises(ObliqError, match="queries row 4100"):
        search(documents, np.ones((2, 4)), 3)


def test_values_beyond_single_precision_are_refused():
    with pytest.raises(ObliqError, match="row 0"):
        search([[1.0]], [[1e300]], 1)
    with pytest.raises(ObliqError, match="overflow"):
        search([[1.0, 1.0]], [[3e38, 3e38]], 1)


def test_bad_arguments_are_named():
    with pytest.raises(ObliqError, match="4 dimensions and documents 3"):
        search(np.ones((1, 4)), np.ones((2, 3)), 1)
    with pytest.raises(ObliqError, match="k must be at least 1"):
        search(np.ones((1, 3)), np.ones((2, 3)), 0)
    with pytest.raises(ObliqError, match="block_rows"):
        search(np.ones((1, 3)), np.ones((2, 3)), 1, block_rows=0)
    with pytest.raises(ObliqError, match="query 0 excludes row 2"):
        search(np.ones((1, 3)), np.ones((2, 3)), 1, excluded=[[2]])
    with pytest.raises(ObliqError, match="query 0 excludes row -1"):
        search(np.ones((1, 3)), np.ones((2, 3)), 1, excluded=[[-1]])
    with pytest.raises(ObliqError, match="one list of rows per query"):
        search(np.ones((2, 3)), np.ones((2, 3)), 1, excluded=[[0]])
    with pytest.raises(ObliqError, match="lists of integers"):
        search(np.ones((1, 3)), np.ones((2, 3)), 1, excluded=[["0"]])
    with pytest.raises(ObliqError, match="matrix"):
        search(np.ones(3), np.ones((2, 3)), 1)
    with pytest.raises(ObliqError, match="real numbers"):
        search(np.array([["a"]]), np.ones((2, 1)), 1)

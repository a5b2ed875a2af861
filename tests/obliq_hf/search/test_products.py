from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obliq_hf.search.products import BFloat16Product, Float32Product, bfloat16_is_native


@pytest.mark.parametrize("product", [Float32Product, BFloat16Product])
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.sampled_from([1, 2, 40]), st.sampled_from([1, 5, 130])),
    dims=st.sampled_from([1, 3, 31, 384, 8192]),
    scales=st.tuples(st.integers(-44, 12), st.integers(-44, 12)),
)
def test_no_product_is_farther_off_than_the_bound(product, seed, shape, dims, scales):
    rows, asked = shape
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.normal(0, 3, dims))
    queries = (rng.standard_normal((asked, dims)) * spread * 10.0 ** scales[0]).astype(np.float32)
    documents = (rng.standard_normal((rows, dims)) / spread * 10.0 ** scales[1]).astype(np.float32)
    given_scores = np.empty(shape, np.float32)
    product_of = product(queries)
    product_of.multiply(documents, given_scores)
    exact = documents.astype(np.float64) @ queries.astype(np.float64).T
    longest = float(np.linalg.norm(documents.astype(np.float64), axis=1).max())
    for scores, right in zip(given_scores, exact, strict=True):
        assert (np.abs(scores - right) <= product_of.margin(longest, 0.0, scores) / 2).all()


def test_bfloat16_is_really_rounded():
    rng = np.random.default_rng(0)
    queries, documents = rng.standard_normal((2, 3, 300)).astype(np.float32)
    single, brain = np.empty((2, 3, 3), np.float32)
    Float32Product(queries).multiply(documents, single)
    BFloat16Product(queries).multiply(documents, brain)
    assert 1e-4 < np.abs(single - brain).max() < 1.0
    assert np.median(np.abs(single)) > 1.0


def test_torch_is_not_imported_for_the_sake_of_a_search():
    code = (
        "import sys, numpy as np; from obliq_hf.search.dense import search; "
        "search(np.eye(300), np.eye(300), 2); print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    assert isinstance(bfloat16_is_native(), bool)

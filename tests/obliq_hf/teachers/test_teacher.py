from __future__ import annotations

import numpy as np
import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.teachers import embed, unit_vectors


class Broken:
    """A teacher that gives whatever it is told to."""

    name = "broken"
    fingerprint = "0"

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, texts, *, batch_size=32, show_progress=False):
        return self.vectors


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (
            [[1.0, 0.0], [np.nan, 1.0], [np.inf, 0.0]],
            "'broken' gave NaN or infinity for 2 rows: 1, 2",
        ),
        ([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], "'broken' gave a zero vector for 1 row: 1"),
        ([[1.0, 0.0]], r"shape \(1, 2\), not \[3, d\]"),
        ([1.0, 0.0, 0.0], r"shape \(3,\)"),
    ],
)
def test_what_is_no_vector_is_told_with_teacher_and_rows(vectors, message):
    with pytest.raises(ObliqError, match=message):
        embed(Broken(np.array(vectors)), ["a", "b", "c"])


def test_vectors_are_scaled_to_length_one_and_the_input_is_left_alone():
    given = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)
    vectors = embed(Broken(given), ["a", "b"])
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [1, 0]], atol=1e-7)
    assert given.tolist() == [[3, 4], [1, 0]]


def test_many_bad_rows_are_counted_and_some_listed():
    with pytest.raises(ObliqError, match=r"30 rows: 100, 101, .* 109, \.\.\."):
        unit_vectors(np.full((30, 2), np.nan), "t", first=100)


def test_texts_that_are_not_strings_are_named():
    with pytest.raises(ObliqError, match="text 1 is float"):
        embed(Broken(np.eye(2)), ["a", float("nan")])

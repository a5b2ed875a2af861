from __future__ import annotations

import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.search.exclusions import excluded_rows, flatten_exclusions


def test_ids_become_distinct_ascending_rows_of_the_corpus():
    row = {"a": 0, "b b": 1, "0012": 2}
    excluded = {"q1": ["0012", "a", "a", "not in the corpus"], "other": ["b b"]}
    assert excluded_rows(["q1", "q2"], excluded, row) == [[0, 2], []]


def test_a_query_is_not_excluded_from_itself_by_having_the_same_id():
    assert excluded_rows(["a"], {}, {"a": 0}) == [[]]


def test_ids_that_are_not_strings_are_refused():
    with pytest.raises(ObliqError, match="query 'q'"):
        excluded_rows(["q"], {"q": [1]}, {"1": 0})
    with pytest.raises(ObliqError, match="query 'q'"):
        excluded_rows(["q"], {"q": "d1"}, {"d1": 0})
    with pytest.raises(ObliqError, match="query ids"):
        excluded_rows([1], {}, {})


def test_flat_form_pairs_every_row_with_its_query():
    query, row = flatten_exclusions([[3, 1], [], [0]], 3, 4)
    assert query.tolist() == [0, 0, 2]
    assert row.tolist() == [3, 1, 0]

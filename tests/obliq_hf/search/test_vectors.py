from __future__ import annotations

import numpy as np

from obliq_hf.search.vectors import check_vectors


def test_checked_vectors_are_contiguous_single_precision():
    checked = check_vectors(np.asfortranarray(np.eye(3)))
    assert checked.dtype == np.float32
    assert checked.flags.c_contiguous

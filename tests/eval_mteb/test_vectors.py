from __future__ import annotations

import numpy as np
import pytest

from eval_mteb.vectors import encode_blocks, stored_vectors
from obliq_hf.errors import ObliqError

TEXTS = [f"text {i}" for i in range(10)]


class Encoder:
    def __init__(self, fail_at: int | None = None) -> None:
        self.seen: list[str] = []
        self.fail_at = fail_at

    def __call__(self, texts: list[str]) -> np.ndarray:
        if self.fail_at is not None and len(self.seen) >= self.fail_at:
            raise KeyboardInterrupt
        self.seen += texts
        return np.array([[float(t.split()[1]), 1.0] for t in texts], dtype=np.float32)


def test_vectors_are_encoded_once_and_found_again(tmp_path):
    encoder = Encoder()
    first, reused = stored_vectors(tmp_path, "key", TEXTS, encoder, block_rows=3)
    assert not reused
    second, reused = stored_vectors(tmp_path, "key", TEXTS, encoder, block_rows=3)
    assert reused
    assert encoder.seen == TEXTS
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, encode_blocks(Encoder(), TEXTS, what="x", block_rows=4))


def test_blocks_finished_before_a_kill_are_not_encoded_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stored_vectors(tmp_path, "key", TEXTS, Encoder(fail_at=6), block_rows=3)
    rest = Encoder()
    vectors, _ = stored_vectors(tmp_path, "key", TEXTS, rest, block_rows=3)
    assert rest.seen == TEXTS[6:]
    np.testing.assert_array_equal(vectors, Encoder()(TEXTS))
    assert [p.name for p in tmp_path.iterdir()] == ["key.npy"]


def test_a_vector_that_is_not_finite_is_named_and_nothing_is_kept_as_finished(tmp_path):
    def encode(texts):
        return np.array([[np.nan if t == "text 7" else 1.0] for t in texts], dtype=np.float32)

    with pytest.raises(ObliqError, match="row 7 holds NaN"):
        stored_vectors(tmp_path, "key", TEXTS, encode, block_rows=4)
    assert not (tmp_path / "key.npy").exists()


def test_a_full_disk_is_an_error_before_the_first_block_is_written(tmp_path, monkeypatch):
    import errno
    import os

    if not hasattr(os, "posix_fallocate"):
        pytest.skip("this system cannot reserve space")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        stored_vectors(tmp_path, "key", TEXTS, Encoder(), block_rows=3)
    assert list(tmp_path.iterdir()) == []

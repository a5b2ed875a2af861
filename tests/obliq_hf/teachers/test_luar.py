from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from obliq_hf.errors import ObliqError
from obliq_hf.teachers import LuarTeacher, Teacher, load_teacher

if TYPE_CHECKING:
    from pathlib import Path


class EpisodeModel(torch.nn.Module):
    """Reads episodes as LUAR does: chunks to vectors, the largest over chunks, one projection."""

    def __init__(self, vocabulary: int):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(vocabulary, 16)
        self.out = torch.nn.Linear(16, 12)
        self.seen: list[torch.Size] = []

    def forward(self, input_ids, attention_mask):
        batch, chunks, tokens = input_ids.shape
        assert attention_mask.shape == input_ids.shape
        self.seen.append(input_ids.shape)
        vectors = self.embedding(input_ids.reshape(batch * chunks, tokens))
        mask = attention_mask.reshape(batch * chunks, tokens, 1)
        pooled = (vectors * mask).sum(1) / mask.sum(1)
        return self.out(pooled.reshape(batch, chunks, -1).amax(1)) * 7


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny_model_dir))


@pytest.fixture
def teacher(tokenizer):
    return LuarTeacher(
        "tiny-luar",
        model=EpisodeModel(len(tokenizer)),
        tokenizer=tokenizer,
        chunk_tokens=8,
        max_chunks=3,
    )


LONG = "the king and the queen and the lord of the sea, the river, the field, the fire and the war"
TEXTS = ["the sea", LONG, "king", "", "house by the river with fire and stone", "a"]


def test_a_text_is_cut_into_chunks_that_keep_every_token_in_order(teacher, tokenizer):
    special = set(tokenizer.all_special_ids)
    short = "the king and the queen and the lord of the sea the river"
    for text, episode in zip(["king", short], teacher.episodes(["king", short]), strict=True):
        assert episode.shape[1] == 8
        kept = [token for token in episode.ravel().tolist() if token not in special]
        assert kept == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert (episode[:, 0] == tokenizer.cls_token_id).all()
    assert [len(e) for e in teacher.episodes(["", "king", LONG])] == [1, 1, 3]


def test_a_text_is_cut_after_the_last_chunk_allowed(teacher, tokenizer):
    tokens = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    assert len(tokens) > 3 * 6
    kept = [t for t in teacher.episodes([LONG])[0].ravel().tolist() if t in tokens]
    assert kept == tokens[:18]


def test_vectors_have_length_one_and_do_not_depend_on_the_batch(teacher):
    assert isinstance(teacher, Teacher)
    together = teacher.encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert together.dtype == np.float32
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(teacher.encode([text])[0], together[row], atol=1e-5)


def test_episodes_of_one_batch_have_the_same_number_of_chunks(teacher):
    teacher.encode(TEXTS, batch_size=2)
    assert all(shape[0] <= 2 and 1 <= shape[1] <= 3 for shape in teacher.model.seen)
    assert sum(shape[0] for shape in teacher.model.seen) == len(TEXTS)


def test_nan_is_told_with_the_rows_of_the_texts(teacher, tokenizer):
    bad = tokenizer("fire", add_special_tokens=False)["input_ids"][0]
    with torch.no_grad():
        teacher.model.embedding.weight[bad] = float("nan")
    with pytest.raises(ObliqError, match="'tiny-luar' gave NaN or infinity for 1 row: 4"):
        teacher.encode([t.replace(", the fire and the war", "") for t in TEXTS])


def test_a_model_of_another_shape_is_told(teacher):
    teacher.model.forward = lambda input_ids, attention_mask: torch.zeros(1, 2, 3)
    with pytest.raises(ObliqError, match="for 1 episodes"):
        teacher.encode(["king"])


def test_fingerprint_depends_on_weights_and_cutting(teacher, tokenizer):
    again = LuarTeacher(
        "x", model=EpisodeModel(len(tokenizer)), tokenizer=tokenizer, chunk_tokens=8, max_chunks=3
    )
    longer = LuarTeacher(
        "x", model=EpisodeModel(len(tokenizer)), tokenizer=tokenizer, chunk_tokens=9, max_chunks=3
    )
    assert again.fingerprint == teacher.fingerprint != longer.fingerprint


def test_remote_code_is_never_run_unasked(monkeypatch):
    import transformers

    def forbidden(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", forbidden)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", forbidden)
    said = r"--trust-remote-code of 'obliq graph', graph.trust_remote_code: true .*_code=True in"
    with pytest.raises(ObliqError, match=said):
        LuarTeacher("rrivera1849/LUAR-MUD")
    for name in ("rrivera1849/LUAR-MUD", "luar:me/mine"):
        with pytest.raises(ObliqError, match=said):
            load_teacher(name)
        with pytest.raises(AssertionError, match="a model was loaded"):
            load_teacher(name, trust_remote_code=True)
    with pytest.raises(ObliqError, match="together"):
        LuarTeacher("x", tokenizer=object())
    with pytest.raises(ObliqError, match="chunk_tokens"):
        LuarTeacher("x", chunk_tokens=2)

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.encoder.fingerprint import model_fingerprint
from obliq_hf.encoder.text_encoder import (
    ModelEncoder,
    UnencodableText,
    length_sorted_batches,
    load_text_encoder,
)
from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [" ".join(["the old man and the sea"] * n) for n in (1, 9, 2, 14, 5, 1, 30, 3)] + ["", "a"]


@pytest.fixture(scope="module")
def prompted(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the prompts of a task."""
    folder = tmp_path_factory.mktemp("prompted") / "run" / "model"
    model = ObliqSentenceTransformer.from_base(
        tiny_model_dir, tasks=["writing"], template="reasonir", device="cpu"
    )
    model.save(folder)
    return folder


@pytest.mark.parametrize(("size", "tokens"), [(1, None), (3, None), (4, 40), (2, 1), (64, None)])
def test_batches_hold_every_text_once_and_texts_of_like_length(size, tokens):
    lengths = np.array([5, 90, 7, 7, 1, 33, 80, 2, 6, 40])
    batches = length_sorted_batches(lengths, batch_size=size, batch_tokens=tokens)
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    ends = [(int(lengths[b].max()), int(lengths[b].min())) for b in batches]
    assert all(a[1] >= b[0] for a, b in pairwise(ends))
    if tokens is None:
        assert {len(b) for b in batches[:-1]} <= {size}
    else:
        assert all(len(b) == 1 or len(b) * int(lengths[b].max()) <= tokens for b in batches)
        assert max(map(len, batches)) <= 16 * size


def test_short_texts_come_in_larger_batches_where_tokens_are_what_counts():
    batches = length_sorted_batches(np.full(100, 8), batch_size=4, batch_tokens=128)
    assert [len(b) for b in batches] == [16] * 6 + [4]


@pytest.mark.parametrize("tokens", [None, 200])
def test_vectors_are_those_of_the_model_in_the_order_of_the_texts(prompted, tokens):
    encoder = load_text_encoder(prompted, device="cpu", batch_size=3, batch_tokens=tokens)
    assert encoder.document_prompt == "<|embed|>\n"
    plain = SentenceTransformer(str(prompted), device="cpu")
    done: list[int] = []
    found = encoder.encode(TEXTS[:8], prompt=encoder.document_prompt, progress=done.append)
    assert sum(done) == 8
    expected = np.stack([plain.encode_document(text) for text in TEXTS[:8]])
    assert np.abs(found - expected).max() < 1e-5
    queries = encoder.encode(TEXTS[:2], prompt=encoder.query_prompts["writing"])
    assert np.abs(queries - plain.encode_query(TEXTS[:2], prompt_name="writing")).max() < 1e-5
    assert np.isfinite(encoder.encode(TEXTS, prompt="")).all()


def test_the_name_and_the_prompts_are_the_checkpoints(prompted):
    encoder = load_text_encoder(prompted, device="cpu")
    assert encoder.name == "run"
    assert encoder.dimension == 32
    assert "document" not in encoder.query_prompts
    assert {"query", "writing"} <= encoder.query_prompts.keys()


def test_a_fingerprint_is_the_weights_and_settings_not_the_use_the_prompts_or_the_place(
    prompted, tmp_path
):
    model = ObliqSentenceTransformer(prompted, device="cpu")
    first = model_fingerprint(model)
    model.encode(TEXTS, batch_size=2)
    model.max_seq_length = 40
    model.prompts = {}
    assert model_fingerprint(model) == first
    model.save(tmp_path / "m")
    stock = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert model_fingerprint(stock) == first
    assert load_text_encoder(prompted, device="cpu", dtype="bfloat16").fingerprint == first
    stock[1].include_prompt = not stock[1].include_prompt
    assert model_fingerprint(stock) != first
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-3
    assert model_fingerprint(model) != first


def test_a_model_whose_vector_is_not_finite_names_the_text(prompted):
    encoder = load_text_encoder(prompted, device="cpu", batch_size=4)
    encoder.model[0].model.embeddings.word_embeddings.weight.data[5] = float("nan")
    bad = encoder.model.tokenizer.convert_ids_to_tokens(5)
    with pytest.raises(UnencodableText) as caught:
        encoder.encode(["the sea", "a b", f"the {bad}", "old", "man"], prompt="")
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float61"}, "did you mean 'float16'"),
        ({"max_length": 4}, "max_length"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_cannot_work_are_named(prompted, settings, message):
    with pytest.raises(ObliqError, match=message):
        load_text_encoder(prompted, device="cpu", **settings)


def test_a_model_that_compares_by_a_distance_is_refused_and_an_inner_product_is_not_normalised(
    tiny_model_dir,
):
    model = SentenceTransformer(str(tiny_model_dir), device="cpu")
    model.similarity_fn_name = "euclidean"
    with pytest.raises(ObliqError, match="euclidean"):
        ModelEncoder(model, name="m")
    stock = SentenceTransformer(modules=list(model)[:2], device="cpu", similarity_fn_name="dot")
    vectors = ModelEncoder(stock, name="m").encode(["the sea", "a"], prompt="")
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 1e-3

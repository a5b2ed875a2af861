from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.teachers import SentenceTransformerTeacher, Teacher, embed, load_teacher

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["the king and the sea", "a house by the river", "war, peace"]


def test_vectors_are_those_of_the_model(tiny_model_dir: Path):
    from sentence_transformers import SentenceTransformer

    teacher = SentenceTransformerTeacher(str(tiny_model_dir))
    assert isinstance(teacher, Teacher)
    expected = SentenceTransformer(str(tiny_model_dir)).encode(TEXTS)
    np.testing.assert_allclose(embed(teacher, TEXTS), expected, atol=1e-6)
    assert embed(teacher, TEXTS).dtype == np.float32
    assert teacher.encode([]).shape == (0, 32)


def test_no_prompt_of_the_model_slips_in(tiny_model_dir: Path, tmp_path: Path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(tiny_model_dir), prompts={"query": "remember the scene "}, default_prompt_name="query"
    )
    model.save_pretrained(str(tmp_path / "prompted"), create_model_card=False)
    prompted = SentenceTransformerTeacher(str(tmp_path / "prompted"))
    plain = SentenceTransformerTeacher(str(tiny_model_dir))
    np.testing.assert_allclose(prompted.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)


def test_fingerprint_is_of_the_weights_not_of_the_path(tiny_model_dir: Path, tmp_path: Path):
    import torch

    first = SentenceTransformerTeacher(str(tiny_model_dir))
    shutil.copytree(tiny_model_dir, tmp_path / "copy")
    copy = SentenceTransformerTeacher(str(tmp_path / "copy"))
    assert copy.fingerprint == first.fingerprint
    shorter = SentenceTransformerTeacher(str(tiny_model_dir), max_length=8)
    assert shorter.fingerprint != first.fingerprint
    other = SentenceTransformerTeacher(str(tiny_model_dir))
    with torch.no_grad():
        next(other.model.parameters()).add_(0.5)
    assert other.fingerprint != first.fingerprint


def test_a_model_that_gives_nan_is_named_with_the_rows(tiny_model_dir: Path):
    import torch

    teacher = SentenceTransformerTeacher(str(tiny_model_dir))
    with torch.no_grad():
        for parameter in teacher.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(ObliqError, match="NaN or infinity for 3 rows: 0, 1, 2") as caught:
        teacher.encode(TEXTS)
    assert str(tiny_model_dir) in str(caught.value)


def test_a_length_beyond_the_model_is_refused(tiny_model_dir: Path):
    with pytest.raises(ObliqError, match="1 to 128, not 4096"):
        SentenceTransformerTeacher(str(tiny_model_dir), max_length=4096)


def test_load_teacher_knows_folders_profiles_and_names(tiny_model_dir: Path, tmp_path: Path):
    assert load_teacher(tiny_model_dir).encode(TEXTS).shape == (3, 32)
    texts = [f"the {i} king, and the {i * 7} sea" for i in range(10)]
    profile = load_teacher("stylometric", corpus_texts=texts)
    assert profile.name == "stylometric"
    profile.save(tmp_path / "profile")
    assert load_teacher(tmp_path / "profile").fingerprint == profile.fingerprint
    with pytest.raises(ObliqError, match="corpus_texts"):
        load_teacher("stylometric")
    with pytest.raises(ObliqError, match="no such folder"):
        load_teacher(tmp_path / "missing")
    for name in ("rrivera1849/LUAR-MUD", "luar:someone/a-copy"):
        with pytest.raises(ObliqError, match="trust_remote_code=True"):
            load_teacher(name)

"""Fixtures shared by all tests: an offline cache of their own and tiny real models."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_CACHE = tempfile.mkdtemp(prefix="obliq-tests-")
os.environ["HF_HOME"] = _CACHE
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"):
    os.environ.pop(_name, None)

import pytest  # noqa: E402 - the caches must be set before anything reads them
from hypothesis import settings  # noqa: E402

settings.register_profile("seeded", derandomize=True)
settings.load_profile("seeded")

WORDS = (
    "the a of and to in that it was he she they we you i not but with as for his her on at by "
    "which had have be is this from or an were their what there when who would been if no so out "
    "up into my me him them then said upon very more some could will man men old young little "
    "great long night day house hand eyes heart love death fear hope king queen lord lady sea "
    "ship horse road door window fire water stone tree field river letter word voice song war "
    "peace friend enemy father mother brother sister son daughter child master servant "
    "query document instruct writing author style passage find remember scene red blue green"
).split()


def make_tiny_model(folder: Path, *, seed: int = 0, dim: int = 32, layers: int = 2) -> Path:
    """Write a small random BERT sentence encoder with its own WordPiece tokenizer to ``folder``."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789.,;:!?'\"-()|<>[]")
    pieces = letters + ["##" + c for c in letters]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *WORDS]
    vocab = list(dict.fromkeys(vocab))
    base = folder / "transformer"
    base.mkdir(parents=True)
    tokenizer = BertTokenizer(vocab={w: i for i, w in enumerate(vocab)}, model_max_length=128)
    tokenizer.save_pretrained(str(base))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * dim,
        max_position_embeddings=160,
    )
    BertModel(config).save_pretrained(str(base))
    transformer = Transformer(str(base), max_seq_length=128)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    out = folder / "model"
    model.save_pretrained(str(out), create_model_card=False)
    return out


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a 2-layer, 32-dimensional SentenceTransformer; never write into it."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Labelled texts that stand beside a development checkout; skipped where they are absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("labelled texts (../shared/data) are not beside this checkout")
    return folder


@pytest.fixture
def hf_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh, empty Hugging Face home for one test."""
    home = tmp_path / "hf"
    home.mkdir()
    monkeypatch.setenv("HF_HOME", str(home))
    return home

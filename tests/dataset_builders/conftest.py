"""The classics, built once for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dataset_builders.corpora import classics
from obliq_hf.records import Corpus, read_corpus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def classics_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus folder of the classics; never write into it."""
    out = tmp_path_factory.mktemp("classics") / "corpus"
    classics.build(out)
    return out


@pytest.fixture(scope="session")
def classics_corpus(classics_folder: Path) -> Corpus:
    """The corpus of the classics."""
    return read_corpus(classics_folder)

"""What many tests of this folder only read: the classics, and a folder of written queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from query_corpus import TASK, corpus_of, writer

from dataset_builders.corpora import classics
from dataset_builders.synthetic_queries import synthesize
from obliq_hf.llm import CachedClient
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.records import Corpus, read_corpus

if TYPE_CHECKING:
    from pathlib import Path

    from dataset_builders.synthetic_queries import SynthesisReport


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


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Corpus, SynthesisReport]:
    """A folder of queries of 40 documents, with the cache they came from."""
    root = tmp_path_factory.mktemp("written")
    corpus = corpus_of(150)
    client = CachedClient(ScriptedClient(writer), root / "answers.sqlite")
    report = synthesize(TASK, corpus, client, root / "queries", sample=40, seed=3)
    return root, corpus, report

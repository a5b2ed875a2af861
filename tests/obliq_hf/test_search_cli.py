from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from obliq_hf import cli
from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.encoder import processes as processes_module
from obliq_hf.encoder.processes import launch
from obliq_hf.errors import ObliqError
from obliq_hf.search.index import VectorIndex
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from pathlib import Path

SENTENCES = [
    "the old man went down to the sea", "she had a letter from her brother",
    "they came to the door at night", "a green tree stood by the river",
    "the king was dead", "there is fire in the window", "my heart is with you",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m") / "model"
    ObliqSentenceTransformer.from_base(tiny_model_dir, tasks=["writing"], device="cpu").save(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("c") / "corpus.jsonl"
    rows = [{"_id": f"d{i}", "text": text} for i, text in enumerate([*SENTENCES, SENTENCES[0]])]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def encode(model: Path, corpus: Path, out: Path, *more: str) -> int:
    words = ["encode", "--model", str(model), "--corpus", str(corpus), "--out", str(out)]
    return cli.main([*words, "--device", "cpu", *more])


def search(model: Path, index: Path, *more: str) -> int:
    words = ["search", "--model", str(model), "--index", str(index), "--device", "cpu"]
    return cli.main([*words, *more])


@pytest.fixture(scope="module")
def index(model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("i") / "index"
    assert encode(model, corpus, folder, "--shard-rows", "3") == 0
    return folder


def test_what_was_encoded_is_found_with_its_text(model, corpus, index, capsys):
    assert search(model, index, "--corpus", str(corpus), "-k", "3", "--verify", SENTENCES[3]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert "writing" in shown.err
    assert "--prompt-name" in shown.err
    asked = ["--prompt-name", "writing", SENTENCES[1], SENTENCES[2]]
    assert search(model, index, *asked) == 0
    shown = capsys.readouterr()
    assert "--prompt-name" not in shown.err
    blocks = shown.out.strip().split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == SENTENCES[1:3]
    assert all(len(block.splitlines()) == 9 for block in blocks)


def test_a_run_of_many_queries_honours_exclusions(model, index, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(
        json.dumps({"_id": f"q{i}", "text": text}) + "\n" for i, text in enumerate(SENTENCES)
    ))  # fmt: skip
    (tmp_path / "excluded.json").write_text(json.dumps({"q1": ["d1", "gone"], "q4": ["d0"]}))
    words = ["--queries", str(queries), "--excluded", str(tmp_path / "excluded.json")]
    assert search(model, index, *words, "-k", "8", "--out", str(tmp_path / "run.trec")) == 0
    run = read_run(tmp_path / "run.trec")
    assert [len(run[f"q{i}"]) for i in range(7)] == [8, 7, 8, 8, 7, 8, 8]
    assert "d1" not in run["q1"]
    assert "d0" not in run["q4"]
    assert list(run["q4"]).index("d7") >= 0


def test_wrong_use_is_told_in_one_line(model, corpus, index, tiny_model_dir, tmp_path, capsys):
    def error(status: int) -> str:
        assert status == 1
        shown = capsys.readouterr().err
        assert "Traceback" not in shown
        return shown.strip().splitlines()[-1]

    assert "cannot be compared" in error(search(other(tiny_model_dir, tmp_path), index, "x"))
    assert "'writting'" in error(search(model, index, "--prompt-name", "writting", "x"))
    assert "queries as words" in error(search(model, index))
    assert "no index there" in error(search(model, tmp_path, "x"))
    assert "another encoding" in error(encode(model, corpus, index, "--storage", "int8"))
    assert "did you mean 'keep'" in error(encode(model, corpus, index, "--empty", "kep"))
    assert "no such model" in error(encode(tmp_path / "gone", corpus, index))
    assert "corpus.jsonl" in error(encode(model, tmp_path, tmp_path / "out"))


def other(tiny_model_dir: Path, tmp_path: Path) -> Path:
    import torch

    changed = ObliqSentenceTransformer.from_base(tiny_model_dir, tasks=["writing"], device="cpu")
    with torch.no_grad():
        next(changed.parameters()).mul_(1.5)
    changed.save(tmp_path / "other")
    return tmp_path / "other"


def test_two_processes_encode_every_row_once_and_in_order(model, corpus, index, tmp_path):
    assert encode(model, corpus, tmp_path / "two", "--shard-rows", "3", "--processes", "2") == 0
    alone, two = VectorIndex(index), VectorIndex(tmp_path / "two")
    assert two.ids == alone.ids
    np.testing.assert_array_equal(two.vectors()[:], alone.vectors()[:])
    assert two.manifest.shards == alone.manifest.shards


def test_a_process_that_fails_ends_the_others_and_is_named(tmp_path):
    code = "import os, sys, time; int(os.environ['RANK']) or time.sleep(60); sys.exit('no luck')"
    with pytest.raises(ObliqError, match="process 1 of 2 failed: no luck"):
        launch(["-c", code], 2)


def test_more_processes_than_gpus_are_refused(monkeypatch, model, corpus, tmp_path, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert encode(model, corpus, tmp_path / "i", "--processes", "3") == 1
    assert "this machine has 2 GPUs" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ObliqError, match="2 GPUs"):
        processes_module.Workers.here()


def test_an_interrupted_command_goes_on_where_it_was(model, corpus, tmp_path, monkeypatch):
    from obliq_hf.search import encoding

    encode_shard, done = encoding._encode_shard, []

    def stopping(*arguments):  # type: ignore[no-untyped-def]
        if done:
            raise KeyboardInterrupt
        encode_shard(*arguments)
        done.append(arguments[3])

    monkeypatch.setattr(encoding, "_encode_shard", stopping)
    assert encode(model, corpus, tmp_path / "i", "--shard-rows", "3") == 130
    monkeypatch.setattr(encoding, "_encode_shard", lambda *a: (done.append(a[3]), encode_shard(*a)))
    assert encode(model, corpus, tmp_path / "i", "--shard-rows", "3") == 0
    assert done == [0, 1, 2]
    shutil.rmtree(tmp_path / "i")


@pytest.mark.parametrize(
    "option", [("--device", "cpu"), ("--batch-size", "8"), ("--batch-tokens", "64")]
)
def test_what_vllm_decides_by_itself_is_refused(option, corpus, tmp_path, capsys):
    words = ["encode", "--model", "m", "--corpus", str(corpus), "--out", str(tmp_path / "i")]
    assert cli.main([*words, "--backend", "vllm", *option]) == 1
    said = capsys.readouterr().err
    assert f"{option[0]} {option[1]}: has no meaning with --backend vllm" in said


@pytest.mark.parametrize(("world", "processes"), [(None, "2"), ("2", "1"), ("3", "3")])
def test_vllm_is_not_run_in_several_processes(
    world, processes, corpus, tmp_path, monkeypatch, capsys
):
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    words = ["encode", "--model", "m", "--corpus", str(corpus), "--out", str(tmp_path / "i")]
    assert cli.main([*words, "--backend", "vllm", "--processes", processes]) == 1
    number = max(int(world or 1), int(processes))
    assert f"{number} processes are for sentence-transformers" in capsys.readouterr().err

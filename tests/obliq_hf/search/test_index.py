"""Sharded indexes: what is written, what is refused, and that search over them is exact."""

from __future__ import annotations

import hashlib
import json
import shutil
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from obliq_hf.encoder.processes import Workers
from obliq_hf.encoder.text_encoder import UnencodableText
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.records import Corpus
from obliq_hf.search.dense import search
from obliq_hf.search.encoding import encode_corpus
from obliq_hf.search.index import QueryVectors, VectorIndex, encode_queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DIM = 24


class WordEncoder:
    """Unit vectors drawn from the digest of each text; counts what it is asked for."""

    name = "word"
    revision = None
    dimension = DIM
    max_length = 64
    document_prompt = ""

    def __init__(self, seed: str = "a", prompts: dict[str, str] | None = None) -> None:
        self.fingerprint = hashlib.sha256(seed.encode()).hexdigest()
        self.seed = seed
        self.query_prompts = prompts or {}
        self.asked: list[str] = []
        self.fail_at: str | None = None
        self.bad: str | None = None

    def encode(self, texts: Sequence[str], *, prompt: str, progress: Any = None) -> np.ndarray:
        rows = []
        for row, text in enumerate(texts):
            if text == self.fail_at:
                raise KeyboardInterrupt
            if text == self.bad:
                raise UnencodableText(row)
            self.asked.append(text)
            digest = hashlib.sha256(f"{self.seed}{prompt}{text}".encode()).digest()
            rows.append(np.random.default_rng(list(digest)).standard_normal(DIM))
        vectors = np.array(rows, dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def corpus_of(count: int, copies: int = 1) -> Corpus:
    """``count`` documents; each text stands under ``copies`` ids, far apart."""
    different = count // copies
    return Corpus([f"d{i}" for i in range(count)], [f"text {i % different}" for i in range(count)])


def make(folder: Path, corpus: Corpus | None = None, **options: Any) -> VectorIndex:
    encoder = options.pop("encoder", None) or WordEncoder()
    return encode_corpus(encoder, corpus or corpus_of(50), folder, shard_rows=16, **options)


def same(hits: list[Any], expected: list[Any]) -> None:
    for found, wanted in zip(hits, expected, strict=True):
        assert found.rows.tolist() == wanted.rows.tolist()
        np.testing.assert_array_equal(found.scores, wanted.scores)


@pytest.mark.parametrize("copies", [1, 2, 5])
@pytest.mark.parametrize("k", [1, 7, 200])
@pytest.mark.parametrize("block_rows", [1, 5, None])
def test_search_over_shards_equals_search_over_one_matrix(tmp_path, copies, k, block_rows):
    corpus = corpus_of(100, copies)
    index = make(tmp_path / "i", corpus, storage="float32")
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((6, DIM)).astype(np.float32)
    excluded = [rng.choice(100, size=n, replace=False).tolist() for n in (0, 1, 3, 30, 99, 0)]
    documents = WordEncoder().encode(corpus.texts, prompt="")
    expected = search(queries, documents, k, excluded=excluded)
    same(index.search(queries, k, excluded=excluded, block_rows=block_rows), expected)


def test_copies_of_a_text_tie_in_corpus_order_also_where_the_first_is_excluded(tmp_path):
    corpus = Corpus(["a", "b", "c", "d"], ["x", "y", "x", "x"])
    index = make(tmp_path / "i", corpus)
    query = index.vectors()[[0]]
    for excluded, wanted in (([], "acdb"), ([0], "cdb"), ([0, 2], "db"), ([0, 2, 3], "b")):
        (hits,) = index.search(query, 9, excluded=[excluded])
        assert "".join(index.ids[row] for row in hits.rows) == wanted
    (hits,) = index.search(query, 2, excluded=[[2]])
    assert [index.ids[row] for row in hits.rows] == ["a", "d"]


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_full_vectors_beside_smaller_ones_decide_the_order(tmp_path, storage):
    corpus = corpus_of(400, 2)
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((9, DIM)).astype(np.float32)
    documents = WordEncoder().encode(corpus.texts, prompt="")
    excluded = [rng.choice(400, size=20, replace=False).tolist() for _ in range(9)]
    exact = make(tmp_path / "exact", corpus, storage=storage, keep_exact=True)
    same(
        exact.search(queries, 10, excluded=excluded),
        search(queries, documents, 10, excluded=excluded),
    )
    alone = make(tmp_path / "alone", corpus, storage=storage)
    found = alone.search(queries, 10)
    error = max(
        abs(float(score) - float(queries[q] @ documents[row]))
        for q, hits in enumerate(found)
        for row, score in zip(hits.rows, hits.scores, strict=True)
    )
    assert 0 < error < (0.01 if storage == "float16" else 0.2)
    assert found[0].scores.dtype == np.float32


def test_many_equal_vectors_of_int8_do_not_crowd_out_the_best(tmp_path):
    """All stored vectors are within each other's error; only the full ones tell them apart."""

    class Close(WordEncoder):
        def encode(self, texts: Sequence[str], *, prompt: str, progress: Any = None) -> np.ndarray:
            base = np.ones(DIM, dtype=np.float32)
            return np.array([base + int(t.split()[1]) * 1e-6 for t in texts], dtype=np.float32)

    corpus = corpus_of(3000)
    index = make(tmp_path / "i", corpus, encoder=Close(), storage="int8", keep_exact=True)
    query = np.ones((1, DIM), dtype=np.float32)
    (hits,) = index.search(query, 3)
    (wanted,) = search(query, Close().encode(corpus.texts, prompt=""), 3)
    assert hits.rows.tolist() == wanted.rows.tolist()


def test_a_killed_encoding_keeps_its_finished_shards(tmp_path):
    encoder = WordEncoder()
    encoder.fail_at = "text 40"
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "i", encoder=encoder)
    with pytest.raises(DataError, match=r"not finished.*obliq encode"):
        VectorIndex(tmp_path / "i")
    again = WordEncoder()
    index = make(tmp_path / "i", encoder=again)
    assert again.asked == [f"text {i}" for i in range(32, 50)]
    straight = make(tmp_path / "straight")
    assert (tmp_path / "i" / "index.json").read_bytes() == (
        tmp_path / "straight" / "index.json"
    ).read_bytes()
    np.testing.assert_array_equal(index.vectors()[:], straight.vectors()[:])
    once_more = WordEncoder()
    make(tmp_path / "i", encoder=once_more)
    assert once_more.asked == []


def test_a_text_under_several_ids_is_encoded_once(tmp_path):
    encoder = WordEncoder()
    index = make(tmp_path / "i", corpus_of(60, 3), encoder=encoder)
    assert encoder.asked == [f"text {i}" for i in range(20)]
    assert len(index) == 60
    assert index.manifest.vectors == 20
    np.testing.assert_array_equal(index.vectors()[[3]], index.vectors()[[43]])


@pytest.mark.parametrize("count", [2, 3, 8])
def test_every_shard_is_one_processes_also_where_there_are_fewer_shards(tmp_path, count):
    """Seven texts in shards of two: each process encodes what is its own, in order."""
    corpus = corpus_of(7)
    make_alone = encode_corpus(WordEncoder(), corpus, tmp_path / "alone", shard_rows=2)

    class Rank(Workers):
        def share(self, items):  # type: ignore[no-untyped-def]
            return [item for item in items if item % count == self.rank]

        def agree(self, value):  # type: ignore[no-untyped-def]
            return list(range(4))

        def wait(self) -> None:
            """All ranks run one after the other here."""

    asked: list[str] = []
    for rank in (*range(1, count), 0):  # the first one plans and, here, also finishes
        encoder = WordEncoder()
        if rank == 1:
            first = Rank(0, count)
            object.__setattr__(first, "share", lambda items: [])
            with pytest.raises(DataError, match="shards"):
                encode_corpus(WordEncoder(), corpus, tmp_path / "i", shard_rows=2, workers=first)
        try:
            encode_corpus(encoder, corpus, tmp_path / "i", shard_rows=2, workers=Rank(rank, count))
        except DataError as error:
            assert "not finished" in str(error)  # noqa: PT017
        asked += encoder.asked
    assert sorted(asked) == [f"text {i}" for i in range(7)]
    index = VectorIndex(tmp_path / "i")
    np.testing.assert_array_equal(index.vectors()[:], make_alone.vectors()[:])


def test_a_missing_a_short_and_a_changed_shard_are_named_and_mended(tmp_path):
    make(tmp_path / "i")
    shard = tmp_path / "i" / "shards" / "00001.safetensors"
    whole = shard.read_bytes()

    def mended() -> list[str]:
        encoder = WordEncoder()
        make(tmp_path / "i", encoder=encoder)
        assert shard.read_bytes() == whole
        return encoder.asked

    shard.unlink()
    with pytest.raises(DataError, match=r"00001\.safetensors: this shard is missing; run"):
        VectorIndex(tmp_path / "i")
    assert mended() == [f"text {i}" for i in range(16, 32)]
    shard.write_bytes(whole[:-10])
    with pytest.raises(DataError, match=r"00001\.safetensors: is cut short"):
        VectorIndex(tmp_path / "i")
    assert len(mended()) == 16
    shard.write_bytes(b"")
    with pytest.raises(DataError, match="not a shard of vectors"):
        VectorIndex(tmp_path / "i")
    assert len(mended()) == 16
    changed = bytearray(whole)
    changed[-1] ^= 1
    shard.write_bytes(bytes(changed))
    with pytest.raises(DataError, match=r"00001\.safetensors: is not as it was written"):
        VectorIndex(tmp_path / "i").verify()


def test_a_manifest_that_lacks_a_shard_is_refused(tmp_path):
    make(tmp_path / "i")
    file = tmp_path / "i" / "index.json"
    manifest = json.loads(file.read_text())
    for kept, message in (
        (manifest["shards"][:-1], "48 of 50"),
        (manifest["shards"][1:], "from 0"),
    ):
        file.write_text(json.dumps({**manifest, "shards": kept}))
        with pytest.raises(DataError, match=message):
            VectorIndex(tmp_path / "i")
    (tmp_path / "i" / "ids.txt").write_text("d0\nd1\n")
    file.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="2 ids for 50 documents"):
        _ = VectorIndex(tmp_path / "i").ids


def test_vectors_of_two_models_cannot_be_mixed(tmp_path):
    make(tmp_path / "i")
    make(tmp_path / "j", encoder=WordEncoder("b"))
    with pytest.raises(ObliqError, match=r"another encoding.*model word"):
        make(tmp_path / "i", encoder=WordEncoder("b"))
    name = "shards/00001.safetensors"
    shutil.copy(tmp_path / "j" / name, tmp_path / "i" / name)
    with pytest.raises(DataError, match=r"00001.*another model"):
        VectorIndex(tmp_path / "i")
    shutil.copy(tmp_path / "i" / "shards" / "00000.safetensors", tmp_path / "i" / name)
    with pytest.raises(DataError, match=r"00001.*another index"):
        VectorIndex(tmp_path / "i")


def test_another_setting_or_other_texts_need_another_folder(tmp_path):
    make(tmp_path / "i")
    with pytest.raises(ObliqError, match="storage float16"):
        make(tmp_path / "i", storage="int8")
    with pytest.raises(ObliqError, match="other texts"):
        make(tmp_path / "i", corpus_of(49))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ObliqError, match="something else"):
        make(tmp_path / "notes")
    assert [p.name for p in (tmp_path / "notes").iterdir()] == ["a.txt"]
    with pytest.raises(ObliqError, match="did you mean 'float16'"):
        make(tmp_path / "k", storage="flaot16")


def test_queries_of_another_model_or_dimension_or_without_their_prompt_are_refused(tmp_path):
    prompts = {"query": "find: ", "writing": "same author: "}
    encoder = WordEncoder(prompts=prompts)
    index = make(tmp_path / "i", encoder=encoder)
    queries = encode_queries(encoder, ["x"], prompt_name="writing")
    assert len(index.search(queries, 3)[0]) == 3
    with pytest.raises(ObliqError, match=r"'writting'.*'writing'"):
        encode_queries(encoder, ["x"], prompt_name="writting")
    with pytest.raises(ObliqError, match="cannot be compared"):
        index.search(encode_queries(WordEncoder("b", prompts), ["x"]), 3)
    with pytest.raises(ObliqError, match=r"without a prompt.*query, writing"):
        index.search(replace(queries, prompt=""), 3)
    with pytest.raises(ObliqError, match="with another prompt"):
        index.search(replace(queries, prompt="other: "), 3)
    with pytest.raises(ObliqError, match="7 dimensions"):
        index.search(
            QueryVectors(np.ones((1, 7), np.float32), encoder.fingerprint, "", "find: "), 3
        )
    with pytest.raises(ObliqError, match="NaN"):
        index.search(np.full((1, DIM), np.nan), 3)


def test_a_vector_that_is_not_finite_is_named_by_its_document(tmp_path):
    encoder = WordEncoder()
    encoder.bad = "text 33"
    with pytest.raises(ObliqError, match="document 'd33'"):
        make(tmp_path / "i", encoder=encoder)
    assert len(list((tmp_path / "i" / "shards").glob("*.safetensors"))) == 2


def test_a_row_of_nan_that_came_into_a_shard_is_found_by_search(tmp_path):
    index = make(tmp_path / "i")
    shard = tmp_path / "i" / "shards" / "00001.safetensors"
    from safetensors import safe_open

    with safe_open(shard, "numpy") as file:
        metadata = file.metadata()
    tensors = load_file(shard)
    tensors["vectors"][4, 0] = np.nan
    save_file(tensors, shard, metadata=metadata)
    with pytest.raises(ObliqError, match="row 20 holds NaN"):
        VectorIndex(tmp_path / "i").search(index.vectors()[[0]], 3)


def test_rows_bad_documents_and_empty_ones_follow_the_corpus_rules(tmp_path):
    def written(*rows: dict[str, Any]) -> Path:
        file = tmp_path / "corpus.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    def encode(empty: str = "error") -> VectorIndex:
        shutil.rmtree(tmp_path / "i", ignore_errors=True)
        file = tmp_path / "corpus.jsonl"
        return encode_corpus(WordEncoder(), file, tmp_path / "i", empty=empty)  # type: ignore[arg-type]

    row = {"_id": "0012", "title": "T", "text": "x"}
    written(row, {"_id": "NA", "text": " "}, row)
    with pytest.raises(DataError, match="'NA' is empty"):
        encode()
    assert encode("drop").ids == ["0012"]
    index = encode("keep")
    assert index.ids == ["0012", "NA"]
    assert index.manifest.dropped == {"repeated": 1}
    np.testing.assert_allclose(
        index.vectors()[[0]], WordEncoder().encode(["T x"], prompt=""), atol=1e-3
    )
    written(row, {**row, "text": "y"})
    with pytest.raises(DataError, match="two different texts"):
        encode()
    written()
    with pytest.raises(DataError, match="no documents"):
        encode()


def test_ids_and_order_are_those_of_the_corpus(tmp_path):
    ids = ["0012", "NA", "1e5", "an id", "ünïcode", "\u2028x"]
    index = encode_corpus(WordEncoder(), Corpus(ids, list("abcdef")), tmp_path / "i", shard_rows=4)
    assert index.ids == ids
    assert index.row["1e5"] == 2


def test_unit_vectors_undo_rounding_and_slices_select_rows(tmp_path):
    index = make(tmp_path / "i", corpus_of(90, 2), storage="int8")
    rounded, unit = index.vectors(), index.vectors(unit=True)
    assert np.abs(np.linalg.norm(rounded[:], axis=1) - 1).max() > 1e-4
    assert np.abs(np.linalg.norm(unit[:], axis=1) - 1).max() < 1e-6
    assert rounded[10:13].shape == (3, DIM)
    assert rounded[5].shape == (DIM,)
    chosen = np.array([80, 3, 44])
    np.testing.assert_array_equal(unit.select(chosen)[[1]], unit[[3]])
    same(search(unit[:4], unit.select(chosen), 3), search(unit[:4], unit[chosen], 3))
    with pytest.raises(IndexError):
        rounded[[90]]


def test_search_holds_no_more_than_a_block(tmp_path):
    rng = np.random.default_rng(2)

    class Wide(WordEncoder):
        dimension = 512

        def encode(self, texts: Sequence[str], *, prompt: str, progress: Any = None) -> np.ndarray:
            return rng.standard_normal((len(texts), 512)).astype(np.float32)

    count = 20_000
    corpus = Corpus([str(i) for i in range(count)], [str(i) for i in range(count)])
    index = encode_corpus(Wide(), corpus, tmp_path / "i", shard_rows=4096)
    queries = rng.standard_normal((4, 512)).astype(np.float32)
    index.search(queries, 10, block_rows=512)
    tracemalloc.start()
    index.search(queries, 10, block_rows=512)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 512 * 512 * 4  # the whole is 41 MB

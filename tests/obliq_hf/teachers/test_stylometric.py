from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.metrics import mean, per_query
from obliq_hf.search.dense import search
from obliq_hf.search.runs import to_run
from obliq_hf.task_data import read_task_data
from obliq_hf.teachers import ProfileSettings, StylometricProfile, Teacher

if TYPE_CHECKING:
    from pathlib import Path

SOLEMN = "And verily, the king did speak; and all the people, being sore afraid, held their peace."
BRISK = "Nope! Can't do it -- won't do it. You're kidding, right? Well... don't ask me again!"


def two_hands(count: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Texts of two made-up writers who differ in punctuation and small words."""
    rng = np.random.default_rng(seed)
    texts, hands = [], []
    for i in range(count):
        words = (SOLEMN if i % 2 else BRISK).split()
        picked = [words[j] for j in rng.integers(0, len(words), 60)]
        texts.append(" ".join(picked))
        hands.append(i % 2)
    return texts, hands


def test_texts_of_one_hand_are_nearest_to_each_other():
    texts, hands = two_hands(60)
    vectors = StylometricProfile.fit(texts).encode(texts)
    hits = search(vectors, vectors, 1, excluded=[[i] for i in range(len(texts))])
    assert all(hands[found.rows[0]] == hand for found, hand in zip(hits, hands, strict=True))


def test_vectors_are_single_precision_and_of_length_one():
    texts, _ = two_hands(40)
    profile = StylometricProfile.fit(texts)
    vectors = profile.encode(texts[:7])
    assert isinstance(profile, Teacher)
    assert vectors.dtype == np.float32
    assert vectors.shape == (7, profile.dimensions)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_without_extras_a_vector_is_the_zscored_square_root_profile():
    texts = ["aab ab", "ba baa", "bb ab a", "abab b"]
    settings = ProfileSettings(scaling=1, word_weight=1, component_weight=0)
    profile = StylometricProfile.fit(texts, settings=settings)
    rows = []
    for text in texts:
        grams = [text[i : i + n] for n in (2, 3, 4) for i in range(len(text) - n + 1)]
        tokens = text.split()
        words = tokens + [" ".join(pair) for pair in itertools.pairwise(tokens)]
        rows.append(
            [np.sqrt(grams.count(g) / len(grams)) for g in profile.characters]
            + [np.sqrt(words.count(w) / len(words)) for w in profile.words]
        )
    table = np.array(rows)
    scores = (table - table.mean(axis=0)) / table.std(axis=0)
    scores /= np.linalg.norm(scores, axis=1, keepdims=True)
    np.testing.assert_allclose(profile.encode(texts), scores, atol=1e-5)


def test_directions_are_the_leading_principal_axes():
    texts, _ = two_hands(80, seed=3)
    profile = StylometricProfile.fit(texts, settings=ProfileSettings(components=5))
    plain = StylometricProfile.fit(texts, settings=ProfileSettings(component_weight=0))
    rows = plain.encode(texts).astype(np.float64)
    rows -= rows.mean(axis=0)
    _, _, axes = np.linalg.svd(rows, full_matrices=False)
    np.testing.assert_allclose(profile.directions @ profile.directions.T, np.eye(5), atol=1e-4)
    overlap = np.linalg.svd(profile.directions[:1] @ axes[:1].T, compute_uv=False)
    np.testing.assert_allclose(overlap, 1, atol=1e-3)


def test_vocabulary_is_the_most_frequent_and_ties_do_not_depend_on_the_machine():
    settings = ProfileSettings(characters=3, words=2, character_ngrams=(1, 1), word_ngrams=(1, 1))
    profile = StylometricProfile.fit(["z c b a z", "z b a"], settings=settings)
    assert profile.characters == (" ", "z", "a")
    assert profile.words == ("z", "a")


def test_white_space_and_line_breaks_are_one_space():
    texts, _ = two_hands(40)
    profile = StylometricProfile.fit(texts)
    broken = texts[0].replace(" ", " \n\t ")
    np.testing.assert_array_equal(profile.encode([broken]), profile.encode([texts[0]]))


def test_batches_and_blocks_give_the_same_vectors():
    texts, _ = two_hands(40)
    profile = StylometricProfile.fit(texts)
    whole = profile.encode(texts)
    for size in (1, 7, 1000):
        np.testing.assert_allclose(profile.encode(texts, batch_size=size), whole, atol=1e-6)
    blocks = list(profile.encode_blocks(texts, block_rows=16))
    assert [(first, len(block)) for first, block in blocks] == [(0, 16), (16, 16), (32, 8)]
    np.testing.assert_allclose(np.concatenate([block for _, block in blocks]), whole, atol=1e-6)
    assert profile.encode([]).shape == (0, profile.dimensions)


def test_a_profile_is_the_same_from_the_same_texts_and_another_from_others():
    texts, _ = two_hands(40)
    first, again = StylometricProfile.fit(texts), StylometricProfile.fit(list(texts))
    assert first.fingerprint == again.fingerprint
    np.testing.assert_array_equal(first.encode(texts[:3]), again.encode(texts[:3]))
    assert StylometricProfile.fit(texts[::-1]).fingerprint != first.fingerprint
    other = StylometricProfile.fit(texts, settings=ProfileSettings(words=50))
    assert other.fingerprint != first.fingerprint


def test_a_large_corpus_is_sampled_evenly():
    texts, _ = two_hands(41)
    sampled = StylometricProfile.fit(texts, settings=ProfileSettings(sample=10))
    by_hand = StylometricProfile.fit(texts[::5], settings=ProfileSettings(sample=10))
    assert sampled.characters == by_hand.characters
    np.testing.assert_array_equal(sampled.mean, by_hand.mean)


def test_a_saved_profile_gives_the_same_vectors(tmp_path: Path):
    texts, _ = two_hands(40)
    profile = StylometricProfile.fit(texts, settings=ProfileSettings(words=100))
    profile.save(tmp_path / "teacher")
    loaded = StylometricProfile.load(tmp_path / "teacher")
    assert loaded.fingerprint == profile.fingerprint
    assert loaded.settings == profile.settings
    np.testing.assert_array_equal(loaded.encode(texts), profile.encode(texts))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["teacher"]
    with np.load(tmp_path / "teacher" / "profile.npz", allow_pickle=False) as arrays:
        assert set(arrays) == {"mean", "scale", "centre", "directions"}


def test_a_changed_or_incomplete_profile_is_refused(tmp_path: Path):
    texts, _ = two_hands(20)
    StylometricProfile.fit(texts).save(tmp_path / "t")
    head = json.loads((tmp_path / "t" / "profile.json").read_text(encoding="utf-8"))

    def rewrite(**changes):
        text = json.dumps({k: v for k, v in (head | changes).items() if v is not None})
        (tmp_path / "t" / "profile.json").write_text(text, encoding="utf-8")

    rewrite(characters=head["characters"][::-1])
    with pytest.raises(DataError, match="do not belong together"):
        StylometricProfile.load(tmp_path / "t")
    rewrite(settings=head["settings"] | {"word_weight": 9.0})
    with pytest.raises(DataError, match="do not belong together"):
        StylometricProfile.load(tmp_path / "t")
    rewrite(words=None)
    with pytest.raises(DataError, match="incomplete"):
        StylometricProfile.load(tmp_path / "t")
    rewrite(format=99)
    with pytest.raises(DataError, match="format 99"):
        StylometricProfile.load(tmp_path / "t")
    rewrite(teacher="other")
    with pytest.raises(DataError, match="does not describe"):
        StylometricProfile.load(tmp_path / "t")
    rewrite()
    np.savez(tmp_path / "t" / "profile.npz", mean=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="plain arrays"):
        StylometricProfile.load(tmp_path / "t")
    with pytest.raises(DataError, match="no such file"):
        StylometricProfile.load(tmp_path / "missing")


@pytest.mark.parametrize("blank", ["", "   ", "\n\u2003"])
def test_empty_texts_are_named_by_row(blank):
    texts, _ = two_hands(20)
    with pytest.raises(ObliqError, match="2 rows: 3, 20"):
        StylometricProfile.fit([*texts[:3], blank, *texts[3:-1], blank])
    profile = StylometricProfile.fit(texts)
    with pytest.raises(ObliqError, match="1 row: 1"):
        profile.encode([texts[0], blank])


def test_a_text_without_any_known_ngram_is_named_or_made_zero_on_request():
    texts, _ = two_hands(20)
    profile = StylometricProfile.fit(texts)
    odd = [texts[0], "\u4e00\u4e01", texts[1], ""]
    with pytest.raises(ObliqError, match="1 row: 1;"):
        profile.encode(odd[:3], batch_size=2)
    vectors = profile.encode(odd, undefined="zero")
    assert np.linalg.norm(vectors, axis=1).round(5).tolist() == [1, 0, 1, 0]
    with pytest.raises(ObliqError, match="undefined"):
        profile.encode(odd, undefined="skip")


def test_texts_that_cannot_make_a_profile_are_refused():
    with pytest.raises(ObliqError, match="at least two different texts, not 0"):
        StylometricProfile.fit([])
    with pytest.raises(ObliqError, match="at least two different texts, not 1"):
        StylometricProfile.fit(["the same words"] * 5)
    with pytest.raises(ObliqError, match="do not differ"):
        StylometricProfile.fit(["one  two", "one two"])
    with pytest.raises(ObliqError, match="text 1 is NoneType"):
        StylometricProfile.fit(["words here", None])
    with pytest.raises(ObliqError, match="no words or no character"):
        StylometricProfile.fit(["a", "b"])
    with pytest.raises(ObliqError, match="batch_size"):
        StylometricProfile.fit(["one two", "three four"]).encode(["one"], batch_size=0)


def test_strange_texts_are_profiled():
    texts, _ = two_hands(20)
    strange = ["\ud800 the\x00king\u2028speak, verily", "and, " * 20_000, "🏳️‍🌈 and " * 500]
    vectors = StylometricProfile.fit([*texts, *strange]).encode(strange)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize(
    "bad", [{"characters": 0}, {"character_ngrams": (3, 2)}, {"scaling": -1}, {"sample": 0}]
)
def test_impossible_settings_are_named(bad):
    with pytest.raises(ObliqError, match=next(iter(bad))):
        ProfileSettings(**bad)


def test_the_profile_finds_authors_it_was_not_fitted_on(shared_data: Path):
    rows = [
        json.loads(line)
        for line in (shared_data / "authorship" / "corpus.jsonl").open(encoding="utf-8")
    ]
    profile = StylometricProfile.fit([row["text"] for row in rows if row["split"] == "train"])
    task = read_task_data(shared_data / "authorship" / "dev", split="dev")
    hits = search(profile.encode(task.queries.texts), profile.encode(task.corpus.texts), 10)
    scores = per_query(to_run(hits, task.queries.ids, task.corpus.ids), task.qrels, ks=(10,))
    assert mean(scores)["ndcg_at_10"] >= 0.384

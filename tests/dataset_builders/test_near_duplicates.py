"""The one rule for same and nearly the same texts."""

from __future__ import annotations

import numpy as np
import pytest

from dataset_builders.near_duplicates import (
    NearDuplicateIndex,
    TextProfile,
    is_near_duplicate,
    same_text_rows,
    text_key,
)

PASSAGE = (
    "The old clerk had been at his desk since the lamps were lit, and though the office was "
    "empty he wrote on as if forty eyes were fixed upon him; for he had discovered, in the course "
    "of a long and mostly blameless life, that a man who is seen to hurry is thought to have "
    "something to hide, and that a man who never hurries is thought to have nothing to do."
)
OTHER = (
    "We crossed the moor at noon and found the farmhouse shut. Nobody answered when we knocked; a "
    "dog barked twice behind the barn and then gave it up, as though it too had been told that "
    "strangers were not worth the breath. My sister sat upon the wall and laughed until she wept."
)


def near(a: str, b: str) -> bool:
    forward = is_near_duplicate(TextProfile(a), TextProfile(b))
    assert forward == is_near_duplicate(TextProfile(b), TextProfile(a))
    return forward


@pytest.mark.parametrize(
    "copy",
    [
        PASSAGE.upper(),
        PASSAGE.replace(" ", "\n  "),
        PASSAGE.replace("old", "aged").replace("empty", "deserted"),
        PASSAGE[: len(PASSAGE) // 2],
        OTHER + " " + PASSAGE,
        PASSAGE[100:] + " " + OTHER[:120],
    ],
)
def test_copies_windows_and_light_rewordings_are_near_duplicates(copy: str) -> None:
    assert near(PASSAGE, copy)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (PASSAGE, OTHER),
        ("people have the right to smoke", "people have the right to vote and to assemble freely"),
        ("equality of opportunity", "the wealth gap undermines equality of opportunity for many"),
        ("quick god", "quick fox"),
        ("", PASSAGE),
    ],
)
def test_different_texts_are_not(a: str, b: str) -> None:
    assert not near(a, b)


def test_texts_without_spaces_are_compared_by_character() -> None:
    text = "我们昨天晚上在图书馆里读了很长时间的书然后一起走回了家"
    assert near(text, text[:-4] + "学校宿舍")
    assert not near(text, "他的父亲每天清晨都要去海边钓鱼从来不带任何人同行")


def test_same_text_ignores_case_spacing_and_unicode_composition() -> None:
    assert text_key("Café  au\nlait ") == text_key("cafe\u0301 AU lait")
    assert text_key("cafe") != text_key("café")
    rows = same_text_rows(["a b", "c", " A  b", "c!", "C"])
    assert rows.tolist() == [0, 1, 0, 3, 1]
    assert rows.dtype == np.int64


@pytest.mark.parametrize("text", ["", "   ", "\ud800", "\x00", "🏳️‍🌈" * 5000, "word " * 100_000])
def test_odd_texts_have_keys_and_profiles(text: str) -> None:
    assert text_key(text) == text_key(text)
    assert near(text, text)


def test_the_index_finds_what_comparing_all_pairs_finds() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(300)]
    base = [list(rng.choice(words, 40)) for _ in range(30)]
    texts = [" ".join(row) for row in base]
    for row in base[:10]:
        changed = list(row)
        for place in rng.choice(40, 4, replace=False):
            changed[place] = "new"
        texts.append(" ".join(changed))
    index = NearDuplicateIndex(texts)
    for text in texts:
        assert index.matches(text) == [i for i, other in enumerate(texts) if near(text, other)]
    assert index.matches("nothing of the kind here at all") == []

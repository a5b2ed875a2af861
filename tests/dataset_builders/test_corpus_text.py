"""Characters, sections and passages of source texts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataset_builders.corpora.passages import cut_passages, evenly, share
from dataset_builders.corpora.plain_text import (
    count_words,
    decode,
    double_quotes,
    lower_capitals,
    normalise,
    split_sentences,
)
from dataset_builders.corpora.sections import Section, play_sections, prose_sections


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("“Yes,” said P\u00e1vlovna\u2014‘no’\u2026", "\"Yes,\" said Pavlovna - 'no'..."),
        ("wait--what---now \u2013 then", "wait - what - now - then"),
        ("_very_ odd;  quite &c.", "very odd; quite etc."),
        ('he said: " Well, it is so. "', 'he said: "Well, it is so."'),
        ("and she whispered:\u2014", "and she whispered:"),
        ('"I\u2014" he began', '"I-" he began'),
        ("Where is 't? I 'll go", "Where is't? I'll go"),
        ("\u00c6neas and the \u0153uvre", "Aeneas and the oeuvre"),
    ],
)
def test_marks_of_editions_come_to_one_form(given: str, wanted: str) -> None:
    assert normalise(given) == wanted


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_normal_text_is_ascii_without_stray_spaces(text: str) -> None:
    plain = normalise(text)
    assert plain.isascii()
    assert plain == plain.strip()
    assert "  " not in plain


def test_files_of_any_encoding_and_line_end_are_read_alike() -> None:
    assert decode(b"\xef\xbb\xbfa\r\nb") == "a\nb"
    assert decode("caf\u00e9\r\r\nx".encode()) == "caf\u00e9\nx"
    assert decode(b"it\x92s\rso") == "it\u2019s\nso"


def test_speech_in_single_quotes_takes_double_ones_and_apostrophes_stay() -> None:
    text = "'Don't go,' said he; 'it isn't the dogs' fault.'"
    assert double_quotes(text) == '"Don\'t go," said he; "it isn\'t the dogs\' fault."'


def test_words_in_capitals_become_ordinary_words() -> None:
    known = {"power", "people", "enough"}
    assert lower_capitals("THE POWER of a PEOPLE. ENOUGH of Louis XIV!", known | {"the"}) == (
        "The power of a people. Enough of Louis XIV!"
    )
    assert lower_capitals("Then MARJORY said I'LL GO", {"go"}) == "Then Marjory said I'll go"


def test_titles_and_initials_end_no_sentence() -> None:
    text = 'Mr. Bell met Dr. J. Wood. "Well?" he said. "No!" Then he left.'
    assert split_sentences(text) == [
        "Mr. Bell met Dr. J. Wood.",
        '"Well?"' + " he said.",
        '"No!"',
        "Then he left.",
    ]


PROSE = """CHAPTER IV

The Long Road

  "Our court shall be a little Academe."
  SHAKESPEARE.

It was late, [Footnote: so the
manuscript] and the wind[1] was up.

He went on un-
til the dawn; the half-
hearted dawn.

*       *       *       *       *

* A note of the editor.

[What the Traveller Saw]

Tell the truth or trump.

--Wilson's Calendar

CHAPTER V

All was still.
"""


def test_prose_keeps_the_story_and_drops_what_editions_put_around_it() -> None:
    dropped: Counter[str] = Counter()
    sections = prose_sections(PROSE, whole_words={"until"}, dropped=dropped)
    assert [s.paragraphs for s in sections] == [
        [
            "It was late, and the wind was up.",
            "He went on until the dawn; the half-hearted dawn.",
        ],
        ["All was still."],
    ]
    assert {"headings", "epigraphs", "indented", "notes"} <= set(dropped)


def test_numbers_of_notes_go_only_where_brackets_are_text() -> None:
    text = "He saw the sea24 [and the ships,]95 and wept.179"
    kept = prose_sections(text, keep_brackets=True)[0].paragraphs[0]
    assert kept == "He saw the sea and the ships, and wept."
    assert "13,200" in prose_sections("It cost 13,200 reis in all.")[0].paragraphs[0]


PLAY_INLINE = """ACT I

SCENE I. A ROOM.

ENTER MOSCA AND VOLPONE.

MOS: Good day<12> to you, sir.
[EXIT.]

VOLP [ASIDE.]: What, ho!
MOS: I come.

     Enter a BOY with a lute.

O, you have come, my boy.

A BOY passes over the stage.

SCENE II.

1 WOM. Here's news!
"""


def test_a_play_keeps_speeches_without_names_and_directions() -> None:
    sections = play_sections(PLAY_INLINE, speakers="inline")
    assert [s.paragraphs for s in sections] == [
        ["Good day to you, sir.", "What, ho! I come.", "O, you have come, my boy."],
        ["Here's news!"],
    ]


def test_speakers_on_lines_of_their_own_and_shortened_ones_are_dropped_too() -> None:
    line = "FIRST WITCH.\nWhen shall we meet?\n\nHORATIO and MARCELLUS.\nSoon.\n\n [_Exeunt._]\n"
    assert play_sections(line, speakers="line")[0].paragraphs == ["When shall we meet?", "Soon."]
    mixed = "Sab. Hail, Caius!\n\nSil.'Tis true.\n\nSab.\n   No, Silius.\n"
    assert play_sections(mixed, speakers="mixed")[0].paragraphs == [
        "Hail, Caius!",
        "'Tis true.",
        "No, Silius.",
    ]


def _sentence(words: int, tag: str = "w") -> str:
    return " ".join([tag.capitalize(), *[tag] * (words - 1)]) + "."


def test_passages_end_with_sentences_and_cross_no_section() -> None:
    sections = [
        Section([" ".join(_sentence(30, "a") for _ in range(10))] * 2),
        Section([" ".join(_sentence(30, "b") for _ in range(10))]),
    ]
    passages = cut_passages(sections, shortest=150, longest=250)
    assert len(passages) >= 3
    for passage in passages:
        assert 150 <= count_words(passage) <= 250
        assert passage.endswith(".")
        assert not ("a" in passage.split() and "b" in passage.split())


def test_a_sentence_longer_than_any_passage_is_skipped_and_counted() -> None:
    dropped: Counter[str] = Counter()
    text = " ".join([_sentence(300, "x"), *[_sentence(40, "y") for _ in range(5)], _sentence(20)])
    passages = cut_passages([Section([text])], shortest=150, longest=250, dropped=dropped)
    assert len(passages) == 1
    assert "x" not in passages[0].split()
    assert dropped["overlong sentences"] == 300


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 200))
def test_sharing_takes_all_it_may_as_equally_as_it_can(sizes: list[int], total: int) -> None:
    taken = share(sizes, total)
    assert sum(taken) == min(total, sum(sizes))
    assert all(0 <= t <= s for t, s in zip(taken, sizes, strict=True))
    unfilled = [t for t, s in zip(taken, sizes, strict=True) if t < s]
    if unfilled:
        assert max(taken) - min(unfilled) <= 1


@given(st.integers(0, 300), st.integers(0, 80))
def test_even_choices_are_distinct_ordered_and_within_range(n: int, k: int) -> None:
    chosen = evenly(n, k)
    assert len(chosen) == min(n, k)
    assert chosen == sorted(set(chosen))
    assert all(0 <= i < n for i in chosen)

from __future__ import annotations

import random
import sys
import types

import pytest

from dataset_builders.language import guess_language, guess_script, same_language
from dataset_builders.lenses import CheckRules, Form, lens_names, load_lens
from dataset_builders.query_checks import (
    CorpusWords,
    QueryChecker,
    leaked_names,
    leaked_rare_words,
    quoted_run,
    spacy_names,
)
from dataset_builders.query_copies import find_copies
from obliq_hf.errors import ObliqError
from obliq_hf.tasks import builtin_task_names, load_task

DOCUMENT = (
    "Then Darcy walked to Pemberley, where Elizabeth waited in 1813 with her uncle. "
    "The carriage of Mr. Wickham stood by the old mill, and the weather was dreadfully cold. "
    "He would not, she thought, have come without a good reason for it."
)
FILLER = "the weather was cold and the man walked to the old house where a friend waited for him"
CORPUS = [DOCUMENT] + [f"{FILLER} {'and then again' if i % 2 else ''}" for i in range(999)]
WORDS = CorpusWords.of(CORPUS)
RULES = CheckRules(names=True, links=True, numbers="none", quoted_words=6, rare_words=True)


def kinds(
    query: str,
    *,
    document: str = DOCUMENT,
    rules: CheckRules = RULES,
    characters=(10, 400),
    language: str = "same",
) -> list[str]:
    form = Form("f", characters, "short", rules)
    return [p.kind for p in QueryChecker(form, WORDS, language=language).check(query, document)]


def test_a_query_in_its_own_words_passes():
    assert kinds("Find scenes in which somebody proud comes back to a person who is waiting.") == []


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("Find the scene in which Darcy comes back to a person who is waiting there.", "name"),
        ("Find the scene where pemberley is seen again by a person who is waiting there.", "name"),
        ("Find Wickham's arrival, in which somebody comes back to a person waiting.", "name"),
        ("Find scenes like @proud_man where one comes back to a person who is waiting.", "link"),
        ("Find scenes as in https://example.org/x where one comes back to a person.", "link"),
        ("Find scenes of #romance in which somebody comes back to a person waiting.", "link"),
        ("Find 3 scenes in which somebody comes back to a person who is waiting.", "number"),
        ("A scene where he would not, she thought, have come without anybody waiting.", "quote"),
        ("Find scenes in which the air is dreadfully chilly and a person is waiting.", "rare-word"),
        ("short", "too-short"),
        ("Somebody comes back, in ever other words, to people who wait. " * 9, "too-long"),
        ("Here is a query: somebody comes back to a person who is waiting there.", "answer-text"),
        (
            "Sure! Find scenes in which somebody comes back to a person who is waiting.",
            "answer-text",
        ),
        ("Query: find scenes in which somebody comes back to a person who waits.", "answer-text"),
        ("I cannot help with this request, but somebody else may do so for you.", "answer-text"),
        ('{"query": "find scenes in which somebody comes back to a person"}', "answer-text"),
        (
            "```find scenes in which somebody comes back to a person who is waiting```",
            "answer-text",
        ),
        (
            "Finde Szenen, in denen jemand zu einem Menschen kommt, der nicht mit ihm und auch "
            "nicht auf ihn gewartet hat, weil sie sich nicht kennen.",
            "language",
        ),
        ("Найдите сцены, в которых кто-то возвращается к тому, кто его ждёт.", "language"),
        ("he came and went " * 12, "repetitive"),
        (DOCUMENT.replace("Darcy", "he"), "copy-of-document"),
    ],
)
def test_each_fault_is_found_by_its_kind(query, kind):
    assert kind in kinds(query)


def test_checks_are_the_lenss_own():
    lenient = CheckRules(
        names=False, links=False, numbers="any", quoted_words=0, rare_words=False, copies=False
    )
    assert kinds(DOCUMENT, rules=lenient) == []
    assert kinds(
        "Let 7 and 12 be given, and find all that fits in 1813 or later.",
        rules=CheckRules(numbers="document"),
    ) == ["number"]
    assert (
        kinds(
            "Let 7 and 12 be given, and find all that fits between the two.",
            rules=CheckRules(numbers="document"),
        )
        == []
    )


def test_common_words_written_as_names_elsewhere_are_no_names():
    words = CorpusWords.of(["He said Hope was lost.", *["we hope for it"] * 9])
    assert leaked_names("what hope is left", "He said Hope was lost.", words) == []


def test_a_name_in_very_many_documents_identifies_nothing():
    words = CorpusWords.of(["they met in Congress today"] * 100)
    assert leaked_names("a row in Congress", "they met in Congress today", words) == []


def test_names_in_capitals_and_with_a_genitive_are_found():
    words = CorpusWords.of(["Mr. GOWDY. I yield.", *["nothing to see here"] * 50])
    assert leaked_names("Gowdy’s answer", "Mr. GOWDY. I yield.", words) == ["Gowdy’s"]


def test_a_further_recogniser_adds_names_that_the_corpus_writes_in_lower_case(monkeypatch):
    document = "They walked along with Rose and the weather was cold that day."
    words = CorpusWords.of([document, *["a rose is a rose in the cold"] * 9])
    query = "find scenes in which Rose is taken for a walk on a day without sun"
    form = Form("f", (10, 400), "short", RULES)
    assert QueryChecker(form, words).check(query, document) == []

    class Entity:
        def __init__(self, text, label):
            self.text, self.label_ = text, label

    class Parsed:
        ents = (Entity("Rose", "PERSON"), Entity("that day", "DATE"))

    loaded = []
    stub = types.ModuleType("spacy")
    stub.load = lambda model: loaded.append(model) or (lambda text: Parsed)
    monkeypatch.setitem(sys.modules, "spacy", stub)
    names = spacy_names("en_core_web_sm")
    (problem,) = QueryChecker(form, words, names=names).check(query, document)
    assert (problem.kind, loaded) == ("name", ["en_core_web_sm"])
    assert "rose" in problem.detail
    assert (
        QueryChecker(form, words, names=names).check(query.replace("Rose", "one"), document) == []
    )


@pytest.mark.parametrize("lacks", ["spacy", "pipeline"])
def test_names_by_spacy_say_what_to_install(monkeypatch, lacks):
    stub = None
    if lacks == "pipeline":
        stub = types.ModuleType("spacy")

        def load(model):
            raise OSError(f"[E050] can't find model {model!r}")

        stub.load = load
    monkeypatch.setitem(sys.modules, "spacy", stub)
    with pytest.raises(ObliqError, match=r"pip install spacy.*spacy download en_core_web_sm"):
        spacy_names("en_core_web_sm")


def test_a_small_corpus_has_no_rare_words():
    words = CorpusWords.of(["unusual word", "another text"])
    assert leaked_rare_words("an unusual thing", "unusual word", words) == []


def test_a_quoted_run_is_found_whatever_the_case_and_punctuation():
    assert quoted_run("so THE old; mill (and) the weather", DOCUMENT, 5) == ("the old mill and the")
    assert quoted_run("the old house and the weather", DOCUMENT, 4) is None
    assert quoted_run("one two", "one two", 6) is None


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The man did not go to the house because he was tired and had no time", "en"),
        ("Der Mann ist nicht in das Haus gegangen, weil er müde war und keine Zeit hatte", "de"),
        ("El hombre no fue a la casa porque estaba muy cansado y no tenía más tiempo", "es"),
        ("L'homme n'est pas allé dans la maison parce qu'il était fatigué avec nous", "fr"),
        ("Find $x^2$ and \\alpha", None),
        ("", None),
    ],
)
def test_languages_are_guessed_where_there_is_evidence(text, language):
    assert guess_language(text) == language


def test_scripts_are_told_apart_and_mixed_japanese_is_not_chinese():
    assert guess_script("你好世界") == "HAN"
    assert guess_script("これは日本語の文です") == "KANA"
    assert guess_script("12 34 !") is None
    assert not same_language("你好世界", "hello world")
    assert same_language("12", "hello world")


def test_copies_are_found_among_many_and_the_first_stands():
    base = [
        "somebody waits at a window for a ship that never comes home in the end",
        "two neighbours quarrel over a wall until a child laughs at both of them",
        "a proud man gives in after a long talk and pretends it was his own idea",
        "an official keeps offering papers in place of the promise he was asked for",
        "a guest tells a story about himself as though it had happened to a friend",
    ]
    texts = [*base, base[2].upper(), base[4] + " once more", "an entirely different request"]
    assert find_copies(texts, texts.__getitem__) == {5: 2, 6: 4}
    assert find_copies([], [].__getitem__) == {}


def test_a_copy_of_a_copy_points_to_the_first():
    texts = ["the same words again and again in one text about waiting"] * 3
    assert find_copies(texts, texts.__getitem__) == {1: 0, 2: 0}


@pytest.mark.parametrize("count", [199, 201, 1000])
def test_one_template_with_a_word_changed_is_one_query_however_often_it_is_used(count):
    texts = [
        f"statements by people who hold that word{i} is of no use and that all will stay as it was"
        for i in range(count)
    ]
    assert find_copies(texts, texts.__getitem__) == dict.fromkeys(range(1, count), 0)


def test_an_opening_that_all_queries_share_makes_them_no_copies_and_is_quickly_passed_over():
    dice = random.Random(0)
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
    texts = [
        "find all the posts whose author " + " ".join(dice.sample(words, 30)) for _ in range(1500)
    ]
    texts += [text.replace("find all", "show me all") + " today" for text in texts[1300:1320]]
    read = []

    def reading(place):
        read.append(place)
        return texts[place]

    assert find_copies(texts, reading) == {1500 + i: 1300 + i for i in range(20)}
    assert len(read) < 2 * len(texts)


def test_every_lens_loads_and_every_task_finds_a_form():
    assert {"descriptive", "analogue", "tip-of-the-tongue", "chat-failure", "generic"} <= set(
        lens_names()
    )
    forms = {
        name: load_lens(load_task(name).lens).form_for(load_task(name))
        for name in builtin_task_names()
    }
    assert forms["math"].checks.numbers == "any"
    assert forms["twitter"].checks.numbers == "none"
    assert forms["writing"].characters[1] > 3000 > forms["math"].characters[1]


GOOD = """
lens: mine
version: 1
single_stage: {system: s, user: "{document} {length}", fields: {query: the query}}
forms: {one: {characters: [10, 100], length: short}}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: one", "version"),
        ("lens: mine", "lense: mine", "lense"),
        ("{length}", "{lenght}", "lenght"),
        ("{document} ", "", "document"),
        ("{query: the query}", "{answer: x}", "query"),
        ("[10, 100]", "[100, 10]", "characters"),
        ("length: short", "length: short, checks: {numbers: few}", "numbers"),
        ("length: short", "length: short, checks: {name: true}", "name"),
        ("forms: {one", "forms: {}\nx: {one", "'x'"),
        ("lens: mine", "lens: [mine", "YAML"),
        ("version: 1", "version: 1\nversion: 2", "'version' is given twice"),
    ],
)
def test_a_faulty_lens_file_is_refused_naming_file_and_key(tmp_path, old, new, message):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert load_lens(path).name == "mine"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(ObliqError, match=message) as caught:
        load_lens(path)
    assert "mine.yaml" in str(caught.value)


def test_an_unknown_lens_is_refused_with_the_nearest():
    with pytest.raises(ObliqError, match="analogue"):
        load_lens("analog")


def test_what_a_document_says_in_braces_is_left_as_it_is():
    prompt = load_lens("descriptive").stage_a
    text = prompt.messages(
        {"document": "{unit} {attribute} {x}", "unit": "tweet", "attribute": "stance"}
    )[1]["content"]
    assert "{unit} {attribute} {x}" in text
    assert "one tweet" in text

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obliq_hf.llm import ChatAnswer, ParseFailure, answer_object, parse_object, strip_thinking
from obliq_hf.llm.cache import decode_answer


@pytest.mark.parametrize(
    "text",
    [
        '{"q": "x"}',
        '```json\n{"q": "x"}\n```',
        'Here is the JSON you asked for:\n```\n{"q": "x"}\n```\nHope this helps!',
        'For {project}: {"q":"x"}',
        '{"q": "x",}',
        'Sure! {"q": "x", "tags": ["a", "b",],}',
        '<think>a {"q": "draft"} here</think>{"q": "x"}',
        '{"q": "draft"}</think>\n{"q": "x"}',
        '{"q": "first try"} no, better: {"q": "x"}',
        '{"other": 1} {"q": "x"} {"note": "done"}',
        '\ufeff{"q": "x"}',
    ],
)
def test_the_last_complete_object_with_the_field_is_taken(text):
    assert parse_object(text, ["q"])["q"] == "x"


@pytest.mark.parametrize("text", ['{"q": "a \\ud83d \\u0000"}', 'So: {"q": "a \\ud83d \\u0000",}'])
def test_lone_surrogates_and_nul_in_an_object_are_replaced(text):
    assert parse_object(text, ["q"]) == {"q": "a \ufffd \ufffd"}


def test_the_words_of_an_answer_can_be_encoded_wherever_it_comes_from():
    stored = '{"text": "a \\ud83d", "thinking": "\\u0000", "finish_reason": "stop"}'
    for answer in (
        ChatAnswer("i", text="a \ud83d", thinking="\x00", error="http-500: \udc00"),
        decode_answer(stored, "i"),
    ):
        assert (answer.text, answer.thinking) == ("a \ufffd", "\ufffd")
        f"{answer.error}".encode()
    assert ChatAnswer("i", text="whole: \U0001f600").text == "whole: \U0001f600"


def test_a_raw_line_break_inside_a_string_is_kept():
    assert parse_object('{"q": "one\ntwo"}', ["q"]) == {"q": "one\ntwo"}


def test_commas_before_brackets_inside_strings_survive_the_repair():
    assert parse_object('{"q": "a, } b,]", "r": "c",}', ["q"])["q"] == "a, } b,]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I cannot help with that. Score: 5", "refused"),
        ("I'm sorry, but I can't write this.", "refused"),
        ("As an AI model, I have no view on this text.", "refused"),
        ("I am not comfortable writing that.", "refused"),
        ("We were able to find the query in " + "x " * 300 + " sorry", "no-object"),
        ("5", "no-object"),
        ('["q", "x"]', "no-object"),
        ('"q"', "no-object"),
        ('{"query": "wh', "no-object"),
        ("great!", "no-object"),
        ("", "empty"),
        ("<think>We need a query about", "empty"),
        ('{"p": "x"}', "missing-field"),
        ('{"q": 5}', "wrong-type"),
        ('{"q": null}', "wrong-type"),
        ('{"q": "  "}', "wrong-type"),
        ("{" * 5000, "no-object"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "no-object"),
    ],
)
def test_what_is_no_object_fails_with_its_reason(text, reason):
    with pytest.raises(ParseFailure) as caught:
        parse_object(text, ["q"])
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ChatAnswer("i", text="We need a query about", finish_reason="length"), "truncated"),
        (ChatAnswer("i", text='{"q": "x"}', finish_reason="length"), "truncated"),
        (ChatAnswer("i", text=None, thinking='{"q": "x"}', finish_reason="stop"), "empty"),
        (ChatAnswer("i", text='{"q": "x"}', finish_reason="content_filter"), "refused"),
        (ChatAnswer("i", error="http-500: broken"), "http-500"),
    ],
)
def test_an_answer_that_is_cut_empty_filtered_or_failed_is_never_taken(answer, reason):
    with pytest.raises(ParseFailure) as caught:
        answer_object(answer, ["q"])
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("plain", "plain", None),
        ("<think>a</think> b", "b", "a"),
        ("a</think>b", "b", "a"),
        ("<think>a</think><think>b</think>c", "c", "a\nb"),
        ("<think>never closed", "", "never closed"),
        ("<THINK>\na\n</THINK>\nb", "b", "a"),
        ("x <think></think>", "x", None),
    ],
)
def test_thinking_is_parted_from_the_answer(text, answer, thinking):
    assert strip_thinking(text) == (answer, thinking)


@given(st.text(alphabet='{}[]",:\\ qx<>/think`1\n', max_size=60))
def test_any_text_gives_an_object_with_the_field_or_a_failure_with_a_reason(text):
    try:
        value = parse_object(text, ["q"])
    except ParseFailure as failure:
        value = {"q": failure.reason}
    assert isinstance(value["q"], str)
    assert value["q"]

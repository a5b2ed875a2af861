from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obliq_hf.reranking import FAULTS, parse_ranking
from obliq_hf.reranking.logprobs import order_from_logprobs


def read(text, offered, wanted=None, **marks):
    found = parse_ranking(text, offered=offered, wanted=wanted, **marks)
    return [p + 1 for p in found.order], set(found.faults)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("[2] > [1] > [3]", [2, 1, 3]),
        ("[2], [1], [3]", [2, 1, 3]),
        ("[2]\n[1]\n[3]", [2, 1, 3]),
        ("[2, 1, 3]", [2, 1, 3]),
        ("[[2],[1],[3]]", [2, 1, 3]),
        ("**[2]** > **[1]** > **[3]**", [2, 1, 3]),
        ("［２］ ＞ ［１］ ＞ ［３］", [2, 1, 3]),
        ("【2】【1】【3】", [2, 1, 3]),
        ("Document 2, Document 1, Document 3", [2, 1, 3]),
        ("Document [2] > Document [1] > Document [3]", [2, 1, 3]),
        ("[Document 2] > [Document 1] > [Document 3]", [2, 1, 3]),
        ("Documents 2, 1 and 3", [2, 1, 3]),
        ("doc_2, doc_1, doc_3", [2, 1, 3]),
        ("1. [2]\n2. [1]\n3. [3]", [2, 1, 3]),
        ("1) Document 2\n2) Document 1\n3) Document 3", [2, 1, 3]),
        ("- [2]\n- [1]\n- [3]\n", [2, 1, 3]),
        ("2 > 1 > 3", [2, 1, 3]),
        ("2, 1, 3", [2, 1, 3]),
        ("2\n1\n3", [2, 1, 3]),
        ('{"ranking": [2, 1, 3]}', [2, 1, 3]),
        ('{"order": ["2", "Document 1", "[3]"]}', [2, 1, 3]),
        ('```json\n{"ranking": [2, 1, 3]}\n```', [2, 1, 3]),
        ('[{"id": 2, "score": 9}, {"id": 1, "score": 8}, {"id": "3"}]', [2, 1, 3]),
        ("<think>perhaps [3] > [2] > [1]</think>\n[2] > [1] > [3]", [2, 1, 3]),
        ("perhaps [3] > [2]</think>[2] > [1] > [3]", [2, 1, 3]),
    ],
)
def test_every_form_of_a_whole_ranking_is_read_without_a_fault(text, order):
    assert read(text, 3) == (order, set())


@pytest.mark.parametrize(
    ("text", "offered", "order", "faults"),
    [
        # a number elsewhere in the reply is not an identifier
        (
            "Here is the ranking of the 20 passages for query 2019: [2] > [1]",
            20,
            [2, 1],
            {"prose", "short"},
        ),
        # prose after the list that mentions a document again
        (
            "Doc: 5, Relevance: 9\nDoc: 1, Relevance: 8\n\nThe document with the fish is Doc: 5, "
            "as it names 3 of them",
            8,
            [5, 1],
            {"prose", "short"},
        ),
        # a score that cannot be read shifts nothing
        ("Doc: 2, Relevance: 9 / Doc: 1, Relevance: high / Doc: 3, Relevance: 7", 3, [2, 1, 3],
         set()),
        ("Doc: 2, Relevance: 9\nDoc: 1, Relevance: high\nDoc: 3, Relevance: 7", 3, [2, 1, 3],
         set()),
        ("[2]", 3, [2], {"short"}),
        ("[2] > [2] > [1] > [3]", 3, [2, 1, 3], {"repeated"}),
        ("[4] > [2] > [0] > [1] > [3]", 3, [2, 1, 3], {"out-of-range"}),
        ("[55] > [60]", 3, [], {"out-of-range", "short"}),
        ("great!", 3, [], {"unreadable"}),
        ("The answer scored 7 of 10 in 2019.", 10, [], {"unreadable"}),
        ("I think document 4 is not relevant.", 9, [], {"unreadable"}),
        ("I'm sorry, but I cannot rank these passages.", 3, [], {"refused"}),
        ("", 3, [], {"empty"}),
        ("   ", 3, [], {"empty"}),
        (None, 3, [], {"empty"}),
        ("<think>[1] > [2] > [3]", 3, [], {"empty"}),
        ("[3] > [1] > [2]\n\nNote that [1] and [2] were close.", 3, [3, 1, 2], {"prose"}),
        # an analysis in the order shown, then the ranking
        (
            "[1] is about fish.\n[2] is about war.\n[3] is about hope.\n\nRanking: [3] > [1] > [2]",
            3,
            [3, 1, 2],
            {"prose"},
        ),
        ("First thought: [1] > [2] > [3]\nFinal: [3] > [2] > [1]", 3, [3, 2, 1], {"prose"}),
        ("1. [3] because it is calm\n2. [2] as well\n3. [1] less so", 3, [3, 2, 1], {"prose"}),
    ],
)  # fmt: skip
def test_malformed_answers_are_used_as_far_as_they_go_and_named(text, offered, order, faults):
    assert read(text, offered) == (order, faults)


def test_an_analysis_of_all_documents_does_not_stand_in_for_a_selection():
    lines = "\n".join(f"[{i}] is about subject {i}." for i in range(1, 21))
    assert read(f"{lines}\n\nI choose [7], [3].", 20, 4)[0] == [7, 3]


def test_a_selection_says_when_it_is_too_short_or_too_long():
    assert read("[3] > [1]", 5, 2) == ([3, 1], set())
    assert read("[3]", 5, 2) == ([3], {"short"})
    assert read("[3] > [1] > [2]", 5, 2) == ([3, 1, 2], {"long"})
    assert read("The best are [3] and [1].", 5, 2)[0] == [3, 1]


@pytest.mark.parametrize(
    "text",
    [
        "[3] > [1]\n\nBoth fit the query better than [2] and [5].",
        '{"ranking": [3, 1]}\n\nI left out [2] and [5].',
        "[3] > [1]\n\nNot chosen: [2], [4], [5]",
        "[3] > [1]\n\nNot chosen:\n[2], [4], [5]",
        "[3] > [1]\n\nThe rest:\n[2], [4], [5]",
        '{"rejected": [2, 4, 5], "reasons": [], "ranking": [3, 1]}\n\n[2] > [4]',
        "Final answer: [3] > [1], ahead of [2], [4] and [5].",
        "**Ranking:** [3], [1]\n\nThey are closer than [2], [4], [5]",
        "Selected:\n- [3]\n- [1]\n\nRejected:\n- [2]\n- [4]\n",
        "1. [3] has the rhythm\n2. [1] as well\n\nThese beat [2] and [5].",
        "The candidates:\n[1], [2], [3], [4], [5]\n\nThe best are [3] and [1].",
        "[1]\nIt is calm.\n\n[2]\nIt is loud.\n\nSo I take [3] and [1].",
    ],
)
def test_prose_around_a_selection_does_not_replace_it(text):
    assert read(text, 5, 2)[0] == [3, 1]


@pytest.mark.parametrize(
    "text", ["I left out [2] and [5].", "Not chosen: [2], [5]", '{"rejected": [2, 5]}']
)
def test_a_list_of_what_was_not_chosen_is_no_ranking(text):
    assert read(text, 5, 2) == ([], {"unreadable"})


@pytest.mark.parametrize(
    "text",
    [
        '{"scores": [9, 7, 8]}',
        '{"relevance": [3, 2, 1, 5]}',
        '{"reasoning": "x", "years": [14, 15]}',
        "Relevance scores: [9, 7, 8, 3]",
        "**Relevance scores:**\n[9, 7, 8, 3]",
        "The relevance scores are [9, 7, 8].",
        "Final scores: [9, 7, 8]",
        "Ratings: [9], [7], [8]",
        "Confidence: [3]",
        "Grades = [9, 7]",
        "{'scores': [9, 7, 8]}",
        '```json\n{"relevanceScores": [9, 7, 8]}\n```',
        '{"scores": ["9", "8"]}',
        '{"scores": ["[9]", "[8]"]}',
        '{"scores_by_document": [9, 7, 8]}',
        '{"meta": {"years": [\n  14,\n  15\n]}}',
        '{"years": [[14], [15]]}',
        '{"years": ["14", "15"]}',
        '{"scores": [9, 7], "broken": }',
    ],
)
def test_scores_and_other_numbers_are_no_ranking(text):
    assert read(text, 20) == ([], {"unreadable"})


@pytest.mark.parametrize(
    "text", ['{"years": [14, 15, 1', '{"scores": ["9", "7", "1', "Scores: [9, 7, 1"]
)
def test_scores_and_other_numbers_that_were_cut_are_no_ranking(text):
    assert read(text, 20, cut=True) == ([], {"unreadable", "cut"})


@pytest.mark.parametrize(
    "text",
    [
        '{"Ranking": [3, 1]}',
        '{"final_ranking": [3, 1], "scores": [9, 8]}',
        '{"rankedDocuments": ["D3", "D1"]}',
        '{"order_of_relevance": [3, 1]}',
        '{"found": ["[3]", "doc 1"]}',
        '{"found": [{"id": 3, "score": 9}, {"id": 1, "score": 8}]}',
        '{"years": [14, 15]}\n\n[3] > [1]',
        "[3] > [1]\nScores: [9, 8]",
        "Doc: 3, Relevance: [9], Doc: 1, Relevance: [8]",
        "Final ranking by relevance: [3], [1]",
        "Relevance ranking: [3, 1]",
        "In order of relevance: [3], [1]",
        "Documents by decreasing relevance: [3, 1]",
        "Relevance: [3] > [1]",
        "Relevance: Document 3, Document 1",
        "[3], high relevance\n[1], low relevance",
    ],
)
def test_a_ranking_beside_scores_or_by_relevance_is_read(text):
    assert read(text, 20, 2)[0] == [3, 1]


def test_a_single_choice_is_not_replaced_by_the_headings_or_the_comparison_around_it():
    assert read("[2]\n\nIt beats [1] and [3].", 3, 1)[0] == [2]
    assert read("[1]\nCalm.\n\n[2]\nLoud.\n\nI choose [1].", 3, 1)[0] == [1]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("[3] > [12] > [1", [3, 12]),
        ("Document 3 > Document 12 > Document 1", [3, 12]),
        ('{"ranking": [3, 12, 1', [3, 12]),
        ('{"ranking": ["3", "12", "1', [3, 12]),
        ("3, 12, 1", [3, 12]),
        ("[3] > [12] >", [3, 12]),
    ],
)
def test_of_an_answer_that_was_cut_the_complete_identifiers_count(text, order):
    found, faults = read(text, 20, cut=True)
    assert found == order
    assert faults >= {"cut", "short"}


def test_an_answer_that_the_server_withheld_is_a_refusal():
    assert read("", 3, declined=True) == ([], {"refused"})


def test_letters_are_read_where_letters_were_offered():
    assert read("[B] > [A] > [C]", 3, letters=True) == ([2, 1, 3], set())
    assert read("B", 3, 1, letters=True) == ([2], set())
    assert read("A good one", 3, letters=True)[0] == []


@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.integers(0, 30).map(str),
            st.sampled_from(
                ["[", "]", "[3]", " > ", "Document ", "\n", "{", "}", '"', "1. ", "<think>", ",",
                 "</think>", "ranking:", "score 9 "]
            ),
        ),
        max_size=30,
    ).map("".join),
    st.integers(1, 20),
    st.booleans(),
)  # fmt: skip
def test_whatever_is_answered_each_document_is_named_at_most_once_and_was_offered(
    text, offered, cut
):
    found = parse_ranking(text, offered=offered, cut=cut)
    assert len(set(found.order)) == len(found.order)
    assert all(0 <= p < offered for p in found.order)
    assert set(found.faults) <= set(FAULTS)
    assert found.usable or found.faults


@pytest.mark.parametrize(
    "text",
    ["[" * 20000, "{" * 20000, "[1], " * 20000, "[1] " + "score " * 4000 + "! [2]", "9" * 100000,
     "\n1. " * 5000, "id " * 20000, "[" + "1," * 20000, '"a": [' + "1," * 20000,
     "scores: [1," * 20000, "scores: " + "[1] " * 20000, "scores" + " the" * 20000],
)  # fmt: skip
def test_enormous_answers_are_read_quickly(text):
    start = time.process_time()
    parse_ranking(text, offered=20, cut=True)
    assert time.process_time() - start < 2


def test_the_order_of_log_probabilities_sums_the_spellings_of_a_letter():
    tokens = [
        {"token": "\n", "logprob": -0.1, "top": [["\n", -0.1], ["A", -3.0]]},
        {
            "token": " B",
            "logprob": -1.2,
            "top": [[" B", -1.2], ["C", -1.3], ["B", -9.0], [" C", -1.4], ["Z", -1.5], ["x", -2]],
        },
    ]
    assert order_from_logprobs(tokens, 3) == [2, 1]
    assert order_from_logprobs(tokens[:1], 3) is None
    assert order_from_logprobs(None, 3) is None

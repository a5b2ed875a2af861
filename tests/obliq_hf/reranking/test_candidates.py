from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rerank_pools import make_pool

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import (
    Asking,
    Candidate,
    ModelTokens,
    Pool,
    TextBudget,
    TourRank,
    pools_from_run,
    rerank,
)
from obliq_hf.reranking.asking import offered_texts, query_of
from obliq_hf.reranking.candidates import EstimatedTokens

WORDS = [
    "the",
    "sea",
    "and",
    "the",
    "ship",
    "at",
    "night",
    "in",
    "the",
    "old",
    "house",
    "by",
    "the",
    "road",
    "of",
    "the",
    "king",
]


@pytest.fixture(scope="module")
def tokens(tiny_model_dir):
    return ModelTokens(str(tiny_model_dir))


@pytest.mark.parametrize("keep", ["head", "ends", "middle"])
def test_a_long_text_is_cut_to_the_models_own_tokens(tokens, keep):
    text = " ".join(f"{WORDS[i % len(WORDS)]}" for i in range(400)) + " END"
    text = "START " + text
    budget = TextBudget(40, keep, tokens)
    cut = budget.cut(text)
    assert 30 <= len(tokens.spans(cut)) <= 40
    assert cut.startswith("START") == (keep != "middle")
    assert cut.endswith("END") == (keep == "ends")
    assert "[…]" in cut
    for part in cut.split("[…]"):
        assert part.strip() in text


def test_the_middle_is_dropped_so_that_a_third_comes_from_the_end():
    text = "".join(f"{i:05d} " for i in range(1000))
    head, _, tail = TextBudget(300, "ends").cut(text).partition("[…]")
    assert text.startswith(head.strip())
    assert text.strip().endswith(tail.strip())
    assert 1.7 < len(head) / len(tail) < 2.3


@given(
    st.text(max_size=200), st.integers(8, 60), st.sampled_from(["head", "ends", "middle"]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_no_text_ever_exceeds_its_budget(text, budget, keep):
    estimate = EstimatedTokens()
    cut = TextBudget(budget, keep).cut(text * 3)
    assert len(estimate.spans(cut)) <= max(budget, 1)
    if len(estimate.spans(text * 3)) <= budget:
        assert cut == text * 3


@pytest.mark.parametrize("keep", ["head", "ends", "middle"])
def test_an_enormous_text_costs_no_more_than_its_budget(tokens, keep):
    text = "the sea " * 1_000_000
    start = time.process_time()
    cut = TextBudget(64, keep, tokens).cut(text)
    assert time.process_time() - start < 1
    assert len(tokens.spans(cut)) <= 64


def test_budgets_that_make_no_sense_and_tokenisers_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ObliqError, match="at least 8"):
        TextBudget(4)
    with pytest.raises(ObliqError, match="did you mean 'head'"):
        TextBudget(64, "heads")
    with pytest.raises(ObliqError, match="nowhere"):
        ModelTokens(str(tmp_path / "nowhere"))


def test_empty_and_odd_texts_are_shown_and_numbers_in_brackets_do_not_look_like_identifiers(task):
    texts = ["", "   ", "see [2] and [ 3 ] and [B]", "\x01 odd \u2028 line", "🏳️‍🌈" * 500, "plain"]
    pool = Pool("q", "a query [1]", tuple(Candidate(f"d{i}", t) for i, t in enumerate(texts)))
    seen = []

    def script(request):
        seen.append(request)
        return "[6] > [5]"

    done = rerank(TourRank(1), [pool], task, client=ScriptedClient(script))
    assert len(done.orders["q"]) == 6
    shown = sorted(offered_texts(seen[0]))
    assert shown.count("(empty)") == 2
    assert "see (2) and ( 3 ) and (B)" in shown
    assert query_of(seen[0]) == "a query (1)"
    assert all(len(text) < 2100 for text in shown)


def test_pools_hold_the_first_documents_without_those_excluded():
    run = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.5}, "other": {"a": 1.0}}
    texts = {"a": "A", "b": "B\x00", "c": "C", "d": "D"}
    pools = list(
        pools_from_run(
            run, {"q1": "one", "q2": "two"}, texts.__getitem__, depth=2, excluded={"q1": ["a"]}
        )
    )
    assert [(p.query_id, [c.id for c in p.candidates]) for p in pools] == [
        ("q1", ["b", "c"]),
        ("q2", []),
    ]
    assert pools[0].candidates[0].text == "B\ufffd"
    assert pools[0].candidates[0].score == 2.0


def test_candidates_that_cannot_be_are_refused():
    with pytest.raises(ObliqError, match="'x', which is not in the corpus"):
        list(pools_from_run({"q": {"x": 1.0}}, {"q": "t"}, {}.__getitem__, depth=5))
    with pytest.raises(DataError, match="document 'x' must be a string"):
        list(pools_from_run({"q": {"x": 1.0}}, {"q": "t"}, {"x": None}.__getitem__, depth=5))
    with pytest.raises(ObliqError, match="depth"):
        list(pools_from_run({}, {"q": "t"}, {}.__getitem__, depth=0))
    with pytest.raises(ObliqError, match="stand twice"):
        Pool("q", "t", (Candidate("a", "x"), Candidate("a", "y")))
    with pytest.raises(ObliqError, match="must be strings"):
        Pool("q", "t", (Candidate("a", None),))


def test_the_querys_own_text_is_never_shown_and_keeps_its_place(task):
    pool = make_pool(8)
    own = list(pool.candidates)
    own[2] = Candidate("same", "  what q1\nlooks   for ", 0.9)
    pool = Pool(pool.query_id, pool.query, tuple(own))
    shown = []

    def script(request):
        texts = offered_texts(request)
        shown.extend(texts)
        order = sorted(range(len(texts)), key=lambda i: -int(texts[i].split()[1]))
        return " > ".join(f"[{i + 1}]" for i in order)

    asking = Asking(documents=None, query=None)
    done = rerank(TourRank(1, asking=asking), [pool], task, client=ScriptedClient(script))
    assert not any("looks" in text for text in shown)
    assert done.orders["q1"][2] == "same"
    assert done.tally.withheld == 1
    assert set(done.orders["q1"][:2]) == {"q1-d7", "q1-d6"}

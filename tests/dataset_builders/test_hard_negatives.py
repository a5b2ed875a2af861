"""Mining hard negatives with BM25."""

from __future__ import annotations

import numpy as np
import pytest

from dataset_builders.graph import Graph
from dataset_builders.hard_negatives import mine
from dataset_builders.mined_negatives import MinedNegatives, read_negatives, write_negatives
from obliq_hf.errors import DataError
from obliq_hf.records import Corpus
from obliq_hf.search.bm25 import BM25Index

FILLER = [f"filler{i}" for i in range(400)]


def corpus_of(texts: list[str], groups: list[str | None] | None = None) -> Corpus:
    return Corpus([f"d{i}" for i in range(len(texts))], texts, groups=groups or [])


def harbour(n: int, *, groups: list[str | None] | None = None, seed: int = 0) -> Corpus:
    """Documents that all hold the word harbour, from once to n times, and words of their own."""
    rng = np.random.default_rng(seed)
    texts = [
        " ".join(["harbour"] * (n - i) + list(rng.choice(FILLER, 60, replace=False)))
        for i in range(n)
    ]
    return corpus_of(texts, groups)


def mine_one(
    corpus: Corpus, query: str = "harbour", positives: tuple[str, ...] = ("d0",), **options
) -> MinedNegatives:
    options = {"n": 3, "first_rank": 1, **options}
    return mine([query], [list(positives)], corpus, **options)


def test_negatives_are_the_best_ranked_documents_of_the_window() -> None:
    corpus = harbour(30)
    order = [corpus.ids[r] for r in BM25Index(corpus.texts).search(["harbour"], 30)[0].rows]
    order.remove("d7")
    mined = mine_one(corpus, positives=("d7",), n=4, first_rank=5)
    assert mined.ids == [order[4:8]]
    assert mined.ranks == [[5, 6, 7, 8]]
    assert mine_one(corpus, positives=("d7",), n=9, first_rank=5, last_rank=7).ids == [order[4:7]]


def test_a_positive_is_never_a_negative_by_id_or_by_text() -> None:
    texts = list(harbour(12).texts)
    texts[3] = texts[0].upper() + "  "
    mined = mine_one(corpus_of(texts), n=20)
    assert not {"d0", "d3"} & set(mined.ids[0])
    assert mined.report.skipped == {"positive, or its text": 2}
    assert len(mined.ids[0]) == 10


def test_all_positives_of_a_query_text_are_spared_in_every_row_that_has_it() -> None:
    corpus = harbour(12)
    mined = mine(["harbour", " Harbour "], [["d0"], ["d1"]], corpus, n=20, first_rank=1)
    assert not {"d0", "d1"} & {*mined.ids[0], *mined.ids[1]}


def test_the_query_itself_and_its_copies_are_spared() -> None:
    texts = list(harbour(12).texts)
    texts[5] = texts[4] + "\n"
    corpus = corpus_of(texts)
    by_text = mine([texts[4]], [["d0"]], corpus, n=20, first_rank=1)
    assert not {"d0", "d4", "d5"} & set(by_text.ids[0])
    by_id = mine(["harbour"], [["d0"]], corpus, query_ids=["d4"], n=20, first_rank=1)
    assert not {"d0", "d4", "d5"} & set(by_id.ids[0])


def test_groups_of_anchor_and_positive_are_spared_and_k_come_back_all_the_same() -> None:
    groups: list[str | None] = [f"g{i % 6}" for i in range(60)]
    corpus = harbour(60, groups=groups)
    mined = mine(
        [corpus.texts[1]], [["d0"]], corpus, query_ids=["d1"], n=8, first_rank=3, last_rank=20
    )
    assert len(mined.ids[0]) == 8
    assert not {"g0", "g1"} & {groups[corpus.row[d]] for d in mined.ids[0]}
    everyone = mine(
        [corpus.texts[1]], [["d0"]], corpus, query_ids=["d1"], n=58, first_rank=1,
        last_rank=60, exclude_same_group=False,
    )  # fmt: skip
    assert {"g0", "g1"} <= {groups[corpus.row[d]] for d in everyone.ids[0]}


def test_a_text_that_also_stands_in_the_group_is_spared() -> None:
    texts = list(harbour(12).texts)
    texts[9] = texts[2]
    corpus = corpus_of(texts, ["g", "a", "b", "c", "d", "e", "f", "h", "i", "g", "j", "k"])
    assert "d2" not in mine_one(corpus, n=20).ids[0]


def test_graph_neighbours_of_anchor_and_positive_are_spared() -> None:
    corpus = harbour(12)
    graph = Graph(
        corpus.ids,
        np.array([0, 1, 5, 6]),
        np.array([2, 3, 0, 7]),
        np.ones(4, np.int32),
        np.ones(4, np.float32),
    )
    dose = graph.take(np.array([3]), {"dose": 1})
    mined = mine(
        [corpus.texts[1]], [["d0"]], corpus, query_ids=["d1"], graph=dose, n=20, first_rank=1
    )
    assert set(mined.ids[0]) == {"d4", "d6", "d7", "d8", "d9", "d10", "d11"}
    assert mined.report.skipped["graph neighbour"] == 3


def test_ten_paraphrases_of_the_positive_are_skipped_and_counted() -> None:
    positive = (
        "The captain of the old harbour told nobody that the ship had gone down at midnight, and "
        "when the widows came to his door he spoke of the weather and the price of rope instead"
    )
    words = positive.split()
    rng = np.random.default_rng(1)
    paraphrases = []
    for i in range(10):
        changed = list(words)
        for place in rng.choice(len(words), 5, replace=False):
            changed[place] = f"reworded{i}"
        paraphrases.append(" ".join(changed))
    others = harbour(8).texts
    corpus = corpus_of([positive, *paraphrases, *others])
    mined = mine(["the captain of the harbour"], [["d0"]], corpus, n=20, first_rank=1)
    assert not {f"d{i}" for i in range(11)} & set(mined.ids[0])
    assert mined.report.skipped["near duplicate of the query or of a positive"] == 10
    assert "of the documents considered were skipped" in mined.report.summary()
    kept = mine(
        ["the captain of the harbour"], [["d0"]], corpus, n=4, first_rank=1, near_duplicates=False
    )
    assert set(kept.ids[0]) <= {f"d{i}" for i in range(1, 11)}


def test_a_copy_of_a_text_ranked_before_the_window_is_no_negative() -> None:
    texts = list(harbour(12).texts)
    texts.append(texts[1])
    corpus = corpus_of(texts)
    order = [corpus.ids[r] for r in BM25Index(texts).search(["harbour"], 4)[0].rows]
    assert order[1:3] == ["d1", "d12"]
    mined = mine_one(corpus, n=1, first_rank=2)
    assert mined.ids == [[order[3]]]
    assert mined.report.skipped["same text as one ranked before the window"] == 1


def test_shortage_is_counted_per_query_and_adds_up() -> None:
    texts = ["harbour " + " ".join(FILLER[10 * i : 10 * i + 10]) for i in range(12)]
    texts += [f"meadow {w}" for w in FILLER[200:203]]
    corpus = corpus_of(texts)
    mined = mine(
        ["harbour", "harbour", "meadow"], [["d0"], ["d1"], ["d12"]], corpus, n=4, first_rank=1
    )
    assert [len(row) for row in mined.ids] == [4, 4, 2]
    assert mined.report.shortage() == "1 query, 2 negatives missing"
    assert mined.report.mined + mined.report.missing == 3 * 4


def test_a_positive_that_shares_no_term_with_the_query_keeps_its_row() -> None:
    texts = [*harbour(10).texts, "meadow lark cuckoo"]
    mined = mine_one(corpus_of(texts), positives=("d10",))
    assert len(mined.ids[0]) == 3


def test_documents_that_share_no_term_are_not_hard() -> None:
    corpus = corpus_of(["harbour one", "harbour two", "meadow three", "meadow four"])
    mined = mine_one(corpus, positives=("d0",), n=5)
    assert mined.ids == [["d1"]]


def test_fifteen_negatives_of_a_four_document_corpus_do_not_raise() -> None:
    corpus = corpus_of(["harbour one", "harbour two", "meadow three", "heath four"])
    mined = mine_one(corpus, n=15, fill="random")
    assert sorted(mined.ids[0]) == ["d1", "d2", "d3"]
    assert mined.ranks[0] == [1, 0, 0]
    assert (mined.report.mined, mined.report.filled, mined.report.missing) == (1, 2, 12)


def test_a_query_of_unknown_words_gets_nothing_but_its_fill() -> None:
    corpus = harbour(20)
    assert mine_one(corpus, "zzz the and of").ids == [[]]
    filled = mine_one(corpus, "zzz the and of", fill="random")
    assert len(set(filled.ids[0])) == 3
    assert filled.ranks == [[0, 0, 0]]


def test_the_fill_is_seeded_marked_and_admissible() -> None:
    groups: list[str | None] = [f"g{i % 4}" for i in range(40)]
    corpus = harbour(40, groups=groups)
    options = {"n": 12, "first_rank": 3, "last_rank": 5, "fill": "random"}
    one = mine_one(corpus, seed=1, **options)
    assert one.ids == mine_one(corpus, seed=1, **options).ids
    assert one.ids != mine_one(corpus, seed=2, **options).ids
    assert one.ranks[0] == [3, 4, 5] + [0] * 9
    assert len(set(one.ids[0])) == 12
    assert all(groups[corpus.row[d]] != "g0" for d in one.ids[0])
    head = mine_one(corpus, n=2, first_rank=1).ids[0]
    for seed in range(30):
        assert not set(head) & set(mine_one(corpus, seed=seed, **options).ids[0])


def test_a_row_has_the_same_fill_whatever_the_other_rows_are() -> None:
    corpus = harbour(40)
    queries, positives = ["zzz"] * 3, [["d0"]] * 3
    options = {"n": 4, "fill": "random"}
    alone = mine(queries, positives, corpus, **options)
    beside = mine([queries[0], "harbour", "zzz"], positives, corpus, **options)
    assert beside.ids[0] == alone.ids[0]
    assert beside.ids[2] == alone.ids[2]


def test_negatives_of_a_row_have_different_texts() -> None:
    texts = list(harbour(12).texts)
    for copy in (6, 7, 8):
        texts[copy] = texts[5]
    found = mine_one(corpus_of(texts), n=20).ids[0]
    assert len({texts[int(d[1:])] for d in found}) == len(found)


def test_excluded_documents_are_spared() -> None:
    mined = mine_one(harbour(12), n=20, excluded=[["d1", "d2"]])
    assert not {"d1", "d2"} & set(mined.ids[0])
    assert mined.report.skipped["excluded for the query"] == 2


def test_deep_lists_are_searched_until_enough_is_found() -> None:
    groups: list[str | None] = ["g"] * 300 + [f"x{i}" for i in range(20)]
    corpus = harbour(320, groups=groups)
    mined = mine_one(corpus, n=4, first_rank=10, last_rank=15)
    assert len(mined.ids[0]) == 4
    assert mined.report.considered >= 300


def test_positives_given_as_a_bare_string_are_an_error_that_names_the_row() -> None:
    corpus = corpus_of(["harbour a", "harbour b", "c"])
    with pytest.raises(DataError, match=r"row 1: positives must be a list.*'abc'"):
        mine(["q", "q2"], [["d0"], "abc"], corpus)


@pytest.mark.parametrize(
    ("positives", "message"),
    [
        ([["d0"], ["d9"]], "row 1: positives name 'd9'"),
        ([["d0"], []], "row 1: positives is an empty list"),
        ([["d0"], [3]], "row 1: positives must be a list of document ids"),
        ([["d0"]], "positives of 1 rows given for 2 queries"),
    ],
)
def test_bad_positives_are_named(positives, message: str) -> None:
    with pytest.raises(DataError, match=message):
        mine(["harbour", "b"], positives, corpus_of(["harbour a", "harbour b", "c"]))


def test_empty_queries_and_impossible_windows_are_errors() -> None:
    corpus = harbour(5)
    with pytest.raises(DataError, match="row 0: the query text is empty"):
        mine(["  "], [["d0"]], corpus)
    with pytest.raises(DataError, match="first_rank=9, last_rank=3"):
        mine_one(corpus, first_rank=9, last_rank=3)
    with pytest.raises(DataError, match="random"):
        mine_one(corpus, fill="randm")


def test_no_negatives_asked_for_gives_empty_rows() -> None:
    mined = mine_one(harbour(5), n=0)
    assert mined.ids == [[]]
    assert mined.report.missing == 0


def test_negatives_survive_writing_and_reading(tmp_path) -> None:
    corpus = harbour(20)
    mined = mine_one(corpus, n=30, fill="random")
    write_negatives(tmp_path / "negatives.jsonl", ["q 1"], [["d0"]], mined)
    assert read_negatives(tmp_path / "negatives.jsonl") == {
        ("q 1", "d0"): (mined.ids[0], mined.ranks[0])
    }
    assert (tmp_path / "negatives.report.json").is_file()
    (tmp_path / "bad.jsonl").write_text('{"query_id": "q", "positive_ids": "d0"}\n')
    with pytest.raises(DataError, match=r"bad.jsonl:1 field 'positive_ids'"):
        read_negatives(tmp_path / "bad.jsonl")

"""Sweeps over deep pools; those over plain ones are tested with what they sweep over."""

from __future__ import annotations

from collections import Counter

import numpy as np
from rerank_pools import BARE, ids, make_judged, make_pool

from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import (
    Candidate,
    CrossEncoderReranker,
    OracleClient,
    Pool,
    RerankSettings,
    build_reranker,
    parse_rerankers,
    rerank,
    scaled_plan,
    sweep,
)


def assert_as_alone(swept, settings, pools, task, client):
    for entry in settings:
        alone = rerank(
            build_reranker(entry, asking=BARE), pools, task, client=client, depth=entry.pool_depth
        )
        found = swept[entry.label]
        assert found.orders == alone.orders, entry.label
        assert found.tally.requests == alone.tally.requests
        assert found.tally.filled == alone.tally.filled
        assert found.failed == alone.failed
        parts, known = found.costs()["parts"], alone.costs()["parts"]
        assert {k: v["requests"] for k, v in parts.items()} == {
            k: v["requests"] for k, v in known.items()
        }


def test_a_cross_encoder_scores_a_deep_pool_once_for_all_that_follows(task, monkeypatch):
    scored = Counter()

    class Scorer:
        def predict(self, pairs, **options):
            scored.update(query for query, _ in pairs)
            return np.array([float(text.split()[1]) * 7 % 50 for _, text in pairs])

    monkeypatch.setattr(CrossEncoderReranker, "load", lambda self: Scorer())
    pools, qrels = make_judged(3, 70, 8)
    client = OracleClient(pools, qrels, asking=BARE, error_rate=0.3)
    base = RerankSettings(
        depth=20, preselect="cross-encoder", cross_encoder="org/scorer", first_stage_depth=60
    )
    settings = parse_rerankers("identity,tourrank:1..5,listwise:10..20", base=base)
    assert len(settings) == 8
    swept = sweep(settings, pools, task, client=client, asking=BARE)
    assert scored == {pool.query: 60 for pool in pools}
    # the largest tournament, and the two depths of listwise reranking
    assert client.accounting.total.calls == 3 * (5 * scaled_plan(20).calls + 2)
    assert_as_alone(swept, settings, pools, task, client)


def test_a_wide_tournament_is_held_once_for_all_that_follows(task):
    pools, qrels = make_judged(2, 90, 8)
    client = OracleClient(pools, qrels, asking=BARE, error_rate=0.3)
    base = RerankSettings(depth=20, preselect="tournament", first_stage_depth=80)
    settings = parse_rerankers("tourrank:1..3,identity", base=base)
    swept = sweep(settings, pools, task, client=client, asking=BARE)
    wide = scaled_plan(80, stop=20).calls
    assert client.accounting.total.calls == 2 * (wide + 3 * scaled_plan(20).calls)
    assert_as_alone(swept, settings, pools, task, client)


def test_pools_too_small_for_a_pre_selection_keep_their_order(task):
    pools, qrels = make_judged(1, 1, 1)
    client = OracleClient(pools, qrels, asking=BARE)
    base = RerankSettings(depth=20, preselect="tournament", first_stage_depth=80)
    settings = parse_rerankers("tourrank:1..2", base=base)
    swept = sweep(settings, pools, task, client=client, asking=BARE)
    assert [result.orders["q0"] for result in swept.values()] == [("q0-d0",)] * 2


def test_deep_queries_without_a_usable_answer_keep_the_first_stages_order(task):
    pool = make_pool(60)
    second = {"q1": {f"q1-d{i}": float(i) for i in range(60)}}
    base = RerankSettings(depth=20, preselect="fusion", first_stage_depth=60)
    settings = parse_rerankers("identity,tourrank:1..2,listwise:10..20,tourrank:1+rrf", base=base)
    client = ScriptedClient(lambda request: "I'm sorry, but I cannot rank these.")
    swept = sweep(settings, [pool], task, client=client, asking=BARE, second=second)
    for entry in settings:
        asks = entry.reranker != "identity"
        assert swept[entry.label].failed == (("q1",) if asks else ())
        assert (swept[entry.label].orders["q1"] == ids(pool)) == asks, entry.label


def test_the_querys_own_text_is_counted_as_withheld_by_every_setting(task):
    query = "what q1 looks for"
    texts = (query, "another text", "a third text")
    candidates = tuple(Candidate(f"d{i}", text) for i, text in enumerate(texts))
    base = RerankSettings(depth=3)
    settings = parse_rerankers("identity,tourrank:1..2,listwise:2..3,tourrank:1+rrf", base=base)
    client = ScriptedClient(lambda request: "[1] > [2]")
    for size in (2, 3):
        pool = Pool("q1", query, candidates[:size])
        swept = sweep(settings, [pool], task, client=client, asking=BARE)
        assert {label: found.tally.withheld for label, found in swept.items()} == {
            entry.label: 1 for entry in settings
        }

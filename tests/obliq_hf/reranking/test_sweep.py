"""Sweeps over deep pools; those over plain ones are tested with what they sweep over."""

from __future__ import annotations

from collections import Counter

import numpy as np
from rerank_pools import BARE, make_judged

from obliq_hf.reranking import (
    CrossEncoderReranker,
    OracleClient,
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

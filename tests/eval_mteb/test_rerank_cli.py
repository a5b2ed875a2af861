"""`obliq rerank`: a run reranked and measured; what fails is counted and made again."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from llm_server import Reply, ScriptedServer
from rerank_command import llm, obliq
from rerank_folder import judge

from eval_mteb.rerank_report import pareto
from eval_mteb.results import read_results
from obliq_hf.errors import ObliqError
from obliq_hf.llm import ChatRequest
from obliq_hf.reranking import load_policy, scaled_plan


def test_a_run_is_reranked_and_measured_beside_itself(run_folder, server):
    out = run_folder / "rerank"
    words = (
        "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--reranker", "tourrank",
        "--rounds", 2, *llm(server), "--out", out,
    )  # fmt: skip
    said = obliq(*words)
    assert server.calls == 6 * 26
    found = read_results(out)["hand"].systems
    assert set(found) == {"dense", "dense-tourrank-2"}
    before, after = found["dense"], found["dense-tourrank-2"]
    assert after.mean("ndcg_at_10") > before.mean("ndcg_at_10") + 0.3
    assert after.mean("recall_at_100") == before.mean("recall_at_100")
    assert after.cost["reranking"]["requests"] == 156
    assert "hand/dense-tourrank-2: 156 questions" in said
    # the same again costs nothing, and more tournaments begin with those there are
    obliq(*words)
    assert server.calls == 156
    obliq(*words[:4], "--reranker", "tourrank:3,identity", *llm(server), "--out", out)
    assert server.calls == 156 + 6 * 13
    assert set(read_results(out)["hand"].systems) >= {"dense-tourrank-2", "dense-tourrank-3"}


def test_stages_of_ones_own_and_an_early_stop_are_options_and_what_is_spared_is_said(
    run_folder, server
):
    words = ("--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--depth", 20)
    out = run_folder / "rerank"
    obliq(
        *words, "--reranker", "tourrank:1", "--plan", "2x10>4 1x8>2", *llm(server), "--out", out
    )  # fmt: skip
    assert server.calls == 6 * 3
    obliq_said = obliq(
        *words, "--reranker", "tourrank:6", "--early-stop", 1, *llm(server), "--out", out
    )  # fmt: skip
    cost = read_results(out)["hand"].systems["dense-tourrank-6-stop1-top20"].cost["reranking"]
    assert cost["spared"] > 0
    assert f"{cost['spared']} questions spared" in obliq_said
    policy = run_folder / "policy.yaml"
    obliq(
        "select", "--run", run_folder / "dev", "--tasks", "hand", "--depth", 20, "--rerankers",
        "identity,tourrank:6", "--early-stop", 1, "--resamples", 100, *llm(server),
        "--out", policy,
    )  # fmt: skip
    report = json.loads((run_folder / "policy-evidence" / "report.json").read_text("utf-8"))
    costs = report["tasks"]["hand"]["costs"]["tourrank-6-stop1-top20"]
    assert costs["spared"] > 0
    assert costs["spared"] + costs["requests"] == 6 * 6 * scaled_plan(20).calls


def test_steps_of_deep_pools_are_reported_with_the_time_they_took(run_folder, server):
    policy = run_folder / "policy.yaml"
    obliq(
        "select", "--run", run_folder / "dev", "--tasks", "hand", "--depth", 20,
        "--preselect", "fusion", "--first-stage-depth", 120, "--rerankers",
        "identity,tourrank:1..2", "--resamples", 100, *llm(server), "--out", policy,
    )  # fmt: skip
    folder = run_folder / "policy-evidence"
    text = (folder / "report.md").read_text(encoding="utf-8")
    head = "| reranker | step | calls | tokens | seconds a query |"
    rows = [line.split(" | ") for line in text.partition(head)[2].split("\n")[2:]]
    steps = {(row[0], row[1]): row[2:] for row in rows if len(row) == 5}
    fusions = [row for (_, step), row in steps.items() if step == "scores:run+zscore"]
    assert len(fusions) == 3
    assert all(calls == "0" and float(s.strip(" |")) > 0 for calls, _, s in fusions)
    assert re.search(r"The run that is fused with took \d+\.\d+ s to search\.", text)
    values = json.loads((folder / "report.json").read_text(encoding="utf-8"))["tasks"]["hand"]
    assert values["second_run_seconds"] > 0
    assert {p for c in values["costs"].values() for p in c.get("parts", {})} == {
        "scores:run+zscore", "identity", "tourrank:1", "tourrank:2",
    }  # fmt: skip


def test_answers_that_are_malformed_appear_by_class_and_leave_identity(run_folder):
    def script(body, number):
        return ("I'm sorry, I cannot rank these.", "[99] > [98]", "great!")[number % 3]

    policy = run_folder / "policy.yaml"
    with ScriptedServer(script) as server:
        said = obliq(
            "select", "--tasks", "hand", "--run", run_folder / "dev", "--rerankers",
            "tourrank:1,listwise:10", *llm(server), "--resamples", 200, "--out", policy,
        )  # fmt: skip
    assert "hand: identity" in said
    with ScriptedServer(script) as server:
        said = obliq(
            "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand",
            "--reranker", "listwise", "--depth", 10, *llm(server), "--out", run_folder / "reranked",
        )  # fmt: skip
    assert " declined, " in said
    assert " without a ranking" in said
    text = (run_folder / "policy-evidence" / "report.md").read_text(encoding="utf-8")
    assert "refused" in text
    assert "out-of-range" in text
    assert "unreadable" in text
    assert load_policy(policy).settings("hand").changes_nothing


def test_calls_that_failed_are_made_again_and_no_others(run_folder):
    client = judge(run_folder / "corpus")
    broken = {"yes": True}

    def script(body, number):
        if broken["yes"] and "query 7 " in body["messages"][-1]["content"]:
            return Reply("the context length is exceeded", status=400)
        return client.script(ChatRequest("r", body["messages"], body["max_tokens"]))

    out = run_folder / "rerank"
    words = (
        "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--reranker", "listwise",
        "--out", out,
    )  # fmt: skip
    with ScriptedServer(script) as server:
        said = obliq(*words, *llm(server))
        assert "kept the first stage's order: q7; make --document-tokens smaller" in said
        assert server.calls == 6
        broken["yes"] = False
        assert "q7" not in obliq(*words, *llm(server))
        assert server.calls == 7
        obliq(*words, *llm(server))
        assert server.calls == 7


def test_a_budget_that_is_too_small_leaves_no_result_and_loses_no_answer(run_folder, server):
    out = run_folder / "rerank"
    words = (
        "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--reranker", "tourrank:1",
        *llm(server), "--out", out,
    )  # fmt: skip
    with pytest.raises(ObliqError, match="the budget was spent after 10 calls"):
        obliq(*words, "--max-calls", 10)
    assert list(read_results(out)["hand"].systems) == ["dense"]
    assert server.calls == 10
    obliq(*words)
    assert server.calls == 6 * 13


def test_listwise_without_a_number_takes_the_depth_of_the_task(run_folder, server):
    task = run_folder / "corpus" / "tasks" / "hand" / "task.yaml"
    values = yaml.safe_load(task.read_text(encoding="utf-8"))
    values["reranking"]["listwise_depth"] = 50
    task.write_text(yaml.safe_dump(values), encoding="utf-8")
    out = run_folder / "rerank"
    obliq(
        "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--reranker", "listwise",
        *llm(server), "--out", out,
    )  # fmt: skip
    assert set(read_results(out)["hand"].systems) == {"dense", "dense-listwise-50"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--out FOLDER"),
        (["--out", "O"], "--run .* or --retriever"),
        (["--out", "O", "--run", "RUN", "--reranker", "tourrank"], "--llm URL"),
        (["--out", "O", "--run", "RUN", "--llm", "http://127.0.0.1:1/v1"], "needs the name of the"),
        (["--out", "O", "--run", "RUN", "--model", "m"], "give both"),
        (["--out", "O", "--run", "RUN", "--reranker", "turrank"], "did you mean 'tourrank'"),
        (["--out", "O", "--run", "RUN", "--tasks", "hind"], "no task 'hind'.*did you mean 'hand'"),
        (["--out", "O", "--run", "DEV", "--system", "dens", "--split", "dev", "--reranker",
          "identity"], "no run of 'dens'.*did you mean 'dense'"),
        (["--out", "O", "--run", "MISSING"], "no such run"),
        (["--out", "O", "--run", "RUN", "--split", "train", "--reranker", "identity"], "'train'"),
        (["--out", "O", "--run", "RUN", "--keep", "heads", "--reranker", "identity"], "'head'"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_before_any_work(run_folder, words, message):
    names = {
        "O": run_folder / "out", "RUN": run_folder / "eval" / "dense.trec",
        "DEV": run_folder / "dev", "MISSING": run_folder / "eval" / "none.trec",
    }  # fmt: skip
    with pytest.raises(ObliqError, match=message):
        obliq("--data", run_folder / "corpus", *[names.get(w, w) for w in words])


def test_a_run_of_other_queries_is_refused(run_folder, server):
    with pytest.raises(ObliqError, match="is it of another split"):
        obliq(
            "select", "--tasks", "hand", "--split", "dev", "--run",
            run_folder / "eval" / "dense.trec", "--rerankers", "identity", "--out",
            run_folder / "p.yaml",
        )  # fmt: skip


def test_what_nothing_cheaper_beats_is_found():
    rows = [
        {"label": "a", "cost": 0, "value": 0.1},
        {"label": "b", "cost": 5, "value": 0.3},
        {"label": "c", "cost": 6, "value": 0.2},
        {"label": "d", "cost": 5, "value": 0.2},
        {"label": "e", "cost": None, "value": 0.9},
        {"label": "f", "cost": 9, "value": 0.4},
    ]
    assert pareto(rows, cost="cost", value="value") == ["a", "b", "f"]

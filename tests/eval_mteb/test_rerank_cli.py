from __future__ import annotations

import json

import pytest
import yaml
from llm_server import Reply, ScriptedServer
from rerank_folder import judge, write_first_stage, write_rerank_folder
from typer.testing import CliRunner

from eval_mteb.rerank_cli import app
from eval_mteb.rerank_report import pareto
from eval_mteb.results import read_results
from obliq_hf.errors import ObliqError
from obliq_hf.llm import ChatRequest
from obliq_hf.reranking import load_policy


@pytest.fixture
def run_folder(tmp_path):
    """A run folder as recipes leave it: a corpus, and a first stage's runs."""
    folder = tmp_path / "runs" / "x"
    write_rerank_folder(folder / "corpus", queries=12)
    write_first_stage(folder / "eval" / "dense.trec", folder / "corpus")
    write_first_stage(folder / "dev" / "hand" / "dense" / "run.trec", folder / "corpus", "dev")
    return folder


@pytest.fixture
def server(run_folder):
    """A server behind which the judge sits who knows the answers."""
    client = judge(run_folder / "corpus")

    def script(body, number):
        return client.script(ChatRequest("r", body["messages"], body["max_tokens"]))

    with ScriptedServer(script) as running:
        yield running


def obliq(*words):
    result = CliRunner().invoke(app, [str(w) for w in words])
    if isinstance(result.exception, ObliqError):
        raise result.exception
    assert result.exception is None, result.output
    return result.output


def llm(server):
    return "--llm", server.url, "--model", "judge"


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


def test_a_policy_is_chosen_on_development_queries_with_its_evidence_and_applied(
    run_folder, server
):
    policy = run_folder / "policy.yaml"
    said = obliq(
        "select", "--tasks", "hand", "--split", "dev", "--run", run_folder / "dev",
        "--rerankers", "identity,tourrank:1..3,listwise:10..100,tourrank:1@generic",
        *llm(server), "--resamples", 500, "--out", policy,
    )  # fmt: skip
    # the largest tournament, the generic one, and each depth once: 39 + 13 + (1 + 1 + 4 + 9)
    assert server.calls <= 6 * (39 + 13 + 15)
    chosen = load_policy(policy)
    label = chosen.settings("hand").label
    assert f"hand: {label}, nDCG@10 +" in said
    evidence = chosen.evidence["hand"]
    assert evidence["queries"] == 6
    rows = {row["label"]: row for row in evidence["trials"]}
    best = max(row["ndcg_at_10"] for row in rows.values())
    assert rows[label]["ndcg_at_10"] == best > rows["identity"]["ndcg_at_10"]
    assert rows[label]["requests_per_query"] == min(
        row["requests_per_query"] for row in rows.values() if row["ndcg_at_10"] == best
    )
    assert rows["identity"]["delta"] == 0
    assert rows["tourrank-3"]["requests_per_query"] == 39
    assert chosen.provenance["split"] == "dev"
    assert chosen.provenance["llm"]["model"] == "judge"
    written = yaml.safe_load(policy.read_text(encoding="utf-8"))
    assert written["tasks"]["hand"]["evidence"]["trials"][0]["label"] == "identity"

    report = run_folder / "policy-evidence"
    text = (report / "report.md").read_text(encoding="utf-8")
    assert "| tourrank-1-generic |" in text
    assert "Every answer was well formed." in text
    for name in ("rounds", "depths", "cost"):
        assert (report / "figures" / f"{name}.png").stat().st_size > 5000
        assert f"figures/{name}.png" in text
    values = json.loads((report / "report.json").read_text(encoding="utf-8"))
    gains = values["tasks"]["hand"]["gains"]["tourrank-3"]
    assert gains["helped"] + gains["hurt"] + gains["unchanged"] + gains["zero_under_both"] == 6

    out = run_folder / "rerank"
    obliq(
        "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--policy", policy,
        *llm(server), "--out", out,
    )  # fmt: skip
    assert f"dense-{label}" in read_results(out)["hand"].systems


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


def test_a_share_of_the_test_queries_can_stand_for_development_queries(run_folder):
    policy = run_folder / "policy.yaml"
    words = (
        "select", "--tasks", "hand", "--split", "test", "--run", run_folder / "eval/dense.trec",
        "--rerankers", "identity", "--out", policy, "--resamples", 100,
    )  # fmt: skip
    with pytest.raises(ObliqError, match="not on the split that is reported"):
        obliq(*words)
    obliq(*words, "--share", 0.6)
    evidence = load_policy(policy).evidence["hand"]
    assert 0 < len(evidence["development_queries"]) < 6
    assert evidence["queries"] == len(evidence["development_queries"])


def test_a_retriever_can_stand_in_the_place_of_a_run(run_folder, tiny_model_dir):
    out = run_folder / "rerank"
    obliq(
        "--retriever", tiny_model_dir, "--data", run_folder / "corpus", "--tasks", "hand",
        "--reranker", "identity", "--out", out,
    )  # fmt: skip
    assert list(read_results(out)["hand"].systems) == [tiny_model_dir.name]


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

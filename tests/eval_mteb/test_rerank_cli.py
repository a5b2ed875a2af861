from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import mteb
import pytest
import yaml
from llm_server import Reply, ScriptedServer
from rerank_folder import HAND, first_stage, judge, write_first_stage, write_rerank_folder
from typer.testing import CliRunner

import eval_mteb
from eval_mteb.baselines.fusion import RunSearch
from eval_mteb.rerank_cli import app
from eval_mteb.rerank_report import pareto
from eval_mteb.results import read_results
from obliq_hf.cli import main
from obliq_hf.errors import ObliqError
from obliq_hf.llm import ChatRequest
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import Asking, TextBudget, load_policy, scaled_plan


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


def asked(server):
    return {(body["messages"][-1]["content"], body["max_tokens"]) for body in server.bodies}


def test_a_policy_is_applied_as_it_was_chosen_and_what_differs_is_told(run_folder, caplog):
    how = Asking(documents=TextBudget(12, "head"), query=TextBudget(40, "head"), thinking_tokens=50)
    client = judge(run_folder / "corpus", how)

    def script(body, number):
        return client.script(ChatRequest("r", body["messages"], body["max_tokens"]))

    policy = run_folder / "policy.yaml"
    words = ("--run", run_folder / "dev", "--tasks", "hand", "--split", "dev")
    with ScriptedServer(script) as server:
        obliq(
            "select", *words, "--rerankers", "identity,tourrank:1", "--rule", "mean",
            "--document-tokens", 12, "--query-tokens", 40, "--keep", "head",
            "--thinking-tokens", 50, "--seed", 7, *llm(server), "--out", policy,
        )  # fmt: skip
        chosen = asked(server)
    assert load_policy(policy).settings("hand").label == "tourrank-1"

    apply = (*words, "--policy", policy)
    with ScriptedServer(script) as server:
        obliq(*apply, *llm(server), "--out", run_folder / "as-chosen")
        assert asked(server) == chosen
    assert "was chosen with" not in caplog.text
    with ScriptedServer(script) as server:
        obliq(*apply, *llm(server), "--thinking-tokens", 90, "--out", run_folder / "other")
        assert {content for content, _ in asked(server)} == {content for content, _ in chosen}
        assert asked(server).isdisjoint(chosen)
    assert "chosen with thinking_tokens 50 and is applied with 90" in caplog.text
    caplog.clear()

    seen = set()

    def listen(request):
        seen.add((request.messages[-1]["content"], request.max_tokens))
        return client.script(request)

    dense = RunSearch(first_stage(run_folder / "corpus", "dev"), name="dense")
    task = eval_mteb.folder_task(run_folder / "corpus", HAND, split="dev")
    silent = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
    pipeline = eval_mteb.RetrieveAndRerank(
        dense, policy, llm=ScriptedClient(listen, model="another")
    )
    mteb.evaluate(pipeline, task, **silent)
    assert seen == chosen
    assert "is applied with {'model': 'another'" in caplog.text
    seen.clear()
    pipeline = eval_mteb.RetrieveAndRerank(dense, policy, llm=ScriptedClient(listen), seed=8)
    mteb.evaluate(pipeline, task, **silent)
    assert seen.isdisjoint(chosen)
    assert "chosen with seed 7 and is applied with 8" in caplog.text


def test_what_a_policy_says_of_its_questions_is_checked(run_folder, server):
    policy = run_folder / "policy.yaml"
    tasks = "tasks: {hand: {reranker: tourrank}}"
    for line, message in (
        ("asking: {documents: [12]}", "policy, 'asking'"),
        ("asking: {documents: [12, heads, estimated]}", "did you mean 'head'"),
        ("asking: 5", "policy, 'asking'"),
        ("seed: x", "policy, key 'seed'"),
    ):
        policy.write_text(f"{line}\n{tasks}\n", encoding="utf-8")
        with pytest.raises(ObliqError, match=message):
            obliq(
                "--run", run_folder / "eval" / "dense.trec", "--tasks", "hand", "--policy", policy,
                *llm(server), "--out", run_folder / "rerank",
            )  # fmt: skip
    assert server.calls == 0


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


def test_the_sequence_of_the_readme_works_as_it_is_written(
    run_folder, server, tiny_model_dir, monkeypatch
):
    readme = Path(__file__).parents[2] / "README.md"
    section = readme.read_text(encoding="utf-8").partition("## Evaluate, rerank, publish")[2]
    section = section.partition("\n## ")[0]
    names = {
        "FOLDER": str(run_folder / "corpus"), "MODEL": str(tiny_model_dir), "NAME": "judge",
        "http://127.0.0.1:8000/v1": server.url, "math": "hand",
    }  # fmt: skip
    for written, here in names.items():
        section = re.sub(rf"(?<![\w/-]){re.escape(written)}(?![\w/-])", here, section)
    monkeypatch.chdir(run_folder)
    commands = re.sub(r"\\\n", " ", "".join(re.findall(r"```bash\n(.*?)```", section, re.DOTALL)))
    done = 0
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if words[1:2] in (["evaluate"], ["rerank"]):
            if words[2] == "select":
                words += ["--resamples", "100"]
            assert main(words[1:]) == 0
            done += 1
    assert done == 3
    assert "bm25-tourrank-5" in read_results(Path("runs/x/rerank"))["hand"].systems
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[-1]
    space = {"eval_mteb": eval_mteb, "mteb": mteb, "model": str(tiny_model_dir)}
    exec(code, space)
    assert space["results"].task_results[0].scores["test"][0]["ndcg_at_10"] > 0.3
    space["llm"].close()


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

"""`obliq rerank select` and the policies it writes: chosen with evidence, applied as chosen."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import mteb
import pytest
import yaml
from llm_server import ScriptedServer
from rerank_command import llm, obliq
from rerank_folder import HAND, first_stage, judge

import eval_mteb
from eval_mteb.baselines.fusion import RunSearch
from eval_mteb.results import read_results
from obliq_hf.cli import main
from obliq_hf.errors import ObliqError
from obliq_hf.llm import ChatRequest
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import Asking, TextBudget, load_policy


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

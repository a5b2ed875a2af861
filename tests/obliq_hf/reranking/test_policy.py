from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from rerank_pools import BARE, ids, make_judged

from obliq_hf.errors import ObliqError
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.metrics import per_query
from obliq_hf.reranking import (
    Asking,
    OracleClient,
    Policy,
    RerankSettings,
    TextBudget,
    Trial,
    build_reranker,
    choose,
    load_policy,
    parse_rerankers,
    rerank,
    sweep,
    task_policy,
    write_policy,
)
from obliq_hf.tasks import load_task, load_tasks


def labels(text, **base):
    return [s.label for s in parse_rerankers(text, base=RerankSettings(**base))]


def test_rerankers_are_written_as_on_the_command_line():
    assert labels("identity,tourrank:1..3,listwise:10..100") == [
        "identity", "tourrank-1", "tourrank-2", "tourrank-3", "listwise-10", "listwise-20",
        "listwise-50", "listwise-100",
    ]  # fmt: skip
    assert labels("tourrank", rounds=7) == ["tourrank-7"]
    assert labels("listwise:20@generic, tourrank:5+zscore, tourrank:5") == [
        "listwise-20-generic", "tourrank-5-zscore", "tourrank-5",
    ]  # fmt: skip
    (cross,) = parse_rerankers("cross-encoder:org/some-model")
    assert (cross.cross_encoder, cross.label) == ("org/some-model", "cross-encoder-org-some-model")
    assert labels("cross-encoder:a/reranker,cross-encoder:b/reranker,cross-encoder:a/reranker") == [
        "cross-encoder-a-reranker", "cross-encoder-b-reranker",
    ]  # fmt: skip
    assert labels("listwise", depth=10) == ["listwise-10"]
    for wrong, message in (
        ("cross-encoder:x/a/model,cross-encoder:y/a/model", "one label, 'cross-encoder-model'"),
        ("listwise:10..200,listwise:150", "150 candidates .* 'depth' is 100"),
        ("tourank:5", "did you mean 'tourrank'"),
        ("tourrank:0", "range"),
        ("tourrank:5..1", "range"),
        ("tourrank:x", "range"),
        ("identity:3", "takes no number"),
        ("tourrank:5+zscor", "zscore"),
        ("cross-encoder", "name or folder"),
        ("", "at least one"),
    ):
        with pytest.raises(ObliqError, match=message):
            parse_rerankers(wrong)


def test_settings_that_are_not_valid_name_their_key():
    for wrong, message in (
        ({"reranker": "turnier"}, "'reranker'"),
        ({"depth": 0}, "'depth'"),
        ({"rounds": True}, "'rounds'"),
        ({"answer": "logprob"}, "did you mean 'logprobs'"),
        ({"preselect": "fusion", "first_stage_depth": 100}, "'first_stage_depth'"),
        ({"preselect": "cross-encoder"}, "'cross_encoder'"),
        ({"early_stop": 0}, "'early_stop'"),
        ({"reranker": "listwise", "depth": 30, "listwise_depth": 50}, "'depth' is 30"),
        ({"plan": "5x20>10", "depth": 50}, "50 are left"),
        ({"roundz": 5}, "unknown key 'roundz'; did you mean 'rounds'"),
    ):
        with pytest.raises(ObliqError, match=message):
            RerankSettings.from_dict(wrong)


@pytest.fixture(scope="module")
def tried():
    """Error rate -> trials of a sweep and the judge that was asked."""
    pools, qrels = make_judged(12, 100, 6)
    settings = parse_rerankers("identity,tourrank:1..4,listwise:10..100")
    found = {}
    for error_rate in (0.2, 1.0):
        client = OracleClient(pools, qrels, asking=BARE, error_rate=error_rate)
        swept = sweep(settings, pools, load_task("math"), client=client, asking=BARE)
        trials = []
        for entry in settings:
            run = {
                q: {d: -float(r) for r, d in enumerate(order)}
                for q, order in swept[entry.label].orders.items()
            }
            scores = per_query(run, qrels)["ndcg_at_10"]
            trials.append(Trial(entry, scores, swept[entry.label].costs()))
        found[error_rate] = (trials, client)
    return found


def test_a_sweep_costs_the_largest_tournament_and_each_depth_once(tried):
    made, client = tried[0.2]
    costs = {t.settings.label: t.costs["requests"] for t in made}
    assert [costs[f"tourrank-{y}"] for y in (1, 2, 3, 4)] == [156, 312, 468, 624]
    assert [costs[f"listwise-{k}"] for k in (10, 20, 50, 100)] == [12, 12, 48, 108]
    assert client.accounting.total.calls == 624 + 12 + 12 + 48 + 108


def test_a_gain_that_is_certain_is_chosen_and_one_that_is_not_leaves_the_first_stage(tried):
    choice = choose(tried[0.2][0])
    best = max(tried[0.2][0], key=lambda t: t.mean)
    assert choice.settings == best.settings
    assert choice.settings.reranker == "tourrank"
    row = next(r for r in choice.evidence["trials"] if r["label"] == choice.settings.label)
    assert row["ci95"][0] > 0
    assert row["requests_per_query"] == 13 * choice.settings.rounds
    assert row["ndcg_at_10"] == pytest.approx(choice.evidence["identity"] + row["delta"], abs=1e-5)
    blind = tried[1.0][0]
    assert choose(blind).settings.changes_nothing
    assert choose(blind, rule="mean").settings == max(blind, key=lambda t: t.mean).settings


def test_equal_means_go_to_the_cheaper_and_identity_must_be_tried():
    scores = {"a": 0.5, "b": 0.6}
    better = {"a": 0.7, "b": 0.8}
    identity = Trial(RerankSettings(), scores)
    tried = [
        identity,
        Trial(RerankSettings("tourrank", rounds=5), better, {"requests": 130, "seconds": 5.0}),
        Trial(RerankSettings("tourrank", rounds=1), better, {"requests": 26, "seconds": 1.0}),
    ]
    assert choose(tried).settings.rounds == 1
    same = [identity, Trial(RerankSettings("tourrank"), scores, {"requests": 1, "seconds": 1.0})]
    assert choose(same, rule="mean").settings.changes_nothing
    with pytest.raises(ObliqError, match="identity must be among"):
        choose(tried[1:])
    with pytest.raises(ObliqError, match="'intervall'; did you mean 'interval'"):
        choose(tried, rule="intervall")


def test_seconds_of_answers_from_a_cache_are_those_of_the_calls_that_were_made():
    costs = {"requests": 100, "cached": 50, "seconds": 10.0, "prompt_tokens": 900,
             "completion_tokens": 100}  # fmt: skip
    scores = {f"q{i}": 0.1 for i in range(10)}
    tried = [Trial(RerankSettings(), scores), Trial(RerankSettings("tourrank"), scores, costs)]
    row = choose(tried).evidence["trials"][1]
    assert row["seconds_per_query"] == 2.0
    assert row["tokens_per_query"] == 100.0
    tried[1] = Trial(RerankSettings("tourrank"), scores, {**costs, "cached": 100})
    assert choose(tried).evidence["trials"][1]["seconds_per_query"] is None


def test_a_policy_survives_its_file_and_says_where_it_comes_from(tried, tmp_path):
    choice = choose(tried[0.2][0])
    policy = Policy(
        {"math": choice.settings, "naïve": RerankSettings("listwise", listwise_depth=10)},
        {"math": choice.evidence},
        {"rule": "interval", "metric": "ndcg_at_10", "split": "dev"},
    )
    path = write_policy(tmp_path / "deep" / "policy.yaml", policy)
    again = load_policy(path)
    assert again == policy
    assert again.fingerprint == policy.fingerprint
    assert write_policy(tmp_path / "b.yaml", again).read_bytes() == path.read_bytes()
    assert (
        yaml.safe_load(path.read_text(encoding="utf-8"))["tasks"]["math"]["rounds"]
        == choice.settings.rounds
    )
    card = policy.card_rows()
    assert card[0]["reranker"] == choice.settings.label
    assert card[0]["ci95"][0] > 0
    assert card[1]["delta"] is None
    changed = Policy({**policy.tasks, "math": replace(choice.settings, rounds=9)})
    assert changed.fingerprint != policy.fingerprint


def test_a_policy_asks_as_it_was_chosen_unless_told_otherwise(tmp_path, caplog):
    how = Asking(documents=TextBudget(33, "middle"), query=None, temperature=0.5, thinking_tokens=9)
    client = ScriptedClient(lambda request: "[1]", model="one")
    provenance = {"asking": how.identity, "seed": 4, "llm": dict(client.identity)}
    written = Policy({"math": RerankSettings("tourrank")}, {}, provenance)
    policy = load_policy(write_policy(tmp_path / "policy.yaml", written))
    asking, seed = policy.asked(client=client)
    assert (asking.identity, seed) == (how.identity, 4)
    assert not caplog.text
    other = ScriptedClient(lambda request: "[1]", model="two")
    asking, seed = policy.asked(replace(how, thinking_tokens=8), 5, client=other)
    assert (asking.thinking_tokens, seed) == (8, 5)
    for words in ("seed 4 .* with 5", "thinking_tokens 9 .* with 8", "'one'.* with .*'two'"):
        assert re.search(words, caplog.text)
    assert "documents" not in caplog.text
    caplog.clear()
    # one that nothing was tried for says nothing
    asking, seed = task_policy([load_task("math")]).asked(None, 3)
    assert (asking.identity, seed) == (Asking().identity, 3)
    assert not caplog.text
    for wrong in ({"documents": [12]}, {"documents": [12, "heads", "estimated"]}, 5, []):
        with pytest.raises(ObliqError, match="policy, 'asking'"):
            Policy({}, {}, {"asking": wrong}).asked()
    with pytest.raises(ObliqError, match="policy, key 'seed'"):
        Policy({}, {}, {"seed": "x"}).asked()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tasks: {math: {reranker: turrank}}", "task 'math'.*did you mean 'tourrank'"),
        ("tasks: {math: {reranker: tourrank, deph: 5}}", "task 'math'.*did you mean 'depth'"),
        ("tasks: {math: {depth: 5}}", "'reranker' is needed"),
        ("tasks: {math: {reranker: tourrank, plan: 5}}", "task 'math': key 'plan'.*not 5"),
        ("tasks: {math: {reranker: tourrank, prompt: 5}}", "task 'math': key 'prompt'.*not 5"),
        ("tasks: {math: {reranker: tourrank, prompt: null}}", "task 'math': key 'prompt'.*None"),
        (
            "tasks: {math: {reranker: cross-encoder, cross_encoder: 5}}",
            "task 'math': key 'cross_encoder'.*not 5",
        ),
        ("tasks: {}", "'tasks'"),
        ("- 1", "'tasks'"),
        ("a: [", "not readable as YAML"),
    ],
)
def test_a_policy_file_that_is_wrong_is_named_with_task_and_key(content, message, tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ObliqError, match=message) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ObliqError, match="no such policy file"):
        load_policy(tmp_path / "none.yaml")


def test_the_built_in_tasks_carry_the_papers_policy():
    policy = task_policy(load_tasks(["writing", "math", "twitter", "congress", "wildchat"]))
    assert {name: s.label for name, s in policy.tasks.items()} == {
        "writing": "identity", "math": "tourrank-5", "twitter": "tourrank-5",
        "congress": "tourrank-5", "wildchat": "tourrank-5",
    }  # fmt: skip
    assert policy.depth == 100
    with pytest.raises(ObliqError, match="no task 'maths'; did you mean 'math'"):
        policy.settings("maths")


def test_policies_for_deep_pools_are_built_from_their_settings(task):
    pools, qrels = make_judged(1, 300, 5)
    pool = pools[0]
    judge = OracleClient(pools, qrels, asking=BARE)
    second = {pool.query_id: {c.id: float(i) for i, c in enumerate(pool.candidates)}}
    deep = RerankSettings("tourrank", rounds=1, depth=50, first_stage_depth=300)
    for preselect in ("tournament", "fusion"):
        settings = replace(deep, preselect=preselect)
        reranker = build_reranker(settings, asking=BARE, second=second)
        done = rerank(reranker, [pool], task, client=judge, depth=settings.pool_depth)
        assert sorted(done.orders[pool.query_id]) == sorted(ids(pool))
        assert len(done.costs()["parts"]) == 2
        if preselect == "tournament":
            assert set(done.orders[pool.query_id][:50]) >= set(qrels[pool.query_id])
    with pytest.raises(ObliqError, match="another run"):
        build_reranker(replace(deep, preselect="fusion"))


def test_a_plan_and_an_early_stop_are_part_of_the_settings():
    settings = RerankSettings(
        "tourrank", rounds=3, depth=20, plan="2x10>4 1x8>2", early_stop=2, prompt="generic"
    )
    assert RerankSettings.from_dict(settings.to_dict()) == settings
    assert settings.label == "tourrank-3-plan-2-10-4-1-8-2-stop2-generic-top20"
    reranker = build_reranker(settings)
    assert reranker.plan_for(20).calls == 3
    assert reranker.plan_for(19).calls == 3
    assert (str(reranker.plan_for(20)), reranker.early_stop) == ("2x10>4 1x8>2", 2)
    assert reranker.identity != build_reranker(replace(settings, plan=None)).identity


def test_a_prompt_file_of_ones_own_is_read_and_checked(tmp_path):
    from importlib import resources

    built_in = resources.files("obliq_hf.reranking") / "prompts" / "task.yaml"
    values = yaml.safe_load(built_in.read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    mine = RerankSettings("tourrank", prompt=str(path))
    assert mine.identity["prompt"] == RerankSettings("tourrank").identity["prompt"]
    for change, message in (
        ({"select": "no placeholder"}, "lacks the placeholder"),
        ({"system": "{queri}"}, "did you mean 'query'"),
        ({"answers": {}}, "'answers'"),
        ({"extra": "x"}, "unknown key 'extra'"),
    ):
        broken = tmp_path / f"broken-{len(message)}.yaml"
        broken.write_text(yaml.safe_dump({**values, **change}), encoding="utf-8")
        with pytest.raises(ObliqError, match=message):
            build_reranker(RerankSettings("tourrank", prompt=str(broken)))


def test_a_task_without_anything_to_ignore_leaves_no_gap_in_the_prompt():
    from obliq_hf.reranking.asking import Questions

    task = load_task("math")
    bare = replace(task, reranking_ignore="")
    pools, _ = make_judged(1, 3, 1)
    for described, present in ((task, True), (bare, False)):
        request = Questions(BARE, pools[0], described, purpose="x").ask("r", [0, 1, 2])
        content = request.messages[-1]["content"]
        assert ("must not count" in content) == present
        assert "{" not in content.replace("{}", "")
        assert content.count("[1]\n") == 1


def test_scripted_answers_reach_a_sweep_over_tiny_pools(task):
    pools, _ = make_judged(2, 1, 1)
    settings = parse_rerankers("identity,tourrank:1..2,listwise:10..20")
    client = ScriptedClient(lambda request: "[1]")
    found = sweep(settings, pools, task, client=client)
    assert all(result.orders["q0"] == ids(pools[0]) for result in found.values())
    assert client.accounting.total.calls == 0

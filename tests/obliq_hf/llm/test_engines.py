from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny_chat_model import make_tiny_chat_model

from obliq_hf.errors import ObliqError
from obliq_hf.llm import ChatRequest, LLMError, answer_object, load_client
from obliq_hf.llm.embedded import EmbeddedClient
from obliq_hf.llm.engines import EngineClient, EngineFault, EngineOutput

if TYPE_CHECKING:
    from pathlib import Path


def ask(text: str, name: str = "r", **options) -> ChatRequest:
    return ChatRequest(id=name, messages=[{"role": "user", "content": text}], **options)


def many(count: int) -> list[ChatRequest]:
    return [ask(f"t{i}", str(i)) for i in range(count)]


class StubEngine(EngineClient):
    """An engine that fails as told: `faults[call number]` is raised or returned."""

    def __init__(self, faults=None, poison=None, **options) -> None:
        super().__init__(model="stub", **options)
        self.faults = faults or {}
        self.poison = poison
        self.calls = 0
        self.builds = 0
        self.stale: list[EngineOutput] = []

    def build(self) -> None:
        self.builds += 1
        self.stale = []

    def release(self) -> None:
        self.stale = []

    def too_long(self, request):
        size = len(request.messages[-1]["content"])
        return f"{size} characters" if size > 1000 else None

    def generate(self, requests):
        self.calls += 1
        outputs = [EngineOutput("re " + r.messages[-1]["content"], "stop", 3, 2) for r in requests]
        if any(r.messages[-1]["content"] == self.poison for r in requests):
            self.stale = outputs
            raise EngineFault("out of memory")
        fault = self.faults.get(self.calls)
        if fault == "raise":
            self.stale = outputs
            raise EngineFault("out of memory")
        if fault == "drop":
            return outputs[1:]
        return (self.stale + outputs)[: len(outputs)]


def test_one_over_long_prompt_fails_alone():
    client = StubEngine()
    answers = client.complete_all([ask("a", "1"), ask("x" * 1_000_000, "2"), ask("b", "3")])
    assert [a.text for a in answers.values()] == ["re a", None, "re b"]
    assert answers["2"].error_kind == "too-long"


@pytest.mark.parametrize("fault", ["raise", "drop"])
def test_an_engine_that_fails_on_the_third_batch_is_built_anew_and_mixes_nothing_up(fault):
    client = StubEngine({3: fault}, batch=10)
    answers = client.complete_all(many(50))
    assert {i: a.text for i, a in answers.items()} == {str(i): f"re t{i}" for i in range(50)}
    assert client.builds == 2


def test_the_request_that_breaks_the_engine_is_found_and_fails_alone():
    client = StubEngine(poison="t13", batch=16)
    answers = client.complete_all(many(40))
    assert answers.pop("13").error_kind == "engine"
    assert {i: a.text for i, a in answers.items()} == {
        str(i): f"re t{i}" for i in range(40) if i != 13
    }


def test_an_engine_that_always_fails_is_given_up():
    client = StubEngine(dict.fromkeys(range(1, 999), "raise"), most_faults=6)
    with pytest.raises(LLMError, match="out of memory"):
        client.complete_all(many(30))


@pytest.fixture(scope="module")
def tiny_chat_dir(tmp_path_factory) -> Path:
    return make_tiny_chat_model(tmp_path_factory.mktemp("chat") / "tiny-chat", room=512)


SCHEMA = {
    "type": "object",
    "properties": {"attribute": {"type": "string"}, "query": {"type": "string"}},
}


def test_a_model_in_this_process_fills_in_json_of_the_asked_form(tiny_chat_dir: Path):
    client = EmbeddedClient(tiny_chat_dir, batch=3, token_limit=12)
    answers = client.complete_all(
        [ask(f"text {i}", str(i), schema=SCHEMA, temperature=0.9, seed=i) for i in range(5)]
    )
    for answer in answers.values():
        assert set(answer_object(answer)) == {"attribute", "query"}
        assert answer.finish_reason == "stop"
        assert answer.completion_tokens > 0


def test_an_answer_of_a_batch_does_not_depend_on_its_neighbours_when_greedy(tiny_chat_dir: Path):
    texts = ["a", "somewhat longer text", "the longest text of them all, by far"]
    together = EmbeddedClient(tiny_chat_dir, batch=3, token_limit=8).complete_all(
        [ask(t, t) for t in texts]
    )
    alone = EmbeddedClient(tiny_chat_dir, batch=1, token_limit=8).complete_all(
        [ask(t, t) for t in texts]
    )
    assert [a.text for a in together.values()] == [a.text for a in alone.values()]
    assert {a.finish_reason for a in alone.values()} <= {"length", "stop"}


def test_a_choice_is_one_of_those_offered_and_too_long_is_told(tiny_chat_dir: Path):
    client = EmbeddedClient(tiny_chat_dir, token_limit=8)
    answers = client.complete_all([ask("which?", "a", choices=["yes", "no"]), ask("x" * 5000, "b")])
    assert answers["a"].text in ("yes", "no")
    assert answers["b"].error_kind == "too-long"


def test_a_missing_model_is_told_with_the_command_that_installs_it(tmp_path, monkeypatch):
    with pytest.raises(ObliqError, match="no folder"):
        EmbeddedClient(tmp_path / "none")
    monkeypatch.setattr("obliq_hf.llm.embedded._PACKAGE", "no_such_package_here")
    with pytest.raises(ObliqError, match="pip install"):
        load_client("embedded")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ObliqError, match=r"obliq-hf\[vllm\]"):
        load_client("vllm", model="m")


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("http://127.0.0.1:1/v1", {}, "--model"),
        ("gpt", {"model": "m"}, "not valid"),
        ("batch:", {"model": "m"}, "folder"),
        ("hub", {}, "--model"),
    ],
)
def test_an_incomplete_description_of_a_model_is_refused(spec, options, message):
    with pytest.raises(ObliqError, match=message):
        load_client(spec, **options)

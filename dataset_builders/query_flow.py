"""Writing one query: describe the document, write from the description, check, try again.

Each document is a generator for :func:`obliq_hf.llm.run_flows`: its second stage goes out as soon
as its first is answered. What comes out is an :class:`Outcome`, a query or the reason why there is
none; an exception only where the model cannot be used at all.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dataset_builders.lenses import VARIANTS
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.llm import ChatAnswer, ChatRequest, ParseFailure, answer_object

if TYPE_CHECKING:
    from collections.abc import Generator

    from dataset_builders.lenses import Form, Lens, StagePrompt
    from dataset_builders.query_checks import Problem, QueryChecker
    from obliq_hf.tasks import ObliqTask

    QueryFlow = Generator[list[ChatRequest], dict[str, ChatAnswer], "Outcome"]

__all__ = ["Outcome", "QueryWriter", "Sampling"]

_MOST_CUTS = 3
_MOST_DOUBLINGS = 3


@dataclass(frozen=True)
class Sampling:
    """How the model is asked; all of it is part of the cache key.

    Args:
        temperature: Sampling temperature.
        top_p: Nucleus sampling; None leaves it to the server.
        max_tokens: Longest answer, thinking included; doubled after an answer that was cut, as
            far as the model's context has room for it.
        seed: Seed of the first attempt; later attempts count up from it.
        attempts: Most calls a stage.
        document_characters: Longest document shown; longer ones are cut at a space and marked.
    """

    temperature: float = 0.7
    top_p: float | None = None
    max_tokens: int = 1024
    seed: int = 0
    attempts: int = 3
    document_characters: int = 24_000

    def __post_init__(self) -> None:
        for name in ("attempts", "document_characters", "max_tokens"):
            if getattr(self, name) < 1:
                raise ObliqError(f"sampling: {name} is {getattr(self, name)}; at least 1")


@dataclass
class Outcome:
    """What became of one document.

    Attributes:
        row: Its row in the corpus.
        query: The query, or None.
        stage_a: The fields of the first stage's answer.
        reason: Why there is no query, as counted in reports; None where there is one.
        detail: The reason in words.
        calls: Answers taken, by stage.
        problems: What was wrong with answers, by kind, mended or not.
        faulty: Answers with at least one problem; one whose query is nearly another one counts
            once its document was asked about anew.
        prompt_tokens: Of all answers.
        completion_tokens: Of all answers.
        cut: The document was too long and was cut.
    """

    row: int
    query: str | None = None
    stage_a: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    detail: str = ""
    calls: dict[str, int] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    faulty: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(vars(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Outcome:
        """What :meth:`to_json` wrote."""
        return cls(**json.loads(line))


class _Failed(Exception):
    """Ends a flow; is no error."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class QueryWriter:
    """Makes the flows of a task's documents.

    Args:
        task: Gives the attribute and the unit to the prompts.
        lens: The prompts.
        form: Which of its forms.
        checker: Refuses queries.
        variant: One of :data:`dataset_builders.lenses.VARIANTS`.
        sampling: How the model is asked.

    Raises:
        ObliqError: The lens lacks a prompt of the variant.
    """

    def __init__(
        self,
        task: ObliqTask,
        lens: Lens,
        form: Form,
        checker: QueryChecker,
        *,
        variant: str = "two-stage",
        sampling: Sampling | None = None,
    ) -> None:
        if variant not in VARIANTS:
            raise ObliqError(f"variant {variant!r} is not valid{nearest(variant, VARIANTS)}")
        needed = ("stage_a", "stage_b") if variant == "two-stage" else ("single_stage",)
        for name in needed:
            if getattr(lens, name) is None:
                raise ObliqError(f"lens {lens.name!r} has no prompt {name!r} for {variant!r}")
        self.task = task
        self.lens = lens
        self.form = form
        self.checker = checker
        self.variant = variant
        self.sampling = sampling or Sampling()

    def write(self, row: int, text: str) -> QueryFlow:
        """The flow of one document.

        Args:
            row: Its row in the corpus.
            text: Its text.
        """
        outcome = Outcome(row)
        try:
            if not text.strip():
                raise _Failed("empty-document", "the document has no text")
            if self.variant == "two-stage":
                yield from self._describe(outcome, text)
            yield from self._compose(outcome, text, None)
        except _Failed as failure:
            outcome.query, outcome.reason, outcome.detail = None, failure.reason, failure.detail
        return outcome

    def rewrite(self, outcome: Outcome, text: str, problem: Problem) -> QueryFlow:
        """The flow of a document whose query was refused for the sake of another query.

        Args:
            outcome: What became of it so far.
            text: Its text.
            problem: What is wrong with its query.
        """
        outcome = replace(
            outcome, calls=dict(outcome.calls), problems=dict(outcome.problems), reason=None
        )
        refused = outcome.query or ""
        answered = outcome.calls.get(self._last_stage, 0)
        _count(outcome, problem.kind)
        try:
            if answered >= self.sampling.attempts:
                raise _Failed(problem.kind, problem.detail)
            yield from self._compose(outcome, text, (refused, [problem]))
        except _Failed as failure:
            outcome.query, outcome.reason, outcome.detail = None, failure.reason, failure.detail
        outcome.faulty += outcome.calls.get(self._last_stage, 0) > answered
        return outcome

    @property
    def _last_stage(self) -> str:
        return "stage_b" if self.variant == "two-stage" else "single_stage"

    # -- the stages

    def _describe(self, outcome: Outcome, text: str) -> QueryFlow:
        prompt = self.lens.stage_a
        assert prompt is not None
        note = ""
        while True:
            answer, value = yield from self._ask(outcome, "stage_a", prompt, text, [], note)
            if isinstance(value, ParseFailure):
                note = self._again(outcome, "stage_a", answer, value)
                continue
            outcome.stage_a = {name: str(value[name]).strip() for name in prompt.fields}
            return outcome

    def _compose(
        self, outcome: Outcome, text: str, refused: tuple[str, list[Problem]] | None
    ) -> QueryFlow:
        stage = self._last_stage
        prompt = self.lens.stage_b if stage == "stage_b" else self.lens.single_stage
        assert prompt is not None
        note = ""
        while True:
            turns = [] if refused is None else _refusal(*refused)
            answer, value = yield from self._ask(outcome, stage, prompt, text, turns, note)
            if isinstance(value, ParseFailure):
                note = self._again(outcome, stage, answer, value)
                continue
            note = ""
            query = (
                " ".join(value["query"].split())
                if self.form.characters[1] <= 1000
                else (value["query"].strip())
            )
            problems = self.checker.check(query, text)
            if not problems:
                outcome.query = query
                return outcome
            outcome.faulty += 1
            for problem in problems:
                _count(outcome, problem.kind)
            if outcome.calls[stage] >= self.sampling.attempts:
                raise _Failed(problems[0].kind, "; ".join(p.detail for p in problems))
            refused = (query, problems)

    def _ask(
        self,
        outcome: Outcome,
        stage: str,
        prompt: StagePrompt,
        text: str,
        turns: list[dict[str, str]],
        note: str,
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], tuple[ChatAnswer, Any]]:
        """One call, repeated with less room, then less of the document, if it is too long."""
        limit = self.sampling.document_characters
        doublings = min(outcome.problems.get(f"{stage}: truncated", 0), _MOST_DOUBLINGS)
        cuts = 0
        while True:
            shown, cut = _cut(text, limit)
            outcome.cut = outcome.cut or cut
            messages = prompt.messages(
                {
                    "document": shown,
                    "unit": self.task.unit,
                    "attribute": self.task.attribute,
                    "description": outcome.stage_a.get("description", ""),
                    "length": self.form.length,
                }
            )
            if note:
                messages[-1]["content"] += f"\n\n{note}"
            attempt = outcome.calls.get(stage, 0)
            request = ChatRequest(
                id=stage,
                messages=[*messages, *turns],
                purpose=stage,
                schema=prompt.schema,
                max_tokens=self.sampling.max_tokens * 2**doublings,
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                seed=self.sampling.seed + attempt,
            )
            answer = (yield [request])[stage]
            outcome.prompt_tokens += answer.prompt_tokens
            outcome.completion_tokens += answer.completion_tokens
            if answer.error_kind != "too-long" or cuts == _MOST_CUTS:
                break
            outcome.calls.setdefault(stage, 0)
            if doublings:
                doublings -= 1
            else:
                limit = min(limit, len(text)) // 2
                cuts += 1
        if answer.error is not None:
            raise _Failed(answer.error_kind or "error", answer.error.partition(": ")[2])
        outcome.calls[stage] = outcome.calls.get(stage, 0) + 1
        try:
            return answer, answer_object(answer, list(prompt.fields))
        except ParseFailure as failure:
            return answer, failure

    def _again(
        self, outcome: Outcome, stage: str, answer: ChatAnswer, failure: ParseFailure
    ) -> str:
        """Count a failed answer; the note for the next attempt."""
        outcome.faulty += 1
        _count(outcome, f"{stage}: {failure.reason}")
        if outcome.calls[stage] >= self.sampling.attempts:
            raise _Failed(failure.reason, failure.detail)
        if answer.truncated:
            return "Be brief: your last answer was cut before its end."
        return "Your last answer was not the JSON object asked for. Answer with nothing else."


def _refusal(query: str, problems: list[Problem]) -> list[dict[str, str]]:
    why = "; ".join(problem.detail for problem in problems)
    return [
        {"role": "assistant", "content": json.dumps({"query": query}, ensure_ascii=False)},
        {
            "role": "user",
            "content": f"It was refused because {why}. Write another one without "
            "this fault, as a JSON object of the same form.",
        },
    ]


def _count(outcome: Outcome, kind: str) -> None:
    outcome.problems = dict(Counter(outcome.problems) + Counter([kind]))


def _cut(text: str, limit: int) -> tuple[str, bool]:
    """The text, or its beginning up to a space near the limit."""
    if len(text) <= limit:
        return text, False
    end = text.rfind(" ", limit * 9 // 10, limit)
    return text[: end if end > 0 else limit].rstrip() + " […]", True

"""Asking a language model about candidates: from a pool to requests, and back to positions."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.llm import ChatRequest
from obliq_hf.reranking.candidates import TextBudget
from obliq_hf.reranking.logprobs import MOST, letter, order_from_logprobs
from obliq_hf.reranking.parser import parse_ranking
from obliq_hf.reranking.prompt_file import (
    ANSWERS,
    JOBS,
    complete,
    fill,
    load_prompt,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.llm import ChatAnswer
    from obliq_hf.reranking.values import Pool, Tally
    from obliq_hf.tasks import ObliqTask

__all__ = ["Asking", "Questions", "offered_texts", "query_of", "stable_seed"]

_LIKE_IDENTIFIER = re.compile(r"\[(\s*(?:[0-9]{1,3}|[A-Z])\s*)\]")
_HEADER = re.compile(r"^\[(?:[0-9]{1,3}|[A-Z])\]\n", re.MULTILINE)
_QUERY = re.compile(r"<query>\n(.*?)\n</query>", re.DOTALL)
_TOKENS_PER_IDENTIFIER = 8
_NUMBERS = [str(i + 1) for i in range(32)]
_LETTERS = [letter(i) for i in range(MOST)]
_END = "<end of candidates>"


def stable_seed(*parts: object) -> int:
    """A number from 0 to 2**32 - 1 that depends on the parts alone."""
    return zlib.crc32("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Asking:
    """How rerankers ask.

    Attributes:
        prompt: ``task`` (names the latent attribute and what to ignore), ``generic``, or the path
            of a prompt file.
        answer: ``text`` (identifiers in brackets), ``schema`` (a JSON object that the server
            enforces) or ``logprobs`` (one letter, ordered by log-probability; 20 documents at
            most).
        documents: Budget of a candidate's text; None shows it whole.
        query: Budget of the query's text; None shows it whole.
        temperature: 0 is greedy.
        thinking_tokens: Room for thinking before the answer, in tokens.

    Raises:
        ObliqError: An unknown prompt or form of answer.
    """

    prompt: str = "task"
    answer: str = "text"
    documents: TextBudget | None = field(default_factory=TextBudget)
    query: TextBudget | None = field(default_factory=lambda: TextBudget(1536))
    temperature: float = 0.0
    thinking_tokens: int = 0

    def __post_init__(self) -> None:
        load_prompt(self.prompt)
        if self.answer not in ANSWERS:
            raise ObliqError(f"answer is {self.answer!r}{nearest(self.answer, ANSWERS)}")
        if self.thinking_tokens < 0:
            raise ObliqError(f"thinking_tokens is {self.thinking_tokens}; it must not be negative")

    @property
    def identity(self) -> dict[str, Any]:
        """What, beside task, query and candidates, decides a request."""
        return {
            "prompt": load_prompt(self.prompt).fingerprint,
            "answer": self.answer,
            "documents": self.documents.identity if self.documents else None,
            "query": self.query.identity if self.query else None,
            "temperature": self.temperature,
            "thinking_tokens": self.thinking_tokens,
        }

    @classmethod
    def from_identity(cls, identity: Mapping[str, Any], *, source: str = "asking") -> Asking:
        """How was asked, from what :attr:`identity` keeps of it; tokenisers are loaded.

        The prompt and the form of answer are not taken from it: a reranker's own settings say
        them.

        Raises:
            ObliqError: Values of another kind, or a tokeniser that is not there; the message
                starts with ``source``.
        """
        try:
            budgets: dict[str, Any] = {
                key: None if identity[key] is None else TextBudget.from_identity(identity[key])
                for key in ("documents", "query")
                if key in identity
            }
            return cls(
                **budgets,
                temperature=float(identity.get("temperature", 0.0)),
                thinking_tokens=int(identity.get("thinking_tokens", 0)),
            )
        except ObliqError as error:
            raise ObliqError(f"{source}: {error}") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ObliqError(f"{source}: not settings of questions: {error}") from error

    def answer_tokens(self, wanted: int) -> int:
        """Longest answer: room for every identifier asked for, and for the thinking."""
        if self.answer == "logprobs":
            return 4 + self.thinking_tokens
        return 24 + _TOKENS_PER_IDENTIFIER * wanted + self.thinking_tokens

    def wanted(self, request: ChatRequest) -> int:
        """How many documents a request asks to be named, by the room it leaves for them."""
        if self.answer == "logprobs":
            return 1
        return (request.max_tokens - self.answer_tokens(0)) // _TOKENS_PER_IDENTIFIER


class Questions:
    """The questions about one pool; each candidate's text is prepared once.

    Args:
        asking: How to ask.
        pool: The candidates.
        task: What decides relevance.
        purpose: Label for the accounting.
    """

    def __init__(self, asking: Asking, pool: Pool, task: ObliqTask, *, purpose: str) -> None:
        self.asking = asking
        self.pool = pool
        self.purpose = purpose
        self._prompt = load_prompt(asking.prompt)
        self._values = self._prompt.task_values(task)
        self._values["query"] = _shown(pool.query, asking.query).replace("</query>", "</ query>")
        self._texts = [_shown(candidate.text, asking.documents) for candidate in pool.candidates]
        self._jobs = {job: prepare(self._prompt.jobs[job], self._values) for job in JOBS}
        self._answers: dict[tuple[str, int, int], str] = {}

    def ask(
        self,
        identifier: str,
        positions: Sequence[int],
        *,
        picks: int | None = None,
        seed: int | None = None,
    ) -> ChatRequest:
        """One question about some candidates, in the order shown.

        Args:
            identifier: The request's id.
            positions: Which candidates.
            picks: Choose so many; None orders all.
            seed: Seed of the sampling; not sent where the temperature is 0.

        Raises:
            ObliqError: More candidates than one token's alternatives can tell apart.
        """
        asking, letters = self.asking, self.asking.answer == "logprobs"
        if letters and len(positions) > MOST:
            raise ObliqError(
                f"answers by log-probability tell {MOST} documents apart, not {len(positions)}; "
                "use smaller groups or windows"
            )
        job = "rank" if picks is None else "select"
        texts, names = self._texts, _LETTERS if letters else _NUMBERS
        if len(positions) > len(names):
            names = [str(i + 1) for i in range(len(positions))]
        shown = "\n\n".join(
            [f"[{name}]\n{texts[p]}" for name, p in zip(names, positions, strict=False)]
        )
        wanted = len(positions) if picks is None else picks
        values = {
            "documents": f"{shown}\n{_END}",
            "count": str(len(positions)),
            "picks": str(wanted),
            "answer": self._how(job, len(positions), wanted),
        }
        return ChatRequest(
            id=identifier,
            messages=[
                {"role": "system", "content": self._prompt.system},
                {"role": "user", "content": complete(self._jobs[job], values)},
            ],
            max_tokens=asking.answer_tokens(wanted),
            temperature=asking.temperature,
            seed=seed if asking.temperature > 0 else None,
            schema=_schema(len(positions), wanted) if asking.answer == "schema" else None,
            logprobs=MOST if letters else None,
            purpose=self.purpose,
        )

    def _how(self, job: str, count: int, picks: int) -> str:
        """The sentence that says how to answer."""
        key = (job, count, picks)
        if key not in self._answers:
            values = {**self._values, "count": str(count), "picks": str(picks)}
            template = self._prompt.answers[f"{job}-{self.asking.answer}"]
            self._answers[key] = fill(template, values)
        return self._answers[key]

    def read(
        self, answer: ChatAnswer, positions: Sequence[int], wanted: int, tally: Tally
    ) -> list[int]:
        """The candidates an answer names, best first, and never another; its faults are counted.

        Args:
            answer: The answer to :meth:`ask`.
            positions: The candidates shown, in their order.
            wanted: How many were asked for.
            tally: Where faults are counted.

        Returns:
            At most ``wanted`` of ``positions``; empty where the answer cannot be used.
        """
        if answer.error is not None:
            return []
        if self.asking.answer == "logprobs":
            order = order_from_logprobs(answer.logprobs, len(positions))
            if order is not None:
                return [positions[i] for i in order[:wanted]]
        parsed = parse_ranking(
            answer.text,
            offered=len(positions),
            wanted=1 if self.asking.answer == "logprobs" else wanted,
            cut=answer.truncated,
            declined=answer.finish_reason == "content_filter",
            letters=self.asking.answer == "logprobs",
        )
        tally.faults.update(parsed.faults)
        return [positions[i] for i in parsed.order[:wanted]]


def _shown(text: str, budget: TextBudget | None) -> str:
    """A text as a prompt shows it: cut, nothing in it that looks like an identifier."""
    cut = (text if budget is None else budget.cut(text)).strip()
    return _LIKE_IDENTIFIER.sub(r"(\1)", cut).replace(_END, "") or "(empty)"


def _schema(offered: int, wanted: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "ranking": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": offered},
                "minItems": wanted,
                "maxItems": wanted,
            }
        },
        "required": ["ranking"],
        "additionalProperties": False,
    }


def offered_texts(request: ChatRequest) -> list[str]:
    """The candidates' texts as a request of :class:`Questions` shows them, in order."""
    content = request.messages[-1]["content"]
    _, _, after = content.partition("</query>")
    shown = after.partition(f"\n{_END}")[0]
    return [part.strip() for part in _HEADER.split(shown)[1:]]


def query_of(request: ChatRequest) -> str:
    """The query's text as a request of :class:`Questions` shows it."""
    found = _QUERY.search(request.messages[-1]["content"])
    return found.group(1) if found else ""

"""The values of reranking: candidates, pools, rankings, and what they cost."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from obliq_hf.llm import ChatAnswer

__all__ = ["Candidate", "Pool", "Ranking", "Tally", "permutation"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that a first stage found.

    Attributes:
        id: Its id.
        text: Title and text, joined as they were searched.
        score: The first stage's score.
    """

    id: str
    text: str
    score: float = 0.0


@dataclass(frozen=True)
class Pool:
    """A query and its candidates, best of the first stage first.

    Rerankers speak of candidates by position: 0 is the first stage's best.

    Raises:
        ObliqError: An id or a text that is not a string, or a document that stands twice.
    """

    query_id: str
    query: str
    candidates: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(self.candidates))
        if not isinstance(self.query_id, str) or not isinstance(self.query, str):
            raise ObliqError(f"query {self.query_id!r}: its id and its text must be strings")
        for candidate in self.candidates:
            if not isinstance(candidate.id, str) or not isinstance(candidate.text, str):
                raise ObliqError(
                    f"query {self.query_id!r}, candidate {candidate.id!r}: id and text must be "
                    f"strings, not {type(candidate.id).__name__} and "
                    f"{type(candidate.text).__name__}"
                )
        if len({candidate.id for candidate in self.candidates}) != len(self.candidates):
            counts = Counter(candidate.id for candidate in self.candidates)
            twice = [document for document, n in counts.items() if n > 1][:3]
            raise ObliqError(f"query {self.query_id!r}: candidates that stand twice: {twice}")

    def __len__(self) -> int:
        return len(self.candidates)

    def select(self, positions: Iterable[int]) -> Pool:
        """The same query with the candidates of these positions, in that order."""
        return Pool(self.query_id, self.query, tuple(self.candidates[p] for p in positions))


@dataclass
class Tally:
    """What reranking took and what went wrong on the way.

    Attributes:
        requests: Questions asked, answered from a cache or not.
        cached: Of these, answered from a cache.
        calls: Calls made, repeated attempts included.
        rounds: Batches of questions that had to wait for one another.
        prompt_tokens: Prompt tokens of all answers; those of cached ones were paid for earlier.
        completion_tokens: Likewise, tokens written.
        seconds: Summed over all calls, which ran side by side.
        latency: Summed over rounds, the longest call of each: the time with unlimited slots.
        errors: Kind of error -> failed requests.
        faults: Class of malformed answer -> answers; see :mod:`obliq_hf.reranking.parser`.
        filled: Places that an answer left open and the first-stage order filled.
        spared: Calls that an early stop made unnecessary.
        repaired: Rankings of a reranker that were no permutation.
        withheld: Candidates that were the query's own text and shown to no reranker.
    """

    requests: int = 0
    cached: int = 0
    calls: int = 0
    rounds: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    latency: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    filled: int = 0
    spared: int = 0
    repaired: int = 0
    withheld: int = 0

    def take(self, answers: Iterable[ChatAnswer]) -> None:
        """Count the answers of one round."""
        longest = 0.0
        for answer in answers:
            self.requests += 1
            self.cached += answer.cached
            self.calls += answer.attempts
            self.prompt_tokens += answer.prompt_tokens
            self.completion_tokens += answer.completion_tokens
            self.seconds += answer.seconds
            longest = max(longest, answer.seconds)
            if answer.error_kind is not None:
                self.errors[answer.error_kind] += 1
        self.latency += longest
        self.rounds += 1

    def add(self, other: Tally, *, side_by_side: bool = False) -> None:
        """Add what another part took, after this one or side by side with it."""
        for name in ("requests", "cached", "calls", "prompt_tokens", "completion_tokens",
                     "filled", "spared", "repaired", "withheld"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds += other.seconds
        self.errors.update(other.errors)
        self.faults.update(other.faults)
        if side_by_side:
            self.rounds = max(self.rounds, other.rounds)
            self.latency = max(self.latency, other.latency)
        else:
            self.rounds += other.rounds
            self.latency += other.latency

    def as_dict(self) -> dict[str, Any]:
        """Plain values; seconds rounded to milliseconds, counters sorted."""
        values = dict(vars(self))
        for name in ("seconds", "latency"):
            values[name] = round(values[name], 3)
        for name in ("errors", "faults"):
            values[name] = dict(sorted(values[name].items()))
        return values


@dataclass(frozen=True)
class Ranking:
    """The order a reranker gives to a pool.

    Attributes:
        order: Positions of the candidates, best first.
        scores: A score per position, higher is better; None where there is only an order.
        tally: What it took.
        failed: Nothing usable was answered, so that the order is the first stage's.
        parts: Name of a step -> what it took, for rerankers made of several.
        details: What else a reranker wants known.
    """

    order: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    tally: Tally = field(default_factory=Tally)
    failed: bool = False
    parts: Mapping[str, Tally] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def first_stage(cls, size: int, *, tally: Tally | None = None, failed: bool = False) -> Ranking:
        """The order as it came."""
        return cls(tuple(range(size)), tally=tally or Tally(), failed=failed)


def permutation(order: Sequence[int], size: int) -> tuple[tuple[int, ...], bool]:
    """Make any sequence of positions a permutation.

    Args:
        order: Positions, best first; integers of any kind, numpy's among them. What is no integer,
            a truth value for one, is no position.
        size: Number of candidates.

    Returns:
        The positions that exist, each where it stands first, then the missing ones in first-stage
        order; and whether anything had to be repaired.
    """
    seen: dict[int, None] = {}
    for named in order:
        position = _index(named)
        if position is not None and 0 <= position < size:
            seen.setdefault(position)
    repaired = len(seen) != size or len(order) != size
    if repaired:
        for position in range(size):
            seen.setdefault(position)
    return tuple(seen), repaired


def _index(value: Any) -> int | None:
    """A value as a position; None where it is no integer."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None

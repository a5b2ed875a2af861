"""What calls to a language model cost: counts, tokens, seconds, money; and a budget for them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from obliq_hf.llm.chat import ChatAnswer, ChatRequest

__all__ = ["Accounting", "Budget", "Price", "Usage"]


@dataclass(frozen=True)
class Price:
    """What a million tokens cost, in whatever currency the budget is in.

    Args:
        prompt: For a million prompt tokens.
        completion: For a million completion tokens.
    """

    prompt: float = 0.0
    completion: float = 0.0

    @property
    def stated(self) -> bool:
        """Whether there is a price at all; without one nothing can be said of the cost."""
        return bool(self.prompt or self.completion)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Money for so many tokens."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass(frozen=True)
class Budget:
    """Limits to what is asked; None is no limit.

    A call is made only if it fits at its largest size: the prompt's by its bytes, the answer's by
    `max_tokens`. So the limits hold as far as the server keeps to `max_tokens`.

    Args:
        calls: Largest number of calls.
        tokens: Largest number of tokens, prompt and completion together.
        cost: Most money; needs a :class:`Price`.
    """

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "cost"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ObliqError(f"budget: {name} is {value}; it must not be negative")


@dataclass
class Usage:
    """Totals over answers.

    Attributes:
        requests: Requests answered, whether well or not.
        cached: Of these, from the cache.
        calls: Calls made, repeated attempts included.
        failed: Requests whose answer is an error, by kind in :attr:`errors`.
        truncated: Answers cut at `max_tokens`.
        prompt_tokens: Prompt tokens of all calls, failed attempts included.
        completion_tokens: Completion tokens of all calls.
        seconds: Summed over calls that ran side by side, so more than the wall time.
    """

    requests: int = 0
    cached: int = 0
    calls: int = 0
    failed: int = 0
    truncated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def add(self, answer: ChatAnswer) -> None:
        """Count one answer; tokens of a cached one were paid for earlier and are not counted."""
        self.requests += 1
        self.failed += answer.error is not None
        self.truncated += answer.truncated
        if answer.cached:
            self.cached += 1
            return
        self.calls += answer.attempts
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.seconds += answer.seconds


class Accounting:
    """Running totals of one client, in all and by purpose; may be read at any time.

    Args:
        price: Gives :attr:`cost` its meaning; without it the cost is 0.
    """

    def __init__(self, price: Price | None = None) -> None:
        self.price = price or Price()
        self.total = Usage()
        self.by_purpose: dict[str, Usage] = {}
        self.errors: Counter[str] = Counter()
        self._lock = threading.Lock()

    def record(self, request: ChatRequest, answer: ChatAnswer) -> None:
        """Count the answer to a request."""
        with self._lock:
            self.total.add(answer)
            self.by_purpose.setdefault(request.purpose, Usage()).add(answer)
            if answer.error_kind is not None:
                self.errors[answer.error_kind] += 1

    @property
    def cost(self) -> float:
        """Money spent so far."""
        return self.price.cost(self.total.prompt_tokens, self.total.completion_tokens)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for reports; seconds rounded to milliseconds."""

        def plain(usage: Usage) -> dict[str, Any]:
            return {**vars(usage), "seconds": round(usage.seconds, 3)}

        with self._lock:
            return {
                **plain(self.total),
                "cost": round(
                    self.price.cost(self.total.prompt_tokens, self.total.completion_tokens), 6
                ),
                "errors": dict(sorted(self.errors.items())),
                "by_purpose": {k: plain(v) for k, v in sorted(self.by_purpose.items())},
            }


class Ledger:
    """Enforces a budget over calls that run side by side: reserve before, settle after.

    A call is admitted only if what is spent, what is reserved by calls under way, and its own
    upper bound fit the budget, so the budget holds however many calls run at once.

    Args:
        budget: The limits.
        price: For the limit in money.

    Raises:
        ObliqError: A limit in money without a price.
    """

    def __init__(self, budget: Budget, price: Price) -> None:
        if budget.cost is not None and not price.stated:
            raise ObliqError("a budget in money needs the price of a million tokens")
        self.budget = budget
        self.price = price
        self.calls = 0
        self._spent = (0, 0)
        self._reserved = (0, 0)

    def reserve(self, prompt_tokens: int, completion_tokens: int) -> str | None:
        """Admit a call with these upper bounds; else say which limit forbids it.

        A call that is refused beside those under way may have room once they are settled, see
        :meth:`may_fit_later`.
        """
        ahead_in = self._spent[0] + self._reserved[0] + prompt_tokens
        ahead_out = self._spent[1] + self._reserved[1] + completion_tokens
        limits = self.budget
        if limits.calls is not None and self.calls + 1 > limits.calls:
            return f"the budget of {limits.calls} calls is spent"
        if limits.tokens is not None and ahead_in + ahead_out > limits.tokens:
            return f"the budget of {limits.tokens} tokens has no room for this call"
        if limits.cost is not None and self.price.cost(ahead_in, ahead_out) > limits.cost:
            return f"the budget of {limits.cost} has no room for this call"
        self.calls += 1
        self._reserved = (self._reserved[0] + prompt_tokens, self._reserved[1] + completion_tokens)
        return None

    def may_fit_later(self, prompt_tokens: int, completion_tokens: int) -> bool:
        """Whether only what calls under way have reserved stands against a call of this size."""
        limits, alone_in = self.budget, self._spent[0] + prompt_tokens
        alone_out = self._spent[1] + completion_tokens
        return (
            any(self._reserved)
            and (limits.calls is None or self.calls < limits.calls)
            and (limits.tokens is None or alone_in + alone_out <= limits.tokens)
            and (limits.cost is None or self.price.cost(alone_in, alone_out) <= limits.cost)
        )

    def settle(self, reserved: tuple[int, int], spent: tuple[int, int]) -> None:
        """Replace a reservation by what the call took; by itself where nobody knows that."""
        self._reserved = (self._reserved[0] - reserved[0], self._reserved[1] - reserved[1])
        self._spent = (self._spent[0] + spent[0], self._spent[1] + spent[1])

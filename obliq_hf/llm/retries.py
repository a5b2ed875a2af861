"""What went wrong with a call, whether asking again can help, and how long to wait before it."""

from __future__ import annotations

import email.utils
import re
import time
import zlib
from dataclasses import dataclass
from typing import Literal

from obliq_hf.errors import ObliqError

__all__ = [
    "Fault",
    "RetryPolicy",
    "fault_of",
    "redact",
    "spread",
    "status_fault",
    "transport_errors",
]

_FATAL = {
    401: "it refused the key",
    402: "it asks for payment",
    403: "it refused access",
    404: "it knows no such model or path",
}
_AGAIN = {408, 409, 425, 500, 502, 504, 520, 521, 522, 523, 524, 529}
_TOO_LONG = re.compile(
    r"(context|prompt|input|sequence|maximum|token)[^.]{0,80}"
    r"(length|long|limit|exceed|maximum|window)",
    re.IGNORECASE,
)
_SECRETS = re.compile(r"(?:hf_|sk-|gsk_|api_org_)[A-Za-z0-9_\-]{8,}|(?<=Bearer )\S+", re.IGNORECASE)


@dataclass(frozen=True)
class RetryPolicy:
    """How a failed call is repeated. A server that is down or busy is waited for by the clock.

    Args:
        attempts: Calls a request gets where the server answers wrongly (500, timeout, empty).
        first_wait: Seconds before the second call; doubled each time, spread by a quarter.
        max_wait: Longest wait between two calls, in seconds.
        patience: Seconds without any answer from a server that is down or busy before giving up.
        first_patience: The same while the server has never answered: the address may be wrong.
    """

    attempts: int = 6
    first_wait: float = 0.5
    max_wait: float = 30.0
    patience: float = 300.0
    first_patience: float = 20.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ObliqError(f"retry policy: attempts is {self.attempts}; at least 1")
        for name in ("first_wait", "max_wait", "patience", "first_patience"):
            if getattr(self, name) < 0:
                raise ObliqError(f"retry policy: {name} is negative")

    def wait(self, attempt: int) -> float:
        """Seconds to wait after this many attempts."""
        return min(self.max_wait, self.first_wait * 2.0 ** min(attempt - 1, 30))


@dataclass(frozen=True)
class Fault:
    """A failed call.

    Attributes:
        kind: The class of error, as in :attr:`obliq_hf.llm.chat.ChatAnswer.error`.
        detail: For people; without secrets.
        final: Asking again cannot help this request.
        fatal: Asking anything cannot help.
        outage: `"down"` or `"busy"` where the server as a whole does not answer.
        retry_after: Seconds the server asked to wait.
        finish_reason: Of an answer that could not be taken.
        thinking: Of an answer without text.
    """

    kind: str
    detail: str
    final: bool = False
    fatal: bool = False
    outage: Literal["", "down", "busy"] = ""
    retry_after: float | None = None
    finish_reason: str | None = None
    thinking: str | None = None

    @property
    def refused(self) -> bool:
        """Whether nothing was generated; else (a time limit, a lost connection) nobody knows."""
        return self.final or self.fatal or bool(self.outage)


def spread(request_id: str, attempt: int) -> float:
    """A factor in 0.75..1.25, the same for the same request and attempt."""
    return 0.75 + (zlib.crc32(f"{request_id}/{attempt}".encode()) % 1000) / 2000


def redact(text: str, secret: str | None = None) -> str:
    """`text` without the given secret and without anything that looks like a token."""
    if secret:
        text = text.replace(secret, "[secret]")
    return _SECRETS.sub("[secret]", text)


def transport_errors() -> tuple[type[Exception], ...]:
    """The exceptions a call over HTTP may end in: transport, status, and a body of wrong form."""
    import httpx2

    return (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError, TypeError, KeyError)


def fault_of(error: Exception, secret: str | None = None) -> Fault:
    """Sort an exception of :func:`transport_errors` into a fault.

    Args:
        error: What the call raised.
        secret: A key that must not appear in the detail.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        response = error.response
        said = redact(str(error.server_message or response.text or "").strip(), secret)
        after = _retry_after(response.headers.get("retry-after"))
        return status_fault(response.status_code, said, retry_after=after)
    if isinstance(error, OfflineModeIsEnabled):
        return Fault("offline", "HF_HUB_OFFLINE is set: the Hub cannot be asked", fatal=True)
    cause = error.__cause__ if isinstance(error.__cause__, httpx2.TimeoutException) else error
    if isinstance(cause, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        return Fault("connection", redact(str(cause) or "refused", secret), outage="down")
    if isinstance(cause, (httpx2.TimeoutException, TimeoutError)):
        return Fault("timeout", "no answer within the time limit")
    if isinstance(cause, (httpx2.HTTPError, httpx2.StreamError, OSError)):
        return Fault("connection", redact(str(cause) or type(cause).__name__, secret))
    return Fault("malformed", redact(f"the server's reply is no chat completion ({error})", secret))


def status_fault(status: int, said: str, *, retry_after: float | None = None) -> Fault:
    """Sort an HTTP status that is no success, of a server's reply or of a batch's, into a fault.

    Args:
        status: The status.
        said: What the server said; without secrets.
        retry_after: Seconds the server asked to wait.
    """
    said = " ".join(said.split())[:300]
    kind = f"http-{status}"
    if status in _FATAL:
        return Fault(kind, f"{_FATAL[status]} (HTTP {status}: {said})", final=True, fatal=True)
    if status in (429, 503):
        return Fault(kind, said or "busy", outage="busy", retry_after=retry_after)
    if status in _AGAIN or status >= 500:
        return Fault(kind, said or "server error", retry_after=retry_after)
    if status in (400, 413, 422) and (status == 413 or _TOO_LONG.search(said)):
        return Fault("too-long", said or "the request is too long", final=True)
    return Fault(kind, said or "refused", final=True)


def _retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which holds seconds or a date; None if unreadable."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None

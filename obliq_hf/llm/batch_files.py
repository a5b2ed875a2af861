"""Batch files: requests written to a JSONL file, answered elsewhere, read back on the next run.

The format is OpenAI's batch format, which `vllm run-batch` and hosted batch services read: a line
has `custom_id`, `method`, `url` and `body`; a line of answers has `custom_id` and `response`, with
`status_code` and `body`. A stage goes as far as it can, writes all it still wants to ask, and stops
with :class:`obliq_hf.llm.BatchPending`, whose message says what to do. Once answers are in the
folder, the same command goes on; requests without an answer, or with one that is in error or has no
text, are asked again. An error that asking again cannot help, such as a prompt that is too long or
a refused request, is the answer at once; without its line the request is asked anew.

A `custom_id` is the hash of the request, so answers are matched whatever the order, and answers to
requests that have changed since are not mistaken for others.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.files import atomic_path
from obliq_hf.llm.accounting import Accounting, Price
from obliq_hf.llm.chat import ChatAnswer, ChatRequest, SessionClient, request_key
from obliq_hf.llm.completions import STRUCTURED, completion_body, read_completion
from obliq_hf.llm.retries import Fault, redact, status_fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import TextIO

    from obliq_hf.llm.chat import ChatSession

__all__ = ["BatchFileClient"]

logger = logging.getLogger(__name__)

_ANY = ChatRequest("any", [{"role": "user", "content": ""}])
"""Whether an answer can be used does not depend on what was asked."""


class BatchFileClient(SessionClient):
    """Asks through files in a folder.

    Args:
        folder: Where `requests-0001.jsonl`, ... are written and `answers*.jsonl` are read.
        model: The model's name, written into every request.
        revision: Commit or tag of the weights, where known; part of the cache key.
        structured: How a schema is asked for; see
            :class:`obliq_hf.llm.endpoint.EndpointClient`.
        extra_body: Further fields of every request's body; part of the cache key.
        price: Of a million tokens, for the accounting.
        give_up_after: After this many answers in error or without text a request counts as failed,
            where asking again could help.

    Raises:
        ObliqError: A setting that is not valid.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: str,
        revision: str | None = None,
        structured: str = "response_format",
        extra_body: Mapping[str, Any] | None = None,
        price: Price | None = None,
        give_up_after: int = 3,
    ) -> None:
        if not model:
            raise ObliqError("name the model the batch is for")
        if structured not in STRUCTURED:
            raise ObliqError(f"structured is {structured!r}; valid: {', '.join(STRUCTURED)}")
        self.folder = Path(folder)
        self.model = model
        self.revision = revision
        self.structured = structured
        self.extra_body = dict(extra_body or {})
        self.give_up_after = give_up_after
        self.accounting = Accounting(price)

    @property
    def identity(self) -> dict[str, Any]:
        """As that of an endpoint, so that both share a cache."""
        extra = {"extra_body": self.extra_body} if self.extra_body else {}
        form = {} if self.structured == "response_format" else {"structured": self.structured}
        return {"model": self.model, "revision": self.revision, **extra, **form}

    def open(self) -> ChatSession:
        """Start a session: read which answers there are, and be ready to write requests."""
        return _BatchSession(self)

    def custom_id(self, request: ChatRequest) -> str:
        """The id a request has in batch files."""
        return f"obliq-{request_key(self.identity, request)[:48]}"

    def line(self, request: ChatRequest) -> dict[str, Any]:
        """A request as a line of a batch file."""
        body = completion_body(request, structured=self.structured)
        return {
            "custom_id": self.custom_id(request),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": self.model, **body, **self.extra_body},
        }


class _Answers:
    """Where in the folder's answer files each id's answers stand: good, final faults, the rest."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("answers*.jsonl"))
        self._good: dict[str, tuple[int, int]] = {}
        self._final: dict[str, tuple[int, int]] = {}
        self._bad: dict[str, list[tuple[int, int]]] = {}
        for number, file in enumerate(self._files):
            unreadable = 0
            for offset, row in _rows(file):
                identifier = row.get("custom_id") if row is not None else None
                if row is None or not isinstance(identifier, str):
                    unreadable += 1
                    continue
                answer, _, fault = _read_answer(_ANY, row)
                if answer is not None:
                    self._good.setdefault(identifier, (number, offset))
                elif fault is not None and fault.final:
                    self._final.setdefault(identifier, (number, offset))
                else:
                    self._bad.setdefault(identifier, []).append((number, offset))
            if unreadable:
                logger.warning(
                    "%s: %d lines are not answers (cut or damaged) and are asked again",
                    file,
                    unreadable,
                )

    def of(self, identifier: str, request: ChatRequest, give_up_after: int) -> ChatAnswer | None:
        """The answer to a request; None where it is to be asked (again).

        Tokens of answers that could not be used are part of it.
        """
        decisive = [held[identifier] for held in (self._final, self._good) if identifier in held]
        places = [*self._bad.get(identifier, []), *decisive]
        if not decisive and len(places) < give_up_after:
            return None
        read = [_read_answer(request, self._read(at)) for at in places]
        answer, _, fault = read[-1]
        error = None if fault is None else f"{fault.kind}: {fault.detail}"
        return replace(
            answer or ChatAnswer(request.id, error=error),
            attempts=len(read),
            prompt_tokens=sum(paid[0] for _, paid, _ in read),
            completion_tokens=sum(paid[1] for _, paid, _ in read),
        )

    def _read(self, at: tuple[int, int]) -> dict[str, Any]:
        with self._files[at[0]].open("rb") as stream:
            stream.seek(at[1])
            row: dict[str, Any] = json.loads(stream.readline())
        return row


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Offset and object of every line that is not blank; None for one that is not readable."""
    offset = 0
    with file.open("rb") as stream:
        for line in stream:
            start, offset = offset, offset + len(line)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            yield start, row if isinstance(row, dict) else None


def _read_answer(
    request: ChatRequest, row: Mapping[str, Any]
) -> tuple[ChatAnswer | None, tuple[int, int], Fault | None]:
    """A line's answer or None; prompt and completion tokens; the fault for want of an answer."""
    response = row.get("response")
    response = response if isinstance(response, dict) else {}
    body, status = response.get("body"), response.get("status_code")
    if row.get("error") or status not in (None, 200) or not isinstance(body, dict):
        said = redact(_said(row.get("error") or body or "no reason given"))
        if isinstance(status, int) and status >= 400:
            return None, (0, 0), status_fault(status, said)
        kind = f"http-{status}" if status else "http-unknown"
        return None, (0, 0), Fault(kind, " ".join(said.split())[:300])
    return read_completion(request, body)


def _said(error: Any) -> str:
    """The message of an error, which services nest differently; else all of it."""
    while isinstance(error, dict) and (inner := error.get("error") or error.get("message")):
        error = inner
    return error if isinstance(error, str) else json.dumps(error)


class _BatchSession:
    def __init__(self, owner: BatchFileClient) -> None:
        self._owner = owner
        owner.folder.mkdir(parents=True, exist_ok=True)
        self._answers = _Answers(owner.folder)
        self._ready: list[tuple[ChatRequest, ChatAnswer]] = []
        self._written: set[str] = set()
        self._target = _next_file(owner.folder)
        self._context: AbstractContextManager[Path] | None = None
        self._stream: TextIO | None = None

    @property
    def pending(self) -> int:
        return len(self._ready)

    @property
    def capacity(self) -> int:
        return 1000

    def submit(self, request: ChatRequest) -> None:
        identifier = self._owner.custom_id(request)
        answer = self._answers.of(identifier, request, self._owner.give_up_after)
        if answer is None:
            self._write(identifier, request)
            answer = ChatAnswer(request.id, error=f"pending: {self._instruction()}")
        self._ready.append((request, answer))

    def wait(self) -> list[ChatAnswer]:
        ready, self._ready = self._ready, []
        for request, answer in ready:
            if answer.error_kind != "pending":
                self._owner.accounting.record(request, answer)
        return [answer for _, answer in ready]

    def _write(self, identifier: str, request: ChatRequest) -> None:
        if identifier in self._written:
            return
        self._written.add(identifier)
        if self._stream is None:
            self._context = atomic_path(self._target)
            temporary = self._context.__enter__()
            self._stream = temporary.open("w", encoding="utf-8", newline="\n")
        self._stream.write(json.dumps(self._owner.line(request), ensure_ascii=False) + "\n")

    def _instruction(self) -> str:
        answers = self._target.name.replace("requests", "answers", 1)
        return (
            f"{len(self._written)} requests are in {self._target}. Have them answered, for example "
            f"with `vllm run-batch -i {self._target.name} -o {answers} --model {self._owner.model}`"
            f" or by a batch service, put the answers beside them as {answers}, then run the same "
            "command again"
        )

    def close(self) -> None:
        """Put the requests file in its place; nothing is written where nothing is wanted."""
        if self._stream is not None and self._context is not None:
            self._stream.close()
            self._context.__exit__(None, None, None)
            self._stream = self._context = None


def _next_file(folder: Path) -> Path:
    """The first requests file that has no answers beside it; one never answered is replaced."""
    number = 1
    while (folder / f"answers-{number:04d}.jsonl").exists():
        number += 1
    return folder / f"requests-{number:04d}.jsonl"

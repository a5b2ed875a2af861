"""Candidate texts: from a run to pools, and cut to a budget of tokens.

Which part of a long text is kept:

========  =======================================================================================
`head`    the beginning
`ends`    two thirds from the beginning, one third from the end; the middle is dropped
`middle`  the middle; both ends are dropped
========  =======================================================================================

What is dropped is marked by an ellipsis in brackets, which counts.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.records import clean_text
from obliq_hf.reranking.values import Candidate, Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from obliq_hf.search.runs import Run

__all__ = ["KEEP", "EstimatedTokens", "ModelTokens", "TextBudget", "Tokens", "pools_from_run"]

logger = logging.getLogger(__name__)

KEEP = ("head", "ends", "middle")
"""Parts of a long text that can be kept."""

_MARK = " […] "
_CHARACTERS_PER_TOKEN = 16
_REMEMBERED = 100_000
_UNSTATED = "unstated"
_PIECE = re.compile(r"[\x00-\x7f]{1,3}|[^\x00-\x7f]")


class Tokens(Protocol):
    """Where a text's tokens lie."""

    @property
    def name(self) -> str:
        """What the tokens are of; part of what decides a request."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """First and last character + 1 of every token, in order; no special tokens."""


class EstimatedTokens:
    """A cautious estimate without a tokeniser: three ASCII characters, or one other, a token."""

    name = "estimated"

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See :class:`Tokens`."""
        return [match.span() for match in _PIECE.finditer(text)]


class ModelTokens:
    """The tokens of a model's own tokeniser.

    Args:
        name_or_path: A model or tokeniser on the Hub or in a folder.
        revision: Its revision on the Hub.

    Raises:
        ObliqError: There is none, or it cannot say where its tokens lie.
    """

    def __init__(self, name_or_path: str, *, revision: str | None = None) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(
                name_or_path, revision=revision, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise ObliqError(f"no tokeniser at {name_or_path!r}: {error}") from error
        if not self._tokenizer.is_fast:
            raise ObliqError(
                f"the tokeniser of {name_or_path!r} cannot say where its tokens lie; a fast "
                "tokeniser (tokenizer.json) is needed"
            )
        self._tokenizer.model_max_length = 10**9
        self.name = f"{name_or_path}@{revision or _UNSTATED}"

    @classmethod
    def named(cls, name: str) -> Tokens:
        """The tokens of a :attr:`Tokens.name`, the estimate's among them."""
        if name == EstimatedTokens.name:
            return EstimatedTokens()
        model, _, revision = name.rpartition("@")
        return cls(model or revision, revision=None if revision == _UNSTATED else revision or None)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See :class:`Tokens`."""
        encoded = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return [(start, end) for start, end in encoded["offset_mapping"]]


@dataclass
class TextBudget:
    """Cuts texts to a number of tokens.

    Args:
        tokens: Most tokens of a text.
        keep: One of :data:`KEEP`.
        tokenizer: Whose tokens; by default an estimate.

    Raises:
        ObliqError: A budget below 8 tokens, or an unknown part.
    """

    tokens: int = 512
    keep: str = "ends"
    tokenizer: Tokens = field(default_factory=EstimatedTokens)

    def __post_init__(self) -> None:
        if self.tokens < 8:
            raise ObliqError(f"a text budget of {self.tokens} tokens is too small; at least 8")
        if self.keep not in KEEP:
            raise ObliqError(f"keep is {self.keep!r}{nearest(self.keep, KEEP)}")
        self._mark = max(1, len(self.tokenizer.spans(_MARK)))
        self._cut: dict[str, str] = {}

    @property
    def identity(self) -> list[str | int]:
        """What decides how a text is cut."""
        return [self.tokens, self.keep, self.tokenizer.name]

    @classmethod
    def from_identity(cls, identity: Sequence[str | int]) -> TextBudget:
        """The budget that an :attr:`identity` is of; its tokeniser is loaded."""
        tokens, keep, tokenizer = identity
        return cls(int(tokens), str(keep), ModelTokens.named(str(tokenizer)))

    def cut(self, text: str) -> str:
        """A text within the budget: as it is, or cut where tokens end."""
        if len(text) <= self.tokens:
            return text
        known = self._cut.get(text)
        if known is None:
            if len(self._cut) >= _REMEMBERED:
                self._cut.clear()
            known = self._cut[text] = self._shortened(text)
        return known

    def _shortened(self, text: str) -> str:
        most = self.tokens * _CHARACTERS_PER_TOKEN
        head, tail, shift = text, "", 0
        if self.keep == "middle" and len(text) > 2 * most:
            # tokenising an enormous text whole would cost more than all the rest
            shift = len(text) // 2 - most
            head = text[shift : shift + 2 * most]
        elif len(text) > 2 * most:
            head, tail = text[:most], text[-most:]
        spans = self.tokenizer.spans(head)
        tail_spans = self.tokenizer.spans(tail) if tail and self.keep == "ends" else spans
        whole = head if not tail else text
        if not tail and shift == 0 and len(spans) <= self.tokens:
            return text
        room = self.tokens
        for _ in range(8):
            cut = self._assemble(head, tail or head, spans, tail_spans, room, shift, len(text))
            excess = len(self.tokenizer.spans(cut)) - self.tokens
            if excess <= 0:
                return cut
            room -= excess
        return whole[: max(1, self.tokens // 8)]

    def _assemble(
        self,
        head: str,
        tail: str,
        spans: list[tuple[int, int]],
        tail_spans: list[tuple[int, int]],
        room: int,
        shift: int,
        length: int,
    ) -> str:
        if self.keep == "head":
            kept = max(1, room - self._mark)
            return head[: _end(spans, kept)].rstrip() + _MARK.rstrip()
        if self.keep == "ends":
            kept = max(2, room - self._mark)
            back = kept // 3
            front = head[: _end(spans, kept - back)].rstrip()
            start = tail_spans[max(0, len(tail_spans) - back)][0] if back and tail_spans else 0
            return front + _MARK + (tail[start:].lstrip() if back else "")
        kept = max(1, room - 2 * self._mark)
        first = max(0, (len(spans) - kept) // 2)
        start = spans[first][0] if spans else 0
        stop = _end(spans, first + kept)
        before = _MARK.lstrip() if shift + start > 0 else ""
        after = _MARK.rstrip() if shift + stop < length else ""
        return before + head[start:stop].strip() + after


def _end(spans: list[tuple[int, int]], count: int) -> int:
    return spans[min(count, len(spans)) - 1][1] if spans and count > 0 else 0


def pools_from_run(
    run: Run,
    queries: Mapping[str, str],
    text_of: Callable[[str], str],
    *,
    depth: int,
    excluded: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Pool]:
    """The pools of a run, one at a time.

    Args:
        run: The first stage's run; documents in order of rank.
        queries: Query id -> text. Each gets a pool; one that the run lacks gets an empty one.
        text_of: Document id -> text.
        depth: Candidates a query.
        excluded: Query id -> ids that must not be candidates; they are dropped and counted in the
            log.

    Yields:
        One pool a query, in the order of ``queries``.

    Raises:
        ObliqError: A depth below 1, or a document that ``text_of`` does not know.
    """
    if depth < 1:
        raise ObliqError(f"depth must be at least 1, not {depth}")
    dropped = 0
    for query, text in queries.items():
        hidden = set((excluded or {}).get(query, ()))
        candidates: list[Candidate] = []
        for document, score in run.get(query, {}).items():
            if len(candidates) >= depth:
                break
            if document in hidden:
                dropped += 1
                continue
            try:
                content = text_of(document)
            except KeyError:
                raise ObliqError(
                    f"query {query!r}: the run names document {document!r}, which is not in the "
                    "corpus"
                ) from None
            where = f"document {document!r}"
            candidates.append(Candidate(document, clean_text(content, where), score))
        yield Pool(query, clean_text(text, f"query {query!r}"), tuple(candidates))
    if dropped:
        logger.warning("%d documents excluded for their query were in the run; dropped", dropped)

"""Ordering a handful of documents with one call, for the baselines that need it.

An order is always a permutation of what was offered: answers are read by
:func:`obliq_hf.reranking.parser.parse_ranking`, documents that one leaves out follow in the order
given, and every fault is counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from eval_mteb.baselines.prompts import cut, load_prompt, task_words
from eval_mteb.baselines.rewriter import Spending
from obliq_hf.llm import run_flows
from obliq_hf.reranking.parser import parse_ranking

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from obliq_hf.llm import ChatAnswer, ChatClient, ChatRequest
    from obliq_hf.tasks import ObliqTask

__all__ = ["LLMOrder", "Orderer", "sliding_order"]


class Orderer(Protocol):
    """Something that orders several small lists of documents, each for its query."""

    @property
    def name(self) -> str:
        """Its name and what decides its answers."""

    def order(self, lists: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]) -> list[list[str]]:
        """Order lists of ``(query id, query text, [(document id, text), ...])``.

        Returns:
            Per list, its document ids, best first: a permutation.
        """


class LLMOrder:
    """One listwise call a list.

    Args:
        client: The language model.
        task: Says what decides relevance and what to ignore.
        words: Words of each document that are shown.
        notes: Query id -> notes to show beside the query.
        max_tokens: Longest answer.
    """

    def __init__(
        self,
        client: ChatClient,
        task: ObliqTask,
        *,
        words: int = 250,
        notes: dict[str, str] | None = None,
        max_tokens: int = 512,
    ) -> None:
        self.client = client
        self.task = task
        self.words = words
        self.notes = notes or {}
        self.max_tokens = max_tokens
        self.counts: Counter[str] = Counter()
        self.spending = Spending(client)

    @property
    def name(self) -> str:
        """The model's name."""
        return f"{self.client.model}@{self.client.revision or 'unstated'}"

    def costs(self) -> dict[str, Any]:
        """Calls and tokens, and the answers by what became of them."""
        return {"llm": self.spending.so_far(), "listwise_answers": dict(self.counts)}

    def order(self, lists: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]) -> list[list[str]]:
        """See :class:`Orderer`; a list whose call failed keeps its order and is counted."""
        flows = ((i, self._flow(*entry)) for i, entry in enumerate(lists))
        found = dict(run_flows(self.client, flows))
        return [found[i] for i in range(len(lists))]

    def _flow(
        self, query: str, text: str, documents: Sequence[tuple[str, str]]
    ) -> Generator[list[ChatRequest], dict[str, ChatAnswer], list[str]]:
        ids = [document for document, _ in documents]
        if len(ids) < 2:
            return ids
        shown = "\n".join(
            f"[{i}] {cut(content, self.words)}" for i, (_, content) in enumerate(documents, 1)
        )
        notes = self.notes.get(query, "")
        request = load_prompt("listwise").request(
            "order",
            max_tokens=self.max_tokens,
            query=text,
            documents=shown,
            count=str(len(ids)),
            notes=f"Notes on the query: {notes}" if notes else "",
            **task_words(self.task),
        )
        answer = (yield [request])["order"]
        if answer.error is not None:
            self.counts[answer.error_kind or "error"] += 1
            return ids
        parsed = parse_ranking(
            answer.text,
            offered=len(ids),
            cut=answer.truncated,
            declined=answer.finish_reason == "content_filter",
        )
        self.counts.update(parsed.faults or ("complete",))
        chosen = dict.fromkeys(ids[i] for i in parsed.order)
        return [*chosen, *(i for i in ids if i not in chosen)]


def sliding_order(
    orderer: Orderer,
    lists: Sequence[tuple[str, str, Sequence[tuple[str, str]]]],
    *,
    window: int = 20,
    step: int = 10,
) -> list[list[str]]:
    """Order long lists with overlapping windows from back to front (RankGPT).

    Args:
        orderer: Orders one window.
        lists: As :meth:`Orderer.order` takes them, of any length.
        window: Documents a window.
        step: How far it moves.

    Returns:
        Per list, its document ids, best first.
    """
    current = [list(documents) for _, _, documents in lists]
    ends = [len(documents) for documents in current]
    while True:
        open_lists = [i for i, end in enumerate(ends) if end > 0]
        if not open_lists:
            return [[document for document, _ in documents] for documents in current]
        spans = {i: slice(max(0, ends[i] - window), ends[i]) for i in open_lists}
        asked = [(lists[i][0], lists[i][1], current[i][spans[i]]) for i in open_lists]
        for i, order in zip(open_lists, orderer.order(asked), strict=True):
            texts = dict(current[i][spans[i]])
            current[i][spans[i]] = [(document, texts[document]) for document in order]
            ends[i] = 0 if spans[i].start == 0 else max(ends[i] - step, min(window, ends[i]))

"""Query rewriting: a language model writes what to search with, a search model searches."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from datasets import Dataset

from eval_mteb.baselines.prompts import load_prompt, task_words
from eval_mteb.models import local_meta
from obliq_hf.files import content_hash
from obliq_hf.llm import ParseFailure, answer_object

if TYPE_CHECKING:
    from mteb.models import SearchProtocol
    from mteb.models.model_meta import ModelMeta

    from obliq_hf.llm import ChatClient
    from obliq_hf.tasks import ObliqTask

__all__ = ["RewriterSearch", "Spending"]


class Spending:
    """What a client spends from a moment on: calls, tokens, seconds, money."""

    def __init__(self, client: ChatClient) -> None:
        self.client = client
        self.before = client.accounting.as_dict()

    def so_far(self) -> dict[str, Any]:
        """The totals since this was made."""
        now = self.client.accounting.as_dict()
        return {
            key: round(value - self.before.get(key, 0), 6)
            for key, value in now.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


class RewriterSearch:
    """Rewrite every query once, then search.

    Args:
        base: The search model.
        client: The language model.
        task: Says what decides relevance.
        mode: ``"replace"`` searches with the rewriting alone, ``"append"`` with the query first.
        max_tokens: Longest answer.
    """

    def __init__(
        self,
        base: SearchProtocol,
        client: ChatClient,
        task: ObliqTask,
        *,
        mode: Literal["replace", "append"] = "replace",
        max_tokens: int = 512,
    ) -> None:
        self.base = base
        self.client = client
        self.task = task
        self.mode = mode
        self.max_tokens = max_tokens
        self.rewritten: dict[str, str] = {}
        self.failures: Counter[str] = Counter()
        self.seconds = 0.0
        self.spending = Spending(client)

    @property
    def strict_order(self) -> bool:
        """As the search model."""
        return bool(getattr(self.base, "strict_order", False))

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after both models."""
        inner = self.base.mteb_model_meta
        revision = content_hash(
            self.client.identity, inner.name, inner.revision, self.mode, self.task.to_dict()
        )
        short = f"rewriter-{self.client.model}-{inner.name}".replace("/", "-")
        return local_meta(short, revision[:40], model_type=["hybrid"])

    def costs(self) -> dict[str, Any]:
        """What the search cost, with calls and tokens and the queries left as they were."""
        own = getattr(self.base, "costs", None)
        counted = dict(own() if callable(own) else own or {})
        seconds = {**counted.pop("seconds", {}), "rewrite": self.seconds}
        failed = {"not_rewritten": dict(self.failures)}
        return {"seconds": seconds, **counted, "llm": self.spending.so_far(), **failed}

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Index the corpus with the search model."""
        self.base.index(corpus, **kwargs)

    def search(self, queries: Any, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Rewrite and search; a query whose rewriting failed is searched as it is."""
        prompt = load_prompt("rewriter")
        texts = dict(zip(queries["id"], queries["text"], strict=True))
        start = time.perf_counter()
        requests = [
            prompt.request(query, max_tokens=self.max_tokens, query=text, **task_words(self.task))
            for query, text in texts.items()
        ]
        answers = self.client.complete_all(requests)
        for query, text in texts.items():
            try:
                found = answer_object(answers[query], prompt.required)["search_text"]
            except ParseFailure as failure:
                self.failures[failure.reason] += 1
                continue
            if isinstance(found, str) and found.strip():
                new = found.strip()
                self.rewritten[query] = f"{text}\n{new}" if self.mode == "append" else new
            else:
                self.failures["wrong-type"] += 1
        self.seconds = time.perf_counter() - start
        changed = Dataset.from_dict(
            {"id": list(texts), "text": [self.rewritten.get(q, t) for q, t in texts.items()]}
        )
        return self.base.search(changed, **kwargs)

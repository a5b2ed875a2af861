"""The retrieval task mteb evaluates: exact search, exclusions first, strict order, kept runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.models import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

from eval_mteb.dense import EncoderSearch
from eval_mteb.ordering import OrderedSearch
from eval_mteb.registry import CheckedName
from eval_mteb.task_prompts import log_prompts, with_task_prompt
from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from obliq_hf.records import Qrels
    from obliq_hf.tasks import ObliqTask

__all__ = ["K_VALUES", "AllButExcluded", "ObliqRetrieval", "Outcome"]

logger = logging.getLogger(__name__)

K_VALUES = (1, 3, 5, 10, 20, 50, 100, 1000)
"""mteb's cutoffs and 50, at which OBLIQ-Bench is also reported."""


class AllButExcluded(Mapping[str, list[str]]):
    """What mteb calls ``top_ranked``, for a task with exclusions: all documents but the excluded.

    A plain mteb model reads it as a mapping from query id to the documents it may rank; each list
    is made when it is asked for, so that 500,000 documents x 500 queries never stand in memory.
    Search models of this project read :attr:`excluded`, which is sparse.

    Args:
        documents: All document ids, in corpus order.
        queries: All query ids.
        excluded: Query id -> ids of documents it must not retrieve.
    """

    def __init__(
        self, documents: list[str], queries: list[str], excluded: Mapping[str, list[str]]
    ) -> None:
        self.documents = documents
        self.queries = dict.fromkeys(queries)
        self.excluded = excluded

    def __getitem__(self, query: str) -> list[str]:
        if query not in self.queries:
            raise KeyError(query)
        hidden = set(self.excluded.get(query, ()))
        return [document for document in self.documents if document not in hidden]

    def __iter__(self) -> Iterator[str]:
        return iter(self.queries)

    def __len__(self) -> int:
        return len(self.queries)


@dataclass
class Outcome:
    """What one evaluation of one split left behind.

    Attributes:
        run: Query id -> document id -> score, best first, strictly decreasing.
        per_query: Metric, named as mteb names its mean -> query id -> value.
        costs: What the search model counted: seconds by phase, calls, tokens.
    """

    run: dict[str, dict[str, float]]
    per_query: dict[str, dict[str, float]] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)


_METRICS = {
    "ndcg_cut_": "ndcg_at_",
    "recall_": "recall_at_",
    "map_cut_": "map_at_",
    "P_": "precision_at_",
    "success_": "hit_rate_at_",
}


def _mteb_name(trec_name: str) -> str:
    for prefix, name in _METRICS.items():
        if trec_name.startswith(prefix):
            return name + trec_name.removeprefix(prefix)
    return trec_name


class ObliqRetrieval(AbsTaskRetrieval):
    """An mteb retrieval task in which the order handed over is the order scored.

    Encoders are searched exactly, exclusions come off before the top k, ties go to corpus order,
    a query that the model returned nothing for counts 0, and run and per-query scores of the last
    evaluation are kept in :attr:`outcomes`, by subset and split.
    """

    k_values: tuple[int, ...] = K_VALUES
    judgments: str = "gold"
    gold_repository: str | None = None
    gold_commit: str | None = None
    obliq_task: ObliqTask | None = None
    outcomes: dict[tuple[str, str], Outcome]
    vectors: Path | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outcomes = {}

    @property
    def short_name(self) -> str:
        """What the task is called here: the name of its :class:`ObliqTask`, else mteb's."""
        return self.obliq_task.name if self.obliq_task is not None else str(self.metadata.name)

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """Names that a model may carry the task's prompt under, described or not."""
        if self.obliq_task is None:
            return (self.short_name,)
        return self.obliq_task.prompt_names

    @property
    def key(self) -> str:
        """The name of this task's folder among results; pooled judgments are marked."""
        return self.short_name + ("-pooled" if self.judgments == "pooled" else "")

    @property
    def place(self) -> tuple[str, str]:
        """The subset and split that are evaluated."""
        return str(self.hf_subsets[0]), str(next(iter(self.eval_splits)))

    def settle(self) -> str:
        """The revision of the data, once everything that decides it is known."""
        return str(self.metadata.revision)

    def cut(self, depth: int) -> None:
        """Keep so many documents per query; cutoffs beyond it are not computed.

        Raises:
            ObliqError: A depth below 1.
        """
        if depth < 1:
            raise ObliqError(f"depth must be at least 1, not {depth}")
        self._top_k = depth
        if depth >= max(self.k_values):
            return
        self.k_values = tuple(k for k in self.k_values if k <= depth)
        name = self.metadata.name
        if isinstance(name, CheckedName):
            metrics = [f"ndcg_at_{k}" for k in self.k_values]
            name = CheckedName(name, revision=name.revision, metrics=metrics)
        main = f"ndcg_at_{max(k for k in self.k_values if k <= 10)}"
        self.metadata = self.metadata.model_copy(update={"name": name, "main_score": main})

    @property
    def outcome(self) -> Outcome:
        """What the last evaluation left behind."""
        return self.outcomes[self.place]

    @property
    def part(self) -> Any:
        """Corpus, queries, judgments and exclusions of the split, loaded where they are not."""
        self.load_data()
        subset, split = self.place
        return self.dataset[subset][split]

    @property
    def document_ids(self) -> list[str]:
        """Ids of the documents searched, in corpus order."""
        return list(self.part["corpus"]["id"])

    @property
    def qrels(self) -> Qrels:
        """The judgments scored with, of the queries that have a positive one."""
        relevant = self.part["relevant_docs"]
        return {
            str(q): {str(d): int(g) for d, g in relevant[q].items()}
            for q in self.part["queries"]["id"]
            if any(g > 0 for g in relevant.get(q, {}).values())
        }

    @property
    def query_texts(self) -> dict[str, str]:
        """Query id -> text of the queries scored."""
        queries, kept = self.part["queries"], self.qrels
        pairs = zip(queries["id"], queries["text"], strict=True)
        return {query: text for query, text in pairs if query in kept}

    @property
    def excluded(self) -> Mapping[str, list[str]]:
        """Query id -> ids of documents it must not retrieve."""
        return getattr(self.part["top_ranked"], "excluded", None) or {}

    @property
    def folder_name(self) -> str | None:
        """The name, without its path, of the folder the data was read from."""
        return None

    @property
    def left_out(self) -> dict[str, int]:
        """Reason -> number of queries or judgments that do not count, or never can."""
        kept, present = self.qrels, set(self.document_ids)
        queries = len(self.part["queries"]["id"]) - len(kept)
        dangling = sum(d not in present for judged in kept.values() for d in judged)
        counted = {
            f"queries without a positive {self.judgments} judgment": queries,
            f"{self.judgments} judgments of documents not in the corpus, kept as never found": (
                dangling
            ),
        }
        return {reason: count for reason, count in counted.items() if count}

    @property
    def query_groups(self) -> dict[str, dict[str, str]]:
        """Column (author, work, ...) -> query id -> value, where several queries share values."""
        return {}

    def max_reachable_recall(self) -> float:
        """Mean recall of a perfect ranking: less than 1 where positives are excluded or absent."""
        present, shares = set(self.document_ids), []
        for query, judged in self.qrels.items():
            positive = [d for d, grade in judged.items() if grade > 0]
            hidden = set(self.excluded.get(query, ()))
            shares.append(sum(d in present and d not in hidden for d in positive) / len(positive))
        return float(np.mean(shares))

    def search_model(self, model: Any) -> OrderedSearch:
        """The model as something that searches, its order made strict.

        Raises:
            ObliqError: A cross-encoder without candidates: what a task lists per query are its
                exclusions, so that its scores would be those of a full scan, or meaningless.
        """
        if isinstance(model, OrderedSearch):
            return model
        if isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol):
            return OrderedSearch(
                EncoderSearch(model, prompt_names=self.prompt_names, vectors=self.vectors)
            )
        if isinstance(model, CrossEncoderProtocol) and not isinstance(model, SearchProtocol):
            raise ObliqError(
                f"{self.metadata.name}: a cross-encoder needs candidates from a first stage; "
                "evaluate it as a pipeline with one (eval_mteb.RetrieveAndRerank)"
            )
        log_prompts(model, self.prompt_names, self.metadata)
        return OrderedSearch(with_task_prompt(model, self.prompt_names, self.metadata))

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_split: str, hf_subset: str, **kwargs: Any
    ) -> Any:
        relevant = data_split["relevant_docs"]
        positive = {q for q, judged in relevant.items() if any(g > 0 for g in judged.values())}
        if len(positive) < len(relevant):
            logger.warning(
                "%s: %d queries without a positive judgment left out",
                self.metadata.name,
                len(relevant) - len(positive),
            )
            data_split["relevant_docs"] = {q: d for q, d in relevant.items() if q in positive}
        search_model = self.search_model(model)
        scores = super()._evaluate_subset(
            search_model, data_split, hf_split=hf_split, hf_subset=hf_subset, **kwargs
        )
        self.outcomes[(hf_subset, hf_split)].costs = dict(search_model.costs)
        return scores

    def task_specific_scores(
        self, scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str
    ) -> dict[str, float]:
        """Keep the run and the per-query scores of this evaluation; adds no score of its own."""
        per_query: dict[str, dict[str, float]] = {}
        for query, values in scores.items():
            for name, value in values.items():
                per_query.setdefault(_mteb_name(name), {})[query] = float(value)
        self.outcomes[(hf_subset, hf_split)] = Outcome(run=results, per_query=per_query)
        return {}

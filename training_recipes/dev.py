"""Retrieval on development queries while training, to choose the best checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sentence_transformers.base.evaluation import BaseEvaluator

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.metrics import mean, per_query
from obliq_hf.search.dense import search
from obliq_hf.search.exclusions import excluded_rows
from obliq_hf.search.runs import to_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obliq_hf.encoder import ObliqSentenceTransformer
    from obliq_hf.task_data import TaskData

__all__ = ["METRIC", "DevEvaluator"]

METRIC = "ndcg_at_10"
"""Mean of it over the tasks decides which checkpoint is best."""


class DevEvaluator(BaseEvaluator):
    """nDCG@10 of each task's development queries, and the mean over tasks.

    Args:
        data: Task name -> corpus, queries, judgments and exclusions of the development split.
        batch_size: Texts encoded at once.

    Raises:
        ObliqError: A task without development queries.
    """

    def __init__(self, data: Mapping[str, TaskData], *, batch_size: int = 32) -> None:
        super().__init__()
        for name, task in data.items():
            if not task.qrels:
                raise ObliqError(f"task {name!r} has no development query with a positive judgment")
        self.data = dict(data)
        self.batch_size = batch_size
        self.greater_is_better = True
        self.primary_metric = METRIC

    def check(self, prompts: Mapping[str, str]) -> None:
        """Check that the model has a prompt for every task.

        Raises:
            ObliqError: It has none; the nearest are named.
        """
        for name in self.data:
            if name not in prompts:
                raise ObliqError(f"no prompt for development task {name!r}{nearest(name, prompts)}")

    def __call__(
        self,
        model: ObliqSentenceTransformer,  # type: ignore[override]
        output_path: str | None = None,
        epoch: float = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """Score the model.

        Returns:
            ``<task>_ndcg_at_10`` for every task, and their mean as ``ndcg_at_10``.
        """
        scores: dict[str, float] = {}
        encoded: dict[int, Any] = {}
        options: dict[str, Any] = {"batch_size": self.batch_size, "show_progress_bar": False}
        training = model.training
        model.eval()
        for name, data in self.data.items():
            corpus = id(data.corpus)
            if corpus not in encoded:  # tasks often share one corpus
                encoded[corpus] = model.encode_document(data.corpus.full_texts(), **options)
            queries = model.encode_query(data.queries.texts, prompt_name=name, **options)
            excluded = excluded_rows(data.queries.ids, data.excluded, data.corpus.row)
            hits = search(queries, encoded[corpus], 10, excluded=excluded)
            run = to_run(hits, data.queries.ids, data.corpus.ids)
            scores[f"{name}_{METRIC}"] = mean(per_query(run, data.qrels, ks=(10,)))[METRIC]
        model.train(training)
        return {METRIC: sum(scores.values()) / len(scores), **scores}

"""Fusion of several runs into one: z-scores or reciprocal ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.search.runs import check_run, strictly_decreasing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.search.runs import Run

__all__ = ["FUSION_METHODS", "fuse"]

FUSION_METHODS = ("zscore", "rrf")
_RRF_K = 60  # Cormack, Clarke and Buettcher, SIGIR 2009


def fuse(
    runs: Sequence[Run],
    *,
    method: str = "zscore",
    weights: Sequence[float] | None = None,
    k: int | None = None,
) -> Run:
    """Merge the rankings of several systems.

    Args:
        runs: Two or more runs; documents in order of rank.
        method: ``"zscore"``: weighted sum of the scores of a query after subtracting their mean
            and dividing by their standard deviation; a document that a run did not return gets
            the lowest z-score of that run. ``"rrf"``: weighted sum of ``1 / (60 + rank)``; a
            document that a run did not return gets nothing from it.
        weights: One positive weight per run; equal by default.
        k: Documents kept per query; all by default.

    Returns:
        The queries of all runs in order of first appearance. Ties go to the rank in the first
        run that holds the document. Scores are strictly decreasing. A run without hits for a
        query has no say in it.

    Raises:
        ObliqError: Fewer than two runs, an unknown method, weights that do not fit, ``k``
            below 1, an id that is not a string or a score that is not finite.
    """
    if len(runs) < 2:
        raise ObliqError(f"fusion needs at least two runs, not {len(runs)}")
    if method not in FUSION_METHODS:
        raise ObliqError(f"unknown fusion method {method!r}{nearest(method, FUSION_METHODS)}")
    if weights is None:
        weights = [1.0] * len(runs)
    if len(weights) != len(runs):
        raise ObliqError(f"{len(weights)} weights for {len(runs)} runs")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ObliqError(f"weights must be positive numbers, not {list(weights)}")
    if k is not None and k < 1:
        raise ObliqError(f"k must be at least 1, not {k}")
    for number, run in enumerate(runs, 1):
        check_run(run, f"run {number}")
    fused: Run = {}
    for query_id in dict.fromkeys(query for run in runs for query in run):
        lists = [
            (run[query_id], weight)
            for run, weight in zip(runs, weights, strict=True)
            if run.get(query_id)
        ]
        documents = list(dict.fromkeys(document for found, _ in lists for document in found))
        totals = np.zeros(len(documents))
        for found, weight in lists:
            scores, missing = _zscores(found) if method == "zscore" else _reciprocal_ranks(found)
            totals += weight * np.array([scores.get(document, missing) for document in documents])
        order = np.argsort(-totals, kind="stable")[:k]
        fused[query_id] = dict(
            zip(
                (documents[i] for i in order),
                strictly_decreasing(totals[order]),
                strict=True,
            )
        )
    return fused


def _zscores(found: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Standardised scores, and what a document outside of the list gets."""
    values = np.fromiter(found.values(), dtype=np.float64, count=len(found))
    spread = float(values.std())
    standard = (values - values.mean()) / spread if spread > 0 else np.zeros(len(values))
    return dict(zip(found, standard.tolist(), strict=True)), float(standard.min())


def _reciprocal_ranks(found: Mapping[str, float]) -> tuple[dict[str, float], float]:
    return {document: 1.0 / (_RRF_K + rank) for rank, document in enumerate(found, 1)}, 0.0

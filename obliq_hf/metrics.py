"""nDCG and recall per query, as trec_eval computes them, and what is inferred from them.

The intervals and tests of ``obliq_hf.statistics`` are offered here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError
from obliq_hf.search.runs import check_run
from obliq_hf.statistics import (
    Comparison,
    bootstrap_ci,
    compare_metrics,
    holm,
    paired_bootstrap,
    permutation_test,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from obliq_hf.records import Qrels
    from obliq_hf.search.runs import Run

__all__ = [
    "Comparison",
    "bootstrap_ci",
    "compare_metrics",
    "holm",
    "mean",
    "metric_names",
    "paired_bootstrap",
    "per_query",
    "permutation_test",
]


def metric_names(ks: Sequence[int] = (10, 50, 100)) -> list[str]:
    """The names of the metrics at the given cutoffs, as mteb writes them."""
    return [f"{metric}_at_{k}" for metric in ("ndcg", "recall") for k in ks]


def per_query(
    run: Run,
    qrels: Qrels,
    *,
    ks: Sequence[int] = (10, 50, 100),
    corpus_ids: Collection[str] | None = None,
) -> dict[str, dict[str, float]]:
    """Score every judged query: nDCG and recall.

    nDCG has the linear gain of trec_eval (a grade of 2 counts twice a grade of 1); recall takes
    every grade of at least 1 as relevant. Documents are ranked by score; equal scores keep the
    order they have in the run.

    Args:
        run: Query id -> document id -> score.
        qrels: Query id -> document id -> grade. Queries without a grade of at least 1 are left
            out.
        ks: Cutoffs.
        corpus_ids: The ids of the corpus where they are known; then judgments of which none
            points into the corpus are an error.

    Returns:
        Metric (``ndcg_at_10``, ..., ``recall_at_100``) -> query id -> value from 0 to 1, over
        all queries of ``qrels`` with a positive grade in their order; a query that the run
        lacks has 0. Queries of the run that are not judged are passed over.

    Raises:
        ObliqError: No query has a positive grade; the run holds none of the judged queries; no
            judged document is in the corpus; an id is not a string, a grade not an integer, a
            score not finite, or a cutoff below 1.
    """
    import pytrec_eval

    if not ks or any(k < 1 for k in ks):
        raise ObliqError(f"cutoffs must be at least 1, not {list(ks)}")
    check_run(run)
    judged = _judged(qrels)
    if not any(query in run for query in judged):
        raise ObliqError(
            f"the run holds none of the {len(judged)} judged queries: its query ids start with "
            f"{list(run)[:3]}, those of the judgments with {list(judged)[:3]}"
        )
    if corpus_ids is not None:
        known = corpus_ids if isinstance(corpus_ids, set | frozenset | dict) else set(corpus_ids)
        if not any(document in known for grades in judged.values() for document in grades):
            raise ObliqError(
                "none of the judged documents is in the corpus: judged ids are like "
                f"{list(next(iter(judged.values())))[:3]}, those of the corpus like "
                f"{list(known)[:3]}"
            )
    ranked = {query: _ranks(run[query]) for query in judged if run.get(query)}
    cutoffs = ",".join(str(k) for k in sorted(set(ks)))
    evaluator = pytrec_eval.RelevanceEvaluator(
        {query: judged[query] for query in ranked}, {f"ndcg_cut.{cutoffs}", f"recall.{cutoffs}"}
    )
    found = evaluator.evaluate(ranked) if ranked else {}
    names = {f"ndcg_at_{k}": f"ndcg_cut_{k}" for k in ks}
    names.update({f"recall_at_{k}": f"recall_{k}" for k in ks})
    return {
        metric: {query: float(found[query][name]) if query in found else 0.0 for query in judged}
        for metric, name in names.items()
    }


def _judged(qrels: Qrels) -> Qrels:
    """The queries with a positive grade; ids and grades checked."""
    for query, grades in qrels.items():
        if not isinstance(query, str):
            raise ObliqError(f"qrels: query ids are strings; {query!r} is {type(query).__name__}")
        for document, grade in grades.items():
            if not isinstance(document, str):
                raise ObliqError(
                    f"qrels: document ids are strings; {document!r} of query {query!r} is "
                    f"{type(document).__name__}"
                )
            if isinstance(grade, bool) or not isinstance(grade, int | np.integer):
                raise ObliqError(
                    f"qrels: query {query!r}, document {document!r} has grade {grade!r}; "
                    "grades are integers"
                )
    judged = {
        query: {document: int(grade) for document, grade in grades.items()}
        for query, grades in qrels.items()
        if any(grade >= 1 for grade in grades.values())
    }
    if not judged:
        raise ObliqError(f"none of the {len(qrels)} queries in the judgments has a positive grade")
    return judged


def _ranks(documents: Mapping[str, float]) -> dict[str, float]:
    """Scores that any evaluator sorts the way the run is meant: small distinct integers."""
    order = sorted(documents, key=lambda document: -documents[document])
    return {document: float(len(order) - rank) for rank, document in enumerate(order)}


def mean(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of every metric over its queries.

    Args:
        scores: Metric -> query id -> value, as ``per_query`` returns them.

    Raises:
        ObliqError: A metric has no queries.
    """
    for metric, values in scores.items():
        if not values:
            raise ObliqError(f"{metric} has no queries to average over")
    return {metric: float(np.mean(list(values.values()))) for metric, values in scores.items()}

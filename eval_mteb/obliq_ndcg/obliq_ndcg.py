"""nDCG and recall for the ``evaluate`` library: a thin shell over ``obliq_hf.metrics``."""

import datasets
import evaluate

from obliq_hf.errors import ObliqError
from obliq_hf.metrics import mean, per_query

_DESCRIPTION = """
nDCG@k (linear gain, as trec_eval) and recall@k of rankings with graded judgments. Means run over
the queries that have a positive grade; a query with no documents counts 0. Documents are ranked by
score; equal scores keep their order.
"""

_INPUTS = """
Args:
    predictions: one row a query: `query`, its `documents` and their `scores`.
    references: one row a query: `query`, its judged `documents` and their integer `grades`.
    ks: cutoffs, by default 10, 50 and 100.
    per_query: also return every query's values.

Returns:
    `ndcg_at_k` and `recall_at_k` for every cutoff, and `per_query` where asked.

Examples:
    >>> metric = evaluate.load("eval_mteb/obliq_ndcg")
    >>> metric.compute(
    ...     predictions=[{"query": "q1", "documents": ["d2", "d1"], "scores": [0.9, 0.1]}],
    ...     references=[{"query": "q1", "documents": ["d1"], "grades": [1]}],
    ...     ks=[10],
    ... )
    {'ndcg_at_10': 0.6309297535714575, 'recall_at_10': 1.0}
"""

_CITATION = ""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class ObliqNdcg(evaluate.Metric):
    """The metric that ``evaluate.load`` finds in this folder."""

    def _info(self):
        string = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {
                    "predictions": {
                        "query": string,
                        "documents": datasets.Sequence(string),
                        "scores": datasets.Sequence(datasets.Value("float64")),
                    },
                    "references": {
                        "query": string,
                        "documents": datasets.Sequence(string),
                        "grades": datasets.Sequence(datasets.Value("int64")),
                    },
                }
            ),
        )

    def _compute(self, predictions, references, ks=(10, 50, 100), per_query=False):
        scores = _scores(predictions, references, tuple(ks))
        return {**mean(scores), **({"per_query": scores} if per_query else {})}


def _scores(predictions, references, ks):
    run = _table(predictions, "scores", "predictions")
    qrels = _table(references, "grades", "references")
    return per_query(run, qrels, ks=ks)


def _table(rows, column, what):
    table = {}
    for row in rows:
        query, documents, values = row["query"], row["documents"], row[column]
        if query in table:
            raise ObliqError(f"{what}: query {query!r} stands twice")
        if len(documents) != len(values):
            raise ObliqError(
                f"{what}: query {query!r} has {len(documents)} documents and {len(values)} {column}"
            )
        table[query] = dict(zip(documents, values, strict=True))
        if len(table[query]) != len(documents):
            raise ObliqError(f"{what}: query {query!r} has a document twice")
    return table

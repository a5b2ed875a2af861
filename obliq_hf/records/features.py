"""Columns of the datasets that training reads, as `datasets` declares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Features

__all__ = ["edge_features", "train_features"]


def train_features(negatives: int) -> Features:
    """Columns of a training dataset with the given number of hard negatives a row.

    ``blocked_ids`` lists the documents that must not be in one batch with the row: its anchor,
    its positive and their neighbours in the graph. ``negative_groups`` has the source of each of
    ``negative_ids``, null where it is not known.
    """
    from datasets import Features, List, Value

    string = Value("string")
    columns: dict[str, Any] = {"anchor": string, "positive": string}
    columns.update({f"negative_{i}": string for i in range(1, negatives + 1)})
    columns.update(
        anchor_id=string,
        positive_id=string,
        negative_ids=List(string),
        anchor_group=string,
        positive_group=string,
        negative_groups=List(string),
        blocked_ids=List(string),
    )
    return Features(columns)


def edge_features() -> Features:
    """Columns of a graph: one row a directed edge."""
    from datasets import Features, Value

    return Features(
        {
            "anchor_id": Value("string"),
            "positive_id": Value("string"),
            "anchor": Value("string"),
            "positive": Value("string"),
            "rank": Value("int32"),
            "similarity": Value("float32"),
        }
    )

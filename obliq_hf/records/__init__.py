"""The values that pass between stages: corpora, queries, judgments, and their files.

A corpus folder of this project holds::

    corpus.jsonl                        _id, title, text, metadata (metadata.group: same source)
    tasks/<task>/queries.jsonl          _id, text, metadata
    tasks/<task>/qrels/<split>.tsv      query-id, corpus-id, score: the gold judgments
    tasks/<task>/qrels-pooled/<split>.tsv
    tasks/<task>/excluded.json          {query id: [document ids]}

The layouts of BEIR and of OBLIQ-Bench are read as they are. Ids are strings everywhere.

==============  =======================================================
`corpus`        `Corpus`, `Document`: documents, read whole or streamed
`queries`       `Queries`
`judgments`     `Qrels`, and the documents excluded for single queries
`features`      columns of training rows and of graph edges
`cleaning`      checks of texts, ids and metadata from outside
==============  =======================================================
"""

from __future__ import annotations

from obliq_hf.records.cleaning import clean_id, clean_metadata, clean_text
from obliq_hf.records.corpus import (
    Corpus,
    Document,
    EmptyPolicy,
    corpus_file,
    iter_documents,
    read_corpus,
    write_corpus,
)
from obliq_hf.records.features import edge_features, train_features
from obliq_hf.records.judgments import (
    Qrels,
    read_excluded,
    read_qrels,
    write_excluded,
    write_qrels,
)
from obliq_hf.records.queries import Queries, read_queries, write_queries

__all__ = [
    "Corpus",
    "Document",
    "EmptyPolicy",
    "Qrels",
    "Queries",
    "clean_id",
    "clean_metadata",
    "clean_text",
    "corpus_file",
    "edge_features",
    "iter_documents",
    "read_corpus",
    "read_excluded",
    "read_qrels",
    "read_queries",
    "train_features",
    "write_corpus",
    "write_excluded",
    "write_qrels",
    "write_queries",
]

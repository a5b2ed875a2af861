"""Builds corpora, synthetic queries, authorship graphs and training mixtures."""

"""Corpora in the folder layout of this project."""

"""A task file of a user's own: a passage is asked for by its own words."""

from __future__ import annotations

ECHO = """\
name: echo
mechanism: tip-of-the-tongue
attribute: the words somebody half remembers
instruction: find the passage
lens: tip-of-the-tongue
exclusion: none
reranking: {reranker: identity}
"""

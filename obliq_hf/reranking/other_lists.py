"""Lists of numbers in an answer that are no ranking: scores, years, whatever else is counted.

    >>> without_other_lists("Relevance scores: [9, 7, 8]").strip()
    ''
    >>> names_ranking("final_ranking"), names_ranking("relevance_scores"), names_ranking("years")
    (True, False, False)

A list of bare numbers under a JSON key is a ranking only where the key says so. Elsewhere a list is
taken for one unless words such as "scores:" or "relevance:" announce it; a chain with ``>``,
identifiers with a word such as "document", and a list announced as an order ("ranked by
relevance:") are rankings all the same.
"""

from __future__ import annotations

import re

__all__ = [
    "DISMISSES",
    "LABEL",
    "LIST_KEYS",
    "names_ranking",
    "names_scores",
    "without_other_lists",
]

LIST_KEYS = (
    "ranking", "order", "ranked", "selection", "selected", "documents", "ids", "identifiers",
    "result", "results", "answer",
)  # fmt: skip
"""JSON keys of a ranking, before any other key of the same object."""
LABEL = r"(?:document|doc|passage|text|candidate|item|identifier|id)"
"""Words before an identifier."""
DISMISSES = re.compile(
    rf"(?:\b(?:not|never)\s+(?:\w+\s+)?(?:chosen|selected|included|ranked|picked|relevant)"
    rf"|\b(?:unchosen|unselected|unranked|irrelevant|reject\w*|exclud\w*|omit\w*|discard\w*"
    rf"|dropp\w*|dismiss\w*|le(?:ft|ave|aving)\s+out)"
    rf"|^\W*(?:the\s+)?(?:rest|others?|remaining)\b)"
    rf"(?:[^.:!?\n]{{0,60}}:|\s+(?:are|were|the|both|{LABEL}s?))*[\s*_`\"'(\[]*$",
    re.IGNORECASE,
)
"""Words before a list of what was not chosen."""
_LAST_WORDS = {
    *LIST_KEYS, "rankings", "ordering", "ordered", "sorted", "permutation", "choice", "choices",
    "chosen", "picks", "picked", "best", "top", "relevant", "docs", "passages", "texts",
    "candidates", "items", "indices", "indexes", "answers", "final", "output", "response",
}  # fmt: skip
"""Words that a JSON key of a ranking ends with, before any "of" or "by": ``final_ranking``."""
_SCORE = r"(?:scores?|relevanc[ey]|relevances|ratings?|confidences?|grades?)"
_SCORE_WORD = re.compile(_SCORE)
_KEYED = re.compile(
    r"""(["'])(?P<key>[^"'\\\n]{1,60})\1\s*:\s*
        \[(?:\s*\[?\s*["']?[0-9]{1,9}(?![0-9])["']?\s*\]?\s*(?:,|(?=\])|\Z))++\s*(?:\]|\Z)""",
    re.VERBOSE,
)
_ONE = r"\[\s*[0-9]{1,9}\s*\]"
_SCORED = re.compile(
    rf"""(?<![^\W_]){_SCORE}(?![^\W_])
        (?P<words>[^.:!?=\n\[\]]{{0,60}}[:=][\s*_`"'(\-•+]*
                 |(?:[ ]+(?:are|were|is|was|the))*[ *_`"'(]*)
        (?:\[?["']?{_ONE}(?:[\s,;"'&]*(?:and\s+)?(?:[-•+*]\s+)?{_ONE})*+(?!["'\s]*>)
            (?![ \t]*(?:[:=(\-–—|]|\w))
        |\[\s*[0-9]{{1,9}}(?:\s*[,;]\s*[0-9]{{1,9}})++\s*(?:\]|[,;][\s0-9]*\Z|\Z)(?!\s*>))""",
    re.IGNORECASE | re.VERBOSE,
)
_ORDERS = re.compile(
    rf"\b(?:rank\w*|order\w*|sort\w*|selection|selected|chosen|choices?|answer|top|best)\b"
    rf"(?!\s+{_SCORE}\b)",
    re.IGNORECASE,
)
_BY = re.compile(r"\bby\s+(?:\w+\s+){0,3}$", re.IGNORECASE)
_CLAUSE = re.compile(r"[^.:!?\n]*$")
_BEFORE = 160
"""Characters before a word such as "scores" that can make it an order."""


def names_ranking(key: str) -> bool:
    """Whether a JSON key is one of a ranking."""
    words = _words(key)
    head = next((i for i, word in enumerate(words) if word in ("of", "by")), len(words))
    return head > 0 and words[head - 1] in _LAST_WORDS


def names_scores(key: str) -> bool:
    """Whether a JSON key is one of scores: ``scores``, ``confidence_by_document``."""
    return not names_ranking(key) and any(_SCORE_WORD.fullmatch(word) for word in _words(key))


def without_other_lists(answer: str) -> str:
    """The answer with spaces in the place of lists of numbers that are no ranking.

    Args:
        answer: What a model wrote, without its thinking.

    Returns:
        A text of the same length, with the same line breaks.
    """
    answer = _KEYED.sub(_keyed, answer)
    return _SCORED.sub(_scored, answer)


def _words(key: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", key)]


def _keyed(match: re.Match[str]) -> str:
    return match[0] if names_ranking(match["key"]) else _blank(match[0])


def _scored(match: re.Match[str]) -> str:
    found = _CLAUSE.search(match.string, max(0, match.start() - _BEFORE), match.start())
    before = found[0] if found else ""
    announced = before + match.string[match.start() : match.end("words")]
    return match[0] if _BY.search(before) or _ORDERS.search(announced) else _blank(match[0])


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)

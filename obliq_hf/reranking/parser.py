r"""One parser for rankings: which of the offered documents an answer names, and in which order.

    >>> parse_ranking("The ranking of the 20 passages for query 2019: [2] > [1]", offered=20).order
    (1, 0)

An identifier counts where it is written as one: in brackets, after a word such as "document", in a
JSON list, in a chain with ``>``, or where the whole answer is nothing but numbers. Other numbers
are never read. Of several lists in one answer a JSON object with a ranking goes first; then a list
that stands by itself (alone on its lines, after words such as "ranking:" or "final answer:", or one
identifier a line out of the order offered); then one inside a sentence or a mere enumeration of all
documents. Among equals the last that is as long as asked for is taken, else the longest. A list of
what was not chosen is none, nor is one of scores or under a JSON key that names no ranking
(:mod:`obliq_hf.reranking.other_lists`). Scores beside identifiers are not read: the order of
mention is the ranking.

Faults, of which one answer can have several:

==============  ===================================================================================
`empty`         no text outside the thinking
`refused`       no ranking, and the words or the server say that the model declines
`unreadable`    text without a ranking
`prose`         sentences around the ranking, which is used
`cut`           cut at the token limit; what was complete is used
`out-of-range`  identifiers that were not offered; passed over
`repeated`      identifiers named again; the first place counts
`short`         fewer documents than asked for
`long`          more documents than asked for
==============  ===================================================================================
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from obliq_hf.llm.parsing import declines, strip_thinking
from obliq_hf.reranking.json_lists import identifiers_of
from obliq_hf.reranking.other_lists import DISMISSES, LABEL, LIST_KEYS, without_other_lists

__all__ = ["FAULTS", "ParsedRanking", "parse_ranking"]

FAULTS = {
    "empty": "empty",
    "refused": "declined",
    "unreadable": "without a ranking",
    "prose": "with prose around",
    "cut": "cut off",
    "out-of-range": "with numbers that were not offered",
    "repeated": "with repeated numbers",
    "short": "with too few documents",
    "long": "with more documents than asked for",
}
"""Classes of malformed answers, and what such an answer is, in words."""

_WIDE = str.maketrans(
    "０１２３４５６７８９［］【】〔〕（）＞》〉，、：；＃｛｝＂",
    '0123456789[][][]()>>>,,:;#{}"',
)
_JOIN = r"\s*(?:,|;|>|&|\band\b|,\s*and\b)\s*"
_NUMBER = r"[0-9]{1,9}(?![0-9]|\.[0-9]|%)"
_MENTION = re.compile(
    rf"\[\s*(?:{LABEL}s?\s*[:#]?\s*)?(?P<bracket>[0-9]{{1,9}}(?:{_JOIN}[0-9]{{1,9}})*)\s*\]"
    rf"|\b{LABEL}s(?:\s*[:#]|\s)\s*(?P<plural>{_NUMBER}(?:{_JOIN}{_NUMBER})+)"
    rf"|\b{LABEL}s?[\s_\-:#\"*]*(?P<single>{_NUMBER})"
    rf"|(?<![\w.])(?P<chain>[0-9]{{1,9}}(?:\s*>\s*[0-9]{{1,9}})+)(?![\w.])",
    re.IGNORECASE,
)
_GAP = re.compile(
    rf"""(?:[\s>,;:|=*_`~./\-–—→<"'()\[\]{{}}\#&]
        |\b(?:and|then|{LABEL}s?)\b
        |(?:relevance|relevancy|score|confidence|rating)\w*[\s"':=]*[\w.%]+
        |(?<![^\s])(?:rank\s*)?\#?[0-9]{{1,3}}[.):](?=\s)
    )*+""",
    re.IGNORECASE | re.VERBOSE,
)
_LEAD = re.compile(
    r"[ \t]*(?:[-*•+][ \t]+)?(?:(?:rank[ \t]*)?#?[0-9]{1,3}[.):][ \t]*)?[*_`\"'(]*", re.IGNORECASE
)
_ANNOUNCES = re.compile(
    r"\b(?:rank\w*|final|answer|order|selection|choices?|chosen|selected)\b[^:\n]{0,60}:"
    r"[\s*_`\"'(\[{]*$",
    re.IGNORECASE,
)
_BEFORE = 160
"""Characters before a list that can announce it."""
_AS_ASKED = re.compile(r"\[[0-9]{1,9}\](?: ?> ?\[[0-9]{1,9}\])*")
_NOTHING_ELSE = re.compile(r"[0-9]{1,9}(?:[\s,;>]+(?:and\s+)?[0-9]{1,9})*")
_OPEN_LIST = re.compile(r"\[\s*((?:\"?[0-9]{1,9}\"?\s*,\s*)+)[^\]\[]*$")
_WORD = re.compile(r"[^\W\d_]{2,}")
_LETTERS = re.compile(r"\[\s*([A-Z])\s*\]")
_ONLY_LETTERS = re.compile(r"[A-Z](?:[\s,;>]+[A-Z])*")


@dataclass(frozen=True)
class ParsedRanking:
    """What an answer says.

    Attributes:
        order: Positions of the documents named, 0 for the first offered; each once, each offered.
        faults: Classes of :data:`FAULTS`, in their order.
    """

    order: tuple[int, ...]
    faults: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether any offered document is named."""
        return bool(self.order)


@dataclass(frozen=True)
class _Chain:
    numbers: tuple[int, ...]
    start: int
    end: int
    loose: bool = False
    """One identifier a line, with other words in between."""
    sure: bool = False
    """Written in a form that only a ranking has."""
    place: int = 0
    """2 for a JSON object with a ranking, 1 for a list that stands by itself, 0 for any other."""


def parse_ranking(
    text: str | None,
    *,
    offered: int,
    wanted: int | None = None,
    cut: bool = False,
    declined: bool = False,
    letters: bool = False,
) -> ParsedRanking:
    """Read a ranking or a selection.

    Args:
        text: The answer.
        offered: How many documents were offered, as 1, 2, 3, ...
        wanted: How many should be named; by default all.
        cut: The answer was cut at its token limit.
        declined: The server says that the answer was withheld.
        letters: Documents were offered as A, B, C, ...

    Returns:
        The documents named that were offered, and the faults of the answer.
    """
    wanted = offered if wanted is None else wanted
    answer = text or ""
    if not _AS_ASKED.fullmatch(answer):
        answer = strip_thinking(answer)[0].translate(_WIDE).strip()
    if letters:
        answer = _as_numbers(answer)
    faults = {"cut"} if cut else set()
    if not answer:
        faults.add("refused" if declined else "empty")
        return ParsedRanking((), _sorted(faults))
    chain = _choose(_chains(answer, cut), offered, wanted)
    if chain is None:
        faults.add("refused" if declined or declines(answer) else "unreadable")
        return ParsedRanking((), _sorted(faults))
    order = dict.fromkeys(n - 1 for n in chain.numbers if 1 <= n <= offered)
    valid = sum(1 <= n <= offered for n in chain.numbers)
    if valid < len(chain.numbers):
        faults.add("out-of-range")
    if len(order) < valid:
        faults.add("repeated")
    if len(order) < wanted:
        faults.add("short")
    if len(order) > wanted:
        faults.add("long")
    outside = answer[: chain.start] + " " + answer[chain.end :]
    if chain.loose or len(_WORD.findall(outside)) >= 3:
        faults.add("prose")
    return ParsedRanking(tuple(order), _sorted(faults))


def _sorted(faults: set[str]) -> tuple[str, ...]:
    return tuple(fault for fault in FAULTS if fault in faults)


def _as_numbers(answer: str) -> str:
    """Letters that stand as identifiers, as numbers."""
    if _ONLY_LETTERS.fullmatch(answer):
        return re.sub(r"[A-Z]", lambda m: str(ord(m.group()) - 64), answer)
    return _LETTERS.sub(lambda m: f"[{ord(m.group(1)) - 64}]", answer)


def _chains(answer: str, cut: bool) -> list[_Chain]:
    """Every list of identifiers in an answer."""
    if _AS_ASKED.fullmatch(answer):
        numbers = [int(n) for n in re.findall(r"[0-9]+", answer)]
        return [_Chain(tuple(numbers), 0, len(answer), sure=True)]
    bare = answer.strip(" \t\r\n`\"'.*")
    if _NOTHING_ELSE.fullmatch(bare):
        numbers = [int(n) for n in re.findall(r"[0-9]+", bare)]
        if cut and len(numbers) > 1:
            numbers.pop()
        return [_Chain(tuple(numbers), 0, len(answer), sure=True)]
    plain = without_other_lists(answer)
    found = _json_chains(answer, plain) if "{" in answer or '"' in answer else []
    answer = plain
    if cut and (rest := _OPEN_LIST.search(answer)):
        numbers = [int(n) for n in re.findall(r"[0-9]+", rest.group(1))]
        found.append(_Chain(tuple(numbers), rest.start(), len(answer), sure=True, place=1))
    tight = _tight_chains(answer, cut)
    found = [*found, *(c for c in tight if not _announced(answer, c, DISMISSES))]
    return _placed([*found, *_line_lists(answer, tight)], answer)


def _tight_chains(answer: str, cut: bool) -> list[_Chain]:
    """Identifiers with nothing but separators between them."""
    groups: list[tuple[list[int], int, int, bool]] = []
    for mention in _MENTION.finditer(answer):
        kind = next(k for k in ("bracket", "plural", "single", "chain") if mention[k] is not None)
        numbers = [int(n) for n in re.findall(r"[0-9]+", mention[kind])]
        if cut and kind != "bracket" and mention.end() == len(answer):
            numbers.pop()
        if not numbers:
            continue
        ranked = kind == "chain" or (kind == "bracket" and len(numbers) > 1)
        start, end = mention.span()
        if groups and _GAP.fullmatch(answer, groups[-1][2], start):
            before, begin, last, sure = groups[-1]
            before += numbers
            between = answer[last:start]
            ranked = ranked or sure or ">" in between or "\n" in between
            groups[-1] = (before, begin, end, ranked)
        else:
            groups.append((numbers, start, end, ranked))
    chains = [_Chain(tuple(numbers), start, end, sure=s) for numbers, start, end, s in groups]
    return [_assured(chain, answer) for chain in chains]


def _assured(chain: _Chain, answer: str) -> _Chain:
    """Alone on its lines: stands by itself; announced or several that end a line: also sure."""
    before = _before(answer, chain)
    stop = answer.find("\n", chain.end)
    if _GAP.fullmatch(answer, chain.end, stop if stop >= 0 else len(answer)) is None:
        return chain
    if _LEAD.fullmatch(before) or _GAP.fullmatch(before):
        return replace(chain, sure=True, place=1)
    announced = before.rstrip(" *_`\"'").endswith(":")
    return replace(chain, sure=chain.sure or announced or len(chain.numbers) > 1)


def _before(answer: str, chain: _Chain) -> str:
    """What stands before a list on its line."""
    begin = answer.rfind("\n", 0, chain.start) + 1
    return answer[max(begin, chain.start - _BEFORE) : chain.start]


def _announced(answer: str, chain: _Chain, words: re.Pattern[str]) -> bool:
    """Whether such words lead to a list, on its line or on the one above."""
    before = _before(answer, chain)
    if _LEAD.fullmatch(before):
        above = answer[max(0, chain.start - _BEFORE) : chain.start - len(before)].rstrip()
        before = above.rpartition("\n")[2]
        if not before.rstrip("*_`\"' ").endswith(":"):
            return False
    return words.search(before) is not None


def _placed(chains: list[_Chain], answer: str) -> list[_Chain]:
    """The lists with their places.

    Several identifiers that each stand alone are the headings of an analysis, and lines in rising
    order its subjects: neither stands by itself.
    """
    announced = [not c.place and _announced(answer, c, _ANNOUNCES) for c in chains]
    headings = sum(len(c.numbers) == 1 and c.place == 1 for c in chains) > 1
    placed = []
    for chain, leads in zip(chains, announced, strict=True):
        place = chain.place
        rising = all(a < b for a, b in pairwise(chain.numbers))
        if leads or (chain.loose and not rising):
            place = 1
        elif place == 1 and headings and len(chain.numbers) == 1:
            place = 0
        placed.append(replace(chain, place=place, sure=chain.sure or place > 0))
    return placed


def _line_lists(answer: str, tight: list[_Chain]) -> list[_Chain]:
    """Lines that each begin with an identifier and go on in words."""
    lists: list[list[_Chain]] = []
    for chain in tight:
        begin = answer.rfind("\n", 0, chain.start) + 1
        if _LEAD.fullmatch(answer, begin, chain.start) is None:
            continue
        if lists:
            between = answer[lists[-1][-1].end : begin].split("\n")
            if not any(line.strip() for line in between[1:]):
                lists[-1].append(chain)
                continue
        lists.append([chain])
    return [
        _Chain(
            tuple(n for chain in group for n in chain.numbers),
            group[0].start,
            group[-1].end,
            loose=True,
            sure=True,
        )
        for group in lists
        if len(group) > 1
    ]


def _json_chains(answer: str, plain: str) -> list[_Chain]:
    """JSON lists of objects or strings, which other forms do not cover.

    A list that ``plain`` has spaces for is passed over.
    """
    decoder = json.JSONDecoder()
    found: list[_Chain] = []
    position, tries = 0, 0
    while tries < 200:
        starts = [i for i in (answer.find("{", position), answer.find("[", position)) if i >= 0]
        if not starts:
            break
        start, tries = min(starts), tries + 1
        try:
            value, end = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        numbers = identifiers_of(value)
        if isinstance(value, list) and plain[start] != answer[start]:
            numbers = None
        if numbers and (isinstance(value, dict) or len(numbers) > 1):
            known = isinstance(value, dict) and any(key in value for key in LIST_KEYS)
            found.append(_Chain(tuple(numbers), start, end, sure=True, place=2 if known else 0))
        position = end
    return found


def _choose(chains: list[_Chain], offered: int, wanted: int) -> _Chain | None:
    """The list that is the ranking; the rule is the module's."""
    enumeration = tuple(range(1, offered + 1))

    def named(chain: _Chain) -> int:
        return len({n for n in chain.numbers if 1 <= n <= offered})

    def place(chain: _Chain) -> int:
        return 0 if chain.place < 2 and chain.numbers == enumeration else chain.place

    sure = [c for c in chains if c.sure or named(c) >= min(wanted, 3)]
    sure = [c for c in sure if named(c)] or sure
    best = max(map(place, sure), default=0)
    sure = [c for c in sure if place(c) == best]
    whole = [c for c in sure if (best or not c.loose) and named(c) >= max(1, wanted)]
    if whole:
        return max(whole, key=lambda c: c.end)
    rankings = [c for c in sure if not (c.loose and c.numbers == enumeration)] or sure
    return max(rankings, key=lambda c: (named(c), c.end), default=None)

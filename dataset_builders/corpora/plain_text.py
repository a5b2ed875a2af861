"""Characters and sentences: make texts of many editions look like texts of one.

Whatever a printer, a transcriber or a web page added to a text can give its author away without
any likeness of style: curly quotes, dashes of three kinds, accents on foreign names, capitals for
italics. These functions bring them to one form; a finished text is plain ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "count_words",
    "decode",
    "double_quotes",
    "lower_capitals",
    "normalise",
    "split_sentences",
    "words_in_lower_case",
]

_LETTERS = {
    "\u2018": "'", "\u2019": "'", "\u201b": "'", "\u2032": "'", "`": "'", "\u00b4": "'",
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2033": '"', "\u00ab": '"', "\u00bb": '"',
    "\u2010": "-", "\u2011": "-", "\u2012": "--", "\u2013": "--", "\u2014": "--", "\u2015": "--",
    "\u2026": "...", "\u00a0": " ", "\u00c6": "Ae", "\u00e6": "ae", "\u0152": "Oe",
    "\u0153": "oe", "\u00df": "ss", "\u00d8": "O", "\u00f8": "o", "\u00a3": "L",
    "\u0141": "L", "\u0142": "l", "\u00d0": "D", "\u00f0": "d", "\u00de": "Th", "\u00fe": "th",
    "\u00bd": " 1/2", "\u00bc": " 1/4", "\u00be": " 3/4", "\ufeff": "",
}  # fmt: skip
_TABLE = str.maketrans(_LETTERS)
_ROMAN = re.compile(r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
_ABBREVIATED = re.compile(
    r"(?:^|[\s(\"'-])(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Sr|Jr|Messrs|Mme|Mlle|Capt|Col|Gen|Lieut|Lt|Maj|Sergt"
    r"|Rev|Hon|Prof|Esq|Gov|Sen|No|Nos|Vol|vol|Art|Sec|sec|art|chap|Chap|cf|viz|Co|Op|i\.e|e\.g"
    r"|&c)\.$"
)
_END = re.compile(r"[.!?]+[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
_WORD = re.compile(r"\S*[A-Za-z0-9]\S*")


def decode(data: bytes) -> str:
    r"""Text of a file: UTF-8, else Windows-1252; every kind of line end becomes ``\n``."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")


def normalise(text: str) -> str:
    """One form for quotes, dashes, ellipses, accents, italics and white space; ASCII only.

    A dash of any length is `` - ``; a run of dots is ``...``; ``_italic_`` loses its marks; accents
    go (Pavlovna for Pávlovna); characters without a plain counterpart are left out.
    """
    text = unicodedata.normalize("NFC", text).translate(_TABLE)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    text = re.sub(r"[_*|~^]|[<>{}\\]", "", text)
    text = text.replace("''", '"')
    text = re.sub(r"&c\b\.?", "etc.", text)
    text = re.sub(r"\s*-{2,}\s*|(?<=\s)-+(?=\s)", " - ", text)
    text = re.sub(r"\.(?:\s?\.)+", "...", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" - (?=[\"')]*(?:\s|$))", "- ", text)
    text = re.sub(r"- ([\"')]+)(?=\s|$)", r"-\1", text)
    text = re.sub(r"\s+([,;:!?])", r"\1", text)
    text = re.sub(r"([!?,;:])\1+", r"\1", text)
    text = re.sub(r"(?:- )+- ", "- ", text)
    text = re.sub(r":\s?-(?=\s|$)", ":", text)
    text = re.sub(r"(?<=[A-Za-z]) '(?=(?:s|ll|re|ve|d|m|t)\b)", "'", text)
    return _attach_quotes(re.sub(r"\s+", " ", text).strip())


def _attach_quotes(text: str) -> str:
    """Move a quotation mark that stands between spaces to the word it belongs to."""
    parts = text.split('"')
    for i in range(1, len(parts)):
        before, after = parts[i - 1], parts[i]
        opens = i % 2 == 1
        loose = (not before or before.endswith(" ")) and (not after or after.startswith(" "))
        if loose and opens:
            parts[i] = after.lstrip()
        elif loose:
            parts[i - 1] = before.rstrip()
    return '"'.join(parts)


def double_quotes(text: str) -> str:
    """Turn speech in single quotes into speech in double quotes; apostrophes stay."""
    inner = text.replace('"', "\x00")
    inner = re.sub(r"(^|[\s(-])'(?=[A-Za-z0-9.])", r'\1"', inner)
    inner = re.sub(r"([,.!?;:-])'(?=[\s)-]|$)", r'\1"', inner)
    return inner.replace("\x00", "'")


def words_in_lower_case(texts: Iterable[str]) -> set[str]:
    """Words that stand in the texts in lower case."""
    return {word for text in texts for word in re.findall(r"(?<![A-Za-z])[a-z]{2,}", text)}


def lower_capitals(text: str, known: set[str]) -> str:
    """Words set in capitals for emphasis or at a chapter's start, as ordinary words.

    A word that the work also has in lower case (``known``) is lowered, any other takes one capital
    letter; Roman numerals and single letters stay.
    """

    def lower(match: re.Match[str]) -> str:
        word, tail = match.group(1), (match.group(2) or "").lower()
        if _ROMAN.fullmatch(word):
            return match.group(0)
        before = text[: match.start()].rstrip(" \"'(-")
        starts = not before or before[-1] in ".!?"
        plain = word.lower()
        return (plain if plain in known and not starts else plain.capitalize()) + tail

    text = re.sub(r"(?<=[A-Z]{2} )A(?= [A-Z]{2})", "a", text)
    text = re.sub(r"\bI'(?:LL|M|VE|D)\b", lambda m: "I" + m.group(0)[1:].lower(), text)
    pattern = r"(?<![A-Za-z.&])(?<!I')([A-Z]{2,})('[A-Z]+)?(?![A-Za-z]|\.[A-Z])"
    return re.sub(pattern, lower, text)


def split_sentences(paragraph: str) -> list[str]:
    """Sentences of one normalised paragraph; titles and initials do not end one."""
    sentences, start = [], 0
    for match in _END.finditer(paragraph):
        if _ABBREVIATED.search(paragraph[start : match.end()].rstrip()):
            continue
        sentences.append(paragraph[start : match.end()].strip())
        start = match.end()
    if rest := paragraph[start:].strip():
        sentences.append(rest)
    return sentences


def count_words(text: str) -> int:
    """White-space separated tokens that hold a letter or a digit."""
    return len(_WORD.findall(text))

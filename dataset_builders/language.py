"""A rough guess at a text's script and language: enough to notice an answer in the wrong one.

The script is that of most letters. Among languages in Latin script the guess is the one whose
function words are most frequent; where the evidence is thin there is no guess.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

__all__ = ["guess_language", "guess_script", "same_language"]

_FUNCTION_WORDS = {
    "en": "the of and to in that it is was for with as his her on at by not this but from they "
    "have had you are be or an which who what would when there been if i my we he she no do "
    "a me so die war man sin con also per fin pour sur des son dos das ne le la o e y",
    "de": "der die und das in zu den ist nicht von mit sich des auf für im dem ein eine als auch "
    "es an werden aus er hat dass sie nach wird bei einer um am sind noch wie ich wir",
    "fr": "le la les de des et un une du en que qui dans pour est pas sur au par plus ne se ce il "
    "elle avec son sa ses je nous vous mais ou cette ces été sont",
    "es": "el la los las de que y en un una por con no su para es al lo como más pero sus le ya "
    "o este sí porque esta entre cuando muy sin sobre también me hay donde quien",
    "it": "il lo la gli le di che e un una in per è non con del della si da al come più ma sono "
    "anche nel dei ha alla delle questo essere questa suo sua io mi",
    "pt": "o a os as de que e do da em um uma para com não se na no por mais dos das como mas ao "
    "foi ele ela seu sua ou quando muito há nos já está eu também",
    "nl": "de het een en van in is dat op te zijn met voor niet aan er om hij ze die bij als ook "
    "maar naar dan uit nog wat werd door over ik je we heeft",
}
_TIMES = Counter(word for words in _FUNCTION_WORDS.values() for word in set(words.split()))
_WORDS = {
    language: frozenset(word for word in words.split() if _TIMES[word] == 1)
    for language, words in _FUNCTION_WORDS.items()
}
"""Words of one language alone; the English list also holds words that look like another's."""
_FORMULA = re.compile(r"\$[^$]*\$|\\[a-zA-Z]+|https?://\S+")
_WORD = re.compile(r"[^\W\d_]+")
_LONGEST = 1200
"""Characters looked at; more change no guess."""


@lru_cache(maxsize=4096)
def _script_of(letter: str) -> str:
    name = unicodedata.name(letter, "")
    first = name.split(" ", 1)[0]
    return {"CJK": "HAN", "HIRAGANA": "KANA", "KATAKANA": "KANA"}.get(first, first)


def guess_script(text: str) -> str | None:
    """The script of most letters (`"LATIN"`, `"CYRILLIC"`, ...); None without letters."""
    text = _FORMULA.sub(" ", text[:_LONGEST])
    if text.isascii():
        return "LATIN" if re.search("[A-Za-z]", text) else None
    letters = Counter(c for c in text if c.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[_script_of(letter)] += count
    if not scripts:
        return None
    if scripts.get("KANA", 0) * 10 > sum(scripts.values()):
        return "KANA"  # Japanese mixes its own letters with Chinese ones
    return scripts.most_common(1)[0][0]


def guess_language(text: str) -> str | None:
    """The language of a text in Latin script, or None where the evidence is thin."""
    words = _WORD.findall(_FORMULA.sub(" ", text[:_LONGEST]).lower())
    if len(words) < 8:
        return None
    counts = Counter(words)
    found = sorted(
        ((sum(counts[w] for w in listed), language) for language, listed in _WORDS.items()),
        reverse=True,
    )
    (best, language), (second, _) = found[0], found[1]
    return language if best >= max(2, 0.1 * len(words)) and best >= 1.3 * second else None


def same_language(a: str, b: str) -> bool:
    """Whether nothing speaks against two texts being in one language."""
    scripts = guess_script(a), guess_script(b)
    if None not in scripts and scripts[0] != scripts[1]:
        return False
    languages = guess_language(a), guess_language(b)
    return None in languages or languages[0] == languages[1]

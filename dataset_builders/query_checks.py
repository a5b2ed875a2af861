"""What makes a synthetic query worthless: it names, quotes or copies its document, or is no query.

Names are recognised by the corpus itself: a word that is hardly ever written in lower case, and
does not stand in so many documents that it identifies none. Rare words are those above an inverse
document frequency. Both need no language model; spaCy can be added for names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from dataset_builders.language import guess_language, guess_script, same_language
from dataset_builders.near_duplicates import TextProfile, is_near_duplicate
from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dataset_builders.lenses import Form

__all__ = [
    "CorpusWords",
    "Problem",
    "QueryChecker",
    "leaked_names",
    "leaked_rare_words",
    "quoted_run",
    "spacy_names",
]

RARE_IDF = 6.5
"""Inverse document frequency, ln(n / df), above which a word is rare: 1 document in 665."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_LINK = re.compile(
    r"https?://\S+|www\.\S+|[\w.+-]+@[\w-]+\.\w+|(?<![\w$\\])@\w{2,}|(?<![\w&$\\])#[^\W\d_]\w+"
)
_SENTENCE_END = re.compile(r"[.!?:;…\n\"“”‘(\[—–*>|]\s*$")
_ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Gen|Sen|Rep|Gov|Hon|Capt|Col|Rev|Lt|[A-Z])\.\s*$"
)
_ANSWER_TEXT = re.compile(
    r"""^\W{0,3}(?:here(?:['’]s|\sis|\sare)\b.{0,60}(?:query|request|post|problem|passage|search)
    |(?:sure|certainly|of\scourse|absolutely|okay|ok)[,!.:]\s
    |(?:the\s)?(?:search\s)?(?:query|request|post|new\s(?:text|problem|passage)|answer|output)\s?:
    |as\san\sai\b|(?:i['’]?\s?a?m\ssorry,?\s(?:but\s)?)?i\s(?:can(?:no|['’])t|am\sunable\sto)\s
    (?:help|assist|write|create|provide|fulfil|comply|do\sthat)|\{|```)
    |```|<\/?(?:think|document|query)>|\bthe\s(?:given|provided|above)\sdocument\b""",
    re.IGNORECASE | re.VERBOSE,
)
_TITLES = frozenset(
    (
        "mr",
        "mrs",
        "ms",
        "miss",
        "dr",
        "prof",
        "sir",
        "madam",
        "madame",
        "lord",
        "lady",
        "king",
        "queen",
        "prince",
        "princess",
        "god",
        "st",
        "i",
        "ii",
        "iii",
        "iv",
        "english",
        "french",
        "german",
        "american",
    )
)
_COMMON_SHARE = 0.05
_STATISTICS_DOCUMENTS = 50_000


@dataclass(frozen=True)
class Problem:
    """Why a query is refused.

    Attributes:
        kind: What is counted: `too-short`, `too-long`, `name`, `link`, `number`, `quote`,
            `rare-word`, `copy-of-document`, `copy-of-query`, `language`, `answer-text`,
            `repetitive`.
        detail: What is told to the model, as the end of the sentence "It was refused because".
    """

    kind: str
    detail: str


@dataclass
class CorpusWords:
    """How often words occur in a corpus, and how they are written.

    Attributes:
        documents: Documents counted.
        frequency: Word in lower case -> number of these documents that have it.
        lower: Word -> occurrences in lower case.
        capital: Word -> occurrences with a capital letter inside a sentence, or all in capitals.
    """

    documents: int = 0
    frequency: Counter[str] = field(default_factory=Counter)
    lower: Counter[str] = field(default_factory=Counter)
    capital: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, texts: Sequence[str]) -> CorpusWords:
        """Count the words of a corpus, of a large one those of 50,000 documents."""
        words = cls()
        step = max(1, math.ceil(len(texts) / _STATISTICS_DOCUMENTS))
        for text in texts[::step]:
            words.add(text)
        return words

    def add(self, text: str) -> None:
        """Count one document."""
        self.documents += 1
        seen: set[str] = set()
        for match in _WORD.finditer(text):
            word = match.group()
            key = _key(word)
            seen.add(key)
            first = word[0]
            if first.islower():
                self.lower[key] += 1
            elif first.isupper():
                before = text[max(0, match.start() - 8) : match.start()]
                within = bool(before) and (
                    not _SENTENCE_END.search(before) or bool(_ABBREVIATION.search(before))
                )
                if within or (len(word) > 1 and word.isupper()):
                    self.capital[key] += 1
        self.frequency.update(seen)

    def is_name(self, key: str) -> bool:
        """Whether a word is hardly ever written in lower case and identifies something."""
        capital = self.capital.get(key, 0)
        if not capital or key in _TITLES or len(key) < 2 or key.startswith("i'"):
            return False
        if capital < 3 * self.lower.get(key, 0):
            return False
        common = max(20.0, _COMMON_SHARE * self.documents)
        return self.frequency.get(key, 0) <= common

    def rarity(self, key: str) -> float:
        """Inverse document frequency of a word, ln(n / df); a word never counted has df 1."""
        return math.log(max(1, self.documents) / max(1, self.frequency.get(key, 0)))


@lru_cache(maxsize=1 << 16)
def _key(word: str) -> str:
    key = word.lower().replace("’", "'")
    return key[:-2] if key.endswith("'s") else key


def _words(text: str) -> list[str]:
    return [_key(word) for word in _WORD.findall(text)]


class _Text:
    """A text's words as written and in lower case, split once for all checks."""

    __slots__ = ("keys", "known", "words")

    def __init__(self, text: str) -> None:
        self.words = _WORD.findall(text)
        self.keys = [_key(word) for word in self.words]
        self.known = frozenset(self.keys)


def leaked_names(query: str, document: str, words: CorpusWords) -> list[str]:
    """Names of the document that stand in the query.

    Args:
        query: The query.
        document: The document it was written from.
        words: Statistics of the corpus.

    Returns:
        The words as the query writes them, each once.
    """
    return _names(_Text(query), _Text(document), words)


def _names(query: _Text, document: _Text, words: CorpusWords) -> list[str]:
    shared = query.known & document.known
    names = {
        key
        for word, key in zip(document.words, document.keys, strict=True)
        if key in shared and word[0].isupper() and words.is_name(key)
    }
    found: dict[str, str] = {}
    for word, key in zip(query.words, query.keys, strict=True):
        if key in names and (word[0].isupper() or not words.lower.get(key)):
            found.setdefault(key, word)
    return list(found.values())


def leaked_rare_words(
    query: str, document: str, words: CorpusWords, *, rare_idf: float = RARE_IDF
) -> list[str]:
    """Words of four letters or more that the query shares with the document and few others have.

    Args:
        query: The query.
        document: The document it was written from.
        words: Statistics of the corpus.
        rare_idf: Inverse document frequency above which a word is rare.
    """
    return _rare_words(_Text(query), _Text(document), words, rare_idf)


def _rare_words(query: _Text, document: _Text, words: CorpusWords, rare_idf: float) -> list[str]:
    return [
        key
        for key in dict.fromkeys(query.keys)
        if len(key) >= 4 and key in document.known and words.rarity(key) > rare_idf
    ]


def quoted_run(query: str, document: str, length: int) -> str | None:
    """A run of this many words that stands in both texts, or None."""
    return _quoted_run(_Text(query), _Text(document), length)


def _quoted_run(query: _Text, document: _Text, length: int) -> str | None:
    asked, own = query.keys, document.keys
    if length < 1:
        return None
    starts, known = [], 0
    for place, key in enumerate(asked):
        known = known + 1 if key in document.known else 0
        if known >= length:
            starts.append(place - length + 1)
    if not starts:
        return None
    runs = {tuple(own[i : i + length]) for i in range(len(own) - length + 1)}
    for start in starts:
        if tuple(asked[start : start + length]) in runs:
            return " ".join(asked[start : start + length])
    return None


def spacy_names(model: str) -> Callable[[str], set[str]]:
    """A recogniser of names by spaCy, to be added to the corpus's own.

    Args:
        model: Name of an installed spaCy pipeline, such as `en_core_web_sm`.

    Raises:
        ObliqError: spaCy or the pipeline is not installed.
    """
    try:
        import spacy

        pipeline = spacy.load(model)
    except (ImportError, OSError) as error:
        raise ObliqError(
            f"names by spaCy need `pip install spacy` and `python -m spacy download {model}`"
        ) from error
    kinds = {"PERSON", "ORG", "GPE", "LOC", "FAC", "NORP", "PRODUCT", "EVENT", "WORK_OF_ART"}

    def names(text: str) -> set[str]:
        return {
            _key(w)
            for e in pipeline(text).ents
            if e.label_ in kinds
            for w in _WORD.findall(e.text)
            if w[0].isupper()
        }

    return names


class QueryChecker:
    """Checks queries of one form against their documents.

    Args:
        form: Length and rules.
        words: Statistics of the corpus.
        language: `same` as the document's, a code such as `en`, or `any`.
        rare_idf: Inverse document frequency above which a word is rare.
        names: A further recogniser of names, such as :func:`spacy_names`.
    """

    def __init__(
        self,
        form: Form,
        words: CorpusWords,
        *,
        language: str = "same",
        rare_idf: float = RARE_IDF,
        names: Callable[[str], set[str]] | None = None,
    ) -> None:
        self.form = form
        self.words = words
        self.language = language
        self.rare_idf = rare_idf
        self.names = names

    def check(self, query: str, document: str) -> list[Problem]:
        """Everything that is wrong with a query, other queries not considered.

        Args:
            query: The query.
            document: The text it was written from.

        Returns:
            Problems, none if the query may stand.
        """
        return [*self._shape(query, document), *self._leaks(query, document)]

    def _shape(self, query: str, document: str) -> list[Problem]:
        problems = []
        fewest, most = self.form.characters
        size = len(query.strip())
        if size < fewest:
            problems.append(
                Problem("too-short", f"it has {size} characters; at least {fewest} are needed")
            )
        if size > most:
            problems.append(
                Problem("too-long", f"it has {size} characters; at most {most} are allowed")
            )
        if _ANSWER_TEXT.search(query):
            problems.append(
                Problem(
                    "answer-text",
                    "it contains words about the answer instead of only the text asked",
                )
            )
        if _is_repetitive(query):
            problems.append(Problem("repetitive", "it says the same again and again"))
        if not self._right_language(query, document):
            what = "English" if self.language == "en" else "the language it must be in"
            problems.append(Problem("language", f"it is not in {what}"))
        return problems

    def _right_language(self, query: str, document: str) -> bool:
        if self.language == "any":
            return True
        if self.language == "same":
            return same_language(query, document)
        script, language = guess_script(query), guess_language(query)
        return script in (None, "LATIN") and language in (None, self.language)

    def _leaks(self, query: str, document: str) -> list[Problem]:
        rules = self.form.checks
        asked, own = _Text(query), _Text(document)
        problems = []
        if rules.names:
            found = _names(asked, own, self.words)
            if self.names is not None:
                more = self.names(document) & asked.known
                found += sorted(more - {_key(w) for w in found})
            if found:
                problems.append(
                    Problem("name", "it takes over these names: " + ", ".join(found[:5]))
                )
        if rules.links and (link := _LINK.search(query)):
            problems.append(
                Problem("link", f"it contains an address, handle or hashtag: {link.group()[:60]}")
            )
        if rules.numbers != "any":
            numbers = list(dict.fromkeys(_NUMBER.findall(query)))
            if rules.numbers == "document":
                known = set(_NUMBER.findall(document))
                numbers = [n for n in numbers if n in known and len(n) > 1]
            if numbers:
                problems.append(
                    Problem("number", "it contains these numbers: " + ", ".join(numbers[:5]))
                )
        if rules.quoted_words:
            run = _quoted_run(asked, own, rules.quoted_words)
            if run is not None:
                problems.append(Problem("quote", f"it takes over the words «{run}»"))
        if rules.rare_words:
            rare = _rare_words(asked, own, self.words, self.rare_idf)
            if rare:
                problems.append(
                    Problem(
                        "rare-word", "it takes over these unusual words: " + ", ".join(rare[:5])
                    )
                )
        if rules.copies and is_near_duplicate(TextProfile(query), TextProfile(document)):
            problems.append(Problem("copy-of-document", "it is nearly the document itself"))
        return problems


def _is_repetitive(text: str) -> bool:
    """Whether a run of three words makes up a third of a text, or one word makes up half."""
    words = _words(text)
    if len(words) < 12:
        return False
    runs = Counter(zip(words, words[1:], words[2:], strict=False))
    most_run = runs.most_common(1)[0][1]
    most_word = Counter(words).most_common(1)[0][1]
    return 3 * most_run > len(words) / 3 + 3 or most_word > len(words) / 2

"""Character n-grams and word-and-punctuation n-grams of texts, counted against a vocabulary."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

__all__ = ["NgramCounter"]

_WORD = re.compile(r"\w+|[^\w\s]")  # a word, or one mark of punctuation
_SPACE = re.compile(r"\s+")


class NgramCounter:
    """Counts the n-grams of a fixed vocabulary; case is kept, white space is one space.

    Plain dictionaries: on prose they count about twice as fast as scikit-learn's vectorizers,
    whose vocabulary moreover depends on the machine where n-grams are equally frequent.

    Args:
        characters: Character n-grams, by feature.
        words: Word-and-punctuation n-grams, tokens joined by a space; their features follow.
        character_ngrams: Shortest and longest character n-gram.
        word_ngrams: Shortest and longest word n-gram.
    """

    def __init__(
        self,
        characters: Sequence[str],
        words: Sequence[str],
        character_ngrams: tuple[int, int],
        word_ngrams: tuple[int, int],
    ) -> None:
        self.characters = tuple(characters)
        self.words = tuple(words)
        self.character_ngrams = character_ngrams
        self.word_ngrams = word_ngrams
        self._blocks = (
            {gram: i for i, gram in enumerate(self.characters)},
            {gram: i for i, gram in enumerate(self.words, len(self.characters))},
        )

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        characters: int,
        words: int,
        character_ngrams: tuple[int, int],
        word_ngrams: tuple[int, int],
    ) -> NgramCounter:
        """Take the most frequent n-grams; equally frequent ones in the order of their characters.

        Args:
            texts: The texts.
            characters: Number of character n-grams kept.
            words: Number of word n-grams kept.
            character_ngrams: Shortest and longest character n-gram.
            word_ngrams: Shortest and longest word n-gram.

        Raises:
            ObliqError: The texts hold no n-grams of one kind.
        """
        empty = cls((), (), character_ngrams, word_ngrams)
        totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for text in texts:
            for total, grams in zip(totals, empty.grams(text), strict=True):
                total.update(grams)
        kept = [
            sorted(total, key=lambda gram: (-total[gram], gram))[:size]
            for total, size in zip(totals, (characters, words), strict=True)
        ]
        if not all(kept):
            raise ObliqError("the texts hold no words or no character n-grams to make a profile of")
        return cls(kept[0], kept[1], character_ngrams, word_ngrams)

    def grams(self, text: str) -> tuple[list[str], list[str]]:
        """All character n-grams and all word n-grams of a text, in vocabulary or not."""
        text = _SPACE.sub(" ", text)
        low, high = self.character_ngrams
        characters = [
            text[i : i + n] for n in range(low, high + 1) for i in range(len(text) - n + 1)
        ]
        tokens = _WORD.findall(text)
        low, high = self.word_ngrams
        words = [
            " ".join(tokens[i : i + n])
            for n in range(low, high + 1)
            for i in range(len(tokens) - n + 1)
        ]
        return characters, words

    def square_roots(self, texts: Iterable[str]) -> csr_matrix:
        """Square roots of relative frequencies, ``[n, features]``, float32.

        The squares of a text's character features sum to 1, and so do those of its word
        features, unless the text has none of them.
        """
        from scipy.sparse import csr_matrix

        columns: list[NDArray[np.int32]] = []
        values: list[NDArray[np.float32]] = []
        lengths = [0]
        for text in texts:
            before = len(columns)
            for block, grams in zip(self._blocks, self.grams(text), strict=True):
                known = [block[gram] for gram in grams if gram in block]
                if not known:
                    continue
                found, counts = np.unique(np.array(known, dtype=np.int32), return_counts=True)
                columns.append(found)
                values.append(np.sqrt(counts / len(known)).astype(np.float32))
            lengths.append(sum(len(found) for found in columns[before:]))
        shape = (len(lengths) - 1, len(self.characters) + len(self.words))
        return csr_matrix(
            (
                np.concatenate(values) if values else np.empty(0, np.float32),
                np.concatenate(columns) if columns else np.empty(0, np.int32),
                np.cumsum(lengths),
            ),
            shape=shape,
        )

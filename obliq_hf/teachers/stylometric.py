"""The embedded teacher: an unsupervised profile of how a text is written.

A text is described by the relative frequencies of its character 2-4-grams and of its word-and-
punctuation 1-2-grams, case kept. Square roots of the frequencies are centred and scaled by the
corpus (a Burrows-Delta kind of profile), joined, and followed by the leading principal
directions of the corpus at half weight: what many texts of the corpus vary in together says more
about their writers than what one text has of its own.

The settings were chosen on the training authors of a labelled collection of British novels and
essays (2,760 passages of 34 authors; a hit is a passage from another work of the same author).
nDCG@10 when the profile is fitted on the texts that it searches, its purpose, and when it is
fitted on half of the authors and searches the other half:

=========================================================  =======  ======
                                                           its own  others
=========================================================  =======  ======
z-scores, case folded                                      .199
z-scores                                                   .204     .300
divided by the root of the standard deviation instead      .210     .310
and words weighted 1.5 in place of 1                       .214     .312
and 48 principal directions at weight 0.5 (the default)    .249     .303
=========================================================  =======  ======

(The columns have different numbers of authors; compare within a column.) Fewer directions, or the
directions alone, gain more on the texts they come from and lose more on other authors.

Clipping z-scores, damping them by a logarithm, other powers of the frequencies and n-grams inside
of words only were not better.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import atomic_path, content_hash, read_json, write_json
from obliq_hf.teachers.feature_space import lengths, principal_directions, scaling, unit_rows
from obliq_hf.teachers.ngrams import NgramCounter
from obliq_hf.teachers.teacher import rows_in_words, unit_vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

__all__ = ["ProfileSettings", "StylometricProfile"]

_FORMAT = 1


@dataclass(frozen=True)
class ProfileSettings:
    """What a profile is made of.

    Attributes:
        characters: Number of character n-grams kept, the most frequent ones.
        character_ngrams: Their shortest and longest length.
        words: Number of word-and-punctuation n-grams kept.
        word_ngrams: Their shortest and longest length.
        scaling: Power of the standard deviation by which a feature is divided; 1 gives z-scores.
        word_weight: Weight of a word feature beside a character feature.
        components: Principal directions added; at most an eighth of the number of texts.
        component_weight: Weight of the directions beside the rest; 0 leaves them out.
        sample: Texts, evenly spaced over the corpus, from which vocabulary, statistics and
            directions are taken when there are more.
    """

    characters: int = 8000
    character_ngrams: tuple[int, int] = (2, 4)
    words: int = 2000
    word_ngrams: tuple[int, int] = (1, 2)
    scaling: float = 0.5
    word_weight: float = 1.5
    components: int = 48
    component_weight: float = 0.5
    sample: int = 20_000

    def __post_init__(self) -> None:
        for name in ("character_ngrams", "word_ngrams"):
            low, high = (int(value) for value in getattr(self, name))
            object.__setattr__(self, name, (low, high))
            if not 1 <= low <= high:
                raise ObliqError(f"{name} must be two lengths from 1 up, not {(low, high)}")
        for name in ("characters", "words", "sample"):
            if getattr(self, name) < 1:
                raise ObliqError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("scaling", "word_weight", "components", "component_weight"):
            if not getattr(self, name) >= 0:
                raise ObliqError(f"{name} must not be negative: {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class StylometricProfile:
    """A fitted profile; make one with ``fit`` or ``load``.

    Attributes:
        settings: Its settings.
        characters: The character n-grams, by feature.
        words: The word-and-punctuation n-grams (tokens joined by a space), by feature.
        mean: Mean square-root frequency of every feature, float32 ``[features]``.
        scale: What a centred feature is multiplied by, float32 ``[features]``.
        centre: Mean of the unit vectors of the fitted texts, float32 ``[features]``.
        directions: Principal directions, float32 ``[components, features]``, orthonormal rows.
        source: Digest of the texts it was fitted on.
    """

    settings: ProfileSettings
    characters: tuple[str, ...]
    words: tuple[str, ...]
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    centre: NDArray[np.float32]
    directions: NDArray[np.float32]
    source: str

    name = "stylometric"

    @property
    def fingerprint(self) -> str:
        """Digest of the settings and of the texts it was fitted on."""
        return content_hash("stylometric", _FORMAT, asdict(self.settings), self.source)

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return len(self.mean) + len(self.directions)

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        *,
        settings: ProfileSettings | None = None,
        show_progress: bool = False,
    ) -> StylometricProfile:
        """Take vocabulary, scaling and directions from the texts that will be screened.

        Args:
            texts: The texts, at least two different ones.
            settings: The settings; the defaults where None.
            show_progress: Whether to show a progress bar.

        Returns:
            The profile. Equal texts in equal order give an equal profile.

        Raises:
            ObliqError: There are fewer than two different texts, or some are empty or not
                strings; the message names the rows.
        """
        settings = settings or ProfileSettings()
        _check_texts(texts)
        step = max(1, -(-len(texts) // settings.sample))
        chosen = [texts[i] for i in range(0, len(texts), step)]
        if len(set(chosen)) < 2:
            raise ObliqError(
                "a stylometric profile says how texts differ: it needs at least two different "
                f"texts, not {len(set(chosen))}"
            )
        counter = NgramCounter.fit(
            _progress(chosen, "style n-grams", show_progress),
            characters=settings.characters,
            words=settings.words,
            character_ngrams=settings.character_ngrams,
            word_ngrams=settings.word_ngrams,
        )
        characters, words = counter.characters, counter.words
        roots = counter.square_roots(_progress(chosen, "style frequencies", show_progress))
        mean, scale = scaling(
            roots, len(characters), power=settings.scaling, word_weight=settings.word_weight
        )
        centre = np.zeros(len(mean), dtype=np.float32)
        directions = np.zeros((0, len(mean)), dtype=np.float32)
        components = min(settings.components, len(chosen) // 8)
        if components and settings.component_weight:
            centre, directions = principal_directions(roots, mean, scale, components)
        source = content_hash(list(texts))
        return cls(settings, characters, words, mean, scale, centre, directions, source)

    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 256,
        show_progress: bool = False,
        undefined: Literal["error", "zero"] = "error",
    ) -> NDArray[np.float32]:
        """Unit vectors of texts.

        Args:
            texts: The texts.
            batch_size: Texts made dense at once.
            show_progress: Whether to show a progress bar.
            undefined: What becomes of a text without any n-gram of the profile (an empty one,
                one in another script): ``"error"``, or ``"zero"`` for a zero vector.

        Returns:
            Float32 ``[n, dimensions]``. For more than fits into memory use ``encode_blocks``.

        Raises:
            ObliqError: A text is not a string or has no n-gram of the profile; the message
                names the rows.
        """
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for first, block in self.encode_blocks(
            texts, block_rows=batch_size, show_progress=show_progress, undefined=undefined
        ):
            vectors[first : first + len(block)] = block
        return vectors

    def encode_blocks(
        self,
        texts: Sequence[str],
        *,
        block_rows: int = 256,
        show_progress: bool = False,
        undefined: Literal["error", "zero"] = "error",
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """``encode`` in pieces: yields ``(first row, vectors)``, to write to a memory map.

        Raises:
            ObliqError: As ``encode``; all texts are checked for emptiness before the first
                block.
        """
        if block_rows < 1:
            raise ObliqError(f"batch_size must be at least 1, not {block_rows}")
        if undefined not in ("error", "zero"):
            raise ObliqError(f"undefined must be 'error' or 'zero', not {undefined!r}")
        _check_texts(texts, empty=undefined == "zero")
        for first in _progress(range(0, len(texts), block_rows), "style vectors", show_progress):
            part = list(texts[first : first + block_rows])
            roots = self._counter.square_roots(part)
            known = np.diff(roots.indptr) > 0
            if undefined == "error" and not known.all():
                raise ObliqError(
                    "no n-gram of the stylometric profile occurs in "
                    f"{rows_in_words(np.flatnonzero(~known) + first)}; a profile of nothing is "
                    "undefined"
                )
            block = np.zeros((len(part), self.dimensions), dtype=np.float32)
            if known.any():
                block[known] = unit_vectors(self._vectors(roots[known]), self.name, first=first)
            yield first, block

    def _vectors(self, roots: csr_matrix) -> NDArray[np.float32]:
        rows = unit_rows(roots, self.mean, self.scale)
        if not len(self.directions):
            return rows
        rows -= self.centre
        shared = rows @ self.directions.T
        rows /= lengths(rows)
        shared *= self.settings.component_weight / lengths(shared)
        return np.concatenate([rows, shared], axis=1)

    @cached_property
    def _counter(self) -> NgramCounter:
        return NgramCounter(
            self.characters, self.words, self.settings.character_ngrams, self.settings.word_ngrams
        )

    def save(self, folder: str | Path) -> None:
        """Write ``profile.json`` and ``profile.npz`` (plain arrays, no pickle), atomically."""
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            np.savez(temporary / "profile.npz", allow_pickle=False, **self._arrays())
            write_json(
                temporary / "profile.json",
                {
                    "teacher": self.name,
                    "format": _FORMAT,
                    "fingerprint": self.fingerprint,
                    "content": self._content(),
                    "source": self.source,
                    "settings": asdict(self.settings),
                    "characters": list(self.characters),
                    "words": list(self.words),
                },
            )

    @classmethod
    def load(cls, folder: str | Path) -> StylometricProfile:
        """Read a saved profile.

        Raises:
            DataError: A file is missing, of another format, or does not belong to the rest.
        """
        head = read_json(Path(folder) / "profile.json")
        if not isinstance(head, dict) or head.get("teacher") != cls.name:
            raise DataError(f"{folder}: profile.json does not describe a stylometric profile")
        if head.get("format") != _FORMAT:
            raise DataError(
                f"{folder}: profile of format {head.get('format')!r}; this version reads {_FORMAT}"
            )
        try:
            known = {field.name for field in fields(ProfileSettings)}
            profile = cls(
                settings=ProfileSettings(
                    **{key: head["settings"][key] for key in known & set(head["settings"])}
                ),
                characters=tuple(head["characters"]),
                words=tuple(head["words"]),
                source=head["source"],
                **_read_arrays(Path(folder) / "profile.npz"),
            )
            agrees = (
                profile._content() == head["content"] and profile.fingerprint == head["fingerprint"]
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: incomplete stylometric profile: {error!r}") from error
        if not agrees:
            raise DataError(f"{folder}: profile.json and profile.npz do not belong together")
        return profile

    def _arrays(self) -> dict[str, NDArray[np.float32]]:
        return {name: getattr(self, name) for name in _ARRAYS}

    def _content(self) -> str:
        parts: list[Any] = [list(self.characters), list(self.words)]
        for name, array in self._arrays().items():
            parts += [name, list(array.shape), np.ascontiguousarray(array, "<f4").tobytes()]
        return content_hash(*parts)


_ARRAYS = ("mean", "scale", "centre", "directions")


def _read_arrays(path: Path) -> dict[str, NDArray[np.float32]]:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name], dtype=np.float32) for name in _ARRAYS}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not an archive of plain arrays: {error}") from error


def _check_texts(texts: Sequence[str], *, empty: bool = False) -> None:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ObliqError(f"text {row} is {type(text).__name__}, not a string")
    if empty:
        return
    blank = [row for row, text in enumerate(texts) if not text.strip()]
    if blank:
        raise ObliqError(
            f"a stylometric profile of nothing is undefined: empty text in {rows_in_words(blank)}"
        )


def _progress(items: Any, what: str, show: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(items, desc=what, disable=not show, leave=False)

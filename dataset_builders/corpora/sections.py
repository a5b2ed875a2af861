"""Source texts to sections: the paragraphs of a chapter, the speeches of a scene, nothing else.

Prose: headings, epigraphs, verse set off by indention, captions, notes and signatures go.
Plays: a block is kept where it opens with a speaker's name, and the name is dropped. A block
without one is kept as the rest of a speech where someone says I or you in it and nothing in it
looks like a direction. All else (directions, headings, songs without such a word) goes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dataset_builders.corpora.plain_text import count_words, double_quotes, normalise

if TYPE_CHECKING:
    from collections.abc import Set

__all__ = ["Section", "play_sections", "prose_sections"]

SpeakerStyle = Literal["line", "inline", "mixed"]

_HEADING = re.compile(r"(chapter|part|book|volume|prologue|epilogue|letter)\b", re.IGNORECASE)
_NOTE = re.compile(r"\s*(\*\s*\w|\[\*|\[\d+[.\]]|note:|\d+\.\s+[A-Z])", re.IGNORECASE)
_ENDS = re.compile(r"[.!?,;:'\"\u2019\u201d)\]*-]$|--$|\u2014$")
_ATTRIBUTION = re.compile(r"\s*(--|\u2014)\s?[A-Z]")
_NOTE_NUMBER = re.compile(r"(?<![0-9])\d{1,3}(?![0-9])")
_DIRECTION = re.compile(
    r"\s*(enter|re-enter|exit|exeunt|exeunt|manet|flourish|alarum|alarums|sennet|hautboys)\b",
    re.IGNORECASE,
)
_SCENE = re.compile(r"\s*\[?\s*(act|scene|induction|prologue|epilogue|argument)\b", re.IGNORECASE)
_SPEAKERS = {
    "line": re.compile(
        r"((?:[A-Z][A-Z\u2019'-]+)(?: (?:and )?[A-Z][A-Z\u2019'-]*)*|All|Both)(?:\.\s+|\s*\n)"
    ),
    "inline": re.compile(r"((?:\d )?[A-Z][A-Z'&]*(?:[ .-]+[A-Z][A-Z'&]*)*|Cri|Sog)\s*[.:]\s*"),
    "mixed": re.compile(r"((?:\d )?[A-Z][a-z]{1,5}|Senators)[.:]\s*"),
}
_NO_SPEAKER = re.compile(
    r"(the stage|after the|act|scene|prologue|epilogue|enter|re-enter|exit"
    r"|induction|argument|finis|the end)\b",
    re.IGNORECASE,
)


_ADDRESS = re.compile(
    r"\b(i|me|my|mine|we|us|our|thou|thee|thy|thine|ye|you|your|o|ha|ho|sir|lord|madam)\b",
    re.IGNORECASE,
)
_STAGE_WORDS = re.compile(
    r"\b(enter|re-?enter|exit|exeunt|manet|stage|discovered|flourish|alarums?|alarms|sennet"
    r"|hautboys|trumpets?|drums?|thunder|lightning|music|sings?|sound|sounds|asleep|dumb show"
    r"|appears?|rises|advances|kneels?|attended|passe[sd]|presentation|queen elizabeth)\b",
    re.IGNORECASE,
)


@dataclass
class Section:
    """A chapter or scene: paragraphs (speeches), in order, cleaned."""

    paragraphs: list[str] = field(default_factory=list)


def _blocks(text: str) -> list[str]:
    return [block for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def _finish(sections: list[list[str]], *, single_quotes: bool) -> list[Section]:
    """Normalise characters; empty paragraphs and sections go."""
    finished = []
    for section in sections:
        paragraphs = [normalise(p) for p in section]
        if single_quotes:
            paragraphs = [double_quotes(p) for p in paragraphs]
        if kept := [p for p in paragraphs if count_words(p)]:
            finished.append(Section(kept))
    return finished


def _prepare(text: str, whole_words: Set[str]) -> str:
    """Repair what reflowed mail and web pages left, and join words broken at a line's end."""
    text = text.replace("&nbsp;", " ").replace("\n>From ", "\nFrom ")

    def join(match: re.Match[str]) -> str:
        whole = match.group(1) + match.group(2)
        return whole if whole.lower() in whole_words else f"{match.group(1)}-{match.group(2)}"

    return re.sub(r"(?<![A-Za-z-])([A-Za-z]+)-\n\s*([a-z]+)", join, text)


def prose_sections(
    text: str,
    *,
    indented: bool = False,
    keep_brackets: bool = False,
    single_quotes: bool = False,
    summaries: bool = False,
    whole_words: Set[str] = frozenset(),
    dropped: Counter[str] | None = None,
) -> list[Section]:
    """Chapters of a prose text.

    Args:
        text: The work's text, title page and back matter already cut off.
        indented: All lines of this text are indented, so indention marks no verse.
        keep_brackets: Square brackets hold text of the work and numbers stuck to words point to
            notes: only the brackets and these numbers go.
        single_quotes: Speech stands in single quotes and is brought to double ones.
        summaries: A chapter opens with its number and a summary: both go.
        whole_words: Words in lower case that need no hyphen where a line's end broke them.
        dropped: Counter of words left out by reason, added to.
    """
    dropped = Counter() if dropped is None else dropped
    text = re.sub(r"\[(?:Footnote|Endnote|Illustration)[^\]]*\]", "", text, flags=re.IGNORECASE)
    text = _prepare(text, whole_words)
    sections: list[list[str]] = [[]]
    unfinished = after_number = False
    blocks = _blocks(text)
    for i, block in enumerate(blocks):
        lines = block.split("\n")
        joined = " ".join(block.split())
        if not re.search(r"[A-Za-z]", joined):
            if summaries and re.search(r"\d", joined):
                after_number = True
                sections.append([])
            continue
        if after_number:
            dropped["headings"] += count_words(joined)
            after_number = False
            continue
        following = blocks[i + 1] if i + 1 < len(blocks) else ""
        followed = _ATTRIBUTION.match(following) and len(following.split()) < 8
        if followed or (_ATTRIBUTION.match(joined) and len(joined) < 60):
            dropped["epigraphs"] += count_words(joined)
        elif not indented and all(line.startswith("  ") for line in lines if line.strip()):
            dropped["indented"] += count_words(joined)
        elif _NOTE.match(block):
            dropped["notes"] += count_words(joined)
        elif _is_heading(joined, lines):
            dropped["headings"] += count_words(joined)
            unfinished = False
            if sections[-1]:
                sections.append([])
        else:
            joined = re.sub(r"\[\d+\]", "", joined)
            if keep_brackets:
                joined = _NOTE_NUMBER.sub("", joined)
            else:
                joined = re.sub(r"\[[^\]]{0,300}\]", "", joined)
            joined = joined.replace("[", "").replace("]", "")
            if unfinished:
                sections[-1][-1] += " " + joined
            else:
                sections[-1].append(joined)
            unfinished = len(lines) == 1 and _ENDS.search(joined) is None
    return _finish(sections, single_quotes=single_quotes)


def _is_heading(joined: str, lines: list[str]) -> bool:
    words = len(joined.split())
    if not re.search(r"[a-z]", joined):
        return words <= 30
    if words <= 20 and _HEADING.match(joined) and len(lines) <= 3:
        return True
    if len(lines) > 1 or _ENDS.search(joined):
        return False
    capitalised = all(w[0].isupper() for w in re.findall(r"[A-Za-z]{4,}", joined))
    return len(joined) < 45 or (capitalised and len(joined) < 70)


def _is_speech(block: str) -> bool:
    """Whether a block without a speaker's name is the rest of a speech."""
    return (
        re.search(r"[A-Z]{3}", block) is None
        and _STAGE_WORDS.search(block) is None
        and _ADDRESS.search(block) is not None
    )


def play_sections(
    text: str,
    *,
    speakers: SpeakerStyle,
    whole_words: Set[str] = frozenset(),
    dropped: Counter[str] | None = None,
) -> list[Section]:
    """Scenes of a play: its speeches without the speakers' names.

    Args:
        text: The play's text, front and back matter already cut off.
        speakers: How a speaker is named: on a line of its own in capitals (``line``), in capitals
            before the speech (``inline``), or shortened in lower case (``mixed``).
        whole_words: Words in lower case that need no hyphen where a line's end broke them.
        dropped: Counter of words left out by reason, added to.
    """
    dropped = Counter() if dropped is None else dropped
    text = re.sub(r"<\d+>", "", text)
    text = re.sub(r"\s?\[[^\[\]]{0,400}\]", "", text)
    text = re.sub(r"\[[^\n\[\]]*", "", text).replace("]", "")
    text = _prepare(text, whole_words)
    pattern = _SPEAKERS[speakers]
    blocks = _blocks(text)
    named = {match[1] for block in blocks if (match := pattern.match(block.strip()))}
    inside = re.compile(
        rf"^ *(?:{'|'.join(re.escape(name) for name in sorted(named))})[.:](?:\s+|$)", re.MULTILINE
    )
    sections: list[list[str]] = [[]]
    for block in blocks:
        block = block.strip("\n")
        stripped = block.strip()
        if _SCENE.match(stripped) and len(stripped.split()) < 30:
            if sections[-1]:
                sections.append([])
            continue
        match = pattern.match(stripped + "\n" if speakers == "line" else stripped)
        if match is None and sections[-1] and _is_speech(stripped):
            sections[-1].append(" ".join(stripped.split()))
            continue
        if match is None or _NO_SPEAKER.match(stripped):
            reason = "directions" if _DIRECTION.match(stripped) else "without a speaker"
            dropped[reason] += count_words(stripped)
            continue
        lines = [
            line
            for line in inside.sub("", stripped[match.end() :]).split("\n")
            if line.strip() and not _DIRECTION.match(line)
        ]
        speech = " ".join(" ".join(lines).split())
        if count_words(speech):
            sections[-1].append(speech)
    return _finish(sections, single_quotes=False)

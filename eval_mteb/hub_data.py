"""Tasks whose data are read by mteb's own loader, held to what a folder's files are held to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import load_dataset, load_dataset_builder
from datasets.config import HF_DATASETS_CACHE
from mteb.abstasks.retrieval_dataset_loaders import RetrievalDatasetLoader

from eval_mteb.retrieval import AllButExcluded, ObliqRetrieval
from obliq_hf.errors import DataError
from obliq_hf.hub.download import fetching

if TYPE_CHECKING:
    from obliq_hf.records import Qrels

__all__ = ["BenchRetrieval", "CheckedLoader", "check_part"]

logger = logging.getLogger(__name__)


class CheckedLoader(RetrievalDatasetLoader):
    """mteb's loader, which refuses what it would otherwise pass over without a word.

    Args:
        source: Repository or folder.
        revision: Its revision.
        split: The split whose judgments count.
        config: The task's name in the configurations.
        gold: Judgments from elsewhere, in place of those that lie there.
        pooled: Read the pooled judgments beside the gold ones.
        strict: Judgments of another split do not stand in for those of ``split``.
    """

    def __init__(
        self,
        source: str,
        revision: str,
        *,
        split: str,
        config: str,
        gold: Qrels | None = None,
        pooled: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(hf_repo=source, revision=revision, split=split, config=config)
        self.gold = gold
        self.pooled = pooled
        self.strict = strict
        # datasets keeps a folder's tables under its last name alone, whatever its place or content
        self.cache = Path(HF_DATASETS_CACHE) / "obliq" / revision if Path(source).is_dir() else None

    def _get_split(self, config: str) -> str:
        if self.cache is None:
            found = super()._get_split(config)
        else:
            builder = load_dataset_builder(self.hf_repo, config, cache_dir=str(self.cache))
            present = [str(split) for split in builder.config.data_files or ()]
            found = present[0] if len(present) == 1 else self.split
            if found not in present:
                raise DataError(
                    f"{self.hf_repo}: {config} has no split {found!r}; present: "
                    f"{', '.join(present)}"
                )
        if self.strict and found != self.split and "-qrels" in config:
            raise DataError(
                f"{self.hf_repo}: {config} has no split {self.split!r}; present: {found}"
            )
        return found

    def _load_dataset_split(self, config: str, num_proc: int | None) -> Any:
        if self.pooled and config.endswith("-qrels"):
            config += "-pooled"
        if self.cache is None:
            rows = super()._load_dataset_split(config, num_proc)
        else:
            rows = load_dataset(
                self.hf_repo,
                config,
                split=self._get_split(config),
                cache_dir=str(self.cache),
                num_proc=num_proc,
            )
        where = f"{self.hf_repo}: {config}"
        if not len(rows) and not config.endswith("-top_ranked"):
            raise DataError(f"{where} holds no rows")
        if "-qrels" in config:
            _refuse_two_grades(rows, where)
        return rows

    def _load_qrels(self, num_proc: int | None) -> Qrels:
        found = super()._load_qrels(num_proc) if self.gold is None else self.gold
        return {query: dict(grades) for query, grades in found.items()}


def _refuse_two_grades(rows: Any, where: str) -> None:
    grades: dict[tuple[str, str], Any] = {}
    columns = (rows[name] for name in ("query-id", "corpus-id", "score"))
    for query, document, grade in zip(*columns, strict=True):
        if grades.setdefault((str(query), str(document)), grade) != grade:
            raise DataError(
                f"{where}: query {str(query)!r} and document {str(document)!r} have two grades, "
                f"{grades[str(query), str(document)]} and {grade}"
            )


def _once(rows: Any, columns: list[str], where: str) -> Any:
    """Rows with one id each: equal ones are collapsed, unequal ones an error."""
    if "text" not in rows.column_names:
        raise DataError(f"{where}: no column 'text' among {', '.join(rows.column_names)}")
    kept: dict[str, int] = {}
    texts = {name: list(rows[name]) for name in columns if name in rows.column_names}
    for row, (name, text) in enumerate(zip(rows["id"], texts["text"], strict=True)):
        if not isinstance(text, str):
            raise DataError(f"{where}: the text of {name!r} is {text!r}, not a string")
        first = kept.setdefault(name, row)
        if first != row and any(column[first] != column[row] for column in texts.values()):
            raise DataError(f"{where}: id {name!r} stands for two different texts")
    if len(kept) == len(rows):
        return rows
    logger.warning("%s: %d repeated rows collapsed", where, len(rows) - len(kept))
    return rows.select(list(kept.values()))


def check_part(part: Any, where: str) -> dict[str, int]:
    """Check corpus, queries and judgments as mteb's loader gives them, and put them in order.

    Rows that repeat an id and its text are collapsed, and judgments of queries without a text are
    dropped.

    Args:
        part: What the loader gave; changed in place.
        where: The task's name, for messages.

    Returns:
        Reason -> number of judged queries that were dropped.

    Raises:
        DataError: One id with two texts, a text that is none, or judgments none of which names a
            document of the corpus and a query, or none of which is positive.
    """
    part["corpus"] = _once(part["corpus"], ["title", "text"], f"{where}: corpus")
    part["queries"] = _once(part["queries"], ["text"], f"{where}: queries")
    judged = part["relevant_docs"]
    documents, queries = set(part["corpus"]["id"]), set(part["queries"]["id"])
    known = {str(q): grades for q, grades in judged.items() if str(q) in queries}
    if not any(str(d) in documents for grades in known.values() for d in grades):
        raise DataError(
            f"{where}: no judgment names both a query and a document of the corpus (first judged "
            f"query: {next(iter(judged), None)!r}; first document: {part['corpus'][0]['id']!r}); "
            "do the ids have one form?"
        )
    if not any(grade > 0 for grades in known.values() for grade in grades.values()):
        raise DataError(f"{where}: no query has a positive judgment")
    part["relevant_docs"] = known
    dropped = len(judged) - len(known)
    return {"judged queries without a text": dropped} if dropped else {}


def _sparse(part: Any) -> None:
    """Turn "all but the excluded" lists into the excluded alone."""
    allowed = part["top_ranked"]
    if allowed is None or isinstance(allowed, AllButExcluded):
        return
    documents = [str(d) for d in part["corpus"]["id"]]
    excluded = {}
    for query, kept in allowed.items():
        present = set(kept)
        excluded[str(query)] = [d for d in documents if d not in present]
    queries = [str(q) for q in part["queries"]["id"]]
    part["top_ranked"] = AllButExcluded(documents, queries, excluded)


class BenchRetrieval(ObliqRetrieval):
    """A task over data that mteb's loader reads, evaluated as :class:`ObliqRetrieval` does it."""

    dropped: dict[str, int]

    def loader(self) -> CheckedLoader:
        """What reads the data."""
        subset, split = self.place
        source = self.metadata.dataset
        return CheckedLoader(source["path"], source["revision"], split=split, config=subset)

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Load and check the data; exclusions are kept sparse."""
        if self.data_loaded:
            return
        subset, split = self.place
        source = self.metadata.dataset
        with fetching(f"{self.metadata.name}: {source['path']}, revision {source['revision']}"):
            part = self.loader().load(num_proc=num_proc)
        self.dropped = check_part(part, str(self.metadata.name))
        _sparse(part)
        self.dataset = {subset: {split: part}}
        self.data_loaded = True

    @property
    def left_out(self) -> dict[str, int]:
        """Reason -> number of queries or judgments that do not count, or never can."""
        return {**super().left_out, **self.dropped}

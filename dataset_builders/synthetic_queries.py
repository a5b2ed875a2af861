"""Synthetic oblique queries: from a corpus, a task and a language model to a training dataset.

    from obliq_hf.llm import CachedClient, EndpointClient
    client = CachedClient(EndpointClient(url, model=name), "answers.sqlite")
    report = synthesize(load_task("writing"), corpus, client, "runs/x/queries", sample=5000)

The folder that is written holds

======================  ===========================================================================
`queries.jsonl`         the queries; `doc_id` is the document each was written from
`qrels/train.tsv`       query id, document id, 1
`negatives.jsonl`       BM25 negatives, mined with the query
`train.parquet`         anchor, positive, negative_1.., ids: `load_dataset("parquet", ...)` reads it
`failed.jsonl`          documents without a query and why; with the queries they are all that were
                        asked
`queries.json`          task, prompts, model, sampling, counts, tokens, leakage; no clock, no path
`report.json`           diagnostics (:mod:`dataset_builders.diagnostics.query_report`)
======================  ===========================================================================

Everything the model said is in the client's cache. After an interrupt the same call goes on where
it was; after the end it makes no call and writes the same bytes.
"""

from __future__ import annotations

import logging
import tempfile
from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dataset_builders.lenses import load_lens
from dataset_builders.near_duplicates import same_text_rows
from dataset_builders.query_checks import RARE_IDF, CorpusWords, Problem, QueryChecker
from dataset_builders.query_copies import find_copies
from dataset_builders.query_dataset import NegativeSettings, read_synthetic, write_query_folder
from dataset_builders.query_flow import Outcome, QueryWriter, Sampling
from obliq_hf import __version__
from obliq_hf.errors import DataError
from obliq_hf.files import write_json
from obliq_hf.llm import run_flows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from dataset_builders.lenses import Lens
    from dataset_builders.query_flow import QueryFlow
    from obliq_hf.llm import ChatClient
    from obliq_hf.records import Corpus
    from obliq_hf.tasks import ObliqTask

__all__ = ["NegativeSettings", "SynthesisReport", "read_synthetic", "sample_rows", "synthesize"]

logger = logging.getLogger(__name__)


@dataclass
class SynthesisReport:
    """Counts of one synthesis; `written + failed == asked`.

    Attributes:
        asked: Documents asked about.
        written: Queries written.
        failed: Reason -> documents without a query.
        problems: Kind -> answers that had this fault, mended or not.
        faulty: Answers that had at least one fault.
        calls: Stage -> answers taken.
        prompt_tokens: Of all answers taken, whether from the cache or fresh.
        completion_tokens: Likewise.
        cut_documents: Documents too long to be shown whole.
        rewritten: Queries written anew because they were nearly another one.
        left_out: Reason -> documents not asked about.
    """

    asked: int = 0
    written: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    faulty: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut_documents: int = 0
    rewritten: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        """One line for people."""
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.failed.items())
        tokens = self.prompt_tokens + self.completion_tokens
        return (
            f"{self.written} queries from {self.asked} documents; "
            f"{sum(self.failed.values())} without one"
            + (f" ({reasons})" if reasons else "")
            + f"; {sum(self.calls.values())} answers, {tokens} tokens"
        )


class _Spool:
    """Outcomes on disk, by place, so that memory does not grow with their number."""

    def __init__(self, places: int) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the spool
        self._at = array("q", [-1]) * places

    def put(self, place: int, outcome: Outcome) -> None:
        self._at[place] = self._file.seek(0, 2)
        self._file.write(outcome.to_json().encode() + b"\n")

    def get(self, place: int) -> Outcome:
        self._file.seek(self._at[place])
        return Outcome.from_json(self._file.readline())

    def __iter__(self) -> Iterator[Outcome]:
        return (self.get(place) for place in range(len(self._at)))

    def close(self) -> None:
        self._file.close()


def sample_rows(
    corpus: Corpus, *, count: int | None = None, seed: int = 0, leave_out: Collection[str] = ()
) -> tuple[list[int], dict[str, int]]:
    """Choose the documents queries are written from.

    Of documents with the same text only the first is eligible. A larger sample with the same seed
    contains the smaller one.

    Args:
        corpus: The documents.
        count: How many; None for all that are eligible.
        seed: Seed of the draw.
        leave_out: Ids never drawn, such as the relevant documents of evaluation queries.

    Returns:
        Rows in corpus order, and reason -> documents that were not eligible.

    Raises:
        DataError: No document is eligible.
    """
    left_out: Counter[str] = Counter()
    first = same_text_rows(corpus.texts)
    barred = set(leave_out)
    held = {int(first[corpus.row[i]]) for i in barred if i in corpus.row}
    eligible = []
    for row, text in enumerate(corpus.texts):
        if corpus.ids[row] in barred or int(first[row]) in held:
            left_out["held out"] += 1
        elif int(first[row]) != row:
            left_out["same text as an earlier document"] += 1
        elif not text.strip():
            left_out["no text"] += 1
        else:
            eligible.append(row)
    if not eligible:
        raise DataError(f"no document to write queries from; left out: {dict(left_out)}")
    if count is not None and count < len(eligible):
        order = np.random.default_rng(seed).permutation(len(corpus))
        rank = np.empty(len(corpus), dtype=np.int64)
        rank[order] = np.arange(len(corpus))
        eligible = sorted(sorted(eligible, key=lambda row: int(rank[row]))[:count])
    return eligible, dict(left_out)


def synthesize(
    task: ObliqTask,
    corpus: Corpus,
    client: ChatClient,
    out: str | Path,
    *,
    sample: int | None = None,
    seed: int = 0,
    leave_out: Collection[str] = (),
    lens: str | Path | Lens | None = None,
    form: str | None = None,
    variant: str = "two-stage",
    sampling: Sampling | None = None,
    negatives: NegativeSettings | None = None,
    rare_idf: float = RARE_IDF,
    names: Callable[[str], set[str]] | None = None,
    official: Sequence[str] = (),
    rows: Sequence[int] | None = None,
    progress: bool = False,
) -> SynthesisReport:
    """Write queries for a sample of documents, check them, and mine their negatives.

    Args:
        task: Names the lens and the attribute.
        corpus: The documents, also those that negatives come from.
        client: The language model, usually a :class:`obliq_hf.llm.CachedClient`; where it has a
            price, the report has the cost.
        out: Folder to write to; its files are replaced, each atomically.
        sample: Documents drawn; None for all. See :func:`sample_rows`.
        seed: Seed of the draw and of the model's sampling.
        leave_out: Ids of documents never drawn.
        lens: A lens, its name or its file; default the task's.
        form: A form of the lens; default the one the task's unit asks for.
        variant: `two-stage`, or for ablations `single-stage` or `generic`.
        sampling: How the model is asked; its seed is `seed` by default.
        negatives: The BM25 negatives.
        rare_idf: Inverse document frequency above which a word of the document is rare.
        names: A further recogniser of names.
        official: Texts of the task's own queries, for the comparison in the report.
        rows: Rows to write queries from, instead of a sample.
        progress: Show a progress bar.

    Returns:
        What was written and what failed, by reason.

    Raises:
        DataError: No document is eligible, or no query could be written at all; `failed.jsonl`
            then says why for each document.
        BatchPending: The client writes batch files; the message says what to do.
        LLMError: The model cannot be used at all.
    """
    if variant == "generic":
        lens = load_lens("generic")
    elif lens is None or isinstance(lens, (str, Path)):
        lens = load_lens(lens or task.lens)
    chosen = lens.form_for(task, form)
    if rows is None:
        asked, left_out = sample_rows(corpus, count=sample, seed=seed, leave_out=leave_out)
    else:
        asked, left_out = list(rows), {}
    texts = corpus.full_texts()
    checker = QueryChecker(
        chosen, CorpusWords.of(texts), language=lens.language, rare_idf=rare_idf, names=names
    )
    sampling = sampling or Sampling(seed=seed)
    writer = QueryWriter(task, lens, chosen, checker, variant=variant, sampling=sampling)
    spool = _Spool(len(asked))
    try:
        flows = ((place, writer.write(row, texts[row])) for place, row in enumerate(asked))
        label = f"queries {task.name}" if progress else None
        for place, outcome in run_flows(client, flows, progress=label, total=len(asked)):
            spool.put(place, outcome)
        rewritten = _replace_copies(client, writer, spool, asked, texts)
        report = _count(spool, left_out, rewritten)
        info = {
            "task": task.to_dict(),
            "corpus": corpus.fingerprint,
            "code": __version__,
            "lens": {
                "name": lens.name,
                "version": lens.version,
                "form": chosen.name,
                "fingerprint": lens.fingerprint,
            },
            "variant": variant,
            "model": client.model,
            "revision": client.revision,
            "sampling": asdict(sampling),
            "sample": sample,
            "seed": seed,
            "rare_idf": rare_idf,
            "negatives": asdict(negatives or NegativeSettings()),
            "counts": asdict(report),
        }
        write_query_folder(
            Path(out), task, corpus, spool, info, negatives or NegativeSettings(), progress=progress
        )
    finally:
        spool.close()
    logger.info("%s", report.summary())
    if not report.written:
        raise DataError(f"{out}: {report.summary()}; failed.jsonl has the reason for each")
    from dataset_builders.diagnostics.query_report import report_on

    price = client.accounting.price
    measured = report_on(
        out,
        corpus=corpus,
        official=official,
        words=checker.words,
        price=price if price.stated else None,
    )["leakage"]
    found = measured.pop("self_retrieval")
    info["leakage"] = {**measured, **{f"bm25_{name}": value for name, value in found.items()}}
    write_json(Path(out) / "queries.json", info)
    return report


def _replace_copies(
    client: ChatClient,
    writer: QueryWriter,
    spool: _Spool,
    asked: Sequence[int],
    texts: Sequence[str],
) -> int:
    """Have queries that are nearly an earlier one written anew, until none is or attempts end."""
    rewritten = 0
    if not writer.form.checks.copies:
        return rewritten
    while True:
        have = [place for place in range(len(asked)) if spool.get(place).query is not None]

        def read(number: int, have: list[int] = have) -> str:
            return spool.get(have[number]).query or ""

        copies = find_copies((read(n) for n in range(len(have))), read)
        if not copies:
            return rewritten
        flows: list[tuple[int, QueryFlow]] = []
        for number, earlier in sorted(copies.items()):
            place = have[number]
            like = read(earlier)
            short = like if len(like) <= 200 else like[:200].rsplit(" ", 1)[0] + " …"
            problem = Problem("copy-of-query", f"it is nearly the same as another one: «{short}»")
            outcome = spool.get(place)
            flows.append((place, writer.rewrite(outcome, texts[asked[place]], problem)))
        for place, outcome in run_flows(client, flows):
            rewritten += outcome.query is not None
            spool.put(place, outcome)


def _count(spool: _Spool, left_out: dict[str, int], rewritten: int) -> SynthesisReport:
    report = SynthesisReport(left_out=left_out, rewritten=rewritten)
    failed: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for outcome in spool:
        report.asked += 1
        report.written += outcome.query is not None
        if outcome.query is None:
            failed[outcome.reason or "unknown"] += 1
        problems.update(outcome.problems)
        report.faulty += outcome.faulty
        calls.update(outcome.calls)
        report.prompt_tokens += outcome.prompt_tokens
        report.completion_tokens += outcome.completion_tokens
        report.cut_documents += outcome.cut
    report.failed, report.problems, report.calls = (
        dict(sorted(c.items())) for c in (failed, problems, calls)
    )
    return report

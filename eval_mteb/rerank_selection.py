"""Choosing a policy: every reranker tried on development queries, one chosen for each task."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eval_mteb.analysis import gains, recall_at_depths
from eval_mteb.evaluation import evaluate_system
from eval_mteb.pipeline import described_task
from eval_mteb.rerank_command import FirstStage, chosen_tasks
from eval_mteb.tasks import FolderRetrieval, folder_tasks
from obliq_hf.errors import ObliqError
from obliq_hf.metrics import per_query
from obliq_hf.reranking import (
    Policy,
    Reranked,
    RerankSettings,
    Trial,
    choose,
    pools_from_run,
    reranked_run,
    sweep,
)
from obliq_hf.reranking.asking import Asking, stable_seed
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from obliq_hf.llm import ChatClient
    from obliq_hf.search.runs import Run
    from obliq_hf.tasks import ObliqTask

__all__ = ["TaskSweep", "select_policy"]

METRIC = "ndcg_at_10"
REPORTED = ("ndcg_at_10", "ndcg_at_50", "recall_at_10", "recall_at_100")


@dataclass(frozen=True)
class TaskSweep:
    """What trying rerankers on one task gave.

    Attributes:
        task: The task's name.
        trials: One per reranker, in the order tried, with per-query nDCG@10.
        metrics: Label -> metric -> mean.
        reranked: Label -> what reranking made of the queries.
        evidence: What the choice rests on.
        gains: Label -> queries helped, hurt and unchanged against the first stage.
        recall: Depth -> mean recall of the first stage.
        second_seconds: Seconds that the run to fuse with took; None where there is none.
    """

    task: str
    trials: list[Trial]
    metrics: dict[str, dict[str, float]]
    reranked: dict[str, Reranked]
    evidence: dict[str, Any]
    gains: dict[str, dict[str, Any]]
    recall: dict[int, float]
    second_seconds: float | None = None


def select_policy(
    first: FirstStage,
    settings: Sequence[RerankSettings],
    *,
    data: Path,
    tasks: Sequence[str],
    work: Path,
    client: ChatClient | None = None,
    asking: Asking | None = None,
    seed: int = 0,
    split: str = "dev",
    share: float | None = None,
    rule: str = "interval",
    resamples: int = 10_000,
    show_progress: bool = True,
) -> tuple[Policy, list[TaskSweep]]:
    """Try rerankers on development queries and choose one for each task.

    Gold judgments count, pooled ones where a task has no others.

    Args:
        first: Where candidates come from.
        settings: The rerankers; identity is added where it is missing.
        data: The corpus folder.
        tasks: Names or task files; none for all tasks of the folder.
        work: A folder for the retriever's runs and vectors.
        client: The language model, where any reranker asks one.
        asking: Budgets of texts, temperature, thinking.
        seed: Seed of shuffles and resamples.
        split: The development split.
        share: Take this share of the split's queries, by a hash of their ids, and leave the others
            for reporting; for data without a development split.
        rule: ``interval`` or ``mean``; see :mod:`obliq_hf.reranking.policy`.
        resamples: Bootstrap resamples.
        show_progress: Show bars.

    Returns:
        The policy with its evidence, and everything that was tried.

    Raises:
        ObliqError: The test split without a share of it, no first stage, an unknown task, or a
            reranker that asks without a client; said before anything runs.
    """
    if split == "test" and share is None:
        raise ObliqError(
            "a policy is chosen on development queries, not on the split that is reported: give "
            "--split dev, or --share 0.2 to set a part of the test queries aside"
        )
    if share is not None and not 0 < share < 1:
        raise ObliqError(f"share is {share}; it must lie between 0 and 1")
    wanted = list(settings)
    if not any(entry.changes_nothing for entry in wanted):
        wanted.insert(0, RerankSettings())
    for entry in wanted:
        if entry.asks and client is None:
            raise ObliqError(
                f"reranker {entry.label!r} asks a language model: give --llm URL and --model NAME"
            )
    chosen = chosen_tasks(data, tasks)
    first.check(len(chosen))
    policies: dict[str, RerankSettings] = {}
    evidence: dict[str, dict[str, Any]] = {}
    sweeps: list[TaskSweep] = []
    for task in chosen:
        made = folder_tasks(
            data, task, split=split, judgments=("gold", "pooled"), vectors=work / "vectors"
        )
        mteb_task = made[0]
        about = described_task(mteb_task.metadata, [] if isinstance(task, str) else [task])
        found = _sweep(
            mteb_task, about, _first_run(first, mteb_task, work, show_progress), wanted,
            client=client, asking=asking, seed=seed, share=share, rule=rule,
            resamples=resamples, progress=f"rerank {about.name}" if show_progress else None,
        )  # fmt: skip
        sweeps.append(found)
        evidence[about.name] = {"judgments": mteb_task.judgments, **found.evidence}
        label = found.evidence["chosen"]
        policies[about.name] = next(entry for entry in wanted if entry.label == label)
    provenance: dict[str, Any] = {"rule": rule, "metric": METRIC, "split": split}
    if share is not None:
        provenance["share"] = share
    if client is not None and any(entry.asks for entry in wanted):
        provenance["llm"] = dict(client.identity)
        provenance["asking"] = (asking or Asking()).identity
    provenance["seed"] = seed
    return Policy(policies, evidence, provenance), sweeps


def _first_run(first: FirstStage, task: FolderRetrieval, work: Path, show_progress: bool) -> Run:
    if first.run is not None:
        return read_run(first.file(task))
    system, _ = first.load(task)
    return read_run(evaluate_system(system, task, work, show_progress=show_progress) / "run.trec")


def _sweep(
    mteb_task: FolderRetrieval,
    task: ObliqTask,
    run: Run,
    settings: list[RerankSettings],
    *,
    client: ChatClient | None,
    asking: Asking | None,
    seed: int,
    share: float | None,
    rule: str,
    resamples: int,
    progress: str | None,
) -> TaskSweep:
    queries, qrels = mteb_task.query_texts, mteb_task.qrels
    if share is not None:
        queries = {q: t for q, t in queries.items() if stable_seed("share", q) < share * 2**32}
        qrels = {query: qrels[query] for query in queries}
        if not queries:
            raise ObliqError(f"task {task.name!r}: no query falls into a share of {share}")
    missing = [query for query in queries if query not in run]
    if len(missing) == len(queries):
        raise ObliqError(
            f"task {task.name!r}: the run has none of the {len(queries)} queries, such as "
            f"{missing[0]!r}; is it of another split?"
        )
    hidden = mteb_task.excluded
    barred = {query: set(hidden.get(query, ())) for query in queries}
    run = {
        query: {d: s for d, s in run.get(query, {}).items() if d not in barred[query]}
        for query in queries
    }
    corpus = mteb_task.data.corpus
    texts, row = corpus.full_texts(), corpus.row
    depth = max(entry.pool_depth for entry in settings)
    pools = list(pools_from_run(run, queries, lambda d: texts[row[d]], depth=depth))
    second, second_seconds = None, None
    if any(entry.preselect == "fusion" for entry in settings):
        started = time.perf_counter()
        second = _bm25(texts, corpus.ids, queries, hidden, depth)
        second_seconds = time.perf_counter() - started
    reranked = sweep(
        settings, pools, task, client=client, asking=asking, seed=seed, second=second,
        progress=progress,
    )  # fmt: skip
    for result in reranked.values():
        result.check_budget()
    trials, metrics = [], {}
    for entry in settings:
        result = reranked[entry.label]
        scores = per_query(reranked_run(run, result.orders), qrels)
        trials.append(Trial(entry, scores[METRIC], result.costs()))
        metrics[entry.label] = {
            name: round(sum(scores[name].values()) / len(scores[name]), 6) for name in REPORTED
        }
    plain = next(t for t in trials if t.settings.changes_nothing)
    choice = choose(trials, rule=rule, metric=METRIC, resamples=resamples, seed=seed)
    evidence = dict(choice.evidence)
    if share is not None:
        evidence["development_queries"] = sorted(queries)
    return TaskSweep(
        task.name,
        trials,
        metrics,
        reranked,
        evidence,
        {t.settings.label: gains(dict(t.scores), dict(plain.scores)).to_dict() for t in trials},
        recall_at_depths(run, qrels),
        second_seconds,
    )


def _bm25(
    texts: list[str],
    ids: list[str],
    queries: dict[str, str],
    hidden: Any,
    depth: int,
) -> Run:
    from obliq_hf.search.bm25 import BM25Index
    from obliq_hf.search.exclusions import excluded_rows
    from obliq_hf.search.runs import to_run

    row = {document: i for i, document in enumerate(ids)}
    hits = BM25Index(texts).search(
        list(queries.values()), depth, excluded=excluded_rows(list(queries), hidden, row)
    )
    return to_run(hits, list(queries), ids)

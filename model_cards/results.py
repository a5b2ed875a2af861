"""A run's results as the Hub's metadata: ``model-index`` and ``.eval_results``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.hub.names import check_repo_id
from obliq_hf.hub.repository import HubError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obliq_hf.hub.names import RepoType
    from obliq_hf.hub.repository import Repository

__all__ = ["EvaluatedOn", "eval_result_entries", "evaluated_on", "model_index_results"]

STUDENT = "student"


@dataclass(frozen=True)
class EvaluatedOn:
    """The dataset repository whose tasks a model was scored on.

    Attributes:
        repo_id: Its name.
        revision: Its version or commit, where it is known.
    """

    repo_id: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> EvaluatedOn:
        """Read ``organisation/name`` or ``organisation/name@revision``.

        Raises:
            ObliqError: It is neither.
        """
        name, _, revision = text.partition("@")
        return cls(check_repo_id(name), revision or None)


def evaluated_on(
    report: Mapping[str, Any],
    organisation: str,
    find: Callable[[str, RepoType], Repository],
) -> EvaluatedOn | None:
    """The dataset repository of a report's corpus, where its provenance tells it.

    A corpus that was built here counts as the organisation's repository of its usual name, where
    there is one.

    Args:
        report: What ``report.json`` holds.
        organisation: Of the repository to which the results are published.
        find: Opens a repository at the same place.
    """
    source = (report.get("corpus") or {}).get("source") or {}
    if isinstance(source.get("dataset"), str):
        try:
            check_repo_id(source["dataset"])
        except ObliqError:
            return None
        return EvaluatedOn(source["dataset"], source.get("revision"))
    if source.get("builder") == "classics":
        name = f"{organisation}/writing-classics"
        try:
            published = find(name, "dataset").snapshot()
        except HubError:
            return None
        return EvaluatedOn(name) if published is not None else None
    return None


def _measured(report: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return {
        task: dict(systems[STUDENT])
        for task, systems in (report.get("systems") or {}).items()
        if STUDENT in systems
    }


def _split(report: Mapping[str, Any], task: str) -> str:
    return str((report.get("tasks") or {}).get(task, {}).get("split", "test"))


def model_index_results(report: Mapping[str, Any], on: EvaluatedOn) -> list[dict[str, Any]]:
    """The student's scores in the form of a card's ``model-index``."""
    results = []
    for task, scores in _measured(report).items():
        dataset: dict[str, Any] = {"type": on.repo_id, "name": f"{on.repo_id} ({task})"}
        dataset |= {"config": task, "split": _split(report, task)}
        if on.revision:
            dataset["revision"] = on.revision
        metrics = [
            {"type": metric, "value": round(value, 4), "name": metric}
            for metric, value in scores.items()
        ]
        results.append(
            {
                "task": {"type": "Retrieval"},
                "dataset": dataset,
                "metrics": metrics,
            }
        )
    return results


def eval_result_entries(
    report: Mapping[str, Any], on: EvaluatedOn, *, metric: str = "ndcg_at_10"
) -> dict[str, list[dict[str, Any]]]:
    """Task -> entries of ``.eval_results/<task>.yaml``: the student's main score."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries: dict[str, list[dict[str, Any]]] = {}
    for task, scores in _measured(report).items():
        if metric not in scores:
            continue
        interval = report.get("intervals", {}).get(task, {}).get(STUDENT, {}).get(metric)
        notes = f"{metric}, split {_split(report, task)}, exact search"
        if interval:
            notes += f"; 95 % interval [{interval[0]:.3f}, {interval[1]:.3f}]"
        entry = EvalResultEntry(
            dataset_id=on.repo_id,
            task_id=f"{task}.{metric}",
            value=round(scores[metric], 4),
            dataset_revision=on.revision,
            notes=notes,
        )
        entries[task] = eval_result_entries_to_yaml([entry])
    return entries

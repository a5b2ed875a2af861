"""What a run folder says about a checkpoint, gathered for its card."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obliq_hf.files import read_json
from obliq_hf.hub.redaction import without_places

__all__ = ["RunFacts", "gather", "policy_rows"]

_FILES = {
    "training": "training.json",
    "report": "report.json",
    "mixture": "mixture/mixture.json",
    "graph": "graph/graph.json",
    "purity": "graph/purity.json",
    "dose_purity": "graph/dose_purity.json",
    "audit": "graph/audit.json",
    "corpus": "corpus/corpus.json",
}


@dataclass(frozen=True)
class RunFacts:
    """The JSON files of a run that a card draws on; None for each that is not there.

    Attributes:
        training: Settings, base, prompts, batches, versions.
        report: Scores with intervals.
        mixture: The training datasets.
        graph: How the graph was made.
        purity: Its purity screen.
        dose_purity: That of the dose that was trained on.
        audit: What else its edges share.
        corpus: Where the corpus comes from.
        queries: Task -> how its synthetic queries were written.
        policy: The reranker chosen for each task; see
            :meth:`obliq_hf.reranking.Policy.card_rows`.
    """

    training: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
    mixture: dict[str, Any] | None = None
    graph: dict[str, Any] | None = None
    purity: dict[str, Any] | None = None
    dose_purity: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    corpus: dict[str, Any] | None = None
    queries: dict[str, Any] = field(default_factory=dict)
    policy: list[dict[str, Any]] = field(default_factory=list)


def gather(run_folder: str | Path | None) -> RunFacts:
    """Read the files of a run folder that are there, without the places that they name.

    Args:
        run_folder: The run's folder; None for a checkpoint that stands alone.
    """
    if run_folder is None:
        return RunFacts()
    root = Path(run_folder)
    found: dict[str, Any] = {
        name: without_places(read_json(root / path))
        for name, path in _FILES.items()
        if (root / path).is_file()
    }
    queries = {
        file.parent.name: without_places(read_json(file))
        for file in sorted(root.glob("synthesis/*/queries.json"))
    }
    if (root / "queries" / "queries.json").is_file():
        queries["queries"] = without_places(read_json(root / "queries" / "queries.json"))
    policy = policy_rows(root / "policy.yaml") if (root / "policy.yaml").is_file() else []
    return RunFacts(**found, queries=queries, policy=policy)


def policy_rows(file: str | Path) -> list[dict[str, Any]]:
    """What a card says of a policy's file: a row a task.

    Raises:
        ObliqError: No such file, or it is no policy.
    """
    from obliq_hf.reranking import load_policy

    return load_policy(file).card_rows()

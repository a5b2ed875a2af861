"""Policies: the reranker of each task, with the evidence it was chosen by; written as YAML.

::

    rule: interval                 # or mean: the best mean, however close
    metric: ndcg_at_10
    split: dev
    tasks:
      math:
        reranker: tourrank
        depth: 100
        rounds: 5
        evidence:
          queries: 40
          identity: 0.2113
          trials:
          - {label: tourrank-5, ndcg_at_10: 0.2871, delta: 0.0758, ci95: [0.031, 0.118], ...}

The rule `interval` stays with identity unless the interval of a gain lies above zero, and takes the
best mean among those that do; `mean`, the paper's rule, takes the best mean. Equal means go to the
cheaper.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash, write_text
from obliq_hf.reranking.asking import Asking
from obliq_hf.reranking.settings import RerankSettings
from obliq_hf.statistics import paired_bootstrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from obliq_hf.llm import ChatClient
    from obliq_hf.tasks import ObliqTask

__all__ = [
    "RULES",
    "Choice",
    "Policy",
    "Trial",
    "choose",
    "load_policy",
    "task_policy",
    "write_policy",
]

logger = logging.getLogger(__name__)

RULES = ("interval", "mean")
"""Rules of choice."""


@dataclass(frozen=True)
class Trial:
    """One setting tried on development queries.

    Attributes:
        settings: The setting.
        scores: Query id -> value of the metric.
        costs: What it took: requests, tokens, seconds.
    """

    settings: RerankSettings
    scores: Mapping[str, float]
    costs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean of the metric."""
        return sum(self.scores.values()) / len(self.scores)

    @property
    def requests_per_query(self) -> float:
        """Questions a query."""
        return float(self.costs.get("requests", 0)) / max(1, len(self.scores))


@dataclass(frozen=True)
class Choice:
    """What was chosen for a task, and by what.

    Attributes:
        settings: The setting chosen.
        evidence: Plain values: queries, the mean of identity, and a row per trial.
    """

    settings: RerankSettings
    evidence: dict[str, Any]


def choose(
    trials: Sequence[Trial],
    *,
    rule: str = "interval",
    metric: str = "ndcg_at_10",
    resamples: int = 10_000,
    seed: int = 0,
) -> Choice:
    """Choose a setting.

    Args:
        trials: What was tried on the same queries; identity must be among them.
        rule: One of :data:`RULES`; see the module.
        metric: What the scores are, for the evidence.
        resamples: Bootstrap resamples of the paired intervals.
        seed: Their seed.

    Raises:
        ObliqError: An unknown rule, no identity among the trials, or trials on different queries.
    """
    if rule not in RULES:
        raise ObliqError(f"rule is {rule!r}{nearest(rule, RULES)}")
    plain = next((t for t in trials if t.settings.changes_nothing), None)
    if plain is None:
        raise ObliqError("identity must be among the rerankers tried: it is what a gain is over")
    rows: list[dict[str, Any]] = []
    admitted = [plain]
    for trial in trials:
        found = paired_bootstrap(trial.scores, plain.scores, resamples=resamples, seed=seed)
        if trial is not plain and (rule == "mean" or found.lo > 0):
            admitted.append(trial)
        rows.append(
            {
                "label": trial.settings.label,
                metric: round(trial.mean, 6),
                "delta": round(found.delta, 6) + 0.0,
                "ci95": [round(found.lo, 6) + 0.0, round(found.hi, 6) + 0.0],
                **_cost_row(trial),
            }
        )
    best = max(admitted, key=lambda t: (round(t.mean, 9), -t.requests_per_query))
    evidence = {
        "queries": len(plain.scores),
        "identity": round(plain.mean, 6),
        "chosen": best.settings.label,
        "trials": rows,
    }
    return Choice(best.settings, evidence)


def _cost_row(trial: Trial) -> dict[str, Any]:
    queries = max(1, len(trial.scores))
    costs = trial.costs
    seconds = float(costs.get("seconds", 0.0))
    row: dict[str, Any] = {"requests_per_query": round(trial.requests_per_query, 3)}
    if not costs.get("requests"):
        return {**row, "seconds_per_query": round(seconds / queries, 3)}
    tokens = costs.get("prompt_tokens", 0) + costs.get("completion_tokens", 0)
    # answers from a cache took no time; the others stand for them
    paid = costs["requests"] - costs.get("cached", 0)
    return {
        **row,
        "rounds": costs.get("rounds"),
        "tokens_per_query": round(tokens / queries, 1),
        "seconds_per_query": (
            round(seconds / paid * costs["requests"] / queries, 3) if paid else None
        ),
        "failed_queries": len(costs.get("failed_queries", ())),
        "faults": dict(costs.get("faults", {})),
    }


@dataclass(frozen=True)
class Policy:
    """A reranker for each task.

    Attributes:
        tasks: Task name -> settings.
        evidence: Task name -> what the choice rests on, where there was one.
        provenance: How it came about: rule, metric, split, language model; and how it was asked
            (``asking``, ``seed``), which is how the policy is applied.
    """

    tasks: Mapping[str, RerankSettings]
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, task: str) -> RerankSettings:
        """The settings of a task.

        Raises:
            ObliqError: The policy says nothing about it.
        """
        if task not in self.tasks:
            raise ObliqError(f"the policy has no task {task!r}{nearest(task, self.tasks)}")
        return self.tasks[task]

    @property
    def depth(self) -> int:
        """Candidates needed from the first stage, over all tasks."""
        return max((s.pool_depth for s in self.tasks.values()), default=1)

    def own_asking(self) -> Asking | None:
        """How was asked when the policy was chosen; None where it does not say.

        Raises:
            ObliqError: What it says is not valid.
        """
        known = self.provenance.get("asking")
        return None if known is None else Asking.from_identity(known, source="policy, 'asking'")

    def asked(
        self,
        asking: Asking | None = None,
        seed: int | None = None,
        *,
        client: ChatClient | None = None,
    ) -> tuple[Asking, int]:
        """How to ask when the policy is applied: as it was chosen, unless told otherwise.

        What differs from how it was chosen, the language model too, is logged as a warning.

        Args:
            asking: Budgets of texts, temperature, thinking; None takes the policy's.
            seed: Seed of shuffles; None takes the policy's.
            client: The language model.

        Raises:
            ObliqError: What the policy says of it is not valid.
        """
        known = self.provenance.get("asking")
        asking = asking or self.own_asking() or Asking()
        chosen_seed = self.provenance.get("seed", 0)
        if isinstance(chosen_seed, bool) or not isinstance(chosen_seed, int):
            raise ObliqError(f"policy, key 'seed': a whole number is needed, not {chosen_seed!r}")
        used: dict[str, Any] = {"seed": chosen_seed if seed is None else seed}
        said: dict[str, Any] = {k: v for k, v in self.provenance.items() if k == "seed"}
        if isinstance(known, Mapping):
            # the settings of each task say prompt and form of answer
            said |= {k: v for k, v in known.items() if k not in ("prompt", "answer")}
            used |= {k: v for k, v in asking.identity.items() if k in said}
        model = self.provenance.get("llm")
        if client is not None and isinstance(model, Mapping):
            said["llm"], used["llm"] = dict(model), dict(client.identity)
        for key in said:
            if used.get(key) != said[key]:
                logger.warning(
                    "the policy was chosen with %s %s and is applied with %s: its evidence need "
                    "not hold",
                    *(key, said[key], used.get(key)),
                )
        return asking, used["seed"]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what is done, not over why."""
        return content_hash({name: s.identity for name, s in self.tasks.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written."""
        tasks = {}
        for name, settings in self.tasks.items():
            tasks[name] = settings.to_dict()
            if name in self.evidence:
                tasks[name]["evidence"] = dict(self.evidence[name])
        return {**self.provenance, "tasks": tasks}

    def card_rows(self) -> list[dict[str, Any]]:
        """A row a task for a model card: what is done, and the gain it was chosen for."""
        rows = []
        for name, settings in self.tasks.items():
            evidence = self.evidence.get(name, {})
            chosen = next(
                (t for t in evidence.get("trials", ()) if t["label"] == settings.label), None
            )
            rows.append(
                {
                    "task": name,
                    "reranker": settings.label,
                    "depth": settings.depth,
                    "first_stage_depth": settings.pool_depth,
                    "metric": self.provenance.get("metric"),
                    "split": self.provenance.get("split"),
                    "queries": evidence.get("queries"),
                    "delta": None if chosen is None else chosen["delta"],
                    "ci95": None if chosen is None else chosen["ci95"],
                    "requests_per_query": (
                        None if chosen is None else chosen["requests_per_query"]
                    ),
                }
            )
        return rows


def task_policy(tasks: Iterable[ObliqTask]) -> Policy:
    """The policy that task files carry: for the built-in five, the paper's."""
    return Policy({task.name: RerankSettings.of_task(task) for task in tasks})


def load_policy(path: str | Path) -> Policy:
    """Read a policy.

    Raises:
        ObliqError: No such file, or a key or value that is not valid; file, task and key are
            named.
    """
    file = Path(path)
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ObliqError(f"{file}: no such policy file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ObliqError(f"{file}: not readable as YAML: {error}") from error
    tasks = values.get("tasks") if isinstance(values, dict) else None
    if not isinstance(tasks, dict) or not tasks:
        raise ObliqError(f"{file}: key 'tasks' must name at least one task with its reranker")
    settings: dict[str, RerankSettings] = {}
    evidence: dict[str, Mapping[str, Any]] = {}
    for name, entry in tasks.items():
        where = f"{file}, task {name!r}"
        if not isinstance(name, str) or not isinstance(entry, dict) or "reranker" not in entry:
            raise ObliqError(f"{where}: a mapping with the key 'reranker' is needed")
        entry = dict(entry)
        if "evidence" in entry:
            evidence[name] = entry.pop("evidence")
        settings[name] = RerankSettings.from_dict(entry, source=where)
    provenance = {key: value for key, value in values.items() if key != "tasks"}
    return Policy(settings, evidence, provenance)


def write_policy(path: str | Path, policy: Policy) -> Path:
    """Write a policy as YAML, atomically."""
    text = yaml.safe_dump(
        policy.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    write_text(path, "# The reranker of each task, chosen on development queries.\n" + text)
    return Path(path)

"""A run's report, rebuilt at any time from the files that the run left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_mteb.analysis import (
    gains,
    gold_prior,
    hubs,
    recall_at_depths,
    shuffled_judgments,
)
from eval_mteb.comparisons import compare_systems, default_pairs, interval, reported_metrics
from eval_mteb.figures import draw_depth, draw_gains, draw_scatter, draw_scores, save
from eval_mteb.report_html import html_page
from eval_mteb.report_markdown import markdown
from eval_mteb.report_tables import terminal_table
from eval_mteb.results import read_results
from obliq_hf.errors import DataError
from obliq_hf.files import read_json, write_json, write_text
from obliq_hf.metrics import per_query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from eval_mteb.results import TaskResults

__all__ = ["analyse", "gather", "main_systems", "terminal_table", "write_report"]


def main_systems(results: Mapping[str, TaskResults]) -> list[str]:
    """The systems a table shows: without the candidates for ``base`` and without ceilings."""
    names = dict.fromkeys(
        name for task in results.values() for name, s in task.systems.items() if not s.ceiling
    )
    if "base" in names:
        chosen_from = {
            candidate
            for task in results.values()
            if "base" in task.systems and task.systems["base"].chosen
            for candidate in task.systems["base"].chosen["scores"]
        }
        return [name for name in names if name not in chosen_from]
    return list(names)


def _optional(path: Path) -> Any:
    return read_json(path) if path.is_file() else None


def gather(
    run_folder: str | Path,
    *,
    evaluation: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    corpus: str | Path | None = None,
    snippets: bool = True,
) -> tuple[dict[str, Any], dict[str, TaskResults]]:
    """Everything a report says, as JSON values, and the results it was made from.

    Args:
        run_folder: A training run's folder, or an evaluation folder by itself.
        evaluation: The evaluation folder; by default ``<run_folder>/eval`` where there is one.
        metrics: The metrics reported; by default
            :func:`eval_mteb.comparisons.reported_metrics`.
        resamples: Bootstrap resamples.
        seed: Their seed.
        corpus: The corpus searched, for examples in words; by default the folder below
            ``run_folder`` that has the name of the one evaluated.
        snippets: Whether beginnings of texts are shown at all.

    Returns:
        The report and the results.

    Raises:
        DataError: There are no results.
    """
    root = Path(run_folder)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    folder = Path(evaluation) if evaluation is not None else root / "eval"
    if evaluation is None and not folder.is_dir():
        folder = root
    results = read_results(folder)
    metrics = reported_metrics(results.values(), metrics)
    shown = main_systems(results)
    systems: dict[str, Any] = {}
    intervals: dict[str, Any] = {}
    by_group: dict[str, Any] = {}
    ceilings: dict[str, Any] = {}
    for key, task in results.items():
        systems[key], intervals[key], by_group[key] = {}, {}, {}
        for name, system in task.systems.items():
            known = [m for m in metrics if m in system.per_query]
            if system.ceiling:
                values = {m: round(system.mean(m), 6) for m in known}
                ceilings.setdefault(key, {})[name] = {
                    "scores": values,
                    "about": system.about["about"],
                }
                continue
            systems[key][name] = {m: round(system.mean(m), 6) for m in known}
            intervals[key][name] = {
                m: interval(system.scores(m), resamples=resamples, seed=seed) for m in known
            }
            by_group[key][name] = {
                column: {
                    m: interval(system.scores(m), groups=groups, resamples=resamples, seed=seed)
                    for m in known
                }
                for column, groups in task.groups.items()
            }
    report = {
        "name": root.resolve().name,
        "metrics": metrics,
        "main_systems": shown,
        "systems": systems,
        "ceilings": ceilings,
        "intervals": intervals,
        "intervals_by_group": by_group,
        "comparisons": compare_systems(
            {key: _only(task, shown) for key, task in results.items()},
            metrics=metrics,
            resamples=resamples,
            seed=seed,
        ),
        "bootstrap": {"resamples": resamples, "seed": seed, "interval": "95 % percentile"},
        "tasks": {
            key: {
                **{k: v for k, v in task.info.items() if k != "groups"},
                "groups": {c: len(set(g.values())) for c, g in task.groups.items()},
            }
            for key, task in results.items()
        },
        "base": {
            key: task.systems["base"].chosen
            for key, task in results.items()
            if "base" in task.systems and task.systems["base"].chosen
        },
        "costs": {
            key: {name: system.cost for name, system in task.systems.items()}
            for key, task in results.items()
        },
        "about": {
            name: system.about.get("about", "")
            for task in results.values()
            for name, system in task.systems.items()
        },
        "corpus": _optional(root / "corpus" / "corpus.json"),
        "graph": _optional(root / "graph" / "graph.json"),
        "purity": _optional(root / "graph" / "purity.json"),
        "dose_purity": _optional(root / "graph" / "dose_purity.json"),
        "audit": _optional(root / "graph" / "audit.json"),
        "training": _optional(root / "training.json"),
        "checkpoint": "model" if (root / "model" / "modules.json").is_file() else None,
        "analysis": analyse(results, shown, seed=seed),
        "examples": {},
    }
    if snippets and {"base", "student"} <= set(shown) and "ndcg_at_10" in metrics:
        report["examples"] = _examples(root, results, corpus)
    return report, results


def analyse(
    results: Mapping[str, TaskResults], systems: Sequence[str], *, seed: int = 0
) -> dict[str, Any]:
    """Recall by depth, hubs, sanity baselines, gains and losses, for every task.

    Args:
        results: From :func:`eval_mteb.results.read_results`.
        systems: The systems analysed.
        seed: Seed of the shuffled judgments.

    Returns:
        Task -> findings as JSON values; tasks with a single query are left out.
    """
    found: dict[str, Any] = {}
    for key, task in results.items():
        runs = {n: task.systems[n].run for n in systems if n in task.systems}
        if not runs or len(task.qrels) < 2:
            continue
        prior = per_query(gold_prior(task.qrels, excluded=task.excluded), task.qrels, ks=(10,))[
            "ndcg_at_10"
        ]
        recall = {n: recall_at_depths(run, task.qrels) for n, run in runs.items()}
        pairs = {}
        for a, b in default_pairs(list(runs)):
            left, right = (task.systems[s].per_query.get("ndcg_at_10") for s in (a, b))
            if left and right:
                pairs[f"{a} − {b}"] = gains(left, right).to_dict()
        found[key] = {
            "recall": {n: {str(d): v for d, v in r.items()} for n, r in recall.items()},
            "hubs": {n: hubs(run).to_dict() for n, run in runs.items()},
            "shuffled": {
                n: shuffled_judgments(run, task.qrels, seed=seed) for n, run in runs.items()
            },
            "gold_prior": round(sum(prior.values()) / len(prior), 6),
            "gains": pairs,
        }
    return found


def _examples(
    root: Path, results: Mapping[str, TaskResults], corpus: str | Path | None
) -> dict[str, Any]:
    from eval_mteb.examples import neighbour_examples

    found = {}
    for key, task in results.items():
        texts = Path(corpus) if corpus is not None else root / str(task.info.get("folder"))
        if texts.is_dir() and {"base", "student"} <= set(task.systems):
            found[key] = neighbour_examples(task, texts, systems=("base", "student"))
    return found


def _only(task: TaskResults, names: Sequence[str]) -> TaskResults:
    from dataclasses import replace

    return replace(task, systems={n: s for n, s in task.systems.items() if n in names})


def write_report(
    run_folder: str | Path,
    *,
    evaluation: str | Path | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    corpus: str | Path | None = None,
    snippets: bool = True,
    figures: bool = True,
) -> dict[str, Any]:
    """Write ``report.json``, ``report.md``, ``report.html`` and figures into a run's folder.

    Args:
        run_folder: The run's folder; everything is read from it.
        evaluation: See :func:`gather`.
        resamples: Bootstrap resamples.
        seed: Their seed.
        corpus: See :func:`gather`.
        snippets: Whether the report shows beginnings of texts. Switch it off where the texts are
            not in the public domain.
        figures: Whether to draw.

    Returns:
        The report, as in ``report.json``.
    """
    root = Path(run_folder)
    report, results = gather(
        root,
        evaluation=evaluation,
        resamples=resamples,
        seed=seed,
        corpus=corpus,
        snippets=snippets,
    )
    drawn: dict[str, str] = {}
    pictures: dict[str, Figure] = {}
    if figures:
        shown = report["main_systems"]
        pictures = {
            "scores": draw_scores(report, shown, report["metrics"][0]),
            "depth": draw_depth(results, shown),
            "recall": draw_depth(results, shown, measure="recall"),
        }
        pairs = default_pairs(shown)
        if pairs:
            if any(found["gains"] for found in report["analysis"].values()):
                pictures["gains"] = draw_gains(report, pairs)
            pictures["scatter"] = draw_scatter(results, pairs[0], report["metrics"][0])
        (root / "figures").mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            save(figure, root / "figures" / f"{name}.png")
            drawn[name] = f"figures/{name}.png"
    report["figures"] = drawn
    write_json(root / "report.json", report)
    write_text(root / "report.md", markdown(report))
    write_text(root / "report.html", html_page(report, pictures))
    return report

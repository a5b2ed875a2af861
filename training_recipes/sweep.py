"""Several recipes run after one another and compared task by task.

``python -m training_recipes.sweep RECIPES... --out FOLDER [--setting value ...]``: each recipe
gets a run folder below ``--out`` and is resumed there like any run. The first one (or the one
named ``full``) is what the others are compared with.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json, safe_name, write_json, write_text
from obliq_hf.logs import show_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from training_recipes.recipe import Recipe

__all__ = ["Variant", "gather", "main", "run_sweep", "sweep_table", "variants"]

METRIC = "ndcg_at_10"
_REFERENCE = "full"


@dataclass(frozen=True)
class Variant:
    """One recipe of a sweep.

    Attributes:
        name: Name of its file; also of its run folder.
        recipe: The recipe, with the sweep's settings and its own folder.
    """

    name: str
    recipe: Recipe


def variants(
    recipes: Sequence[str | Path], out: str | Path, settings: Sequence[str] = ()
) -> list[Variant]:
    """The recipes of a sweep, the one that the others are compared with first.

    Args:
        recipes: Recipe files, names of recipes that ship, or folders of recipe files.
        out: Folder of all runs.
        settings: Settings for all of them, as on a command line.

    Raises:
        ObliqError: No recipe, two of one name, or a recipe or setting that is not valid.
    """
    from training_recipes.recipe import load_recipe

    files: dict[str, Path] = {}
    for given in recipes:
        for file in _files(given):
            name = safe_name(file.stem, "name of a recipe")
            if name in files and files[name].resolve() != file.resolve():
                raise ObliqError(f"two recipes of the sweep are called {name!r}")
            files[name] = file
    if not files:
        raise ObliqError("a sweep needs recipes: name files, or a folder of them")
    order = sorted(files, key=lambda name: name != _REFERENCE) if _REFERENCE in files else files
    return [
        Variant(name, load_recipe(files[name], [*settings, "--out", str(Path(out) / name)]))
        for name in order
    ]


def _files(given: str | Path) -> list[Path]:
    """The recipe files that a word of the command line stands for; task files are no recipes."""
    from training_recipes.recipe import recipe_file
    from training_recipes.settings import read_yaml

    place = Path(given)
    if not place.is_dir():
        return [recipe_file(given)]
    return [f for f in sorted(place.glob("*.yaml")) if "mechanism" not in read_yaml(f)]


def run_sweep(
    recipes: Sequence[Variant], *, say: Callable[[str], None] | None = None
) -> dict[str, Path]:
    """Run every variant up to its evaluation; finished stages are found.

    Returns:
        Name of the variant -> its run folder.
    """
    from training_recipes.run import run_recipe

    tell = say or (lambda line: None)
    folders: dict[str, Path] = {}
    for number, variant in enumerate(recipes, 1):
        tell(f"({number}/{len(recipes)}) {variant.name}")
        run_recipe(variant.recipe, until="evaluate", say=tell)
        folders[variant.name] = Path(variant.recipe.out)
    return folders


def _scores(folder: Path, system: str, metric: str) -> dict[str, dict[str, float]]:
    """Task -> query id -> value, of one system of one run."""
    found = {}
    for file in sorted((folder / "eval").glob(f"*/{system}/per_query.json")):
        values = read_json(file)
        if metric not in values:
            raise ObliqError(f"{file}: metric {metric!r} was not computed")
        found[file.parent.parent.name] = values[metric]
    return found


def gather(
    folders: dict[str, Path], *, metric: str = METRIC, resamples: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Means, intervals and differences from the first variant, per task.

    Args:
        folders: Name of the variant -> its run folder, the reference first.
        metric: The metric, as mteb names it.
        resamples: Resamples of the bootstrap over queries.
        seed: Its seed.

    Returns:
        ``{"metric", "reference", "tasks": [...], "rows": [{"name", "kind", "task": {"mean",
        "ci95", "delta", "delta_ci95", "p"}}]}``; baselines (``bm25``, ``teacher``, ``base``) of the
        first variant come first, and differences are from its student.

    Raises:
        ObliqError: The first variant has no scores.
    """
    from obliq_hf.metrics import bootstrap_ci, paired_bootstrap

    reference = next(iter(folders))
    anchor = _scores(folders[reference], "student", metric)
    if not anchor:
        raise ObliqError(f"{folders[reference]}: holds no evaluation of a student")
    systems = [(s, "baseline", _scores(folders[reference], s, metric)) for s in _BASELINES]
    students = [(n, "student", _scores(folder, "student", metric)) for n, folder in folders.items()]
    rows = []
    for name, kind, scores in (*systems, *students):
        if not scores:
            continue
        row: dict[str, Any] = {"name": name, "kind": kind, "tasks": {}}
        for task, values in scores.items():
            low, high = bootstrap_ci(values, resamples=resamples, seed=seed)
            cell: dict[str, Any] = {
                "mean": sum(values.values()) / len(values),
                "ci95": [low, high],
                "queries": len(values),
            }
            if not (kind == "student" and name == reference) and task in anchor:
                found = paired_bootstrap(values, anchor[task], resamples=resamples, seed=seed)
                cell |= {"delta": found.delta, "delta_ci95": [found.lo, found.hi], "p": found.p}
            row["tasks"][task] = cell
        rows.append(row)
    training = {n: _training(folder) for n, folder in folders.items()}
    return {
        "metric": metric,
        "reference": reference,
        "tasks": list(anchor),
        "rows": rows,
        "training": training,
    }


_BASELINES = ("bm25", "teacher", "base")


def _training(folder: Path) -> dict[str, Any]:
    """What a variant was trained on: rows by dataset, steps and seconds."""
    file = folder / "training.json"
    if not file.is_file():
        return {}
    report = read_json(file)
    datasets = report.get("batches", {}).get("datasets", [])
    return {
        "rows": {d["name"]: d["rows"] * d["passes"] - d["dropped"] for d in datasets},
        "steps": report.get("steps"),
        "seconds": report.get("seconds"),
    }


def sweep_table(result: dict[str, Any]) -> str:
    """The result as a Markdown table: means, and for variants the difference from the first."""
    tasks = result["tasks"]
    lines = [
        f"{result['metric'].replace('ndcg_at_', 'nDCG@')} per task with its 95 % interval over "
        f"queries; below it, the difference from `{result['reference']}` with its paired one.",
        "",
        "| trained on | rows | steps | " + " | ".join(tasks) + " |",
        "|---|---|---|" + "---|" * len(tasks),
    ]
    for row in result["rows"]:
        known = result["training"].get(row["name"], {}) if row["kind"] == "student" else {}
        rows = sum(known["rows"].values()) if known else "–"
        cells = [_cell(row["tasks"].get(task)) for task in tasks]
        name = f"`{row['name']}`" if row["kind"] == "student" else f"*{row['name']}*"
        lines.append(f"| {name} | {rows} | {known.get('steps', '–')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    low, high = cell["ci95"]
    text = f"{cell['mean']:.3f} [{low:.3f}, {high:.3f}]"
    if "delta" in cell:
        low, high = cell["delta_ci95"]
        text += f"<br>{cell['delta']:+.3f} [{low:+.3f}, {high:+.3f}]"
    return text


def sweep(
    context: typer.Context,
    recipes: Annotated[list[str], typer.Argument(help="recipe files, names, or folders of them")],
    out: Annotated[Path, typer.Option(help="folder of all runs, and of the table")],
    only: Annotated[
        str | None, typer.Option(help="run only these variants, comma-separated")
    ] = None,
) -> None:
    """Run recipes after one another, or go on with them, and write ``sweep.md``.

    Any setting of a recipe can follow and holds for all: --corpus.path FOLDER, --seed 14.
    """
    # settings follow the recipes, and the command line's parser hands both over as one list
    named = next((i for i, word in enumerate(recipes) if word.startswith("--")), len(recipes))
    recipes, settings = recipes[:named], [*recipes[named:], *context.args]
    chosen = variants(recipes, out, settings)
    if only is not None:
        wanted = [name.strip() for name in only.split(",") if name.strip()]
        known = {variant.name: variant for variant in chosen}
        from obliq_hf.errors import nearest

        for name in wanted:
            if name not in known:
                raise ObliqError(f"--only: no variant {name!r}{nearest(name, known)}")
        chosen = [variant for variant in chosen if variant.name in wanted]
    run_sweep(chosen, say=typer.echo)
    every = variants(recipes, out, settings)
    done = {v.name: Path(v.recipe.out) for v in every if (Path(v.recipe.out) / "eval").is_dir()}
    result = gather(done)
    table = sweep_table(result)
    write_json(out / "sweep.json", result)
    write_text(out / "sweep.md", table)
    typer.echo(table)


def main(words: Sequence[str]) -> int:
    """``python -m training_recipes.sweep``; returns the exit status."""
    show_logs(logging.WARNING)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=settings)(sweep)
    try:
        app(list(words), prog_name="python -m training_recipes.sweep")
    except ObliqError as error:
        typer.echo(f"error: {error}", err=True)
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

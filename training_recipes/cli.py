"""Commands that run and train recipes."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from obliq_hf.errors import ObliqError
from obliq_hf.logs import show_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from training_recipes.train import TrainResult

__all__ = ["demo", "run", "show_settings", "train", "train_main"]

_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}


def show_settings(wanted: bool) -> None:
    """Print every setting of a recipe with its default, and stop."""
    if not wanted:
        return
    from training_recipes.recipe import Recipe
    from training_recipes.settings import describe

    for name, kind, default, help_text in describe(Recipe):
        typer.echo(f"--{name} ({kind}; default {default})\n    {help_text}")
    raise typer.Exit


def run(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="a recipe file, or the name of one that ships")],
    until: Annotated[str | None, typer.Option(help="stop after this stage")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what it takes, and run nothing")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="for --dry-run: h100, 8xa100-80gb, cpu, ...")
    ] = None,
    settings: Annotated[
        bool,
        typer.Option("--settings", help="list all settings", callback=show_settings, is_eager=True),
    ] = False,
) -> None:
    """Run a recipe: corpus, queries, graph, mixture, training, evaluation, report.

    Finished stages are found and not run again; a run that was killed goes on where it was. Any
    setting of the recipe can follow: --graph.neighbours random, --seed 14, --out runs/other.
    """
    if device is not None and not dry_run:
        raise ObliqError("--device names what --dry-run estimates for; training takes what is here")
    if dry_run:
        from training_recipes.plan import plan_recipe, shown
        from training_recipes.recipe import load_recipe

        typer.echo(shown(plan_recipe(load_recipe(recipe, context.args), device=device)))
        return
    _run(recipe, context.args, until)


def demo(
    context: typer.Context,
    until: Annotated[str | None, typer.Option(help="stop after this stage")] = None,
) -> None:
    """Run the quickstart recipe on public-domain prose; settings as for 'obliq run'."""
    _run("quickstart", context.args, until)


def _run(recipe: str, words: Sequence[str], until: str | None) -> None:
    from training_recipes.recipe import load_recipe
    from training_recipes.run import run_recipe

    run_recipe(load_recipe(recipe, words), until=until, say=typer.echo)


def train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="a recipe file, or the name of one that ships")],
    mixture: Annotated[
        Path | None, typer.Option(help="the mixture's folder, if not in the run folder")
    ] = None,
    resume: Annotated[bool, typer.Option(help="go on from the last checkpoint")] = True,
    settings: Annotated[
        bool,
        typer.Option("--settings", help="list all settings", callback=show_settings, is_eager=True),
    ] = False,
) -> None:
    """Train a retriever on a recipe's mixture.

    Any setting of the recipe can follow: --training.learning_rate 1e-5, or --learning_rate 1e-5.
    """
    _report(_train(recipe, context.args, mixture=mixture, resume=resume))


for _command in (run, demo, train):
    setattr(_command, "context_settings", _WORDS)  # noqa: B010 - read by obliq_hf.cli


def train_main(words: Sequence[str]) -> int:
    """``python -m training_recipes.train``, alone or under ``accelerate launch``.

    Args:
        words: A recipe, then settings.

    Returns:
        The exit status.
    """
    first = os.environ.get("RANK", "0") == "0"
    show_logs(logging.INFO if first else logging.ERROR)
    for noisy in ("httpx", "sentence_transformers", "transformers", "datasets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings=_WORDS)(train)
    try:
        app(list(words), prog_name="python -m training_recipes.train")
    except ObliqError as error:
        if first:
            print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if first:
            print(f"error: {error}; finished checkpoints are kept", file=sys.stderr)
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _train(recipe: str, words: Sequence[str], *, mixture: Path | None, resume: bool) -> TrainResult:
    from training_recipes.publishing import check_publishing, publish_run
    from training_recipes.recipe import load_recipe
    from training_recipes.stages import run_lock
    from training_recipes.train import train_recipe

    loaded = load_recipe(recipe, words)
    check_publishing(loaded)
    if os.environ.get("RANK", "0") != "0":
        return train_recipe(loaded, mixture=mixture, resume=resume)
    with run_lock(Path(loaded.out)):
        if mixture is None and (Path(loaded.out) / "stages" / "mixture.json").is_file():
            from training_recipes.run import open_run

            open_run(loaded).begin("train")
        result = train_recipe(loaded, mixture=mixture, resume=resume)
        for pushed in publish_run(loaded, results=False):
            typer.echo(f"{pushed.place}: version {pushed.version}")
        return result


def _report(result: TrainResult) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    report = result.report
    for dataset in report["batches"]["datasets"]:
        name = dataset["name"]
        losses = [e["datasets"][name] for e in report["losses"] if name in e["datasets"]]
        course = f"; loss {losses[0]:.3f} -> {losses[-1]:.3f}" if losses else ""
        typer.echo(
            f"{name}: {dataset['rows']} rows x {dataset['passes']} in {dataset['batches']} "
            f"batches, {dataset['dropped']} without a place, {dataset['negatives'][1]:.0f} "
            f"negatives per anchor{course}"
        )
    typer.echo(f"steps: {report['steps']}")
    typer.echo(f"model: {result.model}")
    if result.adapter is not None:
        typer.echo(f"adapter: {result.adapter}")

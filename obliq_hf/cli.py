"""The ``obliq`` command: a table of names; each folder defines its own sub-commands.

Nothing but the table is loaded until a command is chosen, so ``obliq --help`` is immediate.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from obliq_hf import __version__
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.logs import show_logs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("training_recipes.cli:demo", "run the quickstart recipe on real text"),
    "run": ("training_recipes.cli:run", "run a recipe from source to report, stage by stage"),
    "corpus": ("dataset_builders.cli:corpus", "build a corpus folder"),
    "queries": ("dataset_builders.queries_cli:app", "write synthetic queries; report on them"),
    "negatives": ("dataset_builders.cli:negatives", "mine hard negatives with BM25"),
    "graph": ("dataset_builders.cli:graph", "build and screen an authorship graph"),
    "mixture": ("dataset_builders.cli:mixture", "join queries, graph pairs and negatives"),
    "train": ("training_recipes.cli:train", "train a retriever on a mixture"),
    "evaluate": ("eval_mteb.cli:evaluate", "score models and baselines under MTEB"),
    "rerank": ("eval_mteb.rerank_cli:app", "rerank a run; choose a policy on development data"),
    "encode": ("obliq_hf.search_cli:encode", "encode a corpus into an index of vectors"),
    "search": ("obliq_hf.search_cli:search", "search an index with queries"),
    "compare": ("eval_mteb.cli:compare", "compare two evaluations query by query"),
    "report": ("eval_mteb.cli:report", "write tables and figures of a run"),
    "publish": ("model_cards.cli:publish", "publish datasets and models to a Hub or a folder"),
}
"""Command -> (``module:attribute`` of a function or Typer app, one line of help)."""


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "Usage: obliq COMMAND [OPTIONS]",
        "",
        "Retrieval by what a text does not say.",
        "",
        "Commands:",
        *(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()),
        "",
        "Options:",
        "  --version   show the version",
        "  --verbose   log what happens (before the command)",
        "  --help      show this text; 'obliq COMMAND --help' shows the command's own",
    ]
    return "\n".join(lines)


def _load(name: str) -> Any:
    module_name, _, attribute = COMMANDS[name][0].partition(":")
    import typer

    target = getattr(importlib.import_module(module_name), attribute)
    if isinstance(target, typer.Typer):
        return target
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = getattr(target, "context_settings", None)
    app.command(name=name, context_settings=settings)(target)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after ``obliq``; default those of the process.

    Returns:
        The exit status: 0, 1 where a command failed for a stated reason, 2 for wrong usage,
        130 after an interrupt.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    level = logging.WARNING
    if words and words[0] == "--verbose":
        words.pop(0)
        level = logging.INFO
    show_logs(level)
    if not words or words[0] in {"--help", "-h", "help"}:
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"obliq {__version__}")
        return 0
    name = words.pop(0)
    if name not in COMMANDS:
        print(f"obliq: no command {name!r}{nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        _load(name)(words, prog_name=f"obliq {name}")
    except ObliqError as error:
        print(f"obliq {name}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"obliq {name}: {error}; finished parts are kept", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"obliq {name}: interrupted; finished parts are kept", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

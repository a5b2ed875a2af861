"""The command ``obliq publish``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from obliq_hf.hub import Pushed

__all__ = ["publish"]

publish = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Publish a dataset or a model to a Hub, or to a folder laid out as one.",
)

RepoArgument = Annotated[str, typer.Argument(metavar="REPO", help="organisation/name")]
To = Annotated[
    str, typer.Option(help="'hub' (HF_ENDPOINT is honoured) or 'folder:PATH', a folder as a Hub")
]
Version = Annotated[str | None, typer.Option(help="version tag; default made from the content")]
Private = Annotated[bool, typer.Option(help="make the repository private; refuse a public one")]
CreatePr = Annotated[bool, typer.Option(help="open a pull request instead of committing")]
DryRun = Annotated[bool, typer.Option(help="check and build everything, write nothing")]
ReplaceCard = Annotated[bool, typer.Option(help="write the card anew although it was edited")]
LicenceOption = Annotated[
    str | None, typer.Option(help="licence as the Hub names it, 'public-domain' or 'other:NAME'")
]
Language = Annotated[str, typer.Option(help="language codes of the texts, comma-separated")]
Title = Annotated[str, typer.Option(help="heading of the card")]


def _options(**given: Any) -> Any:
    from model_cards.publishing import PublishOptions

    language = tuple(code.strip() for code in given.pop("language").split(",") if code.strip())
    private = given.pop("private") or None
    return PublishOptions(language=language, private=private, **given)


def _say(pushed: Pushed) -> None:
    if pushed.dry_run:
        typer.echo(f"{pushed.place}: nothing was written (dry run)")
    elif pushed.pull_request:
        typer.echo(f"{pushed.place}: proposed at {pushed.pull_request}")
    elif pushed.changed:
        typer.echo(f"{pushed.place}: published, version {pushed.version}")
    else:
        typer.echo(f"{pushed.place}: holds the same content already, version {pushed.version}")
    if pushed.changed or pushed.dry_run:
        typer.echo(f"  {len(pushed.added)} files written, {len(pushed.deleted)} removed")
        for path in pushed.added if pushed.dry_run else ():
            typer.echo(f"  + {path}")
        for path in pushed.deleted:
            typer.echo(f"  - {path}")
    for note in pushed.notes:
        typer.echo(f"  note: {note}")


@publish.command()
def dataset(
    folder: Annotated[
        Path, typer.Argument(help="corpus, graph, mixture or queries folder of a run")
    ],
    repo: RepoArgument,
    *,
    to: To = "hub",
    task: Annotated[str | None, typer.Option(help="graph: the task that its pairs train")] = None,
    config: Annotated[str | None, typer.Option(help="graph: name of the config")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="queries: the corpus they were written from")
    ] = None,
    version: Version = None,
    private: Private = False,
    create_pr: CreatePr = False,
    dry_run: DryRun = False,
    replace_card: ReplaceCard = False,
    licence: LicenceOption = None,
    language: Language = "en",
    title: Title = "",
) -> None:
    """Publish a folder of a run as a dataset repository."""
    from model_cards.publishing import publish_dataset

    options = _options(
        to=to, version=version, private=private, create_pr=create_pr, dry_run=dry_run,
        replace_card=replace_card, licence=licence, language=language, title=title,
    )  # fmt: skip
    pushed = publish_dataset(folder, repo, options, task=task, config=config, corpus=corpus)
    _say(pushed)
    if not pushed.dry_run:
        for name, splits in pushed.rows.items():
            for split, rows in splits.items():
                line = f'load_dataset("{pushed.loads_as}", "{name}", split="{split}")'
                typer.echo(f"  {line}  # {rows:,} rows")


@publish.command()
def model(
    folder: Annotated[Path, typer.Argument(help="the saved model of a run, or an adapter")],
    repo: RepoArgument,
    *,
    adapter: Annotated[
        str | None, typer.Option(help="repository for the adapter that lies beside the model")
    ] = None,
    to: To = "hub",
    run: Annotated[
        Path | None, typer.Option(help="run folder it comes from; default the one it lies in")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="organisation/name@commit of the base, if not recorded")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="organisation/name@revision of published training data; repeatable"),
    ] = None,
    corpus_repo: Annotated[
        str | None, typer.Option(help="organisation/name@revision of the data it was scored on")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="policy file of 'rerank select'; default the run's policy.yaml"),
    ] = None,
    version: Version = None,
    private: Private = False,
    create_pr: CreatePr = False,
    dry_run: DryRun = False,
    replace_card: ReplaceCard = False,
    licence: LicenceOption = None,
    language: Language = "en",
    title: Title = "",
) -> None:
    """Publish a checkpoint, and its adapter, with card and results."""
    from model_cards.publishing import publish_model

    options = _options(
        to=to, version=version, private=private, create_pr=create_pr, dry_run=dry_run,
        replace_card=replace_card, licence=licence, language=language, title=title,
    )  # fmt: skip
    done = publish_model(
        folder,
        repo,
        options,
        adapter_repo=adapter,
        run=run,
        base=base,
        datasets=tuple(dataset or ()),
        corpus_repo=corpus_repo,
        policy=policy,
    )
    for pushed in done:
        _say(pushed)
        if not pushed.dry_run:
            typer.echo(f'  SentenceTransformer("{pushed.loads_as}")')

"""`obliq queries synthesize` and `obliq queries report`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from obliq_hf.llm import Budget, Price

__all__ = ["app"]

app = typer.Typer(
    name="queries",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Write synthetic oblique queries with a language model, and measure them.",
)

_EMBEDDED_CHARACTERS = 1500


@app.command()
def synthesize(
    task: Annotated[str, typer.Option(help="a built-in task or a task file")],
    corpus: Annotated[
        str,
        typer.Option(help="corpus folder or file, or a dataset repository with a 'corpus' split"),
    ],
    llm: Annotated[
        str,
        typer.Option(help="http://HOST:PORT/v1, hub, hub:PROVIDER, vllm, batch:FOLDER or embedded"),
    ],
    out: Annotated[Path, typer.Option(help="folder to write")],
    model: Annotated[str | None, typer.Option(help="name of the model")] = None,
    revision: Annotated[str | None, typer.Option(help="revision of the model")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="documents drawn; all when absent")
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the draw and of the sampling")] = 0,
    leave_out: Annotated[
        list[Path] | None,
        typer.Option(help="judgments (qrels) whose documents are never drawn; may be repeated"),
    ] = None,
    official: Annotated[
        Path | None,
        typer.Option(help="the task's own queries.jsonl, for the comparison in the report"),
    ] = None,
    variant: Annotated[str, typer.Option(help="two-stage, single-stage or generic")] = "two-stage",
    lens: Annotated[str | None, typer.Option(help="another lens, or a lens file")] = None,
    form: Annotated[str | None, typer.Option(help="another form of the lens")] = None,
    attempts: Annotated[int, typer.Option(min=1, help="most calls a stage and document")] = 3,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="sampling temperature")] = 0.7,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="longest answer in tokens, thinking included")
    ] = 1024,
    document_characters: Annotated[
        int | None,
        typer.Option(min=1, help="longest document shown; longer ones are cut [default: 24000]"),
    ] = None,
    no_thinking: Annotated[
        bool, typer.Option("--no-thinking", help="tell the chat template to switch thinking off")
    ] = False,
    negatives: Annotated[int, typer.Option(min=0, help="BM25 negatives a query")] = 4,
    spacy: Annotated[
        str | None, typer.Option(help="spaCy pipeline that finds further names")
    ] = None,
    group_field: Annotated[
        str | None, typer.Option(help="metadata field that names a document's source")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="answer cache [default: answers.sqlite beside the output folder]"),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="calls at once")] = 64,
    timeout: Annotated[float, typer.Option(help="seconds before a call is lost")] = 600.0,
    structured: Annotated[
        str,
        typer.Option(
            help="how the JSON form is enforced: response_format, structured_outputs or none",
        ),
    ] = "response_format",
    budget_calls: Annotated[int | None, typer.Option(help="most calls")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="most tokens")] = None,
    budget_cost: Annotated[float | None, typer.Option(help="most money; needs prices")] = None,
    price_prompt: Annotated[float, typer.Option(help="price of a million prompt tokens")] = 0.0,
    price_completion: Annotated[
        float, typer.Option(help="price of a million completion tokens")
    ] = 0.0,
) -> None:
    """Describe documents, write queries from the descriptions, check them, mine negatives.

    The key of a server is read from OBLIQ_LLM_API_KEY. Every answer is kept in the cache: an
    interrupted command goes on where it was, a finished one makes no call.
    """
    from dataset_builders.corpora.repository import open_corpus
    from dataset_builders.query_checks import spacy_names
    from dataset_builders.query_flow import Sampling
    from dataset_builders.synthetic_queries import NegativeSettings
    from dataset_builders.synthetic_queries import synthesize as run
    from obliq_hf.llm import load_client
    from obliq_hf.records import read_qrels
    from obliq_hf.tasks import load_task

    chosen = load_task(task)
    sampling = Sampling(
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        attempts=attempts,
        document_characters=document_characters
        or (_EMBEDDED_CHARACTERS if llm.startswith("embedded") else 24_000),
    )
    price, budget = _money(budget_calls, budget_tokens, budget_cost, price_prompt, price_completion)
    held_out = {
        document
        for path in leave_out or ()
        for judged in read_qrels(path).values()
        for document in judged
    }
    names = None if spacy is None else spacy_names(spacy)
    queries = _official(official)
    client = load_client(
        llm,
        model=model,
        revision=revision,
        cache=cache or out.parent / "answers.sqlite",
        concurrency=concurrency,
        timeout=timeout,
        budget=budget,
        price=price,
        structured=structured,
        extra_body=({"chat_template_kwargs": {"enable_thinking": False}} if no_thinking else None),
    )
    try:
        documents = open_corpus(corpus, chosen, group_field=group_field)
        report = run(
            chosen,
            documents,
            client,
            out,
            sample=sample,
            seed=seed,
            leave_out=held_out,
            lens=lens,
            form=form,
            variant=variant,
            sampling=sampling,
            negatives=NegativeSettings(negatives),
            names=names,
            official=queries,
            progress=True,
        )
    finally:
        client.close()
    typer.echo(report.summary())
    usage = client.accounting.total
    cost = f", cost {client.accounting.cost:.4f}" if client.accounting.price.stated else ""
    typer.echo(
        f"this run: {usage.calls} calls, {usage.cached} answers from the cache, "
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens{cost}"
    )
    typer.echo(f"written to {out}; see {out / 'report.md'}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="folder that 'synthesize' wrote")],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="the corpus; without it, the documents of the training rows are searched"
        ),
    ] = None,
    official: Annotated[
        Path | None, typer.Option(help="the task's own queries.jsonl, to compare with")
    ] = None,
    group_field: Annotated[
        str | None, typer.Option(help="metadata field that names a document's source")
    ] = None,
    price_prompt: Annotated[float, typer.Option(help="price of a million prompt tokens")] = 0.0,
    price_completion: Annotated[
        float, typer.Option(help="price of a million completion tokens")
    ] = 0.0,
    figures: Annotated[bool, typer.Option(help="draw histograms; needs matplotlib")] = True,
) -> None:
    """Measure leakage, coverage, diversity, refusals, tokens and cost of written queries."""
    from dataset_builders.corpora.repository import open_corpus
    from dataset_builders.diagnostics.query_report import report_on
    from dataset_builders.query_dataset import read_synthetic
    from obliq_hf.llm import Price
    from obliq_hf.tasks import ObliqTask

    _, _, info = read_synthetic(folder)
    task = ObliqTask.from_dict(info["task"], source=str(folder / "queries.json"))
    documents = None if corpus is None else open_corpus(corpus, task, group_field=group_field)
    price = Price(price_prompt, price_completion) if price_prompt or price_completion else None
    report_on(folder, corpus=documents, official=_official(official), price=price, figures=figures)
    typer.echo((folder / "report.md").read_text(encoding="utf-8"))


def _money(
    calls: int | None, tokens: int | None, cost: float | None, prompt: float, completion: float
) -> tuple[Price | None, Budget | None]:
    from obliq_hf.llm import Budget, Price

    limits = (calls, tokens, cost)
    price = Price(prompt, completion) if prompt or completion else None
    return price, Budget(*limits) if any(limit is not None for limit in limits) else None


def _official(path: Path | None) -> list[str]:
    from obliq_hf.records import read_queries

    return [] if path is None else read_queries(path).texts

"""``obliq evaluate``, ``obliq compare`` and ``obliq report``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

__all__ = ["compare", "evaluate", "report"]


def _names(value: str | None) -> list[str]:
    return [part.strip() for part in (value or "").split(",") if part.strip()]


def evaluate(
    out: Annotated[Path, typer.Option(help="folder for the results")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="corpus folder: ours, as published or not, BEIR's or OBLIQ-Bench's layout; "
            "default: OBLIQ-Bench from the Hub"
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="checkpoint folder, hub name or 'embedded'; may be repeated"),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="task names or YAML files, comma-separated; default: all")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="bm25, bm25:SETTING, teacher, rewriter, multihop, oracle; comma-separated"
        ),
    ] = None,
    teacher: Annotated[
        str, typer.Option(help="the teacher baseline: 'stylometric', a folder or a model name")
    ] = "stylometric",
    llm: Annotated[
        str | None, typer.Option(help="OpenAI-compatible server for rewriter, multihop, oracle")
    ] = None,
    llm_model: Annotated[str | None, typer.Option(help="name of the model there")] = None,
    llm_revision: Annotated[str | None, typer.Option(help="revision of that model")] = None,
    first_stage: Annotated[
        str | None, typer.Option(help="system these search with; default: the first model")
    ] = None,
    fuse: Annotated[
        str | None, typer.Option(help="two systems to fuse, as NAME+NAME; comma-separated")
    ] = None,
    fuse_method: Annotated[
        str, typer.Option(help="how their scores are fused: zscore or rrf (reciprocal ranks)")
    ] = "zscore",
    split: Annotated[str, typer.Option(help="split whose judgments count")] = "test",
    judgments: Annotated[
        str, typer.Option(help="gold, pooled or both, where a task has them")
    ] = "gold,pooled",
    depth: Annotated[int, typer.Option(help="documents kept per query")] = 1000,
    batch_size: Annotated[int, typer.Option(help="texts an encoder takes at once")] = 32,
    max_length: Annotated[
        int | None, typer.Option(help="longest input in tokens; default: the model's own")
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="'own' prompts of the model, 'none', or a template for the tasks")
    ] = "own",
    device: Annotated[str | None, typer.Option(help="device of the encoders")] = None,
) -> None:
    """Score models and baselines under MTEB; what is measured already is not run again."""
    from eval_mteb.command import LLMSettings, evaluate_command
    from eval_mteb.report import gather
    from eval_mteb.report_tables import terminal_table
    from obliq_hf.errors import ObliqError

    if (llm is None) != (llm_model is None):
        raise ObliqError("give both --llm URL and --llm-model NAME, or neither")
    evaluate_command(
        data=data,
        models=model or [],
        tasks=_names(tasks),
        baselines=_names(baseline),
        teacher=teacher,
        fusions=_names(fuse),
        fusion_method=fuse_method,
        llm=LLMSettings(llm, llm_model, llm_revision) if llm and llm_model else None,
        first_stage=first_stage,
        out=out,
        split=split,
        judgments=_names(judgments),
        depth=depth,
        batch_size=batch_size,
        max_length=max_length,
        prompts=prompts,
        device=device,
    )
    found, _ = gather(out, evaluation=out, snippets=False)
    typer.echo(terminal_table(found))


def compare(
    first: Annotated[Path, typer.Argument(help="evaluation folder")],
    second: Annotated[Path, typer.Argument(help="evaluation folder of the same tasks")],
    systems: Annotated[
        str | None, typer.Option(help="one system of each, as A,B, where their names differ")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="metrics, comma-separated")] = None,
    resamples: Annotated[int, typer.Option(help="bootstrap resamples")] = 10_000,
    seed: Annotated[int, typer.Option(help="seed of the resamples")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="file for the rows")] = None,
) -> None:
    """Compare two evaluations query by query: first − second."""
    from eval_mteb.comparisons import compare_folders
    from eval_mteb.report_tables import comparison_table
    from eval_mteb.results import read_results
    from obliq_hf.errors import ObliqError
    from obliq_hf.files import write_json

    pair = _names(systems)
    if pair and len(pair) != 2:
        raise ObliqError(f"--systems needs two names, as A,B, not {systems!r}")
    found = compare_folders(
        read_results(first),
        read_results(second),
        systems=(pair[0], pair[1]) if pair else None,
        metrics=_names(metric) or None,
        resamples=resamples,
        seed=seed,
    )
    if json_out is not None:
        write_json(json_out, found.rows)
    typer.echo(comparison_table(found.rows))
    for note in found.notes:
        typer.echo(f"note: {note}")


def report(
    run: Annotated[Path, typer.Argument(help="run folder, or an evaluation folder")],
    data: Annotated[
        Path | None, typer.Option(help="corpus folder for examples in words; default: RUN/corpus")
    ] = None,
    snippets: Annotated[
        bool, typer.Option(help="show beginnings of texts; for public-domain texts only")
    ] = True,
    resamples: Annotated[int, typer.Option(help="bootstrap resamples")] = 10_000,
    seed: Annotated[int, typer.Option(help="seed of the resamples")] = 0,
) -> None:
    """Write tables and figures of a run from its files."""
    from eval_mteb.report import write_report
    from eval_mteb.report_tables import terminal_table

    found = write_report(run, corpus=data, snippets=snippets, resamples=resamples, seed=seed)
    typer.echo(terminal_table(found))
    typer.echo(f"\nreport: {run / 'report.md'}")

"""``obliq rerank`` and ``obliq rerank select``."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obliq_hf.llm import ChatClient

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Rerank a first stage, or choose a reranker for each task (select).",
)

_Run = Annotated[
    Path | None,
    typer.Option(help="run file of one task, or an evaluation folder <task>/<system>/run.trec"),
]
_System = Annotated[
    str | None, typer.Option(help="system of an evaluation folder whose runs are reranked")
]
_Retriever = Annotated[
    str | None, typer.Option(help="checkpoint folder or hub name to retrieve with, not a run")
]
_Data = Annotated[
    Path | None, typer.Option(help="corpus folder; default: 'corpus' beside or above the run")
]
_Tasks = Annotated[
    str | None, typer.Option(help="task names or YAML files, comma-separated; default: all")
]
_Llm = Annotated[
    str | None,
    typer.Option(
        help="http://... of an OpenAI-compatible server, hub, hub:PROVIDER, vllm, batch:FOLDER "
        "or embedded"
    ),
]
_Model = Annotated[str | None, typer.Option(help="name of the language model there")]
_Revision = Annotated[str | None, typer.Option(help="revision of the served weights")]
_Slots = Annotated[int, typer.Option(help="calls at once")]
_Cache = Annotated[
    Path | None, typer.Option(help="file that keeps every answer; default: beside the results")
]
_MaxCalls = Annotated[int | None, typer.Option(help="never make more calls than this")]
_MaxTokens = Annotated[int | None, typer.Option(help="never spend more tokens than this")]
_Tokenizer = Annotated[
    str | None,
    typer.Option(help="tokeniser that texts are cut by, the model's own; default: an estimate"),
]
_DocumentTokens = Annotated[
    int | None, typer.Option(help="tokens of a candidate that are shown; default: 512")
]
_QueryTokens = Annotated[
    int | None, typer.Option(help="tokens of the query that are shown; default: 1536")
]
_Keep = Annotated[
    str | None, typer.Option(help="part of a long text kept: head, ends or middle; default: ends")
]
_ThinkingTokens = Annotated[
    int | None, typer.Option(help="room for thinking before an answer; default: 0")
]
_Thinking = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="tell the chat template (vLLM, SGLang)"),
]
_Seed = Annotated[int | None, typer.Option(help="seed of shuffles; default: 0")]
_EarlyStop = Annotated[
    int | None,
    typer.Option(
        help="tourrank: stop a query once so many first places are certain, and count the calls "
        "spared; tournaments then follow one another"
    ),
]
_Plan = Annotated[
    str | None,
    typer.Option(
        help="tourrank: stages as GROUPSxSIZE>KEEP for exactly --depth candidates, as "
        "'5x20>10 5x10>4 1x20>10'; default: made for the size"
    ),
]
_Judgments = Annotated[str, typer.Option(help="gold, pooled or both, where a task has them")]


def _names(value: str | None) -> list[str]:
    return [part.strip() for part in (value or "").split(",") if part.strip()]


@contextmanager
def _client(
    llm: str | None,
    model: str | None,
    revision: str | None,
    slots: int,
    max_calls: int | None,
    max_tokens: int | None,
    thinking: bool | None,
    cache: Path,
) -> Iterator[ChatClient | None]:
    """The language model asked for, closed afterwards; None where there is none."""
    from eval_mteb.rerank_command import LLMOptions
    from obliq_hf.errors import ObliqError

    if llm is None:
        if model is not None:
            raise ObliqError("--model names a model of --llm: give both, or neither")
        yield None
        return
    options = LLMOptions(llm, model, revision, slots, max_calls, max_tokens, thinking)
    client = options.client(cache)
    try:
        yield client
    finally:
        client.close()


@app.callback(invoke_without_command=True)
def rerank(
    context: typer.Context,
    run: _Run = None,
    out: Annotated[Path | None, typer.Option(help="folder for the results")] = None,
    system: _System = None,
    retriever: _Retriever = None,
    data: _Data = None,
    tasks: _Tasks = None,
    reranker: Annotated[
        str | None,
        typer.Option(
            help="identity, tourrank[:Y], listwise[:K], cross-encoder:NAME; several by "
            "commas; default: the policy's or the task's own"
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="policy file of 'select'; texts, thinking and seed default to its own"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="tournaments of tourrank")] = 5,
    depth: Annotated[int, typer.Option(help="candidates reranked")] = 100,
    preselect: Annotated[
        str | None,
        typer.Option(help="bring a deeper pool down first: fusion, cross-encoder or tournament"),
    ] = None,
    first_stage_depth: Annotated[int, typer.Option(help="depth of that deeper pool")] = 1000,
    cross_encoder: Annotated[
        str | None, typer.Option(help="name or folder of a cross-encoder")
    ] = None,
    prompt: Annotated[str, typer.Option(help="task, generic, or a prompt file")] = "task",
    answer: Annotated[str, typer.Option(help="text, schema or logprobs")] = "text",
    fuse: Annotated[
        str | None, typer.Option(help="fuse with the first stage: zscore or rrf")
    ] = None,
    plan: _Plan = None,
    early_stop: _EarlyStop = None,
    llm: _Llm = None,
    model: _Model = None,
    revision: _Revision = None,
    slots: _Slots = 64,
    cache: _Cache = None,
    max_calls: _MaxCalls = None,
    max_tokens: _MaxTokens = None,
    tokenizer: _Tokenizer = None,
    document_tokens: _DocumentTokens = None,
    query_tokens: _QueryTokens = None,
    keep: _Keep = None,
    thinking: _Thinking = None,
    thinking_tokens: _ThinkingTokens = None,
    seed: _Seed = None,
    split: Annotated[str, typer.Option(help="split whose judgments count")] = "test",
    judgments: _Judgments = "gold,pooled",
) -> None:
    """Rerank a first stage on tasks and measure it beside the first stage."""
    if context.invoked_subcommand is not None:
        return
    from eval_mteb.report import gather
    from eval_mteb.report_tables import terminal_table
    from eval_mteb.rerank_command import FirstStage, find_data, make_asking, rerank_command
    from obliq_hf.errors import ObliqError
    from obliq_hf.reranking import RerankSettings, load_policy

    if out is None:
        raise ObliqError("give a folder for the results: --out FOLDER")
    base = RerankSettings(
        depth=depth, rounds=rounds, prompt=prompt, answer=answer, fuse=fuse,
        cross_encoder=cross_encoder, preselect=preselect, first_stage_depth=first_stage_depth,
        plan=plan, early_stop=early_stop,
    )  # fmt: skip
    chosen = None if policy is None else load_policy(policy)
    asking = None
    given = (tokenizer, document_tokens, query_tokens, keep, thinking_tokens)
    if any(value is not None for value in given):
        asking = make_asking(
            base=chosen.own_asking() if chosen is not None and reranker is None else None,
            tokenizer=tokenizer,
            document_tokens=document_tokens,
            query_tokens=query_tokens,
            keep=keep,
            thinking_tokens=thinking_tokens,
        )
    with _client(
        *(llm, model, revision, slots, max_calls, max_tokens, thinking),
        cache or out / "llm.sqlite",
    ) as client:
        folders = rerank_command(
            FirstStage(run, system, retriever),
            data=find_data(data, run),
            tasks=_names(tasks),
            out=out,
            rerankers=reranker,
            base=base,
            policy=chosen,
            client=client,
            asking=asking,
            seed=seed,
            split=split,
            judgments=_names(judgments),
        )
    found, _ = gather(out, evaluation=out, snippets=False)
    typer.echo(terminal_table(found))
    for line in _spent(folders):
        typer.echo(line)


def _spent(folders: list[Path]) -> list[str]:
    """A line a reranked system: calls, tokens, malformed answers, queries that failed."""
    from obliq_hf.files import read_json
    from obliq_hf.reranking import FAULTS

    lines = []
    for folder in folders:
        cost = read_json(folder / "cost.json").get("reranking")
        if not cost or not cost["requests"]:
            continue
        faults = ", ".join(f"{count} {FAULTS[kind]}" for kind, count in cost["faults"].items())
        errors = ", ".join(f"{count} {kind}" for kind, count in cost["errors"].items())
        failed = cost["failed_queries"]
        lines.append(
            f"{folder.parent.name}/{folder.name}: {cost['requests']} questions "
            f"({cost['cached']} from the cache) in {cost['wall_seconds']:.1f} s, "
            f"{cost['prompt_tokens'] + cost['completion_tokens']:,} tokens"
            + (f"; {cost['spared']} questions spared" if cost["spared"] else "")
            + (f"; answers {faults}" if faults else "")
            + (f"; failed calls: {errors}" if errors else "")
            + (f"; kept the first stage's order: {', '.join(failed[:5])}" if failed else "")
            + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
            + ("; make --document-tokens smaller" if "too-long" in cost["errors"] else "")
        )
    return lines


@app.command()
def select(
    out: Annotated[Path, typer.Option(help="policy file to write; its report goes beside it")],
    rerankers: Annotated[
        str,
        typer.Option(
            help="what to try, as identity,tourrank:1..10,listwise:10..100,"
            "listwise:20@generic,cross-encoder:NAME,tourrank:5+zscore"
        ),
    ],
    run: _Run = None,
    system: _System = None,
    retriever: _Retriever = None,
    data: _Data = None,
    tasks: _Tasks = None,
    split: Annotated[str, typer.Option(help="development split")] = "dev",
    share: Annotated[
        float | None,
        typer.Option(
            help="take only this share of the split's queries and leave the others for reporting"
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="interval: identity unless a gain's interval is above 0; mean: the best mean"
        ),
    ] = "interval",
    depth: Annotated[int, typer.Option(help="candidates reranked")] = 100,
    preselect: Annotated[
        str | None, typer.Option(help="try deep pools too: fusion, cross-encoder or tournament")
    ] = None,
    first_stage_depth: Annotated[int, typer.Option(help="depth of the deep pools")] = 1000,
    cross_encoder: Annotated[
        str | None, typer.Option(help="name or folder of a cross-encoder")
    ] = None,
    answer: Annotated[str, typer.Option(help="text, schema or logprobs")] = "text",
    plan: _Plan = None,
    early_stop: _EarlyStop = None,
    llm: _Llm = None,
    model: _Model = None,
    revision: _Revision = None,
    slots: _Slots = 64,
    cache: _Cache = None,
    max_calls: _MaxCalls = None,
    max_tokens: _MaxTokens = None,
    tokenizer: _Tokenizer = None,
    document_tokens: _DocumentTokens = None,
    query_tokens: _QueryTokens = None,
    keep: _Keep = None,
    thinking: _Thinking = None,
    thinking_tokens: _ThinkingTokens = None,
    seed: _Seed = None,
    resamples: Annotated[int, typer.Option(help="bootstrap resamples")] = 10_000,
) -> None:
    """Choose a reranker for each task on development queries, with the evidence."""
    from dataclasses import replace

    from eval_mteb.rerank_command import FirstStage, find_data, make_asking
    from eval_mteb.rerank_report import write_rerank_report
    from eval_mteb.rerank_selection import select_policy
    from obliq_hf.reranking import RerankSettings, parse_rerankers, write_policy

    base = RerankSettings(
        depth=depth, answer=answer, cross_encoder=cross_encoder, plan=plan, early_stop=early_stop
    )
    settings = parse_rerankers(rerankers, base=base)
    if preselect is not None:
        settings += [
            replace(entry, preselect=preselect, first_stage_depth=first_stage_depth)
            for entry in settings
        ]
    work = out.with_name(f"{out.stem}-evidence")
    with _client(
        *(llm, model, revision, slots, max_calls, max_tokens, thinking),
        cache or work / "llm.sqlite",
    ) as client:
        policy, sweeps = select_policy(
            FirstStage(run, system, retriever),
            settings,
            data=find_data(data, run),
            tasks=_names(tasks),
            work=work / "first-stage",
            client=client,
            asking=make_asking(
                tokenizer=tokenizer,
                document_tokens=document_tokens,
                query_tokens=query_tokens,
                keep=keep,
                thinking_tokens=thinking_tokens,
            ),
            seed=seed or 0,
            split=split,
            share=share,
            rule=rule,
            resamples=resamples,
        )
    write_policy(out, policy)
    report = write_rerank_report(work, policy, sweeps)
    for row in policy.card_rows():
        low, high = row["ci95"]
        typer.echo(
            f"{row['task']}: {row['reranker']}, nDCG@10 {row['delta']:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] over {row['queries']} queries"
        )
    typer.echo(f"policy: {out}\nreport: {report}")

"""``obliq encode`` and ``obliq search``."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.encoder.text_encoder import TextEncoder
    from obliq_hf.search.dense import Hits
    from obliq_hf.search.index import VectorIndex

__all__ = ["encode", "search"]

_EXCERPT = 100
_BATCH_SIZE = 32

Model = Annotated[str, typer.Option(help="a folder, a name on the Hub, or 'embedded'")]
Revision = Annotated[str | None, typer.Option(help="branch, tag or commit on the Hub")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; chosen when absent")]
Precision = Annotated[
    str | None, typer.Option(help="arithmetic: float32, bfloat16 or float16; default as saved")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help=f"texts of a batch; default {_BATCH_SIZE}")
]


def encode(
    model: Model,
    corpus: Annotated[Path, typer.Option(help="corpus file, or folder with corpus.jsonl")],
    out: Annotated[Path, typer.Option(help="index folder to write, or to go on with")],
    storage: Annotated[
        str, typer.Option(help="vectors on disk: float16, float32 or int8")
    ] = "float16",
    keep_exact: Annotated[
        bool, typer.Option("--keep-exact", help="keep float32 vectors beside, to decide the order")
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(min=8, help="tokens of a text; default the model's own")
    ] = None,
    batch_size: BatchSize = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="tokens of a batch: short texts in larger batches")
    ] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="vectors of a shard; at most 16384 by default")
    ] = None,
    empty: Annotated[str, typer.Option(help="empty documents: error, keep or drop")] = "error",
    processes: Annotated[
        int, typer.Option(min=1, help="processes on this machine, one per GPU")
    ] = 1,
    backend: Annotated[
        str, typer.Option(help="sentence-transformers or vllm")
    ] = "sentence-transformers",
    revision: Revision = None,
    device: Device = None,
    dtype: Precision = None,
) -> None:
    """Encode a corpus into an index: sharded, resumable, each text once.

    Killed at any moment and started again, it keeps the finished shards. It also runs under
    'accelerate launch -m obliq_hf.cli encode ...', on several machines with a folder in common.
    """
    from obliq_hf.errors import ObliqError, nearest
    from obliq_hf.search.shards import STORAGES

    for value, valid, what in (
        (storage, STORAGES, "--storage"),
        (empty, ("error", "keep", "drop"), "--empty"),
        (backend, ("sentence-transformers", "vllm"), "--backend"),
    ):
        if value not in valid:
            raise ObliqError(f"{what} {value!r} is not valid{nearest(value, valid)}")
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if backend == "vllm":
        _check_vllm(
            max(processes, launched),
            {"--device": device, "--batch-size": batch_size, "--batch-tokens": batch_tokens},
        )
    if processes > 1 and launched == 1:
        _in_processes(
            processes, model=model, corpus=corpus, out=out, storage=storage, keep_exact=keep_exact,
            max_length=max_length, batch_size=batch_size, batch_tokens=batch_tokens,
            shard_rows=shard_rows, empty=empty, revision=revision, device=device, dtype=dtype,
        )  # fmt: skip
        return
    from obliq_hf.encoder.processes import Workers
    from obliq_hf.records import corpus_file
    from obliq_hf.search.encoding import encode_corpus

    corpus_file(corpus)
    workers = Workers.here()
    encoder = _encoder(
        model, backend=backend, revision=revision, device=device or workers.device, dtype=dtype,
        max_length=max_length, batch_size=batch_size, batch_tokens=batch_tokens,
    )  # fmt: skip
    index = encode_corpus(
        encoder,
        corpus,
        out,
        storage=storage,
        keep_exact=keep_exact,
        shard_rows=shard_rows,
        empty=empty,  # type: ignore[arg-type]
        workers=workers,
        show_progress=True,
    )
    if workers.first:
        typer.echo(f"{out}: {index.describe()}")


def _check_vllm(processes: int, given: Mapping[str, object]) -> None:
    """Refuse what vLLM decides by itself: its processes, device and batches."""
    from obliq_hf.errors import ObliqError

    if processes > 1:
        raise ObliqError(
            f"--backend vllm: {processes} processes are for sentence-transformers; vLLM starts its "
            "own, so run the command once, without a launcher"
        )
    for option, value in given.items():
        if value is not None:
            raise ObliqError(
                f"{option} {value}: has no meaning with --backend vllm, which chooses its own "
                "device and batches; leave it out"
            )


def _in_processes(processes: int, **options: object) -> None:
    """Run the command with these options in several processes."""
    from obliq_hf.encoder.processes import launch

    words = ["-m", "obliq_hf.cli", "encode"]
    for name, value in options.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    launch(words, processes)


def _encoder(model: str, *, backend: str, dtype: str | None, **settings: object) -> TextEncoder:
    if backend == "vllm":
        from obliq_hf.encoder.vllm import VLLMEncoder

        kept = {k: settings[k] for k in ("revision", "max_length")}
        return VLLMEncoder(model, dtype=dtype, **kept)  # type: ignore[arg-type]
    from obliq_hf.encoder.text_encoder import load_text_encoder

    if settings.get("batch_size") is None:
        settings["batch_size"] = _BATCH_SIZE
    return load_text_encoder(model, dtype=dtype, **settings)  # type: ignore[arg-type]


def search(
    model: Model,
    index: Annotated[Path, typer.Option(help="index folder that 'obliq encode' wrote")],
    query: Annotated[
        list[str] | None, typer.Argument(help="what is asked for; several are several queries")
    ] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="the task, whose prompt is set before queries")
    ] = None,
    queries: Annotated[Path | None, typer.Option(help="queries.jsonl instead of words")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="documents per query")] = 10,
    out: Annotated[Path | None, typer.Option(help="write a TREC run instead of showing")] = None,
    tag: Annotated[str, typer.Option(help="name of the system in the run")] = "obliq",
    excluded: Annotated[
        Path | None, typer.Option(help="JSON: query id -> document ids it may not be given")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="the corpus, to show the beginning of each text")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="first compare every shard with its digest")
    ] = False,
    batch_size: BatchSize = None,
    revision: Revision = None,
    device: Device = None,
    dtype: Precision = None,
) -> None:
    """Search an index exactly, with the model that encoded it."""
    from obliq_hf.errors import ObliqError
    from obliq_hf.records import Queries, read_excluded, read_queries
    from obliq_hf.search.index import VectorIndex, encode_queries

    if bool(query) == (queries is not None):
        raise ObliqError("give queries as words, or a file with --queries")
    opened = VectorIndex(index)
    words = list(query or ())
    numbered = [str(number) for number in range(1, len(words) + 1)]
    asked = Queries(numbered, words) if queries is None else read_queries(queries)
    barred = None
    if excluded is not None:
        from obliq_hf.search.exclusions import excluded_rows

        barred = excluded_rows(asked.ids, read_excluded(excluded), opened.row)
    if verify:
        opened.verify()
    encoder = _encoder(
        model, backend="sentence-transformers", revision=revision, device=device, dtype=dtype,
        batch_size=batch_size,
    )  # fmt: skip
    vectors = encode_queries(encoder, asked.texts, prompt_name=prompt_name)
    tasks = sorted(set(encoder.query_prompts) - {"query"})
    if prompt_name is None and tasks:
        names = ", ".join(name for name in tasks if not name.endswith("-query")) or ", ".join(tasks)
        typer.echo(f"the plain prompt is used; --prompt-name takes a task: {names}", err=True)
    hits = opened.search(vectors, k, excluded=barred)
    if out is not None:
        from obliq_hf.search.runs import to_run, write_run

        write_run(out, to_run(hits, asked.ids, opened.ids), tag=tag)
        typer.echo(f"{out}: {len(asked)} queries, {sum(map(len, hits))} documents")
        return
    _show(opened, asked.texts, hits, _excerpts(corpus, opened, hits))


def _excerpts(corpus: Path | None, index: VectorIndex, hits: Sequence[Hits]) -> dict[str, str]:
    """The beginning of the text of every document found, from a corpus read as a stream."""
    if corpus is None:
        return {}
    from obliq_hf.records import iter_documents

    wanted = {index.ids[row] for found in hits for row in found.rows.tolist()}
    found = {}
    for document in iter_documents(corpus):
        if document.id in wanted:
            words = " ".join(f"{document.title} {document.text}".split())
            found[document.id] = words if len(words) <= _EXCERPT else words[: _EXCERPT - 1] + "…"
    return found


def _show(
    index: VectorIndex, texts: Sequence[str], hits: Sequence[Hits], excerpts: dict[str, str]
) -> None:
    for number, (text, found) in enumerate(zip(texts, hits, strict=True)):
        if len(texts) > 1:
            typer.echo(("" if number == 0 else "\n") + text)
        pairs = zip(found.rows.tolist(), found.scores.tolist(), strict=True)
        for rank, (row, score) in enumerate(pairs, 1):
            excerpt = excerpts.get(index.ids[row], "")
            typer.echo(
                f"{rank:>4}  {score:.4f}  {index.ids[row]}" + (f"  {excerpt}" * bool(excerpt))
            )

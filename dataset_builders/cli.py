"""The commands ``obliq corpus``, ``graph``, ``negatives`` and ``mixture``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

if TYPE_CHECKING:
    from dataset_builders.diagnostics.audit import Audit
    from obliq_hf.records import Corpus

__all__ = ["corpus", "graph", "mixture", "negatives"]

CorpusArgument = Annotated[
    Path, typer.Argument(metavar="CORPUS", help="corpus folder, or its corpus.jsonl")
]
GroupField = Annotated[
    str | None,
    typer.Option(help="field that names a document's source; default 'group'"),
]


def _check(value: str, choices: tuple[str, ...], what: str) -> None:
    from obliq_hf.errors import ObliqError, nearest

    if value not in choices:
        raise ObliqError(f"no {what} {value!r}{nearest(value, choices)}")


def corpus(
    source: Annotated[str, typer.Argument(help="classics, beir, jsonl or obliq-bench")],
    path: Annotated[Path | None, typer.Argument(help="what beir and jsonl read")] = None,
    *,
    out: Annotated[Path, typer.Option(help="folder to write")],
    group_field: GroupField = None,
    task: Annotated[str | None, typer.Option(help="task to take, or to name")] = None,
    label_field: Annotated[
        str | None, typer.Option(help="jsonl: make a same-label task of this field")
    ] = None,
    id_field: Annotated[str, typer.Option(help="jsonl: field with the id")] = "_id",
    text_field: Annotated[str, typer.Option(help="jsonl: field with the text")] = "text",
    title_field: Annotated[str | None, typer.Option(help="jsonl: field with the title")] = None,
    metadata: Annotated[
        Path | None, typer.Option(help="beir: JSON lines with further fields by _id")
    ] = None,
    empty: Annotated[str, typer.Option(help="empty documents: error, keep or drop")] = "error",
    revision: Annotated[
        str | None, typer.Option(help="obliq-bench: branch, tag or commit on the Hub")
    ] = None,
    seed: Annotated[int, typer.Option(help="obliq-bench: of the split of its queries")] = 0,
) -> None:
    """Build a corpus folder from public-domain prose, another folder, JSON lines or OBLIQ-Bench."""
    from obliq_hf.errors import ObliqError

    _check(source, ("classics", "beir", "jsonl", "obliq-bench"), "corpus source")
    if source == "obliq-bench":
        from dataset_builders.corpora import obliq_bench

        place = obliq_bench.REPOSITORY if path is None else path.as_posix()
        found = obliq_bench.build(
            out, place, task=task, revision=revision, seed=seed, group_field=group_field
        )
        for name, info in found.items():
            parts = ", ".join(f"{n} {split}" for split, n in info["split"]["queries"].items())
            typer.echo(f"{name}: {info['documents']} documents; queries: {parts}")
        return
    if source != "classics" and path is None:
        raise ObliqError(f"'obliq corpus {source}' needs the path to read")
    options: dict[str, Any] = {}
    if source == "classics":
        from dataset_builders.corpora import classics

        if task is not None:
            options["tasks"] = [task]
        built = classics.build(out, **options)
    elif path is None:
        raise ObliqError(f"'obliq corpus {source}' needs the path to read")
    elif source == "beir":
        from dataset_builders.corpora import beir

        options = {"task": task, "metadata": metadata, "empty": empty}
        built = beir.build(out, path, group_field=group_field, **options)
    else:
        from dataset_builders.corpora import jsonl

        if task is not None:
            options["task"] = task
        options |= {"id_field": id_field, "text_field": text_field, "title_field": title_field}
        options |= {"label_field": label_field, "empty": empty}
        built = jsonl.build(out, path, group_field=group_field, **options)
    groups = len({g for g in built.groups if g is not None})
    typer.echo(f"{out}: {len(built)} documents from {groups or 'no named'} sources")


def graph(
    corpus_path: CorpusArgument,
    *,
    out: Annotated[Path, typer.Option(help="folder to write")],
    teacher: Annotated[
        str, typer.Option(help="'stylometric', a model name, or a folder")
    ] = "stylometric",
    teacher_revision: Annotated[
        str | None, typer.Option(help="branch, tag or commit of the teacher on the Hub")
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="run code from the teacher's repository, which raw LUAR needs; read it first",
        ),
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option(help="vectors of a teacher that 'obliq encode' wrote, instead of --teacher"),
    ] = None,
    k: Annotated[int, typer.Option(help="nearest neighbours a document")] = 3,
    dose: Annotated[int | None, typer.Option(help="edges to take; default all")] = None,
    selection: Annotated[str, typer.Option(help="confident, random or mutual")] = "confident",
    neighbours: Annotated[
        str, typer.Option(help="'random' replaces the neighbours: the control")
    ] = "teacher",
    seed: Annotated[int, typer.Option(help="of random selection and neighbours")] = 0,
    group_field: GroupField = None,
    exclude_same_group: Annotated[
        bool, typer.Option(help="leave out neighbours from a document's own source")
    ] = True,
    label: Annotated[
        str | None, typer.Option(help="metadata column that stands for the attribute")
    ] = None,
) -> None:
    """Join each document to its nearest neighbours under a frozen teacher, and screen the graph.

    Writes edges.parquet, graph.json, purity.json and audit.json.
    """
    from dataset_builders.admissible import AdmissiblePairs
    from dataset_builders.authorship_graph import (
        Selection,
        build_graph,
        random_neighbours,
        take_dose,
        write_graph,
    )
    from dataset_builders.diagnostics.audit import audit
    from dataset_builders.diagnostics.pair_rates import column_values
    from dataset_builders.diagnostics.purity import purity
    from obliq_hf.errors import ObliqError
    from obliq_hf.records import read_corpus

    _check(neighbours, ("teacher", "random"), "neighbours")
    _check(selection, get_args(Selection), "selection")
    documents = read_corpus(corpus_path, group_field=group_field)
    if dose is not None and dose > k * len(documents):
        raise ObliqError(f"a dose of {dose} edges is more than {k} for {len(documents)} documents")
    if label is not None:
        column_values(documents, label)
    AdmissiblePairs(documents, exclude_same_group=exclude_same_group)
    if index is not None:
        vectors, info = _index_vectors(documents, index)
    else:
        from obliq_hf.teachers import load_teacher

        texts = documents.full_texts()
        encoder = load_teacher(
            teacher,
            corpus_texts=texts,
            revision=teacher_revision,
            trust_remote_code=trust_remote_code,
        )
        info = {"teacher": encoder.name, "teacher_fingerprint": encoder.fingerprint}
        vectors = encoder.encode(texts, show_progress=True)
    built = build_graph(
        documents,
        vectors,
        k=k,
        exclude_same_group=exclude_same_group,
        info=info,
        show_progress=True,
    )
    chosen = built
    if dose is not None or neighbours == "random":
        chosen = take_dose(built, dose, selection=selection, seed=seed)  # type: ignore[arg-type]
    if neighbours == "random":
        chosen = random_neighbours(chosen, documents, seed=seed, vectors=vectors)
    screen = purity(chosen, documents, label, vectors=vectors)
    found = audit(chosen, documents)
    reports = {"purity": screen.to_dict(), "audit": found.to_dict()}
    write_graph(out, chosen, documents, reports=reports)
    typer.echo(f"{out}: {len(chosen)} edges")
    if built.info["documents_short"]:
        typer.echo(
            f"{built.info['documents_short']} documents have fewer than {k} admissible neighbours"
        )
    typer.echo(screen.verdict)
    typer.echo(_audit_table(found))


def _index_vectors(documents: Corpus, index: Path) -> tuple[Any, dict[str, str]]:
    """The documents' vectors in an index, and who encoded them.

    Raises:
        ObliqError: It holds other documents, or another order.
    """
    from obliq_hf.errors import ObliqError
    from obliq_hf.search.index import VectorIndex

    opened = VectorIndex(index)
    if opened.ids != documents.ids:
        raise ObliqError(f"{index}: does not hold the corpus's documents in their order")
    by = opened.manifest.encoded_by
    info = {"teacher": by.name, "teacher_fingerprint": by.fingerprint}
    return opened.vectors(unit=True), info


def _audit_table(found: Audit) -> str:
    """The audit as aligned text."""
    lines = [f"{'column':<20} {'same':>7} {'random':>7} {'ratio':>7}  95 % interval"]
    for row in found.columns:
        if row.ratio is None or row.ratio_ci95 is None or row.note:
            lines.append(f"{row.column:<20} {row.note}")
            continue
        low, high = row.ratio_ci95
        lines.append(
            f"{row.column:<20} {row.share:>7.1%} {row.random_rate:>7.1%} {row.ratio:>7.2f}"
            f"  [{low:.2f}, {high:.2f}]"
        )
    return "\n".join(lines) if found.columns else "The corpus has no metadata to audit."


def negatives(
    corpus_path: CorpusArgument,
    *,
    out: Annotated[Path, typer.Option(help="JSON-lines file to write")],
    queries: Annotated[
        Path | None, typer.Option(help="training queries: JSON lines with query and passage_id")
    ] = None,
    split: Annotated[str | None, typer.Option(help="only queries of this split")] = None,
    graph: Annotated[
        Path | None, typer.Option(help="graph folder: its edges, or whom to spare")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="negatives a row")] = 4,
    first_rank: Annotated[int, typer.Option(help="first BM25 rank that may be taken")] = 10,
    last_rank: Annotated[int, typer.Option(help="last BM25 rank that may be taken")] = 100,
    fill: Annotated[str, typer.Option(help="'random' draws what is missing")] = "none",
    seed: Annotated[int, typer.Option(help="of the draw")] = 0,
    group_field: GroupField = None,
    exclude_same_group: Annotated[
        bool, typer.Option(help="spare the sources of query and positive")
    ] = True,
) -> None:
    """Mine hard negatives with BM25, for training queries or for the edges of a graph."""
    from dataset_builders.authorship_graph import read_graph
    from dataset_builders.mined_negatives import write_negatives
    from dataset_builders.query_files import read_training_queries
    from dataset_builders.training_rows import (
        negatives_for_graph,
        negatives_for_queries,
        positives_of,
    )
    from obliq_hf.errors import ObliqError
    from obliq_hf.records import read_corpus

    if queries is None and graph is None:
        raise ObliqError("name what needs negatives: --queries FILE or --graph FOLDER")
    documents = read_corpus(corpus_path, group_field=group_field)
    edges = None if graph is None else read_graph(graph, documents)
    settings: dict[str, Any] = {
        "n": n,
        "first_rank": first_rank,
        "last_rank": last_rank,
        "fill": fill,
        "seed": seed,
        "exclude_same_group": exclude_same_group,
        "show_progress": True,
    }
    if queries is not None:
        asked, qrels = read_training_queries(queries, split=split)
        rows, positives = positives_of(asked, qrels, documents)
        if not rows:
            raise ObliqError(f"{queries}: no query names a document of the corpus")
        mined = negatives_for_queries(asked, qrels, documents, graph=edges, **settings)
        ids = [asked.ids[row] for row in rows]
    else:
        assert edges is not None
        mined = negatives_for_graph(edges, documents, **settings)
        ids = [documents.ids[row] for row in edges.anchor.tolist()]
        positives = [[documents.ids[row]] for row in edges.positive.tolist()]
    write_negatives(out, ids, positives, mined)
    typer.echo(f"{out}: {mined.report.summary()}")


def _pairs(given: list[str], what: str) -> dict[str, str]:
    from obliq_hf.errors import ObliqError

    found = {}
    for item in given:
        key, mark, value = item.partition("=")
        if not mark or not key or not value:
            raise ObliqError(f"{what} takes NAME=VALUE, not {item!r}")
        if key in found:
            raise ObliqError(f"{what} {key!r} is given twice")
        found[key] = value
    return found


def mixture(
    corpus_path: CorpusArgument,
    *,
    out: Annotated[Path, typer.Option(help="folder to write")],
    queries: Annotated[
        list[str] | None, typer.Option(help="TASK=FILE with training queries; repeatable")
    ] = None,
    split: Annotated[str | None, typer.Option(help="only queries of this split")] = None,
    graph: Annotated[
        list[str] | None, typer.Option(help="TASK=FOLDER of a graph; repeatable")
    ] = None,
    dose: Annotated[int | None, typer.Option(help="edges to take of each graph")] = None,
    selection: Annotated[str, typer.Option(help="confident, random or mutual")] = "confident",
    rows: Annotated[
        list[str] | None,
        typer.Option(help="TASK=FILE of JSON lines, JSON or parquet of others; repeatable"),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=COLUMN of --rows: anchor, positive(s), negatives; repeatable"),
    ] = None,
    query_negatives: Annotated[int, typer.Option(help="hard negatives a query row")] = 0,
    graph_negatives: Annotated[int, typer.Option(help="hard negatives a graph row")] = 0,
    first_rank: Annotated[int, typer.Option(help="first BM25 rank that may be taken")] = 10,
    last_rank: Annotated[int, typer.Option(help="last BM25 rank that may be taken")] = 100,
    fill: Annotated[str, typer.Option(help="'random' draws what is missing")] = "none",
    seed: Annotated[int, typer.Option(help="of selection and draw")] = 0,
    group_field: GroupField = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="folder or queries.jsonl whose queries must not be trained on"),
    ] = None,
    drop_evaluation_passages: Annotated[
        bool, typer.Option(help="drop graph rows that hold an evaluation query, too")
    ] = False,
) -> None:
    """Join training queries, graph pairs and hard negatives into one checked folder."""
    from dataset_builders.authorship_graph import read_graph, take_dose
    from dataset_builders.foreign_rows import read_foreign_rows
    from dataset_builders.mixture import LeakCheck, build_mixture
    from dataset_builders.query_files import read_training_queries
    from dataset_builders.training_rows import (
        TrainingRows,
        graph_rows,
        negatives_for_graph,
        negatives_for_queries,
        query_rows,
    )
    from obliq_hf.records import read_corpus

    asked = _pairs(queries or [], "--queries")
    joined = _pairs(graph or [], "--graph")
    given = _pairs(rows or [], "--rows")
    roles = _pairs(columns or [], "--columns") or None
    leaks = None
    if evaluation:
        texts = [text for path in evaluation for text in _evaluation_texts(path)]
        leaks = LeakCheck(queries=texts, graph_rows=drop_evaluation_passages)
    documents = read_corpus(corpus_path, group_field=group_field)
    window: dict[str, Any] = {"first_rank": first_rank, "last_rank": last_rank}
    window |= {"fill": fill, "seed": seed}
    parts: list[TrainingRows] = []
    index = None
    if query_negatives or graph_negatives:
        from obliq_hf.search.bm25 import BM25Index

        index = BM25Index(documents.full_texts())
    for task, file in asked.items():
        texts_of, qrels = read_training_queries(file, split=split)
        mined = None
        if query_negatives:
            mined = negatives_for_queries(
                texts_of, qrels, documents, index, n=query_negatives, **window
            )
        parts.append(query_rows(texts_of, qrels, documents, task=task, negatives=mined))
    for task, folder in joined.items():
        edges = read_graph(folder, documents)
        if dose is not None:
            edges = take_dose(edges, dose, selection=selection, seed=seed)  # type: ignore[arg-type]
        mined = None
        if graph_negatives:
            mined = negatives_for_graph(edges, documents, index, n=graph_negatives, **window)
        parts.append(graph_rows(edges, documents, task=task, negatives=mined))
    parts += [
        read_foreign_rows(file, task=task, name=f"{task}-rows", columns=roles)
        for task, file in given.items()
    ]
    for dataset in build_mixture(out, parts, leaks=leaks, seed=seed):
        dropped = dataset.info["dropped"]
        why = "; dropped: " + ", ".join(f"{n} x {r}" for r, n in dropped.items()) if dropped else ""
        typer.echo(
            f"{dataset.name}: {dataset.rows} rows, {dataset.negatives} hard negatives a row{why}"
        )


def _evaluation_texts(path: Path) -> list[str]:
    """The texts of all queries below a folder, or of one file."""
    from obliq_hf.errors import ObliqError
    from obliq_hf.records import read_queries

    files = [path] if path.is_file() else sorted(path.rglob("queries.jsonl"))
    if not files:
        raise ObliqError(f"{path}: no queries.jsonl there")
    return [text for file in files for text in read_queries(file).texts]

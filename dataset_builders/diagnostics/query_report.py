"""The report on a folder of synthetic queries: `report.json`, `report.md`, pictures.

`report.md` has examples of queries and of what the first stage said, never a document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset_builders.diagnostics.leakage import (
    coverage,
    distinct_ngrams,
    distribution_overlap,
    leakage,
    self_retrieval_ranks,
)
from dataset_builders.query_checks import CorpusWords
from dataset_builders.query_copies import find_copies
from obliq_hf.errors import DataError
from obliq_hf.files import write_json, write_text
from obliq_hf.records import Corpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.llm import Price
    from obliq_hf.records import Queries

__all__ = ["card_section", "report_on"]

_EXAMPLES = 5


def report_on(
    folder: str | Path,
    *,
    corpus: Corpus | None = None,
    official: Sequence[str] = (),
    words: CorpusWords | None = None,
    price: Price | None = None,
    figures: bool = False,
) -> dict[str, Any]:
    """Measure a folder of synthetic queries and write `report.json` and `report.md` into it.

    Args:
        folder: What :func:`dataset_builders.synthetic_queries.synthesize` wrote.
        corpus: The corpus; default the documents of `train.parquet`, which are fewer.
        official: Texts of the task's own queries, to compare with.
        words: Word statistics of the corpus; default those of `corpus`.
        price: Price of a million tokens, for the cost.
        figures: Draw histograms as well; needs matplotlib.

    Returns:
        The report.

    Raises:
        DataError: The folder is not complete, or the corpus lacks a document of it.
    """
    from dataset_builders.query_dataset import read_synthetic

    root = Path(folder)
    queries, _, info = read_synthetic(root)
    of_training = corpus is None
    if corpus is None:
        corpus = _training_corpus(root)
    ids = [str(m.get("doc_id")) for m in queries.metadata]
    unknown = [i for i in ids if i not in corpus.row]
    if unknown:
        raise DataError(
            f"{root}: the corpus has no document {unknown[0]!r}; give the corpus the "
            "queries were written on"
        )
    texts = corpus.full_texts()
    words = words or CorpusWords.of(texts)
    documents = [texts[corpus.row[i]] for i in ids]
    ranks = self_retrieval_ranks(queries.texts, ids, corpus)
    figures_of = leakage(
        queries.texts,
        documents,
        words=words,
        ranks=ranks,
        searched=len(corpus),
        rare_idf=info["rare_idf"],
    )
    report: dict[str, Any] = {
        "task": info["task"]["name"],
        "model": info["model"],
        "revision": info["revision"],
        "variant": info["variant"],
        "lens": info["lens"]["name"],
        "counts": info["counts"],
        **_refused_share(info["counts"]),
        "leakage": figures_of.to_dict(),
        "searched": "documents of the training rows" if of_training else "corpus",
    }
    if price is not None:
        counts = info["counts"]
        report["cost"] = round(price.cost(counts["prompt_tokens"], counts["completion_tokens"]), 6)
    if official:
        report["official"] = compare_with_official(queries.texts, official)
    report["examples"] = _examples(queries)
    write_json(root / "report.json", report)
    names = []
    if figures:
        names = draw_figures(root / "figures", queries.texts, documents, ranks, official)
    write_text(root / "report.md", _markdown(report, names))
    return report


def compare_with_official(queries: Sequence[str], official: Sequence[str]) -> dict[str, Any]:
    """How the queries resemble a task's own.

    Args:
        queries: Synthetic queries.
        official: The task's queries.

    Returns:
        Overlap of the histograms of length in characters and in words a sentence; diversity of
        the official ones; share of the official ones' words that the synthetic ones know; number
        of synthetic queries that are nearly an official one, which must be 0.
    """

    def sentence_lengths(texts: Sequence[str]) -> list[float]:
        return [len(t.split()) / max(1, sum(t.count(c) for c in ".!?")) for t in texts]

    both = [*official, *queries]
    copies = find_copies(both, both.__getitem__)
    known = {w for q in queries for w in q.lower().split()}
    asked = [w for q in official for w in q.lower().split()]
    return {
        "queries": len(official),
        "characters_overlap": round(
            distribution_overlap([len(q) for q in queries], [len(q) for q in official]), 4
        ),
        "sentence_words_overlap": round(
            distribution_overlap(sentence_lengths(queries), sentence_lengths(official)), 4
        ),
        "median_characters": float(np.median([len(q) for q in official])),
        "distinct_2": round(distinct_ngrams(official, 2), 4),
        "known_words": round(sum(w in known for w in asked) / max(1, len(asked)), 4),
        "near_copies_of_official": sum(
            place >= len(official) > earlier for place, earlier in copies.items()
        ),
    }


def card_section(report: Mapping[str, Any]) -> str:
    """The part of a dataset card that tells how the queries were made; no document's text.

    Args:
        report: What :func:`report_on` returns and `report.json` holds.

    Returns:
        Markdown without headings.
    """
    lines = [f"Task `{report['task']}`:", "", *_figure_lines(report)]
    return "\n".join([*lines, "Examples:", "", *_example_lines(report)])


def _refused_share(counts: Mapping[str, Any]) -> dict[str, float]:
    """Share of answers that had a fault, mended or not; nothing where they were not counted."""
    if "faulty" not in counts:
        return {}
    calls = sum(counts["calls"].values())
    return {"refused_share": round(counts["faulty"] / calls, 4) if calls else 0.0}


def _training_corpus(root: Path) -> Corpus:
    import pyarrow.parquet as pq

    table = pq.read_table(root / "train.parquet")
    found: dict[str, str] = {}
    rows = table.to_pylist()
    for row in rows:
        found[row["positive_id"]] = row["positive"]
    for row in rows:
        for number, identifier in enumerate(row["negative_ids"] or (), 1):
            found.setdefault(identifier, row[f"negative_{number}"])
    return Corpus(list(found), list(found.values()))


def _examples(queries: Queries) -> list[dict[str, str]]:
    order = np.random.default_rng(0).permutation(len(queries))[:_EXAMPLES]
    return [
        {
            "attribute": str(queries.metadata[row].get("stage_a", {}).get("attribute", "")),
            "description": str(queries.metadata[row].get("stage_a", {}).get("description", "")),
            "query": queries.texts[row],
        }
        for row in sorted(order.tolist())
    ]


def _markdown(report: Mapping[str, Any], figures: Sequence[str]) -> str:
    lines = [f"# Synthetic queries: {report['task']}", "", *_figure_lines(report)]
    for name in figures:
        lines += [f"![{Path(name).stem.replace('-', ' ')}](figures/{name})", ""]
    return "\n".join([*lines, "## Examples", "", *_example_lines(report)]) + "\n"


def _figure_lines(report: Mapping[str, Any]) -> list[str]:
    counts, found = report["counts"], report["leakage"]
    retrieval = found["self_retrieval"]
    rows = [
        ("queries written / documents asked", f"{counts['written']} / {counts['asked']}"),
        ("answers taken", str(sum(counts["calls"].values()))),
        (
            "tokens, prompt + completion",
            f"{counts['prompt_tokens']:,} + {counts['completion_tokens']:,}",
        ),
        *([("cost", f"{report['cost']:g}")] if "cost" in report else []),
        *(
            [("answers with a fault", f"{report['refused_share']:.1%}")]
            if "refused_share" in report
            else []
        ),
        ("entity leakage", f"{found['entity_leakage']:.1%}"),
        ("rare words of the document", f"{found['rare_word_leakage']:.1%}"),
        ("six words in a row of the document", f"{found['quotations']:.1%}"),
        ("query words covered by the document", f"{found['coverage']:.3f}"),
        ("median characters", f"{found['median_characters']:.0f}"),
        ("distinct words / word pairs", f"{found['distinct_1']:.3f} / {found['distinct_2']:.3f}"),
        ("near copies of another query", f"{found['near_copies']:.1%}"),
    ]
    if retrieval:
        rows.append(
            (
                f"BM25 finds the document at 1 / in 10 / in 100 of {retrieval['documents']:,}",
                f"{retrieval['rank_1']:.1%} / {retrieval['rank_10']:.1%} / "
                f"{retrieval['rank_100']:.1%}",
            )
        )
    lines = [
        f"Model `{report['model']}`"
        + (f" at `{report['revision']}`" if report["revision"] else "")
        + f", lens `{report['lens']}`, {report['variant']}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
    ]
    for title, key in (
        ("Documents without a query", "failed"),
        ("Faults of answers", "problems"),
        ("Documents not asked about", "left_out"),
    ):
        if counts[key]:
            lines += [
                f"{title}: " + ", ".join(f"{k} {v}" for k, v in counts[key].items()) + ".",
                "",
            ]
    if "official" in report:
        lines += [
            "Against the task's own queries:",
            "",
            "| | |",
            "|---|---|",
            *(f"| {k.replace('_', ' ')} | {v} |" for k, v in report["official"].items()),
            "",
        ]
    return lines


def _example_lines(report: Mapping[str, Any]) -> list[str]:
    lines = []
    for example in report["examples"]:
        if example["description"]:
            lines.append(f"- *{_one_line(example['description'])}*")
            lines.append(f"  → {_one_line(example['query'])}")
        else:
            lines.append(f"- {_one_line(example['query'])}")
    return lines


def _one_line(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 600 else flat[:600].rsplit(" ", 1)[0] + " …"


def draw_figures(
    folder: Path,
    queries: Sequence[str],
    documents: Sequence[str],
    ranks: Any,
    official: Sequence[str],
) -> list[str]:
    """Histograms of length, coverage and self-retrieval rank as PNG files.

    Returns:
        The files' names.

    Raises:
        ObliqError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("pictures need matplotlib: pip install 'obliq-hf[report]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    lengths = [len(q) for q in queries]
    shares = [coverage(q, d) for q, d in zip(queries, documents, strict=True)]
    deepest = int(np.max(ranks))
    sizes: list[tuple[str, Any]] = [("synthetic", lengths)]
    if official:
        sizes.append(("official", [len(q) for q in official]))
    plots: list[tuple[str, str, list[tuple[str, Any]], Any]] = [
        ("length", "characters of a query", sizes, 30),
        (
            "coverage",
            "share of the query's content words that occur in its document",
            [("synthetic", shares)],
            np.linspace(0, 1, 26),
        ),
        (
            "self-retrieval",
            f"rank of the query's document under BM25 ({deepest}: not found)",
            [("synthetic", ranks)],
            np.geomspace(1, max(2, deepest), 25),
        ),
    ]
    names = []
    for name, label, series, bins in plots:
        figure = Figure(figsize=(6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        edges = np.histogram_bin_edges(np.concatenate([np.asarray(v) for _, v in series]), bins)
        for title, values in series:
            axes.hist(
                values,
                bins=list(edges),
                alpha=0.6,
                label=title,
                weights=np.full(len(values), 1 / len(values)),
            )
        if name == "self-retrieval":
            axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("share of queries")
        if len(series) > 1:
            axes.legend()
        figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})
        names.append(f"{name}.png")
    return names

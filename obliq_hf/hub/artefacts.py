"""What a folder of a run is, and how it is laid out as configs of a dataset repository."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import DataError
from obliq_hf.files import read_json
from obliq_hf.hub.corpus_configs import corpus_configs
from obliq_hf.hub.redaction import without_places
from obliq_hf.hub.repository import LocalFile
from obliq_hf.hub.training_configs import graph_configs, mixture_configs, query_configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.hub.parquet import DatasetConfig

__all__ = ["Artefact", "ArtefactKind", "artefact_kind", "has_graph_pairs", "read_artefact"]

ArtefactKind = Literal["corpus", "graph", "mixture", "queries"]

_PROVENANCE = {
    "corpus": ("corpus.json",),
    "graph": ("graph.json", "purity.json", "dose_purity.json", "audit.json"),
    "mixture": ("mixture.json",),
    "queries": ("queries.json",),
}


@dataclass(frozen=True)
class Artefact:
    """A folder, ready to be published.

    Attributes:
        kind: What it is.
        folder: Where it lies.
        configs: Its configs.
        retired: Configs that an earlier push of the artefact may have made, and it lacks now.
        facts: Name -> content of its provenance files (``graph``, ``purity``, ``audit``, ...),
            without places on this machine; of a mixture also the reports on the graph it is from,
            of queries also ``reports``, a list of those on their writing.
        extra: Its own files of these, as they go into the repository.
    """

    kind: ArtefactKind
    folder: Path
    configs: list[DatasetConfig]
    retired: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    extra: list[LocalFile] = field(default_factory=list)


def artefact_kind(folder: str | Path) -> ArtefactKind:
    """Say what a folder holds, by its files.

    Raises:
        DataError: None of what can be published; the files looked for are named.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    if (root / "mixture.json").is_file():
        return "mixture"
    if (root / "graph.json").is_file():
        return "graph"
    if (root / "corpus.jsonl").is_file() or any(root.glob("tasks/*/corpus.jsonl")):
        if not (root / "tasks").is_dir():
            raise DataError(
                f"{root}: a corpus without tasks/; 'obliq corpus beir' builds a folder with them"
            )
        return "corpus"
    if (root / "queries.json").is_file() or any(root.glob("*.jsonl")):
        return "queries"
    raise DataError(
        f"{root}: nothing to publish; looked for corpus.jsonl with tasks/, graph.json with "
        "edges.parquet, mixture.json, and queries.json or <task>.jsonl"
    )


def read_artefact(
    folder: str | Path,
    *,
    task: str | None = None,
    config: str | None = None,
    corpus: str | Path | None = None,
) -> Artefact:
    """Lay a folder out as configs, without reading its rows yet where that can wait.

    Args:
        folder: A corpus, graph, mixture or queries folder.
        task: The task of a graph's pairs; by default what ``graph.json`` says, else ``writing``.
        config: Name of a graph's config, instead of ``<task>-k<k>``.
        corpus: The corpus that queries were written from; by default ``corpus`` beside them.

    Raises:
        DataError: It is no artefact, or a file of it is not as it must be.
    """
    root = Path(folder)
    kind = artefact_kind(root)
    facts = _facts(root, _PROVENANCE[kind])
    if kind == "corpus":
        configs, retired = corpus_configs(root)
    elif kind == "graph":
        chosen = task or facts["graph"].get("task") or "writing"
        configs, retired = graph_configs(root, task=chosen, name=config)
    elif kind == "mixture":
        configs, retired = mixture_configs(root)
    else:
        beside = root.resolve().parent / "corpus"
        configs, retired = query_configs(root, corpus=corpus or beside)
        facts["reports"] = _query_reports(root)
    place = configs[0].folder
    extra = [
        LocalFile(f"{place}/{name}", _public(root / name, facts[Path(name).stem]))
        for name in _PROVENANCE[kind]
        if (root / name).is_file()
    ]
    if kind == "mixture" and has_graph_pairs(facts["mixture"]):
        facts |= _graph_reports(root.resolve().parent / "graph", facts["mixture"])
    return Artefact(kind, root, configs, retired, facts, extra)


def has_graph_pairs(mixture: Mapping[str, Any]) -> bool:
    """Whether a mixture holds pairs of an authorship graph, by its ``mixture.json``."""
    return any(entry.get("kind") == "graph" for entry in mixture.get("datasets") or [])


def _facts(root: Path, names: Sequence[str]) -> dict[str, Any]:
    return {
        Path(name).stem: without_places(read_json(root / name))
        for name in names
        if (root / name).is_file()
    }


def _public(file: Path, value: Any) -> Path | bytes:
    """The file as it is, or without the places on this machine that it names."""
    if value == read_json(file):
        return file
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _query_reports(root: Path) -> list[Any]:
    """The reports on queries that a language model wrote, of a run one a task."""
    files = [root / "report.json"]
    if not files[0].is_file():
        beside = sorted(root.resolve().parent.glob("synthesis/*/report.json"))
        files = [file for file in beside if (root / f"{file.parent.name}.jsonl").is_file()]
    return [without_places(read_json(file)) for file in files]


def _graph_reports(graph: Path, mixture: Mapping[str, Any]) -> dict[str, Any]:
    """Purity and audit of the graph beside a mixture, where its pairs are that graph's."""
    reports = _facts(graph, ("graph.json", "purity.json", "dose_purity.json", "audit.json"))
    found = reports.pop("graph", None)
    stated = [
        entry["source"]["graph"]
        for entry in mixture["datasets"]
        if entry.get("kind") == "graph" and (entry.get("source") or {}).get("graph")
    ]
    if found is None or any(found.get(k, v) != v for info in stated for k, v in info.items()):
        return {}
    return reports

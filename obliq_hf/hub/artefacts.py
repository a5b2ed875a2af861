"""What a folder of a run is, and how it is laid out as configs of a dataset repository."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import DataError
from obliq_hf.files import read_json
from obliq_hf.hub.corpus_configs import corpus_configs
from obliq_hf.hub.repository import LocalFile
from obliq_hf.hub.training_configs import graph_configs, mixture_configs, query_configs

if TYPE_CHECKING:
    from obliq_hf.hub.parquet import DatasetConfig

__all__ = ["Artefact", "ArtefactKind", "artefact_kind", "read_artefact"]

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
        facts: Name -> content of its provenance files (``graph``, ``purity``, ``audit``, ...).
        extra: These files, as they go into the repository.
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
    facts = {
        Path(name).stem: read_json(root / name)
        for name in _PROVENANCE[kind]
        if (root / name).is_file()
    }
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
    place = configs[0].folder
    extra = [
        LocalFile(f"{place}/{name}", root / name)
        for name in _PROVENANCE[kind]
        if (root / name).is_file()
    ]
    return Artefact(kind, root, configs, retired, facts, extra)

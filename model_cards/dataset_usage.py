"""The lines of code that load what was published, with stock libraries alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obliq_hf.hub.artefacts import Artefact
    from obliq_hf.hub.dataset_push import StagedDataset

__all__ = ["usage"]


def usage(artefact: Artefact, staged: StagedDataset, name: str) -> str:
    """A short program that loads an artefact.

    Args:
        artefact: What was published.
        staged: Its configs.
        name: What loaders are given: a repository, or a folder.
    """
    rows = staged.rows()
    lines = ["from datasets import load_dataset", ""]
    if artefact.kind == "corpus":
        tasks = [c.removesuffix("-queries") for c in rows if c.endswith("-queries")]
        task = "writing" if "writing" in tasks else tasks[0]
        judgments = f"{task}-qrels" if f"{task}-qrels" in rows else f"{task}-qrels-pooled"
        split = "test" if "test" in rows[judgments] else next(iter(rows[judgments]))
        lines += [
            f'corpus = load_dataset("{name}", "{task}-corpus", split="corpus")',
            f'queries = load_dataset("{name}", "{task}-queries", split="queries")',
            f'qrels = load_dataset("{name}", "{judgments}", split="{split}")',
        ]
        if judgments.endswith("-qrels"):
            lines += [
                "",
                "# the same for mteb",
                "from mteb.abstasks.retrieval_dataset_loaders import RetrievalDatasetLoader",
                "",
                f'loader = RetrievalDatasetLoader("{name}", revision=None, split="{split}", '
                f'config="{task}")',
                "data = loader.load()",
            ]
        return "\n".join(lines)
    config = staged.configs[0].name
    split = next(iter(rows[config]))
    lines.append(f'pairs = load_dataset("{name}", "{config}", split="{split}")')
    columns = set(staged.configs[0].features)
    if artefact.kind == "graph":
        lines += [
            "",
            "# for a sentence-transformers trainer: the texts alone, anchor first",
            'train = pairs.select_columns(["anchor", "positive"])',
        ]
    elif "anchor" in columns:
        lines += [f'first = load_dataset("{name}", "{config}", split="{split}", streaming=True)']
    return "\n".join(lines)

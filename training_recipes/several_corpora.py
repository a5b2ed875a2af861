"""Runs over several tasks with corpora of their own, such as OBLIQ-Bench."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from obliq_hf.files import content_hash, hash_files
from training_recipes.run import RecipeRun

if TYPE_CHECKING:
    from dataset_builders.training_rows import TrainingRows
    from obliq_hf.records import Corpus
    from training_recipes.stages import Stage

__all__ = ["SeveralCorporaRun"]


class SeveralCorporaRun(RecipeRun):
    """A run whose recipe says ``corpus: {source: bench}``: one corpus per task.

    The graph is over the corpus of its task; queries, negatives and judgments of a task are over
    that task's.
    """

    def corpus(self, which: str = "searched") -> Corpus:
        """A task's corpus; ``searched`` is that of the graph's task, or of the first task."""
        from obliq_hf.records import read_corpus

        names = [task.name for task in self.tasks]
        if which == "searched":
            which = self.recipe.graph.task or names[0]
        if which in names:
            return read_corpus(self.folder / "corpus" / "tasks" / which, empty="keep")
        return super().corpus(which)

    def stages(self) -> list[Stage]:
        """The stages; the corpora also depend on the settings that only they have."""
        config = self.recipe.corpus
        own: dict[str, Any] = {
            "groups": dict(config.group_fields),
            "folders": sorted(config.folders),
            "revision": config.revision,
        }
        return [
            replace(stage, config={**stage.config, **own}) if stage.name == "corpus" else stage
            for stage in super().stages()
        ]

    def _corpus_inputs(self) -> list[str | None]:
        config = self.recipe.corpus
        places = [config.path, *(config.folders[name] for name in sorted(config.folders))]
        return [None if place is None else hash_files(place) for place in places]

    def build_corpus(self) -> None:
        """Write ``corpus/tasks/<task>/``, each with its corpus."""
        from dataset_builders.corpora import several

        config = self.recipe.corpus
        several.build(
            self.folder / "corpus",
            config.path,
            tasks=[task.name for task in self.tasks],
            folders=config.folders,
            group_fields=config.group_fields,
            revision=config.revision,
        )

    def queried(self, task: str) -> Corpus:
        """The task's own corpus."""
        return self.corpus(task)

    def build_mixture(self) -> str:
        """Write ``mixture/``: the queries of each task over its corpus, and the graph's pairs."""
        recipe = self.recipe
        parts: list[TrainingRows] = []
        fingerprints: dict[str, str] = {}
        passages: list[str] = []
        asked = recipe.queries.tasks if recipe.queries.source != "none" else []
        for task in self.tasks:
            over_graph = task.name == recipe.graph.task and recipe.graph.corpus == "searched"
            held_out = self._held_out(task.name)
            if not (task.name in asked or over_graph or held_out):
                continue
            corpus = self.corpus(task.name)
            fingerprints[task.name] = corpus.fingerprint
            passages += [corpus.texts[corpus.row[d]] for d in sorted(held_out) if d in corpus.row]
            parts += self._rows(
                corpus,
                queries=task.name if task.name in asked else None,
                graph=task.name if over_graph else None,
            )
        if recipe.graph.task is not None and recipe.graph.corpus != "searched":
            parts += self._rows(self.corpus(recipe.graph.corpus), graph=recipe.graph.task)
        return self._write_mixture(parts, corpus=content_hash(fingerprints), passages=passages)

    def _rows(
        self, corpus: Corpus, *, queries: str | None = None, graph: str | None = None
    ) -> list[TrainingRows]:
        """The training rows over one corpus: of a task's queries, of the graph, or of both."""
        from dataset_builders.authorship_graph import read_graph
        from dataset_builders.query_files import read_training_queries
        from dataset_builders.training_rows import (
            graph_rows,
            negatives_for_graph,
            negatives_for_queries,
            query_rows,
        )
        from obliq_hf.search.bm25 import BM25Index

        config = self.recipe.negatives
        window: dict[str, Any] = {
            "first_rank": config.first_rank,
            "last_rank": config.last_rank,
            "fill": config.fill,
            "seed": self.recipe.seed,
        }
        edges = read_graph(self.folder / "graph", corpus) if graph is not None else None
        mines = (queries is not None and config.queries) or (edges is not None and config.graph)
        index = BM25Index(corpus.full_texts()) if mines else None
        parts = []
        if queries is not None:
            asked, qrels = read_training_queries(self.folder / "queries" / f"{queries}.jsonl")
            mined = None
            if config.queries:
                mined = negatives_for_queries(
                    asked, qrels, corpus, index, n=config.queries, graph=edges, **window
                )
            parts.append(
                query_rows(asked, qrels, corpus, task=queries, negatives=mined, graph=edges)
            )
        if edges is not None and len(edges):
            assert graph is not None
            mined = None
            if config.graph:
                mined = negatives_for_graph(edges, corpus, index, n=config.graph, **window)
            parts.append(graph_rows(edges, corpus, task=graph, negatives=mined))
        return parts

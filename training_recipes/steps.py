"""What the stages of a run do: each reads what stands before it and writes its own folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.files import write_json, write_text
from training_recipes.foreign import foreign_rows
from training_recipes.query_steps import QuerySteps
from training_recipes.recipe_checks import check_dev, check_graph_corpus, check_scored

if TYPE_CHECKING:
    from collections.abc import Collection

    from dataset_builders.training_rows import TrainingRows
    from obliq_hf.teachers import Teacher

__all__ = ["RunSteps"]

logger = logging.getLogger(__name__)


class RunSteps(QuerySteps):
    """The work of every stage of one run.

    Args:
        recipe: The recipe.
        tasks: Its tasks.
    """

    @property
    def teacher_needed(self) -> bool:
        """Whether the run has a teacher at all."""
        scored = self.recipe.evaluation
        return self.recipe.graph.task is not None or (
            scored.split is not None and "teacher" in scored.systems
        )

    def teacher(self) -> Teacher:
        """The frozen teacher as the run fitted it."""
        place = self.folder / "teacher"
        fitted = (place / "profile.json").is_file()
        return self._load_teacher(place if fitted else self.recipe.graph.teacher)

    def _load_teacher(self, spec: str | Path, texts: list[str] | None = None) -> Teacher:
        from obliq_hf.teachers import load_teacher

        return load_teacher(
            spec,
            corpus_texts=texts,
            revision=self.recipe.graph.teacher_revision,
            trust_remote_code=self.recipe.graph.trust_remote_code,
        )

    def build_corpus(self) -> None:
        """Write ``corpus/`` and, where the recipe names further texts, ``corpus-other/``."""
        config = self.recipe.corpus
        out = self.folder / "corpus"
        names = tuple(task.name for task in self.tasks)
        if config.source == "classics":
            from dataset_builders.corpora import classics

            classics.build(out, tasks=names)
            return
        assert config.path is not None
        place = Path(config.path)
        if config.source == "beir":
            from dataset_builders.corpora import beir

            beir.build(
                out,
                place / config.subfolder if config.subfolder else place,
                name=names[0] if len(names) == 1 else None,
                group_field=config.group_field,
                metadata=place / config.metadata if config.metadata else None,
            )
        else:
            from dataset_builders.corpora import jsonl

            jsonl.build(
                out,
                place / config.subfolder if config.subfolder else place,
                task=names[0],
                group_field=config.group_field,
                label_field=config.label_field,
                where=config.where or None,
            )
        if config.other_path is not None:
            from dataset_builders.corpora import jsonl

            jsonl.build(
                self.folder / "corpus-other",
                place / config.other_path,
                task=names[0],
                group_field=config.group_field,
                label_field=config.label_field,
                where=config.other_where or None,
            )

    def verify_corpus(self, waiting: Collection[str]) -> None:
        """Check that stages find in the corpora what the recipe says they will.

        Args:
            waiting: Names of the stages that are about to run.

        Raises:
            ObliqError: A task or a split has no judgments, a column is not there, no pair of
                documents is admissible, or the dose is larger than the graph can be.
        """
        names = [task.name for task in self.tasks]
        if "evaluate" in waiting:
            check_scored(self.recipe, names)
        if "train" in waiting:
            check_dev(self.recipe, names)
        if self.recipe.graph.task is not None and "graph" in waiting:
            check_graph_corpus(self.recipe, self.corpus(self.recipe.graph.corpus))

    def fit_teacher(self) -> None:
        """Write ``teacher/``: the profile fitted on the graph's texts, or a model's name."""
        from obliq_hf.teachers import StylometricProfile

        texts = self.corpus(self.recipe.graph.corpus).full_texts()
        teacher = self._load_teacher(self.recipe.graph.teacher, texts)
        place = self.folder / "teacher"
        if isinstance(teacher, StylometricProfile):
            teacher.save(place)
        about = {"name": teacher.name, "fingerprint": teacher.fingerprint}
        write_json(place / "teacher.json", about)

    def build_graph(self) -> None:
        """Write ``graph/``: the dose of edges, all edges, the purity screen and the audit."""
        from dataset_builders.authorship_graph import (
            build_graph,
            random_neighbours,
            take_dose,
            write_graph,
        )
        from dataset_builders.diagnostics.audit import audit
        from dataset_builders.diagnostics.purity import purity

        config, corpus = self.recipe.graph, self.corpus(self.recipe.graph.corpus)
        teacher = self.teacher()
        vectors = teacher.encode(corpus.full_texts(), show_progress=True)
        graph = build_graph(
            corpus,
            vectors,
            k=config.k,
            exclude_same_group=config.exclude_same_group,
            info={
                "teacher": teacher.name,
                "teacher_fingerprint": teacher.fingerprint,
                "corpus": config.corpus if config.corpus in {"searched", "other"} else "named",
            },
            show_progress=True,
        )
        screen = purity(graph, corpus, config.label, vectors=vectors)
        logger.log(logging.INFO if screen.recommended else logging.WARNING, screen.verdict)
        chosen = take_dose(graph, config.dose, selection=config.selection, seed=self.recipe.seed)
        if config.neighbours == "random":
            chosen = random_neighbours(chosen, corpus, seed=self.recipe.seed, vectors=vectors)
        reports = {"purity": screen.to_dict(), "audit": audit(graph, corpus).to_dict()}
        if len(chosen):
            dosed = purity(chosen, corpus, config.label, vectors=vectors)
            reports["dose_purity"] = dosed.to_dict()
        write_graph(self.folder / "graph", chosen, corpus, reports=reports)

    def build_mixture(self) -> str:
        """Write ``mixture/``: one dataset per source, with hard negatives where asked for."""
        from dataset_builders.authorship_graph import read_graph
        from dataset_builders.query_files import read_training_queries
        from dataset_builders.training_rows import (
            graph_rows,
            negatives_for_graph,
            negatives_for_queries,
            query_rows,
        )

        recipe, corpus = self.recipe, self.corpus()
        config = recipe.negatives
        searched = recipe.graph.corpus == "searched"
        window: dict[str, Any] = {
            "first_rank": config.first_rank,
            "last_rank": config.last_rank,
            "fill": config.fill,
            "seed": recipe.seed,
        }
        graph = None
        texts = corpus
        if recipe.graph.task is not None:
            texts = corpus if searched else self.corpus(recipe.graph.corpus)
            graph = read_graph(self.folder / "graph", texts)
        shared = graph if searched else None
        index = None
        if config.queries or (config.graph and searched):
            from obliq_hf.search.bm25 import BM25Index

            index = BM25Index(corpus.full_texts())
        parts = []
        if recipe.queries.source != "none":
            for name in recipe.queries.tasks:
                queries, qrels = read_training_queries(self.folder / "queries" / f"{name}.jsonl")
                mined = None
                if config.queries:
                    mined = negatives_for_queries(
                        *(queries, qrels, corpus, index), n=config.queries, graph=shared, **window
                    )
                parts.append(
                    query_rows(queries, qrels, corpus, task=name, negatives=mined, graph=shared)
                )
        if graph is not None and len(graph):
            assert recipe.graph.task is not None
            mined = None
            if config.graph:
                over = index if searched else None
                mined = negatives_for_graph(graph, texts, over, n=config.graph, **window)
            parts.append(graph_rows(graph, texts, task=recipe.graph.task, negatives=mined))
        return self._write_mixture(
            parts, corpus=corpus.fingerprint, passages=self._evaluation_passages()
        )

    def _write_mixture(self, parts: list[TrainingRows], *, corpus: str, passages: list[str]) -> str:
        """Write the rows, those taken from elsewhere too, without what would be scored.

        Args:
            parts: Rows of this run's own.
            corpus: Fingerprint of what they were made from.
            passages: Texts that evaluation queries ask for.

        Returns:
            Rows of each dataset, in words.
        """
        from dataset_builders.mixture import LeakCheck, build_mixture

        recipe = self.recipe
        mixed = build_mixture(
            self.folder / "mixture",
            [*parts, *foreign_rows(recipe, [task.name for task in self.tasks])],
            leaks=LeakCheck(
                queries=self._evaluation_queries(),
                passages=passages,
                graph_rows=recipe.graph.corpus != "searched",
            ),
            seed=recipe.seed,
            provenance={"corpus": corpus, "recipe": recipe.hash()},
        )
        return ", ".join(f"{entry.rows:,} rows of {entry.name}" for entry in mixed)

    def _task_folders(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("corpus*/tasks/*") if p.is_dir())

    def _evaluation_queries(self) -> list[str]:
        """Texts of all queries that may be scored, of either corpus."""
        from obliq_hf.records import read_queries

        files = [p / "queries.jsonl" for p in self._task_folders()]
        return [text for file in files if file.is_file() for text in read_queries(file).texts]

    def _evaluation_passages(self) -> list[str]:
        """Texts that evaluation queries of tip-of-the-tongue tasks ask for."""
        corpus = self.corpus()
        return [
            corpus.texts[corpus.row[document]]
            for task in self.tasks
            for document in sorted(self._held_out(task.name))
            if document in corpus.row
        ]

    def train_model(self) -> str:
        """Write ``model/``, ``training.json`` and, with LoRA, ``adapter/``."""
        from training_recipes.train import train_recipe

        return f"{train_recipe(self.recipe).report['steps']:,} steps"

    def evaluate(self) -> None:
        """Write ``eval/<task>/<system>/`` for every system and task of the corpus."""
        from eval_mteb.evaluation import evaluate_folder

        config, training = self.recipe.evaluation, self.recipe.training
        assert config.split is not None
        folder = "corpus" if config.corpus == "searched" else "corpus-other"
        evaluate_folder(
            self.folder / folder,
            self.tasks,
            self.folder / "eval",
            split=config.split,
            systems=config.systems,
            base=training.base,
            base_revision=training.revision,
            student=self.folder / "model",
            teacher=self.teacher() if self.teacher_needed else None,
            template=training.template,
            include_prompt=training.include_prompt,
            max_length=training.max_length,
            depth=config.depth,
        )

    def write_report(self) -> None:
        """Write ``report.md``, ``report.json``, ``figures/`` and the resolved recipe."""
        from eval_mteb.report import write_report

        write_text(self.folder / "recipe.yaml", self._shown_recipe())
        write_report(self.folder, snippets=self.recipe.evaluation.snippets)

    def _shown_recipe(self) -> str:
        """The resolved recipe without places of this machine."""
        import yaml

        values = self.recipe.to_dict()
        values.pop("out", None)
        values["tasks"] = [task.name for task in self.tasks]
        for section in ("corpus", "queries", "graph", "training"):
            for key, value in values[section].items():
                if isinstance(value, str) and Path(value).is_absolute():
                    values[section][key] = Path(value).name
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)

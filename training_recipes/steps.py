"""What the stages of a run do: each reads what stands before it and writes its own folder."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.files import atomic_path, iter_jsonl, write_json, write_jsonl, write_text
from training_recipes.foreign import foreign_rows
from training_recipes.recipe_checks import check_dev, check_graph_corpus, check_scored

if TYPE_CHECKING:
    from collections.abc import Collection

    from obliq_hf.records import Corpus
    from obliq_hf.tasks import ObliqTask
    from obliq_hf.teachers import Teacher
    from training_recipes.recipe import Recipe

__all__ = ["RunSteps"]

logger = logging.getLogger(__name__)


class RunSteps:
    """The work of every stage of one run.

    Args:
        recipe: The recipe.
        tasks: Its tasks.
    """

    def __init__(self, recipe: Recipe, tasks: list[ObliqTask]) -> None:
        self.recipe = recipe
        self.folder = Path(recipe.out)
        self.tasks = tasks

    @property
    def teacher_needed(self) -> bool:
        """Whether the run has a teacher at all."""
        scored = self.recipe.evaluation
        return self.recipe.graph.task is not None or (
            scored.split is not None and "teacher" in scored.systems
        )

    def corpus(self, which: str = "searched") -> Corpus:
        """The corpus searched, or the other one, or the one of a folder."""
        from obliq_hf.records import read_corpus

        named = {"searched": self.folder / "corpus", "other": self.folder / "corpus-other"}
        return read_corpus(named.get(which, Path(which)))

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

    def check_queries(self) -> None:
        """Check that the language model can be asked, where the queries are to come from one.

        Raises:
            ObliqError: No endpoint, or the variable of its key is not set.
        """
        llm = self.recipe.llm
        if self.recipe.queries.source != "llm":
            return
        if llm.endpoint is None:
            raise ObliqError(
                "llm.endpoint: source 'llm' needs the address of a server, or 'embedded'"
            )
        if llm.api_key_env is not None and not os.environ.get(llm.api_key_env):
            raise ObliqError(f"llm.api_key_env: the variable {llm.api_key_env} is not set")

    def build_queries(self) -> None:
        """Write ``queries/<task>.jsonl``, training queries with the passages they ask for."""
        config, corpus = self.recipe.queries, self.corpus()
        with atomic_path(self.folder / "queries") as temporary:
            temporary.mkdir()
            for name in config.tasks:
                if config.source == "recorded":
                    from dataset_builders.recorded_queries import load_recorded

                    rows = [asdict(row) for row in load_recorded(name, corpus, split="train")]
                elif config.source == "llm":
                    rows = self._synthesize(name, corpus)
                else:
                    assert config.path is not None
                    place = Path(config.path)
                    file = place / f"{name}.jsonl" if place.is_dir() else place
                    rows = [row for _, row in iter_jsonl(file)]
                write_jsonl(temporary / f"{name}.jsonl", rows)

    def _synthesize(self, name: str, corpus: Corpus) -> list[dict[str, Any]]:
        """Queries that the recipe's language model writes.

        Every answer that was paid for is kept in ``answers.sqlite`` of the run folder, which no
        change of the recipe removes.
        """
        from dataset_builders.query_flow import Sampling
        from dataset_builders.synthetic_queries import NegativeSettings, synthesize
        from obliq_hf.llm import Budget, Price, load_client

        config, llm = self.recipe.queries, self.recipe.llm
        assert llm.endpoint is not None
        key = None if llm.api_key_env is None else os.environ.get(llm.api_key_env)
        task = next(task for task in self.tasks if task.name == name)
        embedded = llm.endpoint.startswith("embedded")
        place = self.folder / "synthesis"
        limits = (llm.budget_calls, llm.budget_tokens, llm.budget_cost)
        template = None
        if llm.thinking is not None:
            template = {"chat_template_kwargs": {"enable_thinking": llm.thinking}}
        client = load_client(
            llm.endpoint,
            model=llm.model,
            revision=llm.revision,
            cache=self.folder / "answers.sqlite",
            api_key=key,
            concurrency=llm.concurrency,
            budget=None if limits == (None, None, None) else Budget(*limits),
            price=Price(llm.price_prompt, llm.price_completion),
            structured=llm.structured,
            extra_body=template,
        )
        with closing(client):
            synthesize(
                task,
                corpus,
                client,
                place / name,
                sample=config.count,
                seed=self.recipe.seed,
                leave_out=self._held_out(name),
                sampling=Sampling(
                    temperature=llm.temperature,
                    max_tokens=llm.max_tokens,
                    seed=self.recipe.seed,
                    document_characters=3000 if embedded else 24_000,
                ),
                negatives=NegativeSettings(0),
                progress=True,
            )
        return [row for _, row in iter_jsonl(place / name / "queries.jsonl")]

    def _held_out(self, name: str) -> set[str]:
        """Documents that are relevant to an evaluation query of a tip-of-the-tongue task."""
        from obliq_hf.records import read_qrels

        task = next(task for task in self.tasks if task.name == name)
        if task.mechanism != "tip-of-the-tongue":
            return set()
        place = self.folder / "corpus" / "tasks" / name
        files = sorted([*place.glob("qrels/*.tsv"), *place.glob("qrels-pooled/*.tsv")])
        return {
            document
            for file in files
            for judged in read_qrels(file).values()
            for document, grade in judged.items()
            if grade > 0
        }

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

    def build_mixture(self) -> None:
        """Write ``mixture/``: one dataset per source, with hard negatives where asked for."""
        from dataset_builders.authorship_graph import read_graph
        from dataset_builders.mixture import LeakCheck, build_mixture
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
        parts += foreign_rows(recipe, [task.name for task in self.tasks])
        build_mixture(
            self.folder / "mixture",
            parts,
            leaks=LeakCheck(
                queries=self._evaluation_queries(),
                passages=self._evaluation_passages(),
                graph_rows=not searched,
            ),
            seed=recipe.seed,
            provenance={"corpus": corpus.fingerprint, "recipe": recipe.hash()},
        )

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

    def train_model(self) -> None:
        """Write ``model/``, ``training.json`` and, with LoRA, ``adapter/``."""
        from training_recipes.train import train_recipe

        train_recipe(self.recipe)

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

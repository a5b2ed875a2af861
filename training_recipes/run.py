"""The whole pipeline of a recipe: source, corpus, queries, graph, mixture, training, report.

Every stage leaves its result in the run folder, finds it there the next time, and can be used
alone through its own command. See :mod:`training_recipes.stages` for when a stage runs again.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf import __version__
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import atomic_path, hash_files, read_json, write_json, write_jsonl, write_text
from obliq_hf.tasks import load_tasks
from training_recipes.stages import Stage, StageRunner, run_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from obliq_hf.records import Corpus
    from obliq_hf.tasks import ObliqTask
    from obliq_hf.teachers import Teacher
    from training_recipes.recipe import Recipe

__all__ = ["RecipeRun", "run_recipe"]


class RecipeRun:
    """One run of a recipe: which stages it has and what each does.

    Args:
        recipe: The recipe. Everything about it that can be checked without data is checked here.

    Raises:
        ObliqError: A task is unknown or a section contradicts another.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.folder = Path(recipe.out)
        self.tasks: list[ObliqTask] = load_tasks(recipe.tasks)
        self._check()

    def _check(self) -> None:
        recipe, names = self.recipe, [task.name for task in self.tasks]
        asked = [("queries.tasks", name) for name in recipe.queries.tasks]
        if recipe.graph.task is not None:
            asked.append(("graph.task", recipe.graph.task))
        for key, name in asked:
            if name not in names:
                raise ObliqError(
                    f"{key}: {name!r} is not among the recipe's tasks{nearest(name, names)}"
                )
        if recipe.queries.source != "none" and not recipe.queries.tasks:
            raise ObliqError("queries.tasks: name the tasks that the training queries are for")
        if recipe.queries.source == "path" and recipe.queries.path is None:
            raise ObliqError("queries.path: source 'path' needs the file of the queries")
        if recipe.queries.source == "none" and (
            recipe.graph.task is None or recipe.graph.dose == 0
        ):
            raise ObliqError(
                "nothing to train on: queries.source is none, and graph.task is null or the dose 0"
            )
        if recipe.corpus.source != "classics" and recipe.corpus.path is None:
            raise ObliqError(
                f"corpus.path: source {recipe.corpus.source!r} needs the folder or "
                "file that it reads"
            )
        if recipe.corpus.path is not None and not Path(recipe.corpus.path).exists():
            raise ObliqError(f"corpus.path: {recipe.corpus.path} does not exist")
        needs_other = "other" in (recipe.graph.corpus, recipe.evaluation.corpus)
        if needs_other and recipe.corpus.other_path is None:
            raise ObliqError(
                "corpus.other_path: the recipe uses the corpus 'other', which is built from it"
            )

    @property
    def _teacher_needed(self) -> bool:
        return self.recipe.graph.task is not None or "teacher" in self.recipe.evaluation.systems

    def stages(self) -> list[Stage]:
        """The stages in order, each with what decides its result."""
        recipe = self.recipe
        tasks = [asdict(task) for task in self.tasks]
        common = {"version": __version__, "seed": recipe.seed}
        stages = [
            Stage(
                "corpus",
                ("corpus", *(("corpus-other",) if recipe.corpus.other_path else ())),
                {
                    "version": __version__,
                    "section": recipe.hash("corpus"),
                    "tasks": [task.name for task in self.tasks],
                    "read": self._corpus_inputs(),
                },
                (),
                self.build_corpus,
                "building the corpus",
            )
        ]
        if recipe.queries.source != "none":
            stages.append(
                Stage(
                    "queries",
                    ("queries",),
                    {
                        **common,
                        "sections": recipe.hash("queries", "llm"),
                        "tasks": tasks,
                        "read": (
                            self._recorded()
                            if recipe.queries.source == "recorded"
                            else _content(recipe.queries.path)
                        ),
                    },
                    ("corpus",),
                    self.build_queries,
                    "collecting the training queries",
                )
            )
        if self._teacher_needed:
            fitted_on = recipe.graph.corpus
            stages.append(
                Stage(
                    "teacher",
                    ("teacher",),
                    {
                        "version": __version__,
                        "teacher": _content(recipe.graph.teacher) or recipe.graph.teacher,
                        "on": _content(fitted_on) or fitted_on,
                    },
                    ("corpus",),
                    self.fit_teacher,
                    "fitting the frozen teacher",
                )
            )
        if recipe.graph.task is not None:
            stages.append(
                Stage(
                    "graph",
                    ("graph",),
                    {**common, "section": recipe.hash("graph")},
                    ("corpus", "teacher"),
                    self.build_graph,
                    "joining nearest neighbours and screening the graph",
                )
            )
        built = {stage.name for stage in stages}
        stages += [
            Stage(
                "mixture",
                ("mixture",),
                {**common, "section": recipe.hash("negatives")},
                tuple(n for n in ("corpus", "queries", "graph") if n in built),
                self.build_mixture,
                "joining the training data",
            ),
            Stage(
                "train",
                ("model", "training.json", *(("adapter",) if recipe.training.lora else ())),
                {**common, "section": recipe.hash("training"), "tasks": tasks},
                ("mixture",),
                self.train_model,
                "training one encoder on the mixture",
                scratch=("checkpoints",),
            ),
            Stage(
                "evaluate",
                ("eval",),
                {"version": __version__, "section": recipe.hash("evaluation"), "tasks": tasks},
                ("corpus", *(("teacher",) if "teacher" in built else ()), "train"),
                self.evaluate,
                "scoring all systems through mteb",
                scratch=("vectors",),
            ),
            Stage(
                "report",
                ("report.md", "report.json", "figures", "recipe.yaml"),
                {"version": __version__, "name": recipe.name},
                ("evaluate",),
                self.write_report,
                "writing tables and figures",
            ),
        ]
        return stages

    def _recorded(self) -> list[str | None]:
        from dataset_builders.recorded_queries import recorded_file

        return [_content(str(recorded_file(task.name))) for task in self.tasks]

    def _corpus_inputs(self) -> list[str | None]:
        config = self.recipe.corpus
        if config.source == "classics":
            return self._recorded()
        assert config.path is not None
        place = Path(config.path)
        parts = (config.subfolder or ".", config.metadata, config.other_path)
        return [_content(str(place / part)) for part in parts if part is not None]

    def corpus(self, which: str = "searched") -> Corpus:
        """The corpus searched, or the other one, or the one of a folder."""
        from obliq_hf.records import read_corpus

        named = {"searched": self.folder / "corpus", "other": self.folder / "corpus-other"}
        return read_corpus(named.get(which, Path(which)))

    def teacher(self) -> Teacher:
        """The frozen teacher as the run fitted it."""
        from obliq_hf.teachers import load_teacher

        place = self.folder / "teacher"
        fitted = (place / "profile.json").is_file()
        return load_teacher(place if fitted else self.recipe.graph.teacher)

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

    def build_queries(self) -> None:
        """Write ``queries/<task>.jsonl``, training queries with the passages they ask for."""
        config, corpus = self.recipe.queries, self.corpus()
        with atomic_path(self.folder / "queries") as temporary:
            temporary.mkdir()
            for name in config.tasks:
                if config.source == "recorded":
                    from dataset_builders.recorded_queries import load_recorded

                    rows = [asdict(row) for row in load_recorded(name, corpus, split="train")]
                else:
                    assert config.path is not None
                    from obliq_hf.files import iter_jsonl

                    place = Path(config.path)
                    file = place / f"{name}.jsonl" if place.is_dir() else place
                    rows = [row for _, row in iter_jsonl(file)]
                write_jsonl(temporary / f"{name}.jsonl", rows)

    def fit_teacher(self) -> None:
        """Write ``teacher/``: the profile fitted on the graph's texts, or a model's name."""
        from obliq_hf.teachers import StylometricProfile, load_teacher

        texts = self.corpus(self.recipe.graph.corpus).full_texts()
        teacher = load_teacher(self.recipe.graph.teacher, corpus_texts=texts)
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
        vectors = teacher.encode(corpus.full_texts())
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
        )
        screen = purity(graph, corpus, config.label, vectors=vectors)
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
        window: dict[str, Any] = {
            "first_rank": config.first_rank,
            "last_rank": config.last_rank,
            "fill": config.fill,
            "seed": recipe.seed,
        }
        parts = []
        if recipe.queries.source != "none":
            for name in recipe.queries.tasks:
                queries, qrels = read_training_queries(self.folder / "queries" / f"{name}.jsonl")
                mined = None
                if config.queries:
                    mined = negatives_for_queries(
                        queries, qrels, corpus, n=config.queries, **window
                    )
                parts.append(query_rows(queries, qrels, corpus, task=name, negatives=mined))
        if recipe.graph.task is not None:
            texts = (
                corpus if recipe.graph.corpus == "searched" else self.corpus(recipe.graph.corpus)
            )
            graph = read_graph(self.folder / "graph", texts)
            mined = None
            if config.graph and len(graph):
                mined = negatives_for_graph(graph, texts, n=config.graph, **window)
            if len(graph):
                parts.append(graph_rows(graph, texts, task=recipe.graph.task, negatives=mined))
        build_mixture(
            self.folder / "mixture",
            parts,
            leaks=LeakCheck(queries=self._evaluation_queries()),
            seed=recipe.seed,
            provenance={"corpus": corpus.fingerprint, "recipe": recipe.hash()},
        )

    def _evaluation_queries(self) -> list[str]:
        from obliq_hf.records import read_queries

        files = sorted((self.folder / "corpus" / "tasks").glob("*/queries.jsonl"))
        return [text for file in files for text in read_queries(file).texts]

    def train_model(self) -> None:
        """Write ``model/``, ``training.json`` and, with LoRA, ``adapter/``."""
        from training_recipes.train import train_recipe

        train_recipe(self.recipe)

    def evaluate(self) -> None:
        """Write ``eval/<task>/<system>/`` for every system and task of the corpus."""
        from eval_mteb.evaluation import evaluate_folder

        config, training = self.recipe.evaluation, self.recipe.training
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
            teacher=self.teacher() if self._teacher_needed else None,
            template=training.template,
            include_prompt=training.include_prompt,
            max_length=training.max_length,
            depth=config.depth,
        )

    def write_report(self) -> None:
        """Write ``report.md``, ``report.json``, ``figures/`` and the resolved recipe."""
        from eval_mteb.report import write_report

        write_text(self.folder / "recipe.yaml", self._shown_recipe())
        write_report(self.folder)

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

    def closing_lines(self) -> list[str]:
        """What a person is shown at the end."""
        from eval_mteb.report import terminal_table

        named = {task.name for task in self.tasks}
        report = read_json(self.folder / "report.json")
        example = next(iter(self.recipe.queries.tasks), None) or next(iter(sorted(named)))
        return [
            "",
            terminal_table(report),
            "",
            f"report: {self.folder / 'report.md'}    figures: {self.folder / 'figures'}",
            f"checkpoint: {self.folder / 'model'}",
            "",
            "Use it with plain sentence-transformers:",
            "    from sentence_transformers import SentenceTransformer",
            f'    model = SentenceTransformer("{self.folder / "model"}")',
            "    scores = model.similarity("
            f'model.encode_query(["..."], prompt_name="{example}"), '
            'model.encode_document(["..."]))',
        ]


def _content(place: str | None) -> str | None:
    """A fingerprint of a file or folder that a recipe names; None where it names none."""
    return hash_files(place) if place is not None and Path(place).exists() else None


def run_recipe(
    recipe: Recipe, *, until: str | None = None, say: Callable[[str], None] | None = None
) -> list[str]:
    """Run all stages of a recipe that are not finished.

    Args:
        recipe: The recipe.
        until: Stop after this stage.
        say: Receives progress lines and, at the end, the result.

    Returns:
        Names of the stages that ran.

    Raises:
        ObliqError: The recipe contradicts itself, or another process works in the run folder.
    """
    run = RecipeRun(recipe)
    tell = say or (lambda line: None)
    with run_lock(run.folder):
        ran = StageRunner(run.folder, run.stages(), tell).run(until=until)
        if until is None or until == "report":
            for line in run.closing_lines():
                tell(line)
    return ran

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
from obliq_hf.files import hash_files, read_json
from obliq_hf.tasks import load_tasks
from training_recipes.foreign import check_rows, rows_identity
from training_recipes.publishing import check_publishing, publish_run
from training_recipes.sections import SYSTEMS
from training_recipes.stages import Stage, StageRunner, run_lock
from training_recipes.steps import RunSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from training_recipes.recipe import Recipe

__all__ = ["RecipeRun", "open_run", "run_recipe"]


class RecipeRun(RunSteps):
    """One run of a recipe: which stages it has and what each does.

    Args:
        recipe: The recipe. Everything about it that can be checked without data is checked here.

    Raises:
        ObliqError: A task is unknown or a section contradicts another.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, load_tasks(recipe.tasks))
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
        check_rows(recipe, names)
        if (
            recipe.queries.source == "none"
            and not recipe.rows.given
            and (recipe.graph.task is None or recipe.graph.dose == 0)
        ):
            raise ObliqError(
                "nothing to train on: queries.source is none, rows has no file, and graph.task is "
                "null or the dose 0"
            )
        if recipe.corpus.source in {"beir", "jsonl"} and recipe.corpus.path is None:
            raise ObliqError(
                f"corpus.path: source {recipe.corpus.source!r} needs the folder or "
                "file that it reads"
            )
        if recipe.corpus.path is not None and not Path(recipe.corpus.path).exists():
            raise ObliqError(f"corpus.path: {recipe.corpus.path} does not exist")
        self._check_evaluation()
        needs_other = "other" in (recipe.graph.corpus, recipe.evaluation.corpus)
        if needs_other and recipe.corpus.other_path is None:
            raise ObliqError(
                "corpus.other_path: the recipe uses the corpus 'other', which is built from it"
            )

    def _check_evaluation(self) -> None:
        systems = self.recipe.evaluation.systems
        for name in systems:
            if name not in SYSTEMS:
                raise ObliqError(f"evaluation.systems: no system {name!r}{nearest(name, SYSTEMS)}")
        if "fusion" in systems and not {"student", "teacher"} <= set(systems):
            raise ObliqError("evaluation.systems: fusion needs student and teacher beside it")
        config = self.recipe.corpus
        if config.source == "classics" and config.other_path is not None:
            raise ObliqError("corpus.other_path: goes with the sources beir and jsonl")
        if config.source == "jsonl" and len(self.tasks) > 1:
            raise ObliqError("tasks: source jsonl makes one task; lay several out and use beir")
        if self.recipe.queries.count is not None and self.recipe.queries.source != "llm":
            raise ObliqError("queries.count: goes with queries.source llm")
        for key in ("folders", "group_fields", "revision"):
            if config.source != "bench" and getattr(config, key):
                raise ObliqError(f"corpus.{key}: goes with corpus.source bench")

    def begin(self, stage: str) -> None:
        """Mark a stage of the run folder as begun; see :meth:`StageRunner.begin`."""
        StageRunner(self.folder, self.stages()).begin(stage)

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
                    scratch=("synthesis",),
                    check=self.check_queries,
                )
            )
        if self.teacher_needed:
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
                {**common, "section": recipe.hash("negatives"), **_rows(recipe)},
                tuple(n for n in ("corpus", "queries", "graph") if n in built),
                self.build_mixture,
                "joining the training data",
            ),
            Stage(
                "train",
                ("model", "training.json", *(("adapter",) if recipe.training.lora else ())),
                {
                    **common,
                    "section": recipe.hash("training"),
                    "base": _content(recipe.training.base) or recipe.training.base,
                    "tasks": tasks,
                },
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
                ("report.md", "report.json", "report.html", "figures", "recipe.yaml"),
                {
                    "version": __version__,
                    "name": recipe.name,
                    "snippets": recipe.evaluation.snippets,
                },
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


def _rows(recipe: Recipe) -> dict[str, Any]:
    return {"rows": rows_identity(recipe)} if recipe.rows.given else {}


def _content(place: str | None) -> str | None:
    """A fingerprint of a file or folder that a recipe names; None where it names none."""
    return hash_files(place) if place is not None and Path(place).exists() else None


def open_run(recipe: Recipe) -> RecipeRun:
    """The run of a recipe: over one corpus, or over several tasks with corpora of their own.

    Raises:
        ObliqError: As of :class:`RecipeRun`.
    """
    if recipe.corpus.source == "bench":
        from training_recipes.several_corpora import SeveralCorporaRun

        return SeveralCorporaRun(recipe)
    return RecipeRun(recipe)


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
    run = open_run(recipe)
    tell = say or (lambda line: None)
    check_publishing(recipe)
    with run_lock(run.folder):
        ran = StageRunner(run.folder, run.stages(), tell).run(until=until)
        if until is None or until == "report":
            for line in run.closing_lines():
                tell(line)
            for pushed in publish_run(recipe):
                done = "published" if pushed.changed else "holds it already"
                tell(f"{pushed.place}: {done}, version {pushed.version}")
    return ran

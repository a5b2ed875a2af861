"""The whole pipeline of a recipe: source, corpus, queries, graph, mixture, training, report.

Every stage leaves its result in the run folder, finds it there the next time, and can be used
alone through its own command. See :mod:`training_recipes.stages` for when a stage runs again.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf import __version__
from obliq_hf.files import hash_files, read_json
from obliq_hf.tasks import load_tasks
from training_recipes.foreign import rows_identity
from training_recipes.publishing import check_publishing, publish_run
from training_recipes.recipe_checks import check_base, check_places, check_recipe, check_teacher
from training_recipes.stages import Stage, StageRunner, run_lock
from training_recipes.steps import RunSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from training_recipes.recipe import Recipe

__all__ = ["RecipeRun", "open_run", "run_recipe"]

logger = logging.getLogger(__name__)


class RecipeRun(RunSteps):
    """One run of a recipe: which stages it has and what each does.

    Args:
        recipe: The recipe. Everything about it that can be checked without data is checked here.

    Raises:
        ObliqError: A task is unknown or a section contradicts another.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, load_tasks(recipe.tasks))
        check_recipe(recipe, [task.name for task in self.tasks])

    def begin(self, stage: str) -> None:
        """Mark a stage of the run folder as begun; see :meth:`StageRunner.begin`."""
        self.runner().begin(stage)

    def runner(self, say: Callable[[str], None] = logger.info) -> StageRunner:
        """What runs the stages; none of them writes where another reads.

        Args:
            say: Receives one line per stage.

        Raises:
            ObliqError: As of :func:`check_places`.
        """
        stages = self.stages()
        check_places(self.recipe, stages)
        return StageRunner(self.folder, stages, say)

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
                verify=self.verify_corpus,
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
            fitted_on, revision = recipe.graph.corpus, recipe.graph.teacher_revision
            stages.append(
                Stage(
                    "teacher",
                    ("teacher",),
                    {
                        "version": __version__,
                        "teacher": _content(recipe.graph.teacher) or recipe.graph.teacher,
                        "on": _content(fitted_on) or fitted_on,
                        **({} if revision is None else {"revision": revision}),
                    },
                    ("corpus",),
                    self.fit_teacher,
                    "fitting the frozen teacher",
                    check=lambda: check_teacher(recipe),
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
                check=lambda: check_base(recipe),
            ),
        ]
        if recipe.evaluation.split is not None:
            stages += self._scoring(built, tasks)
        return stages

    def _scoring(self, built: Collection[str], tasks: list[dict[str, Any]]) -> list[Stage]:
        """The stages that measure the model; the names of those before them are given."""
        recipe = self.recipe
        return [
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
        named = {task.name for task in self.tasks}
        example = next(iter(self.recipe.queries.tasks), None) or next(iter(sorted(named)))
        scores: list[str] = []
        if self.recipe.evaluation.split is not None:
            from eval_mteb.report import terminal_table

            scores = [
                "",
                terminal_table(read_json(self.folder / "report.json")),
                "",
                f"report: {self.folder / 'report.md'}    figures: {self.folder / 'figures'}",
            ]
        return [
            *scores,
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
        runner = run.runner(tell)
        ran = runner.run(until=until)
        if until is None or until == runner.stages[-1].name:
            for line in run.closing_lines():
                tell(line)
            for pushed in publish_run(recipe, results=recipe.evaluation.split is not None):
                done = "published" if pushed.changed else "holds it already"
                tell(f"{pushed.place}: {done}, version {pushed.version}")
        else:
            tell(f"stopped after {until}; without --until the run goes on from here")
    return ran

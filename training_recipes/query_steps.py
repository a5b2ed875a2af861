"""Where the training queries of a run come from: recorded, read, or written by a language model."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.files import atomic_path, iter_jsonl, write_jsonl

if TYPE_CHECKING:
    from obliq_hf.records import Corpus
    from obliq_hf.tasks import ObliqTask
    from training_recipes.recipe import Recipe

__all__ = ["QuerySteps"]


class QuerySteps:
    """The stage of a run that collects its training queries.

    Args:
        recipe: The recipe.
        tasks: Its tasks.
    """

    def __init__(self, recipe: Recipe, tasks: list[ObliqTask]) -> None:
        self.recipe = recipe
        self.folder = Path(recipe.out)
        self.tasks = tasks

    def corpus(self, which: str = "searched") -> Corpus:
        """The corpus searched, or the other one, or the one of a folder."""
        from obliq_hf.records import read_corpus

        named = {"searched": self.folder / "corpus", "other": self.folder / "corpus-other"}
        return read_corpus(named.get(which, Path(which)))

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

    def queried(self, task: str) -> Corpus:
        """The corpus that the queries of a task are about."""
        return self.corpus()

    def build_queries(self) -> str:
        """Write ``queries/<task>.jsonl``, training queries with the passages they ask for."""
        config, found = self.recipe.queries, []
        with atomic_path(self.folder / "queries") as temporary:
            temporary.mkdir()
            for name in config.tasks:
                rows = self._training_queries(name)
                write_jsonl(temporary / f"{name}.jsonl", rows)
                asked = f" of {config.count:,} asked for" if config.count is not None else ""
                found.append(f"{len(rows):,} {name} queries{asked}")
        return ", ".join(found)

    def _training_queries(self, task: str) -> list[dict[str, Any]]:
        config = self.recipe.queries
        if config.source == "recorded":
            from dataset_builders.recorded_queries import load_recorded

            recorded = load_recorded(task, self.queried(task), split="train")
            return [asdict(row) for row in recorded]
        if config.source == "llm":
            return self._synthesize(task, self.queried(task))
        assert config.path is not None
        place = Path(config.path)
        file = place / f"{task}.jsonl" if place.is_dir() else place
        return [row for _, row in iter_jsonl(file)]

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

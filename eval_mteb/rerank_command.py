"""What ``obliq rerank`` does: a stored run or a retriever, reranked and measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_mteb.baselines.fusion import RunSearch
from eval_mteb.evaluation import evaluate_system
from eval_mteb.pipeline import RetrieveAndRerank, described_task
from eval_mteb.systems import System, encoder_system
from eval_mteb.tasks import folder_tasks
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash, hash_files, read_json
from obliq_hf.reranking import (
    Asking,
    ModelTokens,
    Policy,
    RerankSettings,
    TextBudget,
    parse_rerankers,
)
from obliq_hf.search.runs import read_run
from obliq_hf.task_data import available_tasks
from obliq_hf.tasks import ObliqTask, builtin_task_names, load_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval_mteb.retrieval import ObliqRetrieval
    from obliq_hf.llm import ChatClient

__all__ = ["FirstStage", "LLMOptions", "chosen_tasks", "find_data", "make_asking", "rerank_command"]


@dataclass(frozen=True)
class LLMOptions:
    """The language model of a command.

    Attributes:
        spec: An address, ``hub``, ``vllm``, ``batch:FOLDER`` or ``embedded``; see
            :func:`obliq_hf.llm.load.load_client`.
        model: The model's name there.
        revision: Its revision, where known.
        slots: Calls at once.
        max_calls: Calls that are never passed; None is no limit.
        max_tokens: Tokens that are never passed; None is no limit.
        thinking: None leaves it to the model; False tells the chat template not to think.
    """

    spec: str
    model: str | None = None
    revision: str | None = None
    slots: int = 64
    max_calls: int | None = None
    max_tokens: int | None = None
    thinking: bool | None = None

    def client(self, cache: Path) -> ChatClient:
        """A client that keeps every answer in a cache file."""
        from obliq_hf.llm import Budget
        from obliq_hf.llm.load import load_client

        extra = None
        if self.thinking is not None:
            extra = {"chat_template_kwargs": {"enable_thinking": self.thinking}}
        limited = self.max_calls is not None or self.max_tokens is not None
        cache.parent.mkdir(parents=True, exist_ok=True)
        return load_client(
            self.spec,
            model=self.model,
            revision=self.revision,
            cache=cache,
            concurrency=self.slots,
            budget=Budget(calls=self.max_calls, tokens=self.max_tokens) if limited else None,
            extra_body=extra,
        )


@dataclass(frozen=True)
class FirstStage:
    """Where the candidates come from: a run, the systems of an evaluation folder, or a retriever.

    Attributes:
        run: A run file, for one task, or an evaluation folder.
        system: The system of an evaluation folder.
        retriever: A checkpoint's folder or name, in the place of a run.
        settings: Settings of the retriever.
    """

    run: Path | None = None
    system: str | None = None
    retriever: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def check(self, tasks: int) -> None:
        """Refuse what cannot be a first stage, before anything is loaded.

        Raises:
            ObliqError: Not exactly one of run and retriever, no such file, or one file for
                several tasks.
        """
        if (self.run is None) == (self.retriever is None):
            raise ObliqError("give the first stage: --run (a file or folder) or --retriever")
        if self.run is not None and not self.run.exists():
            raise ObliqError(f"{self.run}: no such run")
        if self.run is not None and self.run.is_file() and tasks != 1:
            raise ObliqError(f"{self.run} is the run of one task: name it with --tasks")

    def file(self, task: ObliqRetrieval) -> Path:
        """The run file of a task.

        Raises:
            ObliqError: The folder has no run for it, or several.
        """
        assert self.run is not None
        if self.run.is_file():
            return self.run
        for key in dict.fromkeys((task.key, task.short_name)):
            folder = self.run / key
            found = {
                p.parent.name: p
                for p in sorted(folder.glob("*/run.trec"))
                if not p.parent.name.startswith(".")
            }
            if self.system is not None and self.system in found:
                return found[self.system]
            if self.system is None and len(found) == 1:
                return next(iter(found.values()))
            if found and self.system is None:
                raise ObliqError(
                    f"{folder} holds several runs; name one with --system: {', '.join(found)}"
                )
            if found and self.system is not None:
                raise ObliqError(
                    f"{folder}: no run of {self.system!r}{nearest(self.system, found)}"
                )
        raise ObliqError(f"{self.run}: no run of task {task.key!r}")

    def load(self, task: ObliqRetrieval) -> tuple[System, str]:
        """The first stage as a system, and what it is called in the names of reranked ones."""
        if self.run is None:
            assert self.retriever is not None
            name = Path(self.retriever).resolve().name if Path(self.retriever).is_dir() else (
                self.retriever.rsplit("/", 1)[-1]
            )  # fmt: skip
            return encoder_system(name, self.retriever, about=self.retriever, **self.settings), name
        file = self.file(task)
        name = file.parent.name if file.name == "run.trec" else file.stem
        run = read_run(file)
        return System(
            name,
            content_hash(["run", hash_files(file)]),
            lambda _: RunSearch(run, name=name),
            f"the run {name}",
        ), name


def find_data(data: Path | None, run: Path | None) -> Path:
    """The corpus folder: as given, or the folder ``corpus`` beside or above a run.

    Raises:
        ObliqError: There is none.
    """
    if data is not None:
        return data
    if run is not None:
        for folder in run.resolve().parents:
            if (folder / "corpus").is_dir() and available_tasks(folder / "corpus"):
                return folder / "corpus"
    raise ObliqError("give the corpus folder: --data FOLDER")


def chosen_tasks(data: Path, names: Sequence[str]) -> list[ObliqTask | str]:
    """The tasks asked for, by default all of the folder; described where a description is known.

    Raises:
        ObliqError: A task that the folder does not hold.
    """
    present = available_tasks(data)
    if not present:
        raise ObliqError(f"{data}: no task found there")
    chosen: list[ObliqTask | str] = []
    for name in names or present:
        own = data / "tasks" / name / "task.yaml"
        task: ObliqTask | str = name
        if name.endswith((".yaml", ".yml")) or name in builtin_task_names():
            task = load_task(name)
        elif name in present and own.is_file():
            task = load_task(own)
        short = task if isinstance(task, str) else task.name
        # a folder with one unnamed task takes the name of whatever task is asked for
        if short not in present and (len(present) > 1 or isinstance(task, str)):
            raise ObliqError(f"{data} holds no task {short!r}{nearest(short, present)}")
        chosen.append(task)
    return chosen


def make_asking(
    *,
    base: Asking | None = None,
    tokenizer: str | None = None,
    document_tokens: int | None = None,
    query_tokens: int | None = None,
    keep: str | None = None,
    thinking_tokens: int | None = None,
) -> Asking:
    """How a command asks: as ``base``, apart from what is given.

    Args:
        base: Where everything else comes from; None takes the defaults.
        tokenizer: The model's own tokeniser, that texts are cut by.
        document_tokens: Budget of a candidate's text.
        query_tokens: Budget of the query's text.
        keep: Part of a long text kept.
        thinking_tokens: Room for thinking before the answer.
    """
    base = base or Asking()
    tokens = None if tokenizer is None else ModelTokens(tokenizer)
    given = (tokens, keep)

    def budget(known: TextBudget | None, size: int | None) -> TextBudget | None:
        if size is None and given == (None, None):
            return known
        known = known or TextBudget()
        return TextBudget(size or known.tokens, keep or known.keep, tokens or known.tokenizer)

    return replace(
        base,
        documents=budget(base.documents, document_tokens),
        query=budget(base.query, query_tokens),
        thinking_tokens=base.thinking_tokens if thinking_tokens is None else thinking_tokens,
    )


def rerank_command(
    first: FirstStage,
    *,
    data: Path,
    tasks: Sequence[str],
    out: Path,
    rerankers: str | None = None,
    base: RerankSettings | None = None,
    policy: Policy | None = None,
    client: ChatClient | None = None,
    asking: Asking | None = None,
    seed: int | None = None,
    split: str = "test",
    judgments: Sequence[str] = ("gold", "pooled"),
    top_k: int = 1000,
    show_progress: bool = True,
) -> list[Path]:
    """Rerank a first stage on tasks and measure both, as ``obliq evaluate`` measures.

    Args:
        first: Where candidates come from.
        data: The corpus folder.
        tasks: Names or task files; none for all tasks of the folder.
        out: The folder for results.
        rerankers: Rerankers, as :func:`~obliq_hf.reranking.settings.parse_rerankers` reads them;
            None takes the policy, and without one each task's own file. ``listwise`` without a
            number takes the depth in the task's file.
        base: Settings for all that ``rerankers`` leaves open.
        policy: A policy.
        client: The language model, where any reranker asks one.
        asking: Budgets of texts, temperature, thinking; None asks as the policy was chosen.
        seed: Seed of shuffles; None takes the policy's, and 0 without one.
        split: The split whose judgments count.
        judgments: ``gold``, ``pooled`` or both, where a task has them.
        top_k: Documents kept a query.
        show_progress: Show bars.

    Returns:
        The folders of all results, the first stage's among them.

    Raises:
        ObliqError: No first stage, an unknown task, or a reranker that asks without a client;
            said before anything runs.
    """
    chosen = chosen_tasks(data, tasks)
    first.check(len(chosen))
    applied = policy if policy is not None and rerankers is None else Policy({})
    asking, seed = applied.asked(asking, seed, client=client)
    plans: list[tuple[ObliqTask | str, list[RerankSettings]]] = []
    for task in chosen:
        wanted = []
        if rerankers is not None:
            wanted = parse_rerankers(rerankers, base=_with_depth(base or RerankSettings(), task))
        if not wanted and policy is not None:
            wanted = [policy.settings(task if isinstance(task, str) else task.name)]
        if not wanted and not isinstance(task, str):
            wanted = [RerankSettings.of_task(task)]
        if not wanted:
            raise ObliqError(f"task {task!r} has no description: name a --reranker")
        for entry in wanted:
            if entry.asks and client is None:
                raise ObliqError(
                    f"reranker {entry.label!r} asks a language model: give --llm URL and "
                    "--model NAME"
                )
        plans.append((task, wanted))
    folders: list[Path] = []
    for task, wanted in plans:
        for mteb_task in folder_tasks(
            data, task, split=split, judgments=judgments, depth=top_k, vectors=out / "vectors"
        ):
            dense, name = first.load(mteb_task)
            about = described_task(mteb_task.metadata, [] if isinstance(task, str) else [task])
            systems = [dense]
            for entry in wanted:
                if not entry.changes_nothing:
                    systems.append(
                        _system(dense, name, entry, about, client, asking, seed, show_progress)
                    )
            for system in systems:
                # calls that failed are made again; what was answered is in the cache
                again = _calls_failed(out / mteb_task.key / system.name)
                folders.append(
                    evaluate_system(
                        system, mteb_task, out, show_progress=show_progress, overwrite=again
                    )
                )
            if mteb_task.data_loaded:
                mteb_task.unload_data()
    if not folders:
        raise ObliqError(f"{data}: no {' or '.join(judgments)} judgments in split {split!r}")
    return folders


def _with_depth(base: RerankSettings, task: ObliqTask | str) -> RerankSettings:
    depth = None if isinstance(task, str) else task.reranking.get("listwise_depth")
    return base if depth is None else replace(base, listwise_depth=depth)


def _calls_failed(folder: Path) -> bool:
    """Whether a result is there of which some calls had failed."""
    cost = folder / "cost.json"
    return cost.is_file() and bool(read_json(cost).get("reranking", {}).get("errors"))


def _system(
    base: System,
    name: str,
    settings: RerankSettings,
    task: ObliqTask,
    client: ChatClient | None,
    asking: Asking,
    seed: int,
    progress: bool,
) -> System:
    content = [
        "rerank",
        base.fingerprint,
        settings.identity,
        asking.identity,
        task.fingerprint,
        seed,
        client.identity if client is not None and settings.asks else None,
    ]
    asked = f" by {client.model}" if client is not None and settings.asks else ""
    return System(
        f"{name}-{settings.label}",
        content_hash(content),
        lambda mteb_task: RetrieveAndRerank(
            base.load(mteb_task),
            settings,
            llm=client,
            tasks=[task],
            asking=asking,
            seed=seed,
            vectors=mteb_task.vectors,
            progress=progress,
        ),
        f"{base.about or name}, reranked{asked} ({settings.label})",
    )

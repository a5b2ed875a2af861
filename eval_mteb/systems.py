"""What can be measured: a name, a content, and a way to load it when its result is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash, hash_files
from obliq_hf.search.runs import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eval_mteb.retrieval import ObliqRetrieval
    from obliq_hf.llm import ChatClient
    from obliq_hf.tasks import ObliqTask
    from obliq_hf.teachers import Teacher

__all__ = [
    "System",
    "bm25_system",
    "encoder_system",
    "fusion_system",
    "multihop_system",
    "oracle_system",
    "rewriter_system",
    "teacher_system",
]


@dataclass(frozen=True)
class System:
    """Something to measure.

    Attributes:
        name: Its name in results; becomes a folder.
        fingerprint: Its content; results under another fingerprint are not reused.
        load: Task -> mteb model, called only where a result is missing.
        about: What a report says about it.
        ceiling: It uses the judgments: reports show it apart, and never as a result.
        reusable: What ``load`` gives serves every task.
    """

    name: str
    fingerprint: str
    load: Callable[[ObliqRetrieval], Any]
    about: str = ""
    ceiling: bool = False
    reusable: bool = False

    def kept(self) -> System:
        """This system with its model loaded once and kept as long as the system is, if it can."""
        if not self.reusable:
            return self
        loaded: list[Any] = []

        def load(task: ObliqRetrieval) -> Any:
            if not loaded:
                loaded.append(self.load(task))
            return loaded[0]

        return replace(self, load=load)


def bm25_system(setting: str = "english", *, name: str = "bm25") -> System:
    """BM25 with one stated tokeniser setting."""
    from eval_mteb.baselines.bm25 import BM25Search
    from obliq_hf.search.bm25 import SETTINGS

    if setting not in SETTINGS:
        raise ObliqError(f"no BM25 setting {setting!r}{nearest(setting, SETTINGS)}")
    return System(
        name,
        BM25Search(setting).fingerprint,
        lambda task: BM25Search(setting),
        f"BM25, tokeniser setting {setting!r}",
    )


def teacher_system(teacher: Teacher, *, name: str = "teacher") -> System:
    """The frozen teacher, searching by its own vectors."""
    from eval_mteb.baselines.teacher import TeacherSearch

    return System(
        name,
        content_hash(["teacher", teacher.fingerprint]),
        lambda task: TeacherSearch(teacher, vectors=task.vectors),
        f"the frozen teacher ({teacher.name})",
    )


def encoder_system(
    name: str,
    checkpoint: str | Path,
    *,
    tasks: Sequence[ObliqTask] = (),
    prompts: Mapping[str, str] | None = None,
    template: str | None = None,
    max_length: int | None = None,
    include_prompt: bool | None = None,
    revision: str | None = None,
    device: str | None = None,
    about: str = "",
) -> System:
    """A dense or late-interaction encoder; see :func:`eval_mteb.models.load_model`."""
    from eval_mteb.models import load_model
    from obliq_hf.encoder.sources import locate

    source = locate(checkpoint, revision=revision)
    if source.local:
        ignored = ("README.md", "training.json", ".gitattributes")
        content: Any = hash_files(source.location, ignore=ignored)
    else:
        content = [source.id, source.commit()]
    settings = {
        "prompts": None if prompts is None else dict(prompts),
        "tasks": [[t.name, t.instruction] for t in tasks],
        "template": template,
        "max_length": max_length,
        "include_prompt": include_prompt,
    }

    def load(task: ObliqRetrieval) -> Any:
        return load_model(
            checkpoint,
            tasks=tasks,
            prompts=prompts,
            template=template,
            max_length=max_length,
            include_prompt=include_prompt,
            revision=revision,
            device=device,
            name=name if source.id is None else None,
        )

    fingerprint = content_hash(["encoder", content, settings])
    return System(name, fingerprint, load, about, reusable=True)


def fusion_system(
    out: str | Path,
    task: ObliqRetrieval,
    parts: Sequence[str],
    *,
    name: str = "fusion",
    method: str = "zscore",
) -> System:
    """The fusion of systems that were measured already, from their runs."""
    from eval_mteb.baselines.fusion import FusionSearch, RunSearch

    files = [Path(out) / task.key / part / "run.trec" for part in parts]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise ObliqError(f"a fusion of {' and '.join(parts)} needs {', '.join(missing)}")

    def load(_: ObliqRetrieval) -> Any:
        return FusionSearch(
            [RunSearch(read_run(f), name=p) for f, p in zip(files, parts, strict=True)],
            method=method,
        )

    return System(
        name,
        content_hash(["fusion", method, [hash_files(file) for file in files]]),
        load,
        f"{' and '.join(parts)}, scores fused ({method})",
    )


def _described(task: ObliqRetrieval, system: str) -> ObliqTask:
    if task.obliq_task is None:
        raise ObliqError(
            f"system {system!r} asks a language model and needs to know what task "
            f"{task.key!r} is about: give a task file with its attribute and instruction"
        )
    return task.obliq_task


def _prompt_version() -> str:
    return hash_files(Path(__file__).parent / "prompts" / "baselines.yaml")


def rewriter_system(
    base: System,
    client: ChatClient,
    *,
    name: str = "rewriter",
    mode: Literal["replace", "append"] = "replace",
) -> System:
    """Query rewriting by a language model, then a search system."""
    from eval_mteb.baselines.rewriter import RewriterSearch

    def load(task: ObliqRetrieval) -> Any:
        described = _described(task, name)
        return RewriterSearch(task.search_model(base.load(task)), client, described, mode=mode)

    content = ["rewriter", base.fingerprint, client.identity, mode, _prompt_version()]
    about = f"queries rewritten by {client.model}, then {base.name}"
    return System(name, content_hash(content), load, about)


def multihop_system(
    base: System,
    client: ChatClient,
    *,
    name: str = "multihop",
    hops: int = 4,
    per_hop: int = 25,
) -> System:
    """A multi-hop agent over a search system."""
    from eval_mteb.baselines.multihop import MultiHopSearch

    def load(task: ObliqRetrieval) -> Any:
        described = _described(task, name)
        first = task.search_model(base.load(task))
        return MultiHopSearch(first, client, described, hops=hops, per_hop=per_hop)

    content = ["multihop", base.fingerprint, client.identity, hops, per_hop, _prompt_version()]
    about = f"{hops} hops of {per_hop} documents by {client.model} over {base.name}, reranked"
    return System(name, content_hash(content), load, about)


def oracle_system(
    base: System, client: ChatClient, *, name: str = "oracle", pool: int = 100
) -> System:
    """The oracle tournament: a ceiling, with the gold documents put into the pool."""
    from eval_mteb.baselines.listwise import LLMOrder
    from eval_mteb.baselines.oracle import OracleSearch, oracle_plan

    def load(task: ObliqRetrieval) -> Any:
        batch, winners = oracle_plan(task.short_name)
        orderer = LLMOrder(client, _described(task, name))
        first = task.search_model(base.load(task))
        return OracleSearch(first, orderer, task.qrels, pool=pool, batch=batch, winners=winners)

    content = ["oracle", base.fingerprint, client.identity, pool, _prompt_version()]
    about = f"a ceiling: {client.model} orders {base.name}'s pool with the gold documents put in"
    return System(name, content_hash(content), load, about, ceiling=True)

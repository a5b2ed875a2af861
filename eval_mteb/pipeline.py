"""A retriever and a reranker as one search model: end-to-end scores through the harness.

    pipeline = eval_mteb.RetrieveAndRerank(model, policy="policy.yaml", llm=client)
    mteb.evaluate(pipeline, eval_mteb.OBLIQ_BENCH)

The retriever ranks as it does alone, exclusions first; the first documents of each query are put in
a better order; what lies beneath keeps its order. Scores are the retriever's, dealt out by rank, so
that a reranker that changes nothing changes no figure.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mteb.models import EncoderProtocol, SearchProtocol

from eval_mteb.dense import EncoderSearch, document_texts
from eval_mteb.models import load_model, local_meta, wrap_encoder
from eval_mteb.ordering import OrderedSearch
from eval_mteb.registry import known_task
from eval_mteb.task_prompts import log_prompts, with_task_prompt
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.reranking import (
    Asking,
    CrossEncoderReranker,
    Policy,
    Reranked,
    Reranker,
    RerankSettings,
    build_reranker,
    load_policy,
    pools_from_run,
    rerank,
    reranked_run,
)
from obliq_hf.tasks import ObliqTask, builtin_task_names, load_task, load_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mteb.models.model_meta import ModelMeta

    from obliq_hf.llm import ChatClient

__all__ = ["RetrieveAndRerank", "described_task"]

logger = logging.getLogger(__name__)


def described_task(metadata: Any, tasks: Sequence[ObliqTask] = ()) -> ObliqTask:
    """What an mteb task is about.

    Args:
        metadata: Its metadata.
        tasks: Descriptions that go before the others: matched by the task's own name or by the
            names it has in mteb.

    Returns:
        The description given, the one the task was made with, the built-in one of that name, or
        one that says no more than that documents are to be relevant to the query.
    """
    name = str(metadata.name)
    known = known_task(name)
    own = getattr(known, "obliq_task", None)
    short = own.name if own is not None else getattr(getattr(known, "data", None), "name", None)
    plain = name.replace("GoldRetrieval", "Retrieval")
    for task in tasks:
        if short == task.name or task.mteb_name in (name, plain):
            return task
    if own is not None:
        return own
    for builtin in map(load_task, builtin_task_names()):
        if builtin.mteb_name == plain or builtin.name == short:
            return builtin
    prompt = getattr(metadata, "prompt", None)
    words = prompt.get("query") if isinstance(prompt, dict) else prompt
    return ObliqTask(
        name=short or "other",
        mechanism="descriptive",
        attribute="relevance to the query",
        instruction=" ".join(str(words or "Given a query, retrieve relevant documents").split()),
        lens="descriptive",
        exclusion="none",
        reranking={"reranker": "identity"},
    )


class RetrieveAndRerank:
    """A retriever, then the reranker that a policy names for the task.

    Args:
        model: A SentenceTransformer, an mteb encoder, an mteb search model, or a checkpoint's
            folder or name.
        policy: A policy or its file; settings or a reranker for all tasks; a CrossEncoder of
            sentence-transformers; None does what each task's own file says.
        llm: The language model, where the policy asks one.
        tasks: Descriptions of tasks that are not built in: names, files or tasks.
        depth: Candidates that a reranker given as such is shown.
        asking: Budgets of texts, temperature, thinking; None asks as the policy was chosen.
        seed: Seed of shuffles; None takes the policy's, and 0 without one.
        second: A search model to fuse with in a pre-selection by fusion; BM25 by default.
        vectors: A folder that keeps document vectors between evaluations.
        name: The name in results.
        progress: Show a bar with calls, tokens and rate.

    Raises:
        ObliqError: A model or a policy of another kind, or a policy file that is not valid.
    """

    strict_order = True

    def __init__(
        self,
        model: Any,
        policy: Any = None,
        *,
        llm: ChatClient | None = None,
        tasks: Sequence[str | Path | ObliqTask] = (),
        depth: int = 100,
        asking: Asking | None = None,
        seed: int | None = None,
        second: SearchProtocol | None = None,
        vectors: str | Path | None = None,
        name: str | None = None,
        progress: bool = False,
    ) -> None:
        self.retriever = _retriever(model)
        self.policy = _policy(policy)
        self.llm = llm
        self.tasks = load_tasks(tasks)
        self.depth = depth
        chosen = self.policy if isinstance(self.policy, Policy) else Policy({})
        self.asking, self.seed = chosen.asked(asking, seed, client=llm)
        self.second = second
        self.vectors = None if vectors is None else Path(vectors)
        self.name = name
        self.progress = progress
        self.reranked: Reranked | None = None
        self._task: ObliqTask | None = None
        self._first: OrderedSearch | None = None
        self._second: OrderedSearch | None = None
        self._second_name = "run"
        self._corpus: Any = None
        self._row: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    # -- what it is

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Named after the retriever and the policy, with a revision over all that decides."""
        inner = self.retriever.mteb_model_meta
        label, content = self._described()
        other = None if self.second is None else self.second.mteb_model_meta
        about = [*map(load_task, builtin_task_names()), *self.tasks]
        revision = content_hash(
            [inner.name, inner.revision],
            content,
            self.asking.identity,
            self.seed,
            None if self.llm is None else self.llm.identity,
            None if other is None else [other.name, other.revision],
            [task.fingerprint for task in about],
        )
        return local_meta(
            self.name or f"{str(inner.name).rsplit('/', 1)[-1]}-{label}",
            revision[:40],
            n_parameters=inner.n_parameters,
            use_instructions=inner.use_instructions,
            training_datasets=inner.training_datasets,
        )

    def _described(self) -> tuple[str, Any]:
        if isinstance(self.policy, Policy):
            return "policy", self.policy.fingerprint
        if isinstance(self.policy, RerankSettings):
            return self.policy.label, self.policy.identity
        if self.policy is not None:
            return self.policy.name.replace(":", "-"), [self.policy.identity, self.depth]
        tasks = [*map(load_task, builtin_task_names()), *self.tasks]
        return "policy", [[task.name, RerankSettings.of_task(task).identity] for task in tasks]

    def _settings(self, task: ObliqTask) -> RerankSettings | None:
        """The settings for a task; None where a reranker was given."""
        if self.policy is None:
            return RerankSettings.of_task(task)
        if isinstance(self.policy, Policy):
            return self.policy.settings(task.name)
        return self.policy if isinstance(self.policy, RerankSettings) else None

    def costs(self) -> dict[str, Any]:
        """Seconds by phase; calls, tokens and malformed answers of the reranking."""
        first = dict(self._first.costs) if self._first is not None else {}
        seconds = {**first.pop("seconds", {}), **self._seconds}
        done = {} if self.reranked is None else {"reranking": self.reranked.costs()}
        return {"seconds": seconds, **first, **done}

    # -- mteb's search protocol

    def index(self, corpus: Any, *, task_metadata: Any, **kwargs: Any) -> None:
        """Index the corpus with the retriever.

        Raises:
            ObliqError: The policy lacks the task, or asks a language model and none was given;
                said before anything is encoded.
        """
        self._task = described_task(task_metadata, self.tasks)
        settings = self._settings(self._task)
        asks = settings.asks if settings is not None else self._given().asks
        if asks and self.llm is None:
            what = settings.label if settings is not None else self._given().name
            raise ObliqError(
                f"task {self._task.name!r} is reranked by {what!r}, which asks a language model: "
                "give llm="
            )
        self._corpus = corpus
        self._row = {document: i for i, document in enumerate(corpus["id"])}
        self._first = self._search(self.retriever, task_metadata)
        self._first.index(corpus, task_metadata=task_metadata, **kwargs)
        self._second = None
        if settings is not None and settings.preselect == "fusion":
            second = self.second
            if second is None:
                from eval_mteb.baselines.bm25 import BM25Search

                second = BM25Search()
            self._second_name = str(second.mteb_model_meta.name)
            self._second = self._search(second, task_metadata)
            self._second.index(corpus, task_metadata=task_metadata, **kwargs)

    def _search(self, model: Any, metadata: Any) -> OrderedSearch:
        names = () if self._task is None else self._task.prompt_names
        if isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol):
            return OrderedSearch(EncoderSearch(model, prompt_names=names, vectors=self.vectors))
        log_prompts(model, names, metadata)
        return OrderedSearch(with_task_prompt(model, names, metadata))

    def _given(self) -> Reranker:
        assert isinstance(self.policy, Reranker)
        return self.policy

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """Retrieve, then rerank the first documents of every query."""
        if self._first is None or self._task is None:
            raise ObliqError("index a corpus before searching it")
        settings = self._settings(self._task)
        depth = self.depth if settings is None else settings.pool_depth
        excluded: Mapping[str, list[str]] = getattr(top_ranked, "excluded", None) or {}
        texts = dict(zip(queries["id"], queries["text"], strict=True))
        wanted = {"top_k": max(top_k, depth), "top_ranked": top_ranked, **kwargs}
        found = self._first.search(queries, **wanted)
        first = {
            query: _without(ranked, excluded.get(query, ())) for query, ranked in found.items()
        }
        second = None
        if self._second is not None:
            second = self._second.search(queries, **{**wanted, "top_k": depth})
        reranker = (
            self._given()
            if settings is None
            else build_reranker(
                settings,
                asking=self.asking,
                seed=self.seed,
                second=second,
                second_name=self._second_name,
            )
        )
        start = time.perf_counter()
        self.reranked = rerank(
            reranker,
            pools_from_run(first, texts, self._texts_of(first, depth).__getitem__, depth=depth),
            self._task,
            client=self.llm,
            progress=f"rerank {self._task.name}" if self.progress else None,
            total=len(texts),
        )
        self._seconds["rerank"] = time.perf_counter() - start
        self.reranked.check_budget()
        if self.reranked.failed:
            logger.warning(
                "%s: %d of %d queries keep the first stage's order, for nothing usable was "
                "answered: %s",
                *(self._task.name, len(self.reranked.failed), len(texts)),
                ", ".join(self.reranked.failed[:5]),
            )
        return reranked_run(first, self.reranked.orders, top_k=top_k)

    def _texts_of(self, run: Mapping[str, Mapping[str, float]], depth: int) -> dict[str, str]:
        """Id -> text of the documents that are candidates of any query."""
        needed = {document for found in run.values() for document in list(found)[:depth]}
        ids = sorted(needed, key=self._row.__getitem__)
        rows = self._corpus.select([self._row[document] for document in ids])
        return dict(zip(ids, document_texts(rows), strict=True))


def _without(ranked: Mapping[str, float], hidden: Sequence[str]) -> dict[str, float]:
    barred = set(hidden)
    return {document: score for document, score in ranked.items() if document not in barred}


def _retriever(model: Any) -> Any:
    if isinstance(model, str | Path):
        return load_model(model)
    if isinstance(model, RetrieveAndRerank):
        raise ObliqError("a pipeline cannot be the first stage of another")
    if isinstance(model, EncoderProtocol | SearchProtocol):
        return model
    from sentence_transformers import SentenceTransformer

    if isinstance(model, SentenceTransformer):
        card = getattr(model, "model_card_data", None)
        return wrap_encoder(model, name=getattr(card, "model_name", None) or "model")
    raise ObliqError(
        f"a {type(model).__name__} cannot retrieve: give a SentenceTransformer, an mteb encoder or "
        "search model, or a checkpoint's folder or name"
    )


def _policy(policy: Any) -> Policy | RerankSettings | Reranker | None:
    if policy is None or isinstance(policy, Policy | RerankSettings):
        return policy
    if isinstance(policy, str | Path):
        return load_policy(policy)
    if isinstance(policy, Reranker):
        return policy
    if hasattr(policy, "predict"):
        return CrossEncoderReranker(policy)
    raise ObliqError(
        f"a {type(policy).__name__} is no policy: give a policy or its file, rerank settings, a "
        "reranker or a cross-encoder"
    )

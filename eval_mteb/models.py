"""Encoders for the harness, named by their content so that no two can share a result."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mteb.abstasks.task_metadata import TaskType
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from mteb.types import PromptType

from eval_mteb.registry import known_model, known_task
from obliq_hf.encoder.fingerprint import model_fingerprint
from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from obliq_hf.tasks import ObliqTask

__all__ = [
    "default_name",
    "load_encoder",
    "load_model",
    "local_meta",
    "understood",
    "wrap_encoder",
]

_IN_A_RUN = ("model", "adapter")
"""Folders of a checkpoint in the folder of the run that made it."""


def local_meta(name: str, revision: str, **fields: Any) -> ModelMeta:
    """Metadata of a model that is on no hub, under a name that says so.

    Args:
        name: A short name; it becomes ``local/<name>``.
        revision: From the model's content.
        fields: Further fields of :class:`mteb.models.model_meta.ModelMeta`.

    Returns:
        The metadata.
    """
    if "/" not in name:
        cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
        name = f"local/{cleaned}"
    return ModelMeta.create_empty(overwrites={"name": name, "revision": revision, **fields})


def understood(key: str) -> bool:
    """Whether mteb takes a prompt's key: a task, a type of task or a type of prompt."""
    kinds = [kind.value for kind in PromptType]
    base = key.rsplit("-", 1)[0] if key.endswith(tuple(f"-{kind}" for kind in kinds)) else key
    return known_task(base) is not None or base in kinds or base in get_args(TaskType)


def wrap_encoder(
    model: SentenceTransformer,
    *,
    name: str,
    revision: str | None = None,
    training_datasets: set[str] | None = None,
    adapted_from: str | None = None,
    known: ModelMeta | None = None,
) -> SentenceTransformerEncoderWrapper:
    """A SentenceTransformer as mteb's wrapper, with metadata from its content.

    Args:
        model: The model; its prompts are used as mteb uses them.
        name: ``organisation/name``, or a short name for a local checkpoint.
        revision: The hub revision; by default from content: weights, settings and prompts.
        training_datasets: mteb names of the tasks it was trained on, where known.
        adapted_from: Hub name of the model it was trained from, where known.
        known: What mteb knows of a model of this name, such as its training data; it stays, but
            for the revision and what can be read off the model.

    Returns:
        The wrapper. Its ``vector_fingerprint`` names what decides the vectors of texts without a
        prompt, and its ``include_prompt`` is the setting that decides those of others as well.
    """
    fingerprint = content_hash(model_fingerprint(model, include_prompt=False), model.max_seq_length)
    prompts = dict(model.prompts)
    # mteb warns once for each prompt that names no task of its own; ours carry short names too,
    # so the wrapper is made without prompts and given the ones that mteb understands.
    model.prompts = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # mteb calls a renamed method
            wrapper = SentenceTransformerEncoderWrapper(model)
    finally:
        model.prompts = prompts
    wrapper.model_prompts = {
        key: prompt for key, prompt in prompts.items() if prompt is not None and understood(key)
    }
    include = [getattr(module, "include_prompt", None) for module in model]
    described = wrapper.mteb_model_meta
    revision = revision or content_hash(fingerprint, prompts, include)[:40]
    read = {
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "embed_dim": model.get_embedding_dimension(),
        "max_tokens": model.max_seq_length,
        "similarity_fn_name": described.similarity_fn_name or ScoringFunction.COSINE,
        "use_instructions": any(prompts.values()),
    }
    if known is not None:
        meta = known.model_copy(update={"name": name, "revision": revision, **read})
    else:
        meta = local_meta(
            name,
            revision,
            loader=described.loader,
            framework=["Sentence Transformers", "PyTorch"],
            modalities=["text"],
            training_datasets=training_datasets,
            adapted_from=adapted_from,
            **read,
        )
    wrapper.mteb_model_meta = meta
    wrapper.vector_fingerprint = fingerprint  # type: ignore[attr-defined]
    wrapper.include_prompt = include  # type: ignore[attr-defined]
    return wrapper


def _training(model: Path) -> dict[str, Any]:
    """What the ``training.json`` beside a checkpoint's folder says it was made of."""
    folder = model.resolve()
    facts = folder.parent / "training.json"
    if folder.name not in _IN_A_RUN or not facts.is_file():
        return {}
    value = read_json(facts)
    names = value.get("mteb_tasks")
    return {
        "training_datasets": None if names is None else set(names),
        "adapted_from": value.get("base", {}).get("id"),
    }


def load_encoder(
    path_or_name: str | Path,
    *,
    tasks: Sequence[ObliqTask] = (),
    name: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    max_length: int | None = None,
    prompts: Mapping[str, str] | None = None,
    template: str | None = None,
    include_prompt: bool | None = None,
) -> SentenceTransformerEncoderWrapper:
    """Load a dense encoder for :func:`mteb.evaluate` with a name that its content gives it.

    Args:
        path_or_name: The folder of a checkpoint or an adapter, a hub name, or ``embedded``. An
            adapter is loaded on the base it records.
        tasks: Tasks whose prompts the model is given, for a base that has none of its own.
        name: The name in results; by default the folder's or the hub's.
        revision: A hub revision.
        device: The device.
        max_length: Longest input in tokens, where it is not the model's own.
        prompts: Prompts that replace the model's; ``{}`` for none at all.
        template: The prompt template for ``tasks``.
        include_prompt: Whether pooling counts the prompt's tokens, where it is not the model's own.

    Returns:
        mteb's wrapper around a SentenceTransformer.

    Raises:
        ObliqError: Nothing is there; an adapter's base is not to be had, or has other weights than
            the one trained on; or ``prompts`` and ``tasks`` are both given.
    """
    from obliq_hf.encoder.sources import locate, refuse_pickle
    from obliq_hf.prompts import prompts_for

    if prompts is not None and tasks:
        raise ObliqError("give prompts or the tasks to make them from, not both")
    source = locate(path_or_name, revision=revision)
    refuse_pickle(source)
    config = source.json("config.json") or {}
    if source.file("adapter_config.json") is not None:
        from obliq_hf.encoder import ObliqSentenceTransformer

        # stock libraries know neither a cut or converted base nor the weights it must have
        model: SentenceTransformer = ObliqSentenceTransformer(
            path_or_name, revision=revision, device=device
        )
    elif source.file("modules.json") is not None and config.get("model_type") != "llama_bidirec":
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(source.location, revision=source.revision, device=device)
    else:
        from obliq_hf.encoder import ObliqSentenceTransformer

        # a bare transformer, or one whose own code is replaced by the stock architecture
        model = ObliqSentenceTransformer.from_base(
            path_or_name, tasks=tasks, revision=revision, device=device
        )
    commit = source.commit()
    if max_length is not None:
        model.max_seq_length = max_length
    if include_prompt is not None:
        for module in model:
            if hasattr(module, "include_prompt"):
                module.include_prompt = include_prompt  # type: ignore[assignment]
    if tasks:
        prompts = prompts_for(tasks, template or "instruct")
    if prompts is not None:
        model.prompts = {"query": "", "document": "", **prompts}
    changed = prompts is not None or max_length is not None or include_prompt is not None
    return wrap_encoder(
        model,
        name=name or source.id or default_name(source.location),
        revision=None if changed else commit,
        known=known_model(source.id) if source.id is not None and name is None else None,
        **(_training(Path(source.location)) if source.local else {}),
    )


def default_name(location: str | Path) -> str:
    """A checkpoint folder's name, or its parent's where that is just ``model``."""
    folder = Path(location).resolve()
    return folder.parent.name if folder.name in _IN_A_RUN else folder.name


def load_model(path_or_name: str | Path, **settings: Any) -> Any:
    """Load a dense or a late-interaction encoder, whichever the checkpoint says it is.

    Args:
        path_or_name: A checkpoint's folder, a hub name, or ``embedded``.
        settings: Those of :func:`load_encoder`; a late-interaction model takes ``name``,
            ``revision``, ``device``, ``prompts`` and ``max_length`` of them.

    Returns:
        An mteb model.
    """
    from eval_mteb.baselines.late_interaction import is_late_interaction, load_late_interaction
    from obliq_hf.encoder.sources import locate
    from obliq_hf.prompts import prompts_for

    if not is_late_interaction(locate(path_or_name, revision=settings.get("revision"))):
        return load_encoder(path_or_name, **settings)
    if settings.get("tasks"):
        settings["prompts"] = prompts_for(settings["tasks"], settings["template"] or "instruct")
    taken = ("name", "revision", "device", "prompts", "max_length")
    return load_late_interaction(path_or_name, **{k: settings.get(k) for k in taken})

"""What publishing a recipe's result will need, checked before it trains."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_cards.facts import RunFacts
    from model_cards.publishing import PublishOptions
    from obliq_hf.encoder.sources import ModelSource
    from obliq_hf.hub import Repository
    from obliq_hf.hub.model_files import BaseModel
    from training_recipes.recipe import Recipe

__all__ = ["check_publishing", "publish_options", "recipe_words"]

_WORDS = {
    "leave --private out": "set hub.private to false",
    "--create-pr": "'obliq publish model --create-pr'",
    "--replace-card": "'obliq publish model --replace-card'",
    "--base ": "hub.base: ",
    "--to folder:": "hub.to: folder:",
    "--to ": "hub.to ",
    "--licence": "hub.licence",
    "--corpus-repo": "hub.corpus_repo_id",
}
"""What the command line calls a thing -> what a recipe calls it."""


@contextlib.contextmanager
def recipe_words(key: str | None = None) -> Iterator[None]:
    """Let errors of publishing name keys of the recipe, where they name options of a command.

    Args:
        key: The key whose value is looked at.
    """
    try:
        yield
    except ObliqError as error:
        text = re.sub("|".join(map(re.escape, _WORDS)), lambda found: _WORDS[found[0]], str(error))
        raise type(error)(f"{key}: {text}" if key else text) from error


def publish_options(recipe: Recipe, message: str | None = None) -> PublishOptions:
    """How a recipe publishes.

    Args:
        recipe: The recipe.
        message: Of a commit in the middle of the training, which gets no version.
    """
    from model_cards.publishing import PublishOptions

    hub = recipe.hub
    return PublishOptions(
        to=hub.to,
        private=hub.private or None,
        licence=hub.licence,
        version=None if message else hub.version,
        message=message,
        tagged=message is None,
    )


def check_publishing(recipe: Recipe) -> None:
    """Check before a run all that publishing its result will need.

    Raises:
        ObliqError: A key of ``hub`` is missing, malformed or contradicts another or the training;
            the licence may not be as it is; or a repository does not take the checkpoint.
    """
    if not recipe.hub.push_to_hub:
        return
    named = _check_values(recipe)
    with recipe_words():
        base = _check_base(recipe, named)
        _check_licence(recipe, base)
        _check_repositories(recipe)


def _check_values(recipe: Recipe) -> BaseModel | None:
    """Parse every key of ``hub``; returns the base that it names."""
    from model_cards.licences import parse_licence
    from model_cards.results import EvaluatedOn
    from obliq_hf.hub.model_files import BaseModel
    from obliq_hf.hub.names import Destination, check_repo_id, check_tag

    hub = recipe.hub
    if hub.repo_id is None:
        raise ObliqError("hub.repo_id: hub.push_to_hub is on; name the repository to publish to")
    with recipe_words("hub.repo_id"):
        check_repo_id(hub.repo_id)
    if hub.adapter_repo_id is not None:
        with recipe_words("hub.adapter_repo_id"):
            check_repo_id(hub.adapter_repo_id)
        if recipe.training.lora is None:
            raise ObliqError(
                "hub.adapter_repo_id: training.lora is null, so there will be no adapter; set one "
                "of the two"
            )
        if hub.adapter_repo_id == hub.repo_id:
            raise ObliqError(
                "hub.adapter_repo_id: the adapter needs a repository of its own, not "
                f"{hub.repo_id!r}, which is hub.repo_id"
            )
    with recipe_words():
        Destination.parse(hub.to)
    if hub.version is not None:
        with recipe_words("hub.version"):
            check_tag(hub.version)
    if hub.licence is not None:
        with recipe_words("hub.licence"):
            parse_licence(hub.licence)
    if hub.corpus_repo_id is not None:
        with recipe_words("hub.corpus_repo_id"):
            EvaluatedOn.parse(hub.corpus_repo_id)
    if hub.base is None:
        return None
    with recipe_words("hub.base"):
        return BaseModel.parse(hub.base)


def _check_base(recipe: Recipe, named: BaseModel | None) -> BaseModel:
    """The base as a repository; for an adapter with its commit, and as stock libraries load it."""
    from model_cards.publishing import packaged_commit
    from obliq_hf.encoder.sources import locate
    from obliq_hf.hub.model_files import BaseModel

    training = recipe.training
    source = locate(training.base, revision=training.revision)
    name = named.id if named is not None else source.id
    if name is None:
        raise ObliqError(
            f"hub.base: training.base {training.base} is a folder of this machine, which nobody "
            "else can load or judge; name the base on the Hub, organisation/name@commit"
        )
    revision = named.revision if named is not None else None
    if recipe.hub.adapter_repo_id is None:
        return BaseModel(name, revision or training.revision)
    if training.layers is not None or _is_converted(source):
        raise ObliqError(
            "hub.adapter_repo_id: training.layers, or the kind of training.base, has the base cut "
            "or converted, so stock libraries cannot build it from a name; leave this key out, and "
            "the merged model is published"
        )
    if revision is None:
        recorded = source.commit() if source.id == name else None
        revision = recorded or packaged_commit(name, publish_options(recipe))
    if revision is None:
        raise ObliqError(
            f"hub.base: the commit of the base {name} is not known, so the adapter could come to "
            f"sit on other weights; give it, {name}@commit"
        )
    return BaseModel(name, revision)


def _is_converted(source: ModelSource) -> bool:
    """Whether a base is read otherwise than its name alone says: a decoder in both directions."""
    from obliq_hf.encoder.backbone import is_decoder_kind
    from obliq_hf.llama_conversion import MODEL_TYPE

    config: dict[str, Any] = source.json("config.json") or {}
    kind = str(config.get("model_type", ""))
    return kind == MODEL_TYPE or (is_decoder_kind(kind) and bool(config.get("is_causal", True)))


def _check_licence(recipe: Recipe, base: BaseModel) -> None:
    from model_cards.licence_sources import base_licence, checkpoint_licence, data_licences
    from model_cards.licences import parse_licence

    opened = publish_options(recipe).repository
    data, _ = data_licences(_known_data(recipe), (), opened)
    chosen = None if recipe.hub.licence is None else parse_licence(recipe.hub.licence)
    with recipe_words("hub.licence"):
        checkpoint_licence(base, base_licence(base, opened), data, chosen)


def _known_data(recipe: Recipe) -> RunFacts:
    """What can be said of the training data before they are built."""
    from model_cards.facts import RunFacts

    corpus, built = recipe.corpus, Path(recipe.out) / "corpus" / "corpus.json"
    facts = None
    if corpus.source == "classics":
        facts = {"source": {"builder": "classics"}}
    elif built.is_file():
        facts = read_json(built)
    mixture = None
    if recipe.rows.dataset is not None:
        name, _, revision = recipe.rows.dataset.partition("@")
        mixture = {"datasets": [{"source": {"dataset": name, "revision": revision or None}}]}
    return RunFacts(corpus=facts, mixture=mixture)


def _check_repositories(recipe: Recipe) -> None:
    from obliq_hf.hub.model_push import check_target

    hub, options = recipe.hub, publish_options(recipe)
    assert hub.repo_id is not None
    targets: list[tuple[Repository, Literal["model", "adapter"]]] = [
        (options.repository(hub.repo_id, "model"), "model")
    ]
    if hub.adapter_repo_id is not None:
        targets.append((options.repository(hub.adapter_repo_id, "model"), "adapter"))
    for repository, kind in targets:
        check_target(repository, kind, private=options.private)
        if hub.version is not None and not _trained(recipe) and hub.version in repository.tags():
            raise ObliqError(
                f"hub.version: {repository.place} has a version {hub.version!r} already; choose a "
                "new one, or leave it out for one made from the content"
            )


def _trained(recipe: Recipe) -> bool:
    """Whether the run folder holds this recipe's model, which may be the one under the version."""
    out = Path(recipe.out)
    record = out / "training.json"
    return (
        (out / "model").is_dir()
        and record.is_file()
        and read_json(record).get("recipe") == recipe.hash()
    )

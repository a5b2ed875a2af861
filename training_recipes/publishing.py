"""Publishing while and after a recipe trains: whole models, each with our card."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from training_recipes.publishing_checks import check_publishing, publish_options, recipe_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obliq_hf.hub import Pushed
    from training_recipes.recipe import Recipe

__all__ = [
    "CheckpointPublisher",
    "PublishesWholeModels",
    "check_publishing",
    "checkpoint_publisher",
    "publish_run",
]

logger = logging.getLogger(__name__)


class PublishesWholeModels:
    """For a trainer: what it pushes is a whole model that loads by itself, with our card.

    The stock trainer pushes single weight files out of a checkpoint, a card with training texts
    and its arguments as a pickle with the token in it.

    Attributes:
        publish: Publishes a model under a commit message; by default to the repository that the
            training arguments name.
    """

    publish: Callable[[Any, str], Pushed] | None = None

    def _whole_model(self) -> Any:
        trainer: Any = self
        model = trainer.accelerator.unwrap_model(trainer.model)
        return model.merged() if model.has_adapter else model

    def init_hf_repo(self, token: str | None = None) -> None:
        """Check the repository's name; it is made by the first push."""
        from obliq_hf.hub.names import check_repo_id

        trainer: Any = self
        args = trainer.args
        trainer.hub_model_id = args.hub_model_id and check_repo_id(args.hub_model_id)
        trainer.push_in_progress = None
        self._token = token or args.hub_token
        args.hub_token = None  # the arguments are saved; a token never is

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **_: Any,
    ) -> str | None:
        """Publish the model as it is now; adapters are merged.

        Args:
            commit_message: First line of the commit message.
            blocking: Accepted; the push is over when this returns.
            token: The Hub's token; by default that of the arguments or the environment.
            revision: The branch.

        Returns:
            The address of the commit, on the process that pushes.

        Raises:
            ObliqError: The repository refuses or the model cannot be published.
        """
        from obliq_hf.encoder.publishing import push_encoder

        trainer: Any = self
        if not trainer.is_world_process_zero():
            return None
        message = commit_message or "End of training"
        if self.publish is not None:
            return self.publish(self._whole_model(), message).url
        if getattr(trainer, "hub_model_id", None) is None:
            self.init_hf_repo(token)
        if trainer.hub_model_id is None:
            raise ObliqError("hub_model_id of the training arguments must name the repository")
        return push_encoder(
            self._whole_model(),
            trainer.hub_model_id,
            token=token or getattr(self, "_token", None),
            private=trainer.args.hub_private_repo or None,
            branch=revision or trainer.args.hub_revision,
            message=message,
        ).url

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Publish at a checkpoint, where the strategy says so; a failure is only told."""
        trainer: Any = self
        if str(getattr(trainer.args.hub_strategy, "value", trainer.args.hub_strategy)) == "end":
            return
        try:
            self.push_to_hub(f"Training in progress, step {trainer.state.global_step}")
        except ObliqError as error:
            logger.warning("checkpoint %s was not published: %s", checkpoint_folder, error)


class CheckpointPublisher:
    """Publishes models in the middle of a recipe's training, without results.

    Args:
        recipe: The recipe.
        training: What ``training.json`` will say, as far as it is known.
    """

    def __init__(self, recipe: Recipe, training: Mapping[str, Any]) -> None:
        self.recipe = recipe
        self.training = dict(training)

    def __call__(self, model: Any, message: str) -> Pushed:
        """Publish a model."""
        from model_cards.facts import gather
        from model_cards.publishing import publish_model

        hub = self.recipe.hub
        assert hub.repo_id is not None
        known = gather(self.recipe.out)
        facts = replace(known, training=self.training, report=None)
        with recipe_words(), tempfile.TemporaryDirectory(prefix="obliq-publish-") as scratch:
            place = Path(scratch) / "model"
            model.save(place)
            done = publish_model(
                place,
                hub.repo_id,
                publish_options(self.recipe, message),
                facts=facts,
                base=hub.base,
            )
        return done[0]


def checkpoint_publisher(recipe: Recipe) -> Callable[[dict[str, Any]], CheckpointPublisher] | None:
    """What makes the publisher of a recipe's checkpoints, or None where they stay here."""
    hub = recipe.hub
    if not hub.push_to_hub or hub.hub_strategy != "every_save":
        return None
    return lambda training: CheckpointPublisher(recipe, training)


def publish_run(recipe: Recipe, *, results: bool = True) -> list[Pushed]:
    """Publish a finished run's model, and its adapter where a name is given.

    Args:
        recipe: The recipe.
        results: Whether the scores in the run folder are this model's.

    Returns:
        What was done; nothing where the recipe does not ask for it.

    Raises:
        ObliqError: See :func:`model_cards.publishing.publish_model`.
    """
    hub = recipe.hub
    if not hub.push_to_hub or hub.repo_id is None:
        return []
    from model_cards.facts import gather
    from model_cards.publishing import publish_model

    facts = gather(recipe.out)
    with recipe_words():
        return publish_model(
            Path(recipe.out) / "model",
            hub.repo_id,
            publish_options(recipe),
            facts=facts if results else replace(facts, report=None),
            adapter_repo=hub.adapter_repo_id,
            base=hub.base,
            corpus_repo=hub.corpus_repo_id,
        )

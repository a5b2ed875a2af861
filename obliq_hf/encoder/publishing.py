"""How an encoder is pushed: as a whole that loads by itself, with a card without training texts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obliq_hf.hub import Pushed

__all__ = ["PublishesItself", "push_encoder"]


class PublishesItself:
    """Replaces the stock card and push of a :class:`SentenceTransformer`.

    Attributes:
        card: The finished card; None for a short one made from the prompts and the base.
    """

    card: str | None = None

    def card_text(self, name: str) -> str:
        """The card as it is saved and pushed.

        Args:
            name: The repository or folder, for the card made where there is no other.
        """
        from obliq_hf.hub.plain_card import is_own_card, plain_card

        if self.card is not None:
            return self.card
        loaded = getattr(self, "_model_card_text", None)
        if loaded and is_own_card(loaded):
            return str(loaded)
        model: Any = self
        return plain_card(
            name,
            model.prompts,
            base=model.base.id,
            revision=model.base.revision,
            adapter=model.has_adapter,
        )

    def _create_model_card(
        self, path: str, model_name: str | None = None, train_datasets: Any = None
    ) -> None:
        from obliq_hf.files import write_text

        write_text(Path(path) / "README.md", self.card_text(model_name or "this-model"))

    def push_to_hub(
        self,
        repo_id: str,
        token: str | None = None,
        private: bool | None = None,
        safe_serialization: bool = True,
        commit_message: str | None = None,
        local_model_path: str | None = None,
        exist_ok: bool = False,
        replace_model_card: bool = False,
        train_datasets: list[str] | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        *,
        base: str | None = None,
        version: str | None = None,
    ) -> str:
        """Publish the model (with adapters those alone) in one commit, with its card.

        Args:
            repo_id: ``organisation/name``.
            token: The Hub's token; by default that of the environment.
            private: Make a new repository private; refuse one that is public.
            safe_serialization: Must be True: pickled weights are not published.
            commit_message: First line of the commit message.
            local_model_path: Publish this saved model instead.
            exist_ok: Whether the repository may be there already.
            replace_model_card: Write the card's text anew although it was edited by hand.
            train_datasets: Accepted and left out: a card tells of data through its run.
            revision: The branch; made where it is missing.
            create_pr: Open a pull request instead of committing.
            base: ``organisation/name@commit`` of the base, where it is not recorded.
            version: The version tag; by default one made from the content.

        Returns:
            The address of the commit or pull request.

        Raises:
            ObliqError: The repository refuses, the model would not load by itself, or its base
                is a folder of this machine.
        """
        from obliq_hf.errors import ObliqError

        if not safe_serialization:
            raise ObliqError("pickled weights are not published; leave safe_serialization on")
        pushed = push_encoder(
            self,
            repo_id,
            folder=local_model_path,
            token=token,
            private=private,
            message=commit_message,
            exist_ok=exist_ok or create_pr,
            replace_card=replace_model_card,
            branch=revision,
            create_pr=create_pr,
            base=base,
            version=version,
        )
        return pushed.url


def push_encoder(
    model: Any,
    repo_id: str,
    *,
    to: str = "hub",
    folder: str | Path | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    private: bool | None = None,
    message: str | None = None,
    exist_ok: bool = True,
    replace_card: bool = False,
    branch: str | None = None,
    create_pr: bool = False,
    base: str | None = None,
    version: str | None = None,
) -> Pushed:
    """Publish an encoder in memory; see :meth:`PublishesItself.push_to_hub`.

    Args:
        model: An :class:`~obliq_hf.encoder.ObliqSentenceTransformer`.
        repo_id: ``organisation/name``.
        to: ``hub`` or ``folder:PATH``.
        folder: A saved model to publish instead.
        token: The Hub's token.
        endpoint: The Hub's address.
        private: Make a new repository private.
        message: First line of the commit message.
        exist_ok: Whether the repository may be there already.
        replace_card: Write the card's text anew although it was edited.
        branch: The branch.
        create_pr: Open a pull request.
        base: The base, where it is not recorded.
        version: The version tag.
    """
    from obliq_hf.hub import HubError, open_repository
    from obliq_hf.hub.model_files import BaseModel, collect_model
    from obliq_hf.hub.model_push import push_model

    repository = open_repository(
        repo_id, "model", to=to, token=token, endpoint=endpoint, branch=branch
    )
    repository.check_access(create_pr=create_pr)
    if not exist_ok and repository.snapshot() is not None:
        raise HubError(f"{repository.place} is there already; say exist_ok=True to add to it")
    known = BaseModel.parse(base) if base else None
    with tempfile.TemporaryDirectory(prefix="obliq-publish-") as scratch:
        place = Path(folder) if folder is not None else Path(scratch) / "model"
        if folder is None:
            model.save(place)
        return push_model(
            collect_model(place, base=known),
            repository,
            card=model.card_text(repo_id),
            version=version,
            private=private,
            create_pr=create_pr,
            replace_card=replace_card,
            message=message,
        )

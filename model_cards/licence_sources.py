"""Where the licences of a checkpoint's base and data are read: cards, and the run's own record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from model_cards.licences import PUBLIC_DOMAIN, Licence, carried_over, licence_of
from obliq_hf.errors import ObliqError
from obliq_hf.hub.card_header import CardHeader, split_card
from obliq_hf.hub.push import read_text
from obliq_hf.hub.repository import HubError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from model_cards.facts import RunFacts
    from obliq_hf.hub.model_files import BaseModel
    from obliq_hf.hub.names import RepoType
    from obliq_hf.hub.repository import Repository

    Opener = Callable[[str, RepoType], Repository]

__all__ = ["base_licence", "checkpoint_licence", "corpus_licence", "data_licences"]


def corpus_licence(corpus: Mapping[str, Any] | None) -> Licence | None:
    """The licence that ``corpus.json`` states of its texts, or None."""
    source = (corpus or {}).get("source") or {}
    stated = licence_of(source)
    if stated is None and source.get("builder") == "classics":
        return PUBLIC_DOMAIN
    return stated


def _card_licence(repository: Repository, revision: str | None) -> Licence | None:
    """The licence in a repository's card; None where there is no card, or none to be had."""
    try:
        text = read_text(repository, "README.md", repository.snapshot(revision))
        if text is None:
            return None
        where = f"{repository.place}: README.md"
        return licence_of(CardHeader(split_card(text)[1], where).data)
    except HubError:
        return None


def base_licence(base: BaseModel | None, opened: Opener) -> Licence | None:
    """The licence in the card of a base: of the packaged model, or of its repository.

    Args:
        base: The base; None where there is none.
        opened: Gives the repository of a name.
    """
    from obliq_hf.encoder.sources import EMBEDDED_ID, embedded_model_path

    if base is None:
        return None
    if base.id == EMBEDDED_ID:
        text = (embedded_model_path() / "README.md").read_text(encoding="utf-8")
        return licence_of(CardHeader(split_card(text)[1], f"card of {base.id}").data)
    return _card_licence(opened(base.id, "model"), base.revision)


def data_licences(
    facts: RunFacts, datasets: Iterable[str], opened: Opener
) -> tuple[list[Licence], list[str]]:
    """The licences of what a checkpoint was trained on.

    Args:
        facts: What is known of its run: the corpus, and datasets that its rows are from.
        datasets: Names (``organisation/name@revision``) of further published training data.
        opened: Gives the repository of a name.

    Returns:
        The licences found, and the names of datasets whose licence could not be read.
    """
    corpus = corpus_licence(facts.corpus)
    found = [] if corpus is None else [corpus]
    unread = []
    sources = [entry.get("source") or {} for entry in (facts.mixture or {}).get("datasets") or []]
    named = [
        f"{source['dataset']}@{source.get('revision') or ''}"
        for source in sources
        if isinstance(source.get("dataset"), str)
    ]
    for name in dict.fromkeys([*datasets, *named]):
        repo_id, _, revision = name.partition("@")
        licence = _card_licence(opened(repo_id, "dataset"), revision or None)
        if licence is None:
            unread.append(repo_id)
        else:
            found.append(licence)
    return found, unread


def checkpoint_licence(
    base: BaseModel | None,
    licence: Licence | None,
    data: Sequence[Licence],
    chosen: Licence | None,
) -> Licence:
    """The licence of a checkpoint.

    Args:
        base: What it was trained from.
        licence: The base's licence; None where it is not known.
        data: The licences of the training data.
        chosen: The one a person wants.

    Raises:
        ObliqError: The base's is not known and none was chosen, or the one chosen restricts less
            than base and data allow.
    """
    if base is not None and licence is None and chosen is None:
        raise ObliqError(
            f"the licence of the base {base.id} is not known here; say which licence the "
            "checkpoint has with --licence (it may not allow more than the base's)"
        )
    return carried_over(licence, data, chosen)

"""Joining a finished card with the one that a repository has already.

The header is merged key by key. The text belongs to whoever wrote it last: a checksum in its last
line tells whether it still is what a push wrote, and only then does a push renew it. A text that a
person has touched, or written, is kept byte for byte.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obliq_hf.hub.card_header import CardHeader, split_card
from obliq_hf.hub.repository import HubError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["HeaderItem", "MergedCard", "merge_card", "published_header", "published_items"]

_CHECKSUM = re.compile(r"\n<!-- obliq: renewed by each push unless edited; ([0-9a-f]{16}) -->\n\Z")
_PART = re.compile(r"<!-- obliq: part (\S+) -->\n")


@dataclass(frozen=True)
class HeaderItem:
    """One item of a list in the header, such as a config; ``same`` finds its older form."""

    key: str
    item: dict[str, Any]
    same: Callable[[Any], bool]


@dataclass(frozen=True)
class MergedCard:
    """The card to write, and what a person should know about it."""

    text: str
    notes: list[str]


def _sealed(body: str) -> str:
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    return f"{body}\n<!-- obliq: renewed by each push unless edited; {digest} -->\n"


def _parts(body: str) -> dict[str, str] | None:
    """The parts of a text that a push wrote and nobody has touched, else None."""
    match = _CHECKSUM.search(body)
    if match is None:
        return None
    text = body[: match.start()]
    if hashlib.sha256(text.encode()).hexdigest()[:16] != match[1]:
        return None
    pieces = _PART.split(text)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def merge_card(
    old: str | None,
    new: str,
    *,
    part: str,
    where: str,
    items: Sequence[HeaderItem] = (),
    dropped: Sequence[tuple[str, Callable[[Any], bool]]] = (),
    owned: Sequence[str] = (),
    replace: bool = False,
) -> MergedCard:
    """Merge a finished card into what is published.

    Args:
        old: The README that the repository has, or None.
        new: The finished card: a YAML header and a text.
        part: Name of the text among those that several artefacts in one repository have.
        where: The published card, for messages.
        items: Items of lists in the header that this push owns: its configs, its results.
        dropped: ``(key, same)`` of items to remove from such lists.
        owned: Keys of the header that this push sets whatever stood there; other keys of the
            new card are added only where they are missing, and not to a card edited by hand.
        replace: Write the text anew even where it was edited, and the header's keys. Items of
            lists that others own stay, as far as the published header can be read.

    Returns:
        The merged card. A part that equals the published one changes nothing.

    Raises:
        HubError: The published header is broken YAML, and ``replace`` is off.
    """
    _, new_yaml, _, new_body = split_card(new)
    wanted = CardHeader(new_yaml, "the new card").data
    notes: list[str] = []
    opening, _, closing, old_body = split_card(old or "")
    parts = _parts(old_body) if old_body.strip() else {}
    header = published_header(old, where, broken_is_empty=replace)
    if header is None:
        notes.append(
            f"{where}: its YAML header could not be read; whatever else it named, such as other "
            "configs and results, stands in the card no more"
        )
        opening, closing, header = "", "", CardHeader("", where)
    if replace and parts is None:
        parts = {}
    lists = {"model-index", *(item.key for item in items), *(key for key, _ in dropped)}
    for key, value in wanted.items():
        if key in owned or (replace and key not in lists):
            header.set(key, value)
        elif parts is not None:
            header.add(key, value)
    for key, same in dropped:
        header.drop_item(key, same)
    for item in items:
        header.set_item(item.key, item.item, item.same)
    if parts is None:
        notes.append(f"{where} was edited by hand: its text is kept as it is")
        body = old_body
    else:
        parts[part] = "\n" + new_body.strip("\n") + "\n"
        body = _sealed("".join(f"<!-- obliq: part {name} -->\n{t}" for name, t in parts.items()))
        opening, closing = opening or "---\n", closing or "---\n"
    if not opening and header.text:
        opening, closing = "---\n", "---\n"
    return MergedCard(f"{opening}{header.text}{closing}{body}", notes)


def published_header(
    old: str | None, where: str, *, broken_is_empty: bool = False
) -> CardHeader | None:
    """The header of a published card, an empty one where there is none.

    Args:
        old: The card, or None.
        where: What it is, for messages.
        broken_is_empty: Give None for broken YAML instead of raising.

    Raises:
        HubError: The header is broken YAML.
    """
    try:
        return CardHeader(split_card(old or "")[1], where)
    except HubError:
        if broken_is_empty:
            return None
        raise


def published_items(old: str | None, where: str, key: str) -> list[Mapping[str, Any]]:
    """The items of one list in a published card's header; none where there is no card.

    Raises:
        HubError: The header is broken YAML.
    """
    header = published_header(old, where)
    return [item for item in header.items(key) if isinstance(item, dict)] if header else []

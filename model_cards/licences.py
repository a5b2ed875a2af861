"""Licences of data, base models and what is made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PUBLIC_DOMAIN", "UNKNOWN", "Licence", "carried_over", "licence_of"]

_PERMISSIVE = ("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "bsd", "isc", "zlib", "wtfpl")
_PUBLIC = ("cc0-1.0", "pddl", "unlicense")
_ATTRIBUTION = ("cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "odc-by", "odbl")
_SHARE_ALIKE = (
    "cc-by-sa-3.0", "cc-by-sa-4.0", "gpl", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0",
)  # fmt: skip
_MODEL_TERMS = (
    "openrail", "bigscience-openrail-m", "llama2", "llama3", "llama3.1", "llama3.2", "llama3.3",
    "llama4", "gemma", "apple-amlr", "cdla-permissive-2.0", "deepfloyd-if-license",
)  # fmt: skip
_NO_DERIVATIVES = ("cc-by-nd-4.0",)
_NON_COMMERCIAL = (
    "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0",
    "cc-by-nc-sa-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0",
)  # fmt: skip

_RANKS = {
    name: rank
    for rank, names in enumerate(
        (_PUBLIC, _PERMISSIVE, _ATTRIBUTION, _SHARE_ALIKE, _MODEL_TERMS, _NO_DERIVATIVES,
         _NON_COMMERCIAL)
    )
    for name in names
}  # fmt: skip
_OTHER = 4


@dataclass(frozen=True)
class Licence:
    """A licence as the Hub's metadata states it.

    Attributes:
        id: One of the Hub's identifiers, ``other`` or ``unknown``.
        name: Its name, where the identifier is ``other``.
        link: Where it is written, likewise.
    """

    id: str
    name: str | None = None
    link: str | None = None

    @property
    def rank(self) -> int:
        """How much it restricts; the more, the higher."""
        if self == PUBLIC_DOMAIN:
            return 0
        return _RANKS.get(self.id, _OTHER)

    @property
    def shown(self) -> str:
        """The name for people."""
        return self.name or self.id

    def header(self) -> dict[str, str]:
        """The keys of a card's header."""
        keys = {"license": self.id, "license_name": self.name, "license_link": self.link}
        return {key: value for key, value in keys.items() if value}


PUBLIC_DOMAIN = Licence("other", "public-domain")
UNKNOWN = Licence("unknown")


def licence_of(header: Mapping[str, object]) -> Licence | None:
    """The licence that a card's header states, or None."""
    found = header.get("license")
    if isinstance(found, list):
        found = found[0] if found else None
    if not isinstance(found, str) or found == "unknown":
        return None
    name, link = header.get("license_name"), header.get("license_link")
    return Licence(found.lower(), str(name) if name else None, str(link) if link else None)


def parse_licence(text: str) -> Licence:
    """Read a licence given on the command line: an identifier, or ``other:NAME``.

    Raises:
        ObliqError: No identifier of the Hub's.
    """
    if text in {"public-domain", "other:public-domain"}:
        return PUBLIC_DOMAIN
    if text.startswith("other:") and text != "other:":
        return Licence("other", text.removeprefix("other:"))
    if text.lower() not in _RANKS:
        raise ObliqError(
            f"licence {text!r} is none that the Hub knows{nearest(text, [*_RANKS])} "
            "(or 'public-domain', or 'other:NAME')"
        )
    return Licence(text.lower())


def carried_over(
    base: Licence | None, data: Iterable[Licence], chosen: Licence | None = None
) -> Licence:
    """The licence of a checkpoint: the most restrictive of its base's and its data's.

    Args:
        base: The base model's; None where there is no base.
        data: Those of the training data.
        chosen: The one a person wants.

    Raises:
        ObliqError: The one wanted restricts less than the base or the data allow.
    """
    sources = [*([base] if base is not None else []), *data]
    most = max(sources, key=lambda licence: licence.rank, default=UNKNOWN)
    if chosen is None:
        return most
    if chosen.rank < most.rank and sources:
        of = "the base" if most == base else "the data"
        raise ObliqError(
            f"licence {chosen.shown!r} allows more than that of {of}, {most.shown!r}, which goes "
            "with what is made from it"
        )
    return chosen

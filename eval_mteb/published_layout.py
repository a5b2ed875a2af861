"""The layout in which this project publishes corpora: a card and a configuration per table."""

from __future__ import annotations

from pathlib import Path

import yaml

from obliq_hf.hub.card_header import split_card
from obliq_hf.strict_yaml import load_yaml

__all__ = ["is_published", "published_names"]


def published_names(folder: str | Path) -> list[str]:
    """The tasks that a folder's card declares with a configuration ``<task>-corpus``."""
    card = Path(folder) / "README.md"
    if not card.is_file():
        return []
    _, header, _, _ = split_card(card.read_text(encoding="utf-8"))
    try:
        values = load_yaml(header)
    except yaml.YAMLError:
        return []
    configs = values.get("configs") if isinstance(values, dict) else None
    names = [str(c.get("config_name")) for c in configs or [] if isinstance(c, dict)]
    return [name.removesuffix("-corpus") for name in names if name.endswith("-corpus")]


def is_published(source: str | Path) -> bool:
    """Whether this is a repository, or a folder that is laid out as this project publishes one."""
    return not Path(source).is_dir() or bool(published_names(source))

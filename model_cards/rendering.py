"""Filling the card templates: the environment, its filters, and the header."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Environment

__all__ = ["cell", "header_text", "render"]


def cell(value: Any) -> str:
    """A value inside a Markdown table: one line, with bars and back-ticks that stay text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value).replace("\\", "\\\\").replace("|", "\\|")
    return re.sub(r"\s*[\r\n]+\s*", "⏎", text)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _span(interval: Sequence[float] | None) -> str:
    return "" if not interval else f"[{interval[0]:.3f}, {interval[1]:.3f}]"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def purity_rows(entries: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows of a purity table."""
    return [
        [
            entry.get("k"),
            entry.get("edges"),
            _share(entry.get("purity")),
            _span(entry.get("ci95")),
            _share(entry.get("random_rate")),
            "" if entry.get("lift") is None else f"{entry['lift']:.2f}",
            _span(entry.get("lift_ci95")),
        ]
        for entry in entries
    ]


def audit_rows(columns: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows of an audit table."""
    return [
        [
            column.get("column"),
            _share(column.get("share")),
            _span(column.get("share_ci95")),
            _share(column.get("random_rate")),
            "" if column.get("ratio") is None else f"{column['ratio']:.2f}",
            _span(column.get("ratio_ci95")),
            column.get("note"),
        ]
        for column in columns
    ]


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("model_cards", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.globals |= {"table": table}
    environment.filters |= {"purity_rows": purity_rows, "audit_rows": audit_rows}
    return environment


def header_text(values: Mapping[str, Any]) -> str:
    """A card's header with its fences; empty values are left out."""
    kept = {key: value for key, value in values.items() if value not in (None, "", [], {})}
    return "---\n" + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=1000) + "---\n"


def render(template: str, header: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """A finished card.

    Args:
        template: Name of the template.
        header: The Hub's metadata.
        values: What the template asks for; a missing one is an error.
    """
    body = _environment().get_template(template).render(**values)
    return header_text(header) + re.sub(r"\n{3,}", "\n\n", body).strip("\n") + "\n"

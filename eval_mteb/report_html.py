"""The report as one HTML page that needs nothing else: tables and drawn figures inside it."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from eval_mteb.figures import as_svg
from eval_mteb.report_markdown import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

__all__ = ["html_page"]

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff;
  max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1, h2, h3 { line-height: 1.25; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.3rem; margin-top: 2.2rem; }
h3 { font-size: 1.05rem; margin-top: 1.6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; margin: .6rem 0 1.1rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid #dfe3e8; vertical-align: top; }
th { border-bottom: 2px solid #aab2bd; text-align: left; }
td.n, th.n { text-align: right; white-space: nowrap; }
pre { background: #f4f6f8; padding: .8rem 1rem; overflow-x: auto; font-size: .86rem; }
code { font-family: ui-monospace, monospace; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
"""


def _inline(text: str) -> str:
    """Bold, italics and code of one line; everything else is taken literally."""
    shown = escape(text, quote=False)
    shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", shown)
    shown = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", shown)
    return re.sub(r"(?<![*\w])\*([^*]+)\*(?![*\w])", r"<em>\1</em>", shown)


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    rows = [[cell.strip("| ") for cell in row] for row in rows]
    right = [cell.endswith(":") for cell in rows[1]]
    out = ['<div class="wide"><table>']
    for number, row in enumerate([rows[0], *rows[2:]]):
        tag = "th" if number == 0 else "td"
        cells = "".join(
            f"<{tag}{' class=n' if numeric else ''}>{_inline(cell)}</{tag}>"
            for cell, numeric in zip(row, right, strict=False)
        )
        out.append(f"<tr>{cells}</tr>")
    return "\n".join([*out, "</table></div>"])


def _body(text: str, figures: Mapping[str, str]) -> str:
    """The Markdown that our reports are written in, as HTML."""
    out: list[str] = []
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("```"):
            end = lines.index("```", i + 1)
            out.append(f"<pre><code>{escape(chr(10).join(lines[i + 1 : end]))}</code></pre>")
            i = end
        elif line.startswith("|"):
            end = i
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            out.append(_table(lines[i:end]))
            i = end - 1
        elif match := re.fullmatch(r"!\[(.*)\]\((.*)\)", line):
            name = match.group(2).rsplit("/", 1)[-1].removesuffix(".png")
            out.append(
                f'<figure role="img" aria-label="{escape(match.group(1))}">'
                f"{figures.get(name, '')}</figure>"
            )
        elif match := re.match(r"(#{1,3}) (.*)", line):
            level = len(match.group(1))
            out.append(f"<h{level}>{_inline(match.group(2))}</h{level}>")
        elif line.startswith("- "):
            end = i
            while end < len(lines) and lines[end].startswith("- "):
                end += 1
            items = "".join(f"<li>{_inline(entry[2:])}</li>" for entry in lines[i:end])
            out.append(f"<ul>{items}</ul>")
            i = end - 1
        elif line.strip():
            out.append(f"<p>{_inline(line)}</p>")
        i += 1
    return "\n".join(out)


def html_page(report: dict[str, Any], figures: Mapping[str, Figure]) -> str:
    """The report as a page of its own.

    Args:
        report: From :func:`eval_mteb.report.gather`, with ``figures``.
        figures: Name -> figure, drawn into the page.

    Returns:
        HTML without any reference to another file or address that is loaded.
    """
    drawn = {name: as_svg(figure) for name, figure in figures.items()}
    body = _body(markdown(report), drawn)
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(report["name"])}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )

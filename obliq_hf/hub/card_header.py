"""The YAML header of a card, edited key by key so that everything else keeps its very bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.hub.repository import HubError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CardHeader", "split_card"]

_CARD = re.compile(
    r"\A(\ufeff?\s*---[ \t]*(?:\r\n|\n))(.*?)((?:(?<=\n)|\A)---[ \t]*(?:\r\n|\n|\Z))", re.DOTALL
)


def split_card(text: str) -> tuple[str, str, str, str]:
    """Split a card.

    Args:
        text: The whole README.

    Returns:
        The opening fence, the YAML, the closing fence and the body. Joined again they are the
        text; without a header the first three are empty.
    """
    match = _CARD.match(text)
    if match is None:
        return "", "", "", text
    return match[1], match[2], match[3], text[match.end() :]


class CardHeader:
    """The header of a card.

    Every edit replaces the lines of one key, or of one item of a list, and leaves the others.

    Attributes:
        data: The parsed header.
    """

    def __init__(self, text: str, where: str) -> None:
        """Parse a header.

        Args:
            text: The YAML between the fences.
            where: The card and its revision, for messages.

        Raises:
            HubError: The YAML is broken; line and column are named.
        """
        self.where = where
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.text = text
        self.data: dict[str, Any] = {}
        self._parse()

    def _parse(self) -> None:
        try:
            root = yaml.compose(self.text, Loader=yaml.SafeLoader)
            data = yaml.safe_load(self.text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            at = f" (line {mark.line + 2}, column {mark.column + 1})" if mark else ""
            reason = getattr(error, "problem", None) or "not YAML"
            raise HubError(
                f"{self.where}: its YAML header cannot be read{at}: {reason}. Nothing was "
                "published; mend the header there, or publish with --replace-card to write the "
                "card anew"
            ) from error
        if data is not None and not isinstance(data, dict):
            raise HubError(f"{self.where}: its YAML header is not a mapping of keys to values")
        keys = [key.value for key, _ in root.value] if root is not None else []
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise HubError(f"{self.where}: its YAML header gives {twice[0]!r} twice")
        self.root = root
        self.data = data or {}

    # ---------------------------------------------------------------- keys

    def set(self, key: str, value: Any) -> None:
        """Set one key, in its place or at the end; nothing happens if it has that value."""
        if key in self.data and self.data[key] == value:
            return
        expected = {**self.data, key: value}
        lines = _dump({key: value})
        if key in self.data:
            start, end = self._key_lines(key)
            self._splice(start, end, lines, expected)
        else:
            self._splice(len(self._lines()), len(self._lines()), lines, expected)

    def add(self, key: str, value: Any) -> None:
        """Set one key where it is missing."""
        if key not in self.data:
            self.set(key, value)

    # ---------------------------------------------------------------- items of a list

    def items(self, key: str) -> list[Any]:
        """The items of a list; one mapping in its place counts as a list of one."""
        value = self.data.get(key)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def set_item(self, key: str, item: dict[str, Any], same: Callable[[Any], bool]) -> None:
        """Replace the item of a list for which ``same`` holds, or append it.

        Args:
            key: The key of the list.
            item: The new item.
            same: Says of an item whether it is the one to replace.
        """
        found = [i for i, old in enumerate(self.items(key)) if same(old)]
        if not found:
            self._edit_items(key, {}, [item])
        elif self.items(key)[found[0]] != item or len(found) > 1:
            self._edit_items(key, {found[0]: item} | dict.fromkeys(found[1:]), [])

    def drop_item(self, key: str, same: Callable[[Any], bool]) -> None:
        """Remove the items of a list for which ``same`` holds."""
        found = [i for i, old in enumerate(self.items(key)) if same(old)]
        if found:
            self._edit_items(key, dict.fromkeys(found), [])

    def _edit_items(self, key: str, edits: dict[int, Any], appended: list[Any]) -> None:
        """Replace items by position (None removes one) and append others."""
        old = self.items(key)
        new = [edits.get(i, item) for i, item in enumerate(old) if edits.get(i, item) is not None]
        new += appended
        sequence = self._node(key)
        lines = self._lines()
        plain = isinstance(sequence, yaml.SequenceNode) and not sequence.flow_style
        starts = [node.start_mark.line for node in sequence.value] if plain and sequence else []
        if not new or not starts or any(not lines[s].lstrip().startswith("-") for s in starts):
            self.set(key, new)
            return
        dash = lines[starts[0]].index("-")
        _, end = self._key_lines(key)
        stops = [self._last_content(stop) for stop in [*starts[1:], end]]
        rebuilt: list[str] = []
        position = starts[0]
        for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            rebuilt += lines[position:start]
            if i not in edits:
                rebuilt += lines[start:stop]
            elif edits[i] is not None:
                rebuilt += _dump([edits[i]], indent=dash)
            position = stop
        for item in appended:
            rebuilt += _dump([item], indent=dash)
        self._splice(starts[0], stops[-1], rebuilt, {**self.data, key: new})

    # ---------------------------------------------------------------- lines

    def _lines(self) -> list[str]:
        lines = self.text.split("\n")
        return lines if lines[-1] else lines[:-1]

    def _node(self, key: str) -> yaml.Node | None:
        if self.root is None:
            return None
        return next((value for name, value in self.root.value if name.value == key), None)

    def _key_lines(self, key: str) -> tuple[int, int]:
        names = [name for name, _ in self.root.value] if self.root is not None else []
        starts = [name.start_mark.line for name in names]
        index = [name.value for name in names].index(key)
        after = starts[index + 1] if index + 1 < len(starts) else len(self._lines())
        return starts[index], self._last_content(after)

    def _last_content(self, stop: int) -> int:
        lines = self._lines()
        while stop > 0 and (not lines[stop - 1].strip() or lines[stop - 1].lstrip()[0] == "#"):
            stop -= 1
        return stop

    def _splice(self, start: int, end: int, new: list[str], expected: dict[str, Any]) -> None:
        carriage = "\r" if self.newline == "\r\n" else ""
        lines = self._lines()
        lines[start:end] = [line.rstrip("\r") + carriage for line in new]
        before = self.text
        self.text = "\n".join(lines) + "\n"
        try:
            self._parse()
        except HubError:
            self.data = {}
        if self.data != expected:
            # a header of unusual form: write it anew, with the same meaning
            self.text = before
            self.text = self.newline.join([*_dump(expected), ""])
            self._parse()


def _dump(value: Any, indent: int = 0) -> list[str]:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    if any(mark in text for mark in "\x85\u2028\u2029"):  # YAML reads them as line ends
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=1000)
    return [" " * indent + line if line else line for line in text.removesuffix("\n").split("\n")]

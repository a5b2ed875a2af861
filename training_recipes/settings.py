"""Frozen dataclasses filled from YAML files and command-line words, with every value checked.

The dataclass is the only place where a setting is declared: its annotation gives the type, its
``metadata`` the help text and the bounds (``min``, ``max``, ``above``), and the marks ``path``
(a file or folder, resolved against the place where it was written) and ``hashed=False`` (does
not change what comes out).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

import yaml

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.strict_yaml import load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "about",
    "apply_overrides",
    "build",
    "check",
    "describe",
    "field_of",
    "leaves",
    "read_yaml",
    "to_plain",
]

T = TypeVar("T")
_MISSING = dataclasses.MISSING


def about(help: str, **marks: Any) -> dict[str, Any]:
    """Metadata of one setting, for ``field(metadata=about(...))``.

    Args:
        help: What it does, one line.
        marks: ``min``, ``max``, ``above`` (exclusive minimum), ``path``, ``hashed``.
    """
    return {"help": help, **marks}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ObliqError: The file is missing, not UTF-8, not YAML, repeats a key, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        value = load_yaml(text)
    except FileNotFoundError:
        raise ObliqError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ObliqError(f"{path}: is a folder, not a file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ObliqError(f"{path}: not readable as YAML: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ObliqError(f"{path}: a mapping of settings is needed, not {type(value).__name__}")
    return value


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """``(hint, may be null)`` of ``X | None``."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        optional = len(rest) < len(typing.get_args(hint))
        return (rest[0] if len(rest) == 1 else Union[tuple(rest)]), optional  # noqa: UP007
    return hint, False


def field_of(cls: type, key: str) -> tuple[dataclasses.Field[Any], Any] | None:
    """The dataclass field and type of a dotted key, or None where there is none."""
    head, _, rest = key.partition(".")
    found = {f.name: f for f in dataclasses.fields(cls)}.get(head)
    if found is None:
        return None
    hint = _hints(cls)[head]
    if not rest:
        return found, hint
    inner, _ = _without_none(hint)
    if dataclasses.is_dataclass(inner):
        return field_of(typing.cast("type", inner), rest)
    if typing.get_origin(inner) is dict and "." not in rest:
        return found, typing.get_args(inner)[1]
    return None


def leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every setting below a dataclass as ``(dotted key, field, type)``; sections are not listed."""
    for f in dataclasses.fields(cls):
        hint = _hints(cls)[f.name]
        inner, _ = _without_none(hint)
        if dataclasses.is_dataclass(inner):
            yield from leaves(typing.cast("type", inner), f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", f, hint


def _expected(hint: Any) -> str:
    inner, optional = _without_none(hint)
    origin = typing.get_origin(inner)
    if origin is Literal:
        name = " | ".join(str(a) for a in typing.get_args(inner))
    elif origin is list:
        name = f"a list, each item {_expected(typing.get_args(inner)[0])}"
    elif origin is dict:
        name = f"a mapping from names to {_expected(typing.get_args(inner)[1])}"
    elif origin in (Union, types.UnionType):
        name = " or ".join(_expected(a) for a in typing.get_args(inner))
    else:
        name = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}.get(
            inner, "a mapping"
        )
    return f"{name}, or null" if optional else name


def _number(value: Any, kind: type) -> Any:
    """``value`` as int or float, or None; YAML reads ``1e-4`` as a string."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    if kind is float:
        return number
    if isinstance(value, int):
        return value
    return int(number) if number.is_integer() else None


def describe(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """``(name, kind, default, help)`` of every setting, for people."""
    defaults = to_plain(cls(**{f.name: "" for f in dataclasses.fields(cls) if _is_needed(f)}))
    for key, declared, hint in leaves(cls):
        value: Any = defaults
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        yield key, _expected(hint), yaml.safe_dump(value).splitlines()[0], declared.metadata["help"]


def _is_needed(f: dataclasses.Field[Any]) -> bool:
    return f.default is _MISSING and f.default_factory is _MISSING


def _scalar(value: Any, hint: Any) -> Any:
    """``value`` as the scalar type ``hint``, or ``_MISSING`` where it is none."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        for choice in choices:
            same_kind = isinstance(value, bool) == isinstance(choice, bool)
            if same_kind and (value == choice or str(value) == str(choice)):
                return choice
        # YAML reads a bare on/off/yes/no as a boolean, and null for "none" is a slip
        word = (
            {True: "true", False: "false", None: "none"}.get(value)
            if (value is None or isinstance(value, bool))
            else value
        )
        return next((c for c in choices if isinstance(c, str) and c == word), _MISSING)
    if origin in (Union, types.UnionType):
        for option in typing.get_args(hint):
            found = _scalar(value, option)
            if found is not _MISSING:
                return found
        return _MISSING
    if hint is bool:
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        return value if isinstance(value, bool) else _MISSING
    if hint in (int, float):
        number = _number(value, hint)
        return _MISSING if number is None else number
    if hint is str:
        return value if isinstance(value, str) else _MISSING
    return _MISSING


def _coerce(value: Any, hint: Any, key: str, origin: str, partial: bool) -> Any:
    inner, optional = _without_none(hint)
    if optional and (value is None or value == "null"):
        return None
    kind = typing.get_origin(inner)
    if dataclasses.is_dataclass(inner):
        if not isinstance(value, dict):
            raise ObliqError(f"{origin}: {key}: must be a mapping of settings, not {value!r}")
        cls = typing.cast("type", inner)
        checked = _checked(cls, value, origin=origin, prefix=f"{key}.", partial=partial)
        return checked if partial else _made(cls, checked, f"{origin}: {key}.")
    if kind is list:
        (item,) = typing.get_args(inner)
        if isinstance(value, list | tuple):
            return [_coerce(v, item, f"{key}[{i}]", origin, partial) for i, v in enumerate(value)]
    elif kind is dict:
        item = typing.get_args(inner)[1]
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str):
                    raise ObliqError(f"{origin}: {key}: the name {name!r} must be a string")
            return {n: _coerce(v, item, f"{key}.{n}", origin, partial) for n, v in value.items()}
    else:
        result = _scalar(value, inner)
        if result is not _MISSING:
            return result
        if inner is str and isinstance(value, int | float | bool):
            raise ObliqError(f"{origin}: {key}: must be a string; put {value!r} in quotes")
    raise ObliqError(f"{origin}: {key}: must be {_expected(hint)}, not {value!r}")


def _check_bounds(value: Any, f: dataclasses.Field[Any], key: str, origin: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_bounds(inner, f, f"{key}.{name}", origin)
        return
    if isinstance(value, list):
        for i, inner in enumerate(value):
            _check_bounds(inner, f, f"{key}[{i}]", origin)
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high, above = (f.metadata.get(n) for n in ("min", "max", "above"))
    if above is not None and not value > above:
        raise ObliqError(f"{origin}: {key}: must be above {above}, not {value!r}")
    if low is not None and value < low:
        raise ObliqError(f"{origin}: {key}: must be at least {low}, not {value!r}")
    if high is not None and value > high:
        raise ObliqError(f"{origin}: {key}: must be at most {high}, not {value!r}")


def _checked(
    cls: type, values: Mapping[str, Any], *, origin: str, prefix: str, partial: bool
) -> dict[str, Any]:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = _hints(cls)
    for key in values:
        if key not in fields:
            raise ObliqError(f"{origin}: {prefix}{key}: unknown key{nearest(str(key), fields)}")
    made: dict[str, Any] = {}
    for name, f in fields.items():
        key = f"{prefix}{name}"
        if name in values:
            made[name] = _coerce(values[name], hints[name], key, origin, partial)
            _check_bounds(made[name], f, key, origin)
        elif not partial and _is_needed(f):
            raise ObliqError(f"{origin}: {key}: missing; {f.metadata.get('help', 'needed')}")
    return made


def _made(cls: type[T], values: dict[str, Any], where: str) -> T:
    try:
        return cls(**values)
    except ObliqError as error:
        raise ObliqError(f"{where}{error}") from None


def check(cls: type, values: Mapping[str, Any], *, origin: str) -> None:
    """Check names, types and bounds of the settings that are given, and no more.

    Args:
        cls: The dataclass that declares the settings.
        values: Plain values as YAML gives them; any may be absent.
        origin: The file, for messages.

    Raises:
        ObliqError: As of :func:`build`.
    """
    _checked(cls, values, origin=origin, prefix="", partial=True)


def build(cls: type[T], values: Mapping[str, Any], *, origin: str) -> T:
    """Make a settings dataclass from plain values, checking names, types and bounds.

    Args:
        cls: The dataclass.
        values: Plain values as YAML gives them.
        origin: The file (or "command line"), for messages.

    Raises:
        ObliqError: An unknown key (with the nearest names), a missing one, a wrong type or a
            value out of bounds; the message names file and key.
    """
    return _made(cls, _checked(cls, values, origin=origin, prefix="", partial=False), f"{origin}: ")


def to_plain(value: Any) -> Any:
    """A settings dataclass as nested dictionaries of plain values, in declared order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    return value


def _split_words(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """``--key value``, ``--key=value`` and bare ``--flag`` as ``(key, value or None)``."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            raise ObliqError(f"command line: {word!r} stands alone; write --key value")
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if equals:
            yield key, value
        elif rest and not rest[0].startswith("--"):
            yield key, rest.pop(0)
        else:
            yield key, None


def _sections(cls: type, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the sections that may be null."""
    for f in dataclasses.fields(cls):
        inner, optional = _without_none(_hints(cls)[f.name])
        if dataclasses.is_dataclass(inner):
            if optional:
                yield f"{prefix}{f.name}"
            yield from _sections(typing.cast("type", inner), f"{prefix}{f.name}.")


def _full_key(cls: type, key: str) -> str:
    if field_of(cls, key) is not None:
        return key
    known = [*(name for name, _, _ in leaves(cls)), *_sections(cls)]
    matches = [name for name in known if name.endswith(f".{key}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ObliqError(
            f"command line: --{key} could be any of "
            + ", ".join(f"--{m}" for m in matches)
            + "; write the full name"
        )
    choices = set(known if "." in key else [name.rpartition(".")[2] for name in known])
    close = nearest(key, choices)
    if close.startswith("; valid"):
        close = f"; its sections are {', '.join(f.name for f in dataclasses.fields(cls))}"
    raise ObliqError(f"command line: --{key}: no such setting of a recipe{close}")


def _word_value(text: str | None, hint: Any, key: str) -> Any:
    """A command-line word as a plain value for a setting of the given type."""
    inner, optional = _without_none(hint)
    if text is None:
        if inner is bool or bool in typing.get_args(inner):
            return True
        raise ObliqError(f"command line: --{key} needs a value: {_expected(hint)}")
    if optional and text in {"null", "~", ""}:
        return None
    structured = dataclasses.is_dataclass(inner) or typing.get_origin(inner) in (list, dict)
    if structured and text.lstrip()[:1] in {"[", "{"}:
        try:
            return load_yaml(text)
        except yaml.YAMLError as error:
            raise ObliqError(f"command line: --{key}: not readable as YAML: {error}") from error
    if typing.get_origin(inner) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def apply_overrides(cls: type, values: dict[str, Any], words: Sequence[str]) -> list[str]:
    """Write command-line settings into plain values; later words win.

    Args:
        cls: The dataclass that declares the settings.
        values: Plain values, changed in place.
        words: ``--section.key value``, ``--section.key=value`` or ``--key value`` where the
            last part of the name is unique; ``--flag`` alone means true; hyphens and
            underscores are the same.

    Returns:
        The full names that were set.

    Raises:
        ObliqError: An unknown or ambiguous name, or a name without a value.
    """
    names: list[str] = []
    for key, text in _split_words(words):
        full = _full_key(cls, key)
        found = field_of(cls, full)
        assert found is not None
        value = _word_value(text, found[1], full)
        *sections, leaf = full.split(".")
        place = values
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        place[leaf] = value
        names.append(full)
    return names

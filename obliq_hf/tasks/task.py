"""One oblique retrieval task and the YAML file it is read from."""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash, safe_name
from obliq_hf.strict_yaml import load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MECHANISMS = ("descriptive", "analogue", "tip-of-the-tongue")
"""Find all that show X; find what shares a hidden archetype; find the passage behind a memory."""
LENSES = ("descriptive", "analogue", "tip-of-the-tongue", "chat-failure")
"""Forms in which synthetic queries are written."""
EXCLUSIONS = ("none", "listed", "group")
"""Documents never returned for a query: none, those listed with it, or those of its own source."""
RERANKERS = ("identity", "tourrank", "listwise")
"""Rerankers a task can choose."""

_RERANKING_KEYS = {"reranker", "depth", "rounds", "listwise_depth"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MTEB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.()-]*")

RESERVED_NAMES = frozenset({"query", "document", "passage", "corpus"})
"""Prompt names with a meaning in sentence-transformers."""
MTEB_TYPES = frozenset(
    {
        "BitextMining",
        "Classification",
        "MultilabelClassification",
        "Clustering",
        "PairClassification",
        "Regression",
        "Reranking",
        "Retrieval",
        "STS",
        "Summarization",
        "InstructionRetrieval",
        "InstructionReranking",
    }
)
"""mteb's types of text tasks; it looks up prompts under these names as well."""
_SIDES = ("-query", "-document", "-passage")


@dataclass(frozen=True)
class ObliqTask:
    """What a task asks for, and how it is queried, filtered and reranked.

    Attributes:
        name: Short name: the ``prompt_name`` to encode queries with, and part of paths.
        mechanism: One of :data:`MECHANISMS`.
        attribute: The latent attribute that decides relevance, as a noun phrase.
        instruction: One sentence for the query side of the prompt.
        lens: One of :data:`LENSES`: the form in which synthetic queries are written.
        exclusion: One of :data:`EXCLUSIONS`.
        reranking: ``reranker`` (one of :data:`RERANKERS`), and where they apply ``depth``
            (documents reranked), ``rounds`` (independent tournaments), and ``listwise_depth``
            (the depth at which listwise reranking did best).
        title: Name for people; by default ``name``.
        unit: What one document is, as a singular noun: "tweet", "math problem".
        reranking_ignore: What a listwise prompt tells the model not to look at.
        mteb_name: The task of mteb that evaluates it, if there is one.
        hub_config: Its configuration in the benchmark's data repository, if there is one.

    Raises:
        ObliqError: A field of the wrong type or with a value that is not valid.
    """

    name: str
    mechanism: str
    attribute: str
    instruction: str
    lens: str
    exclusion: str
    reranking: dict[str, Any] = field(hash=False)
    title: str = ""
    unit: str = "passage"
    reranking_ignore: str = ""
    mteb_name: str | None = None
    hub_config: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "reranking":
                continue
            if value is None and item.default is None:
                continue
            if not isinstance(value, str):
                raise ObliqError(f"key {item.name!r} must be text, not {_kind(value)}")
            if item.default is MISSING and not value.strip():
                raise ObliqError(f"key {item.name!r} is empty")
            if "\n" in value.strip() or re.search("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", value):
                raise ObliqError(f"key {item.name!r} must be one line without control characters")
            object.__setattr__(self, item.name, value.strip())
        _check_name(self.name)
        for key, value, valid in (
            ("mechanism", self.mechanism, MECHANISMS),
            ("lens", self.lens, LENSES),
            ("exclusion", self.exclusion, EXCLUSIONS),
        ):
            if value not in valid:
                raise ObliqError(f"key {key!r}: {value!r} is not valid{nearest(value, valid)}")
        if self.mteb_name is not None and (
            not _MTEB_NAME.fullmatch(self.mteb_name) or self.mteb_name.endswith(_SIDES)
        ):
            raise ObliqError(f"key 'mteb_name': {self.mteb_name!r} is not the name of an mteb task")
        if self.hub_config is not None:
            safe_name(self.hub_config, "key 'hub_config'")
        object.__setattr__(self, "reranking", _checked_reranking(self.reranking))
        if not self.title:
            object.__setattr__(self, "title", self.name)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all fields."""
        return content_hash(self.to_dict())

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """The names that a model may carry the task's prompt under, mteb's first."""
        return (self.name,) if self.mteb_name is None else (self.mteb_name, self.name)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, in the order of the class."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "task") -> ObliqTask:
        """Build a task from plain values.

        Args:
            values: Keys as the fields of this class; those without a default are required.
            source: Where the values come from, for messages.

        Raises:
            ObliqError: An unknown or missing key, a wrong type or a value that is not valid; the
                message starts with ``source`` and names the key and what is close to it.
        """
        known = {item.name: item for item in fields(cls)}
        for key in values:
            if key not in known:
                raise ObliqError(f"{source}: unknown key {key!r}{nearest(str(key), known)}")
        for key, item in known.items():
            if item.default is MISSING and key not in values:
                raise ObliqError(f"{source}: missing key {key!r}")
        try:
            return cls(**values)
        except ObliqError as error:
            raise ObliqError(f"{source}: {error}") from None


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", bool: "yes/no", int: "a number", float: "a number"}
    kind = "nothing" if value is None else names.get(type(value), type(value).__name__)
    return f"{kind} ({value!r:.60})"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ObliqError(
            f"key 'name': {name!r} is not valid; use up to 64 letters, digits, '-' and '_', "
            "with a letter or digit first"
        )
    safe_name(name, "key 'name'")
    taken = {other.lower() for other in RESERVED_NAMES | MTEB_TYPES}
    if name.lower() in taken or name.lower().endswith(_SIDES):
        raise ObliqError(
            f"key 'name': {name!r} means something else as a prompt name; choose another"
        )


def _checked_reranking(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ObliqError(f"key 'reranking' must be a mapping with 'reranker', not {_kind(value)}")
    for key in value:
        if key not in _RERANKING_KEYS:
            raise ObliqError(f"key 'reranking.{key}' is unknown{nearest(key, _RERANKING_KEYS)}")
    if "reranker" not in value:
        raise ObliqError("key 'reranking.reranker' is missing")
    reranker = value["reranker"]
    if reranker not in RERANKERS:
        raise ObliqError(
            f"key 'reranking.reranker': {reranker!r} is not valid"
            f"{nearest(str(reranker), RERANKERS)}"
        )
    for key in ("depth", "rounds", "listwise_depth"):
        number = value.get(key, 1)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ObliqError(f"key 'reranking.{key}' must be a whole number >= 1, not {number!r}")
    if "rounds" in value and reranker != "tourrank":
        raise ObliqError("key 'reranking.rounds' goes with reranker 'tourrank' only")
    return dict(value)


def _read(text: str, source: str) -> ObliqTask:
    try:
        values = load_yaml(text)
    except yaml.YAMLError as error:
        raise ObliqError(f"{source}: not readable as YAML: {error}") from error
    if not isinstance(values, dict):
        raise ObliqError(f"{source}: a task file holds keys and values, not {_kind(values)}")
    for key in values:
        if not isinstance(key, str):
            raise ObliqError(f"{source}: the key {key!r} is not text")
    return ObliqTask.from_dict(values, source=source)


@cache
def builtin_task_names() -> tuple[str, ...]:
    """Names of the tasks that come with the package, sorted."""
    folder = resources.files("obliq_hf.tasks")
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def _builtin(name: str) -> ObliqTask:
    file = resources.files("obliq_hf.tasks").joinpath(f"{name}.yaml")
    return _read(file.read_text(encoding="utf-8"), f"obliq_hf/tasks/{name}.yaml")


def load_task(
    name_or_path: str | Path | ObliqTask, *, relative_to: str | Path | None = None
) -> ObliqTask:
    """Load a task.

    Args:
        name_or_path: Name of a built-in task, or a file ending in ``.yaml`` or ``.yml``; a task
            is handed back as it is.
        relative_to: Folder that a relative file path starts from; by default the working folder.

    Raises:
        ObliqError: No such task or file, or a file that is not a valid task; file and key are
            named.

    Example:
        >>> load_task("writing").attribute
        'authorial style'
    """
    if isinstance(name_or_path, ObliqTask):
        return name_or_path
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.lower().endswith((".yaml", ".yml")):
        path = Path(relative_to or ".") / Path(text).expanduser()
        try:
            content = path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise ObliqError(f"{path}: no such task file") from None
        except IsADirectoryError:
            raise ObliqError(f"{path}: a folder, not a task file") from None
        except UnicodeDecodeError as error:
            raise ObliqError(f"{path}: not UTF-8: {error}") from error
        return _read(content, str(path))
    if text not in builtin_task_names():
        raise ObliqError(
            f"no task named {text!r}{nearest(text, builtin_task_names())} (a task of your own is "
            "given as a path that ends in .yaml)"
        )
    return _builtin(text)


def _letters(name: str) -> str:
    """What is left of a name in file systems without case and in the names of mteb tasks."""
    return re.sub("[^a-z0-9]", "", name.lower())


def load_tasks(
    tasks: Iterable[str | Path | ObliqTask] | str | Path | ObliqTask,
    *,
    relative_to: str | Path | None = None,
) -> list[ObliqTask]:
    """Load several tasks and check that no two would share a prompt or a folder.

    Args:
        tasks: Names, files or tasks; one alone stands for itself.
        relative_to: As for :func:`load_task`.

    Raises:
        ObliqError: As for :func:`load_task`; or two tasks whose names are the same apart from
            case, ``-`` and ``_``, or that share a task name of mteb.
    """
    items = [tasks] if isinstance(tasks, str | Path | ObliqTask) else list(tasks)
    loaded = [load_task(item, relative_to=relative_to) for item in items]
    seen: dict[str, str] = {}
    for task in loaded:
        names = [name for name in (task.name, task.mteb_name) if name is not None]
        for name in names:
            other = seen.get(_letters(name))
            if other is not None:
                raise ObliqError(
                    f"tasks {other!r} and {task.name!r} share the name {name!r}; names must "
                    "differ by more than case, '-' and '_'"
                )
        seen.update((_letters(name), task.name) for name in names)
    return loaded

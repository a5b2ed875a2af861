"""A recipe: everything that decides what a run does, in one YAML file.

A recipe may build on another (``extends: other.yaml``) and any setting can be given on the
command line, by its full name (``--graph.neighbours random``) or, where that is unique, by its
last part (``--learning_rate 1e-5``).
"""

from __future__ import annotations

import hashlib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from training_recipes.sections import (
    CorpusConfig,
    EvaluationConfig,
    GraphConfig,
    HubConfig,
    LLMConfig,
    LoraConfig,
    NegativesConfig,
    QueriesConfig,
    RowsConfig,
    TrainingConfig,
)
from training_recipes.settings import (
    about,
    apply_overrides,
    build,
    check,
    field_of,
    leaves,
    read_yaml,
    to_plain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CorpusConfig",
    "EvaluationConfig",
    "GraphConfig",
    "HubConfig",
    "LLMConfig",
    "LoraConfig",
    "NegativesConfig",
    "QueriesConfig",
    "Recipe",
    "RowsConfig",
    "TrainingConfig",
    "load_recipe",
    "recipe_file",
]


@dataclass(frozen=True)
class Recipe:
    """All settings of a run."""

    name: str = field(metadata=about("name of the recipe", hashed=False))
    out: str = field(metadata=about("run folder, from the current folder", hashed=False))
    seed: int = field(default=13, metadata=about("seed of everything random", min=0))
    tasks: list[str] = field(
        default_factory=list, metadata=about("names of built-in tasks, or task files", path="maybe")
    )
    corpus: CorpusConfig = field(default_factory=CorpusConfig, metadata=about("documents"))
    queries: QueriesConfig = field(
        default_factory=QueriesConfig, metadata=about("training queries")
    )
    rows: RowsConfig = field(default_factory=RowsConfig, metadata=about("training rows of others"))
    graph: GraphConfig = field(default_factory=GraphConfig, metadata=about("authorship graph"))
    negatives: NegativesConfig = field(
        default_factory=NegativesConfig, metadata=about("hard negatives")
    )
    training: TrainingConfig = field(default_factory=TrainingConfig, metadata=about("training"))
    evaluation: EvaluationConfig = field(
        default_factory=EvaluationConfig, metadata=about("evaluation")
    )
    hub: HubConfig = field(default_factory=HubConfig, metadata=about("publishing", hashed=False))
    llm: LLMConfig = field(default_factory=LLMConfig, metadata=about("language model"))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as a YAML recipe would hold them."""
        return typing.cast("dict[str, Any]", to_plain(self))

    def to_yaml(self) -> str:
        """The resolved recipe as YAML; reading it back gives an equal recipe."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)

    def hash(self, *sections: str) -> str:
        """A fingerprint of what the recipe asks for, the same on every machine.

        Names, folders, checkpoint intervals and publishing are left out; a task file counts by
        its content.

        Args:
            sections: Names of sections (``"graph"``, ``"training"``) to restrict it to.

        Returns:
            64 hexadecimal characters.
        """
        kept: dict[str, Any] = {}
        for key, declared, _ in leaves(type(self)):
            head = key.partition(".")[0]
            if sections and head not in sections:
                continue
            found = field_of(type(self), head)
            assert found is not None
            if not found[0].metadata.get("hashed", True) or not declared.metadata.get(
                "hashed", True
            ):
                continue
            value: Any = self
            for part in key.split("."):
                value = None if value is None else getattr(value, part)
            if key.startswith("training.lora.") and self.training.lora is None:
                continue
            kept[key] = _portable(to_plain(value), declared.metadata.get("path"))
        return content_hash(kept)


def _portable(value: Any, path: Any) -> Any:
    """A value without the place where its file or folder lies."""
    if path is None or value is None:
        return value
    if isinstance(value, list):
        return [_portable(v, path) for v in value]
    if path is True:
        return None
    place = Path(value)
    if place.is_file():
        return hashlib.sha256(place.read_bytes()).hexdigest()
    return place.name if place.is_absolute() else value


def _looks_like_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or text.startswith((".", "/", "~", "\\"))


def _resolve(value: Any, mark: Any, folder: Path) -> Any:
    """A path setting written in ``folder`` as an absolute path; names stay names."""
    if isinstance(value, list):
        return [_resolve(v, mark, folder) for v in value]
    if isinstance(value, dict):
        return {name: _resolve(v, mark, folder) for name, v in value.items()}
    if not isinstance(value, str) or value == "null":
        return value
    place = (folder / Path(value).expanduser()).resolve()
    named = "/" not in value and "\\" not in value  # a name, even beside a folder of that name
    if mark is True or _looks_like_path(value) or (not named and place.exists()):
        return str(place)
    return value


def _resolve_paths(values: dict[str, Any], folder: Path, names: Sequence[str] | None) -> None:
    for key, declared, _ in leaves(Recipe):
        mark = declared.metadata.get("path")
        if mark is None or (names is not None and key not in names):
            continue
        *sections, leaf = key.split(".")
        place: Any = values
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        if isinstance(place, dict) and leaf in place:
            place[leaf] = _resolve(place[leaf], mark, folder)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def recipe_file(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of one that ships with the package.

    Raises:
        ObliqError: There is no such file; the message lists the recipes that ship.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = Path(__file__).parent
    parts = path.parts[1:] if path.parts[:1] == (shipped.name,) else path.parts
    named = (
        Path(*parts) if path.suffix in {".yaml", ".yml"} else Path(*parts[:-1], f"{path.name}.yaml")
    )
    packaged = shipped / named
    if not path.is_absolute() and ".." not in parts and packaged.is_file():
        return packaged
    names = ", ".join(sorted(p.stem for p in shipped.glob("*.yaml")))  # ablations not listed
    raise ObliqError(f"{path}: no such recipe file; recipes that ship: {names or 'none'}")


def _read(path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    place = path.resolve()
    if place in chain:
        circle = " -> ".join(p.name for p in (*chain, place))
        raise ObliqError(f"{path}: extends: goes round in a circle: {circle}")
    values = read_yaml(path)
    parent = values.pop("extends", None)
    if parent is not None and not isinstance(parent, str):
        raise ObliqError(f"{path}: extends: must be the name of one recipe file, not {parent!r}")
    # checked per file, so that a message names the file in which the mistake stands
    check(Recipe, values, origin=str(path))
    _resolve_paths(values, path.parent, None)
    if parent is None:
        return values
    beside = path.parent / parent
    if not beside.is_file():
        raise ObliqError(f"{path}: extends: {beside} does not exist")
    below = _read(beside, (*chain, place))
    for own in ("name", "out"):  # a recipe's own, never its parent's
        below.pop(own, None)
    return _merge(below, values)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, the recipes it builds on, and settings from the command line.

    Task files and folders named in a recipe are relative to its file, those on the command line
    and the run folder to the current folder.

    Args:
        path: A recipe file, or the name of a recipe that ships with the package.
        overrides: ``["--graph.neighbours", "random", "--learning_rate=1e-5"]``.

    Raises:
        ObliqError: A file is missing, ``extends`` goes round in a circle, or a key is unknown,
            ambiguous, of the wrong type or out of bounds; the message names file and key.
    """
    file = recipe_file(path)
    values = _read(file)
    values.setdefault("name", file.stem)
    values.setdefault("out", f"runs/{values['name']}")
    names = apply_overrides(Recipe, values, overrides)
    _resolve_paths(values, Path.cwd(), names)
    origin = "command line" if names else str(file)
    return build(Recipe, values, origin=origin)

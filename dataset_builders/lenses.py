"""Lenses: the prompts of the two stages and the checks of what comes out, one YAML file each.

A lens file has the prompts `stage_a` and `stage_b`, the prompt `single_stage` for ablations, and
one or more `forms`, each with the length and the checks of its queries. Placeholders in prompts:
`{document}`, `{unit}`, `{attribute}`, `{description}`, `{length}`. A task names its lens; a file
of one's own is loaded by its path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash
from obliq_hf.strict_yaml import load_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obliq_hf.tasks import ObliqTask

__all__ = ["VARIANTS", "CheckRules", "Form", "Lens", "StagePrompt", "lens_names", "load_lens"]

VARIANTS = ("two-stage", "single-stage", "generic")
"""How queries are written: description first; from the document at once; without a lens."""

_NUMBERS = ("none", "document", "any")
_LANGUAGES = ("same", "any", "en")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_STAGE_FIELDS = {
    "stage_a": {"document", "unit", "attribute"},
    "stage_b": {"unit", "attribute", "description", "length"},
    "single_stage": {"document", "unit", "attribute", "length"},
}


@dataclass(frozen=True)
class CheckRules:
    """What a query of this form may not have.

    Attributes:
        names: Refuse names that stand in the document.
        links: Refuse addresses, handles and hashtags.
        numbers: `none` may occur; those of the `document` may not; `any` may.
        quoted_words: Refuse this many words in a row from the document; 0 never.
        rare_words: Refuse words of the document that few documents have.
        copies: Refuse near copies of the document and of other queries.
    """

    names: bool = True
    links: bool = True
    numbers: str = "none"
    quoted_words: int = 6
    rare_words: bool = True
    copies: bool = True


@dataclass(frozen=True)
class Form:
    """One kind of query a lens writes.

    Attributes:
        name: Its name.
        characters: Fewest and most characters.
        length: The length as the prompt puts it.
        checks: What is refused.
        units: Words by which a task's unit asks for this form; empty: the default form.
    """

    name: str
    characters: tuple[int, int]
    length: str
    checks: CheckRules = field(default_factory=CheckRules)
    units: tuple[str, ...] = ()


@dataclass(frozen=True)
class StagePrompt:
    """The prompt of one stage.

    Attributes:
        system: System message.
        user: User message with placeholders.
        fields: Text fields of the JSON answer -> what they hold.
    """

    system: str
    user: str
    fields: dict[str, str] = field(hash=False)

    def messages(self, values: Mapping[str, str]) -> list[dict[str, str]]:
        """The messages with placeholders filled; what is filled in is not searched again."""
        wanted = "\n".join(f'- "{name}": {what}' for name, what in self.fields.items())
        text = _PLACEHOLDER.sub(lambda m: values.get(m.group(1), m.group(0)), self.user)
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{text}\n\nAnswer with a JSON object with\n{wanted}"},
        ]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the answer."""
        return {
            "type": "object",
            "properties": {n: {"type": "string"} for n in self.fields},
            "required": list(self.fields),
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class Lens:
    """A lens file.

    Attributes:
        name: Its name.
        version: The author's number; any change of the text changes :attr:`fingerprint` too.
        language: `same` as the document's, a language's code, or `any`.
        stage_a: Prompt that describes the attribute, or None.
        stage_b: Prompt that writes the query from the description, or None.
        single_stage: Prompt that writes the query from the document, or None.
        forms: The forms, the default one last.
        fingerprint: SHA-256 of all this.
    """

    name: str
    version: int
    language: str
    stage_a: StagePrompt | None
    stage_b: StagePrompt | None
    single_stage: StagePrompt | None
    forms: tuple[Form, ...]
    fingerprint: str

    def form_for(self, task: ObliqTask, name: str | None = None) -> Form:
        """The form of a task's queries: the named one, or the one its unit asks for.

        Raises:
            ObliqError: There is no form of that name.
        """
        if name is not None:
            for form in self.forms:
                if form.name == name:
                    return form
            raise ObliqError(
                f"lens {self.name!r} has no form {name!r}"
                + nearest(name, [f.name for f in self.forms])
            )
        words = set(re.findall(r"\w+", task.unit.lower()))
        for form in self.forms:
            if words & set(form.units):
                return form
        return self.forms[-1]


def lens_names() -> list[str]:
    """The lenses that come with the project."""
    return sorted(p.stem for p in (Path(__file__).parent / "prompts").glob("*.yaml"))


def load_lens(name: str | Path) -> Lens:
    """Load a lens.

    Args:
        name: One of :func:`lens_names`, or the path of a YAML file.

    Raises:
        ObliqError: No such lens; a key that is unknown, missing or of a wrong type; a placeholder
            that a stage does not have. File and key are named.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if str(name) not in lens_names():
            raise ObliqError(f"no lens {str(name)!r}{nearest(str(name), lens_names())}")
        path = Path(__file__).parent / "prompts" / f"{name}.yaml"
    if not path.is_file():
        raise ObliqError(f"{path}: no such lens file")
    return _load(path.resolve(), path.stat().st_mtime_ns)


@cache
def _load(path: Path, _: int) -> Lens:
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ObliqError(f"{path}: not readable as YAML: {error}") from error
    known = {
        "lens": str,
        "version": int,
        "language": str,
        "forms": dict,
        **dict.fromkeys(_STAGE_FIELDS, dict),
    }
    values = _checked(values, known, {"lens", "version", "forms"}, str(path))
    language = values.get("language", "same")
    if language not in _LANGUAGES:
        raise ObliqError(f"{path}: key 'language' is {language!r}{nearest(language, _LANGUAGES)}")
    stages = {
        name: _stage(values[name], f"{path}: {name}", _STAGE_FIELDS[name])
        if name in values
        else None
        for name in _STAGE_FIELDS
    }
    if not stages["single_stage"] and not (stages["stage_a"] and stages["stage_b"]):
        raise ObliqError(f"{path}: needs stage_a and stage_b, or single_stage")
    forms = [_form(name, form, f"{path}: forms.{name}") for name, form in values["forms"].items()]
    if not forms:
        raise ObliqError(f"{path}: key 'forms' is empty")
    forms.sort(key=lambda form: not form.units)
    return Lens(
        name=values["lens"],
        version=values["version"],
        language=language,
        forms=tuple(forms),
        fingerprint=content_hash(values),
        **stages,
    )


def _checked(
    values: Any, known: Mapping[str, type], required: set[str], where: str
) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ObliqError(f"{where}: must hold keys and values")
    for key, value in values.items():
        if key not in known:
            raise ObliqError(f"{where}: unknown key {key!r}{nearest(str(key), known)}")
        kind = known[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ObliqError(f"{where}: key {key!r} must be {kind.__name__}, not {value!r:.60}")
    for key in sorted(required - set(values)):
        raise ObliqError(f"{where}: missing key {key!r}")
    return values


def _stage(values: Any, where: str, placeholders: set[str]) -> StagePrompt:
    known = {"system": str, "user": str, "fields": dict}
    values = _checked(values, known, set(known), where)
    for name in _PLACEHOLDER.findall(values["user"]):
        if name not in placeholders:
            raise ObliqError(
                f"{where}: unknown placeholder {{{name}}}" + nearest(name, placeholders)
            )
    if "description" in placeholders and "{description}" not in values["user"]:
        raise ObliqError(f"{where}: the placeholder {{description}} is missing")
    if "document" in placeholders and "{document}" not in values["user"]:
        raise ObliqError(f"{where}: the placeholder {{document}} is missing")
    fields = {str(k): str(v) for k, v in values["fields"].items()}
    needed = "query" if "length" in placeholders else "description"
    if needed not in fields:
        raise ObliqError(f"{where}: fields must have {needed!r}")
    return StagePrompt(values["system"].strip(), values["user"].strip(), fields)


def _form(name: str, values: Any, where: str) -> Form:
    known = {"characters": list, "length": str, "checks": dict, "units": list}
    values = _checked(values, known, {"characters", "length"}, where)
    bounds = values["characters"]
    if (
        len(bounds) != 2
        or not all(isinstance(b, int) and b > 0 for b in bounds)
        or (bounds[0] > bounds[1])
    ):
        raise ObliqError(f"{where}: key 'characters' must be [fewest, most], not {bounds!r}")
    kinds = {
        "names": bool,
        "links": bool,
        "numbers": str,
        "quoted_words": int,
        "rare_words": bool,
        "copies": bool,
    }
    checks = _checked(values.get("checks", {}), kinds, set(), f"{where}.checks")
    numbers = checks.get("numbers", "none")
    if numbers not in _NUMBERS:
        raise ObliqError(
            f"{where}: key 'checks.numbers' is {numbers!r}" + nearest(numbers, _NUMBERS)
        )
    return Form(
        name=name,
        characters=(bounds[0], bounds[1]),
        length=values["length"],
        checks=CheckRules(**checks),
        units=tuple(str(u) for u in values.get("units", ())),
    )

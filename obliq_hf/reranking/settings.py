"""What a reranker is made of, as plain values: in policies, on the command line, in task files."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.reranking.asking import Asking
from obliq_hf.reranking.cascade import Cascade
from obliq_hf.reranking.cross_encoder import CrossEncoderReranker, cross_encoder_content
from obliq_hf.reranking.fused import Fused, StoredScores
from obliq_hf.reranking.listwise import Listwise
from obliq_hf.reranking.prompt_file import ANSWERS, load_prompt
from obliq_hf.reranking.reranker import IdentityReranker, Reranker
from obliq_hf.reranking.stage_plan import parse_plan
from obliq_hf.reranking.tourrank import TourRank
from obliq_hf.search.fusion import FUSION_METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obliq_hf.search.runs import Run
    from obliq_hf.tasks import ObliqTask

__all__ = ["KINDS", "PRESELECTIONS", "RerankSettings", "build_reranker", "parse_rerankers"]

KINDS = ("identity", "tourrank", "listwise", "cross-encoder")
"""Rerankers."""
PRESELECTIONS = ("fusion", "cross-encoder", "tournament")
"""Ways to bring a deep pool down: fused with another run; a cross-encoder; a wide tournament."""
LISTWISE_DEPTHS = (10, 20, 50, 100)
"""Depths of a sweep over listwise reranking."""


@dataclass(frozen=True)
class RerankSettings:
    """One reranker with its settings.

    Attributes:
        reranker: One of :data:`KINDS`.
        depth: Candidates reranked; after a pre-selection, those it keeps.
        rounds: Tournaments of TourRank.
        listwise_depth: Candidates that listwise reranking orders; no more than ``depth``.
        prompt: ``task``, ``generic`` or the path of a prompt file.
        answer: ``text``, ``schema`` or ``logprobs``.
        fuse: Fuse with the first stage by ``zscore`` or ``rrf``; None does not.
        cross_encoder: Name or folder of the cross-encoder, for reranking or pre-selection.
        preselect: One of :data:`PRESELECTIONS`; None reranks the first ``depth`` as they are.
        first_stage_depth: Candidates that the pre-selection chooses from.
        preselect_rounds: Tournaments of a wide tournament.
        plan: Stages of TourRank for pools of exactly ``depth``, such as ``5x20>10 5x10>4``; None
            takes the plan made for the size.
        early_stop: Stop TourRank once so many first places are certain; None never does.

    Raises:
        ObliqError: A value that is not valid; the key is named.
    """

    reranker: str = "identity"
    depth: int = 100
    rounds: int = 5
    listwise_depth: int = 20
    prompt: str = "task"
    answer: str = "text"
    fuse: str | None = None
    cross_encoder: str | None = None
    preselect: str | None = None
    first_stage_depth: int = 1000
    preselect_rounds: int = 1
    plan: str | None = None
    early_stop: int | None = None

    def __post_init__(self) -> None:
        _one_of("reranker", self.reranker, KINDS)
        _one_of("answer", self.answer, ANSWERS)
        if self.fuse is not None:
            _one_of("fuse", self.fuse, FUSION_METHODS)
        if self.preselect is not None:
            _one_of("preselect", self.preselect, PRESELECTIONS)
        for key in ("prompt", "plan", "cross_encoder"):
            value = getattr(self, key)
            if not isinstance(value, str) and (value is not None or key == "prompt"):
                raise ObliqError(f"key {key!r} must be a string, not {value!r}")
        numbers = ("depth", "rounds", "listwise_depth", "first_stage_depth", "preselect_rounds")
        for key in (*numbers, "early_stop"):
            value = getattr(self, key)
            if key == "early_stop" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ObliqError(f"key {key!r} must be a whole number >= 1, not {value!r}")
        if self.reranker == "listwise" and self.listwise_depth > self.depth:
            raise ObliqError(
                f"key 'listwise_depth': {self.listwise_depth} candidates cannot be ordered where "
                f"'depth' is {self.depth}; give a larger depth, or order fewer"
            )
        if self.plan is not None:
            parse_plan(self.plan, self.depth)
        if "cross-encoder" in (self.reranker, self.preselect) and not self.cross_encoder:
            raise ObliqError("a cross-encoder needs the key 'cross_encoder': its name or folder")
        if self.preselect is not None and self.first_stage_depth <= self.depth:
            raise ObliqError(
                f"a pre-selection from {self.first_stage_depth} to {self.depth} selects nothing: "
                "'first_stage_depth' must be above 'depth'"
            )

    @property
    def pool_depth(self) -> int:
        """Candidates needed from the first stage."""
        return self.depth if self.preselect is None else self.first_stage_depth

    @property
    def changes_nothing(self) -> bool:
        """Whether the first stage's order stands."""
        return self.reranker == "identity" and self.preselect is None and self.fuse is None

    @property
    def asks(self) -> bool:
        """Whether a language model is asked."""
        return self.reranker in ("tourrank", "listwise") or self.preselect == "tournament"

    @property
    def label(self) -> str:
        """A short name that can be part of a path: ``tourrank-5``, ``listwise-20-generic``."""
        parts = [self.reranker]
        if self.reranker == "tourrank":
            parts.append(str(self.rounds))
            if self.plan is not None:
                parts.append("plan-" + re.sub(r"[^0-9]+", "-", self.plan))
            if self.early_stop is not None:
                parts.append(f"stop{self.early_stop}")
        if self.reranker == "listwise":
            parts.append(str(self.listwise_depth))
        if self.reranker == "cross-encoder" and self.cross_encoder:
            named = re.fullmatch(r"[\w.-]*\w/[\w.-]+", self.cross_encoder)  # on the Hub
            parts.append(
                named[0] if named else re.split(r"[/\\]", self.cross_encoder.rstrip("/\\"))[-1]
            )
        if self.asks and self.prompt != "task":
            parts.append(re.sub(r"[^A-Za-z0-9]+", "-", self.prompt).strip("-"))
        if self.asks and self.answer != "text":
            parts.append(self.answer)
        if self.fuse:
            parts.append(self.fuse)
        if self.depth != 100 and (self.reranker != "listwise" or self.fuse or self.preselect):
            parts.append(f"top{self.depth}")
        if self.preselect:
            parts.append(f"from{self.first_stage_depth}-by-{self.preselect}")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts))

    def to_dict(self) -> dict[str, Any]:
        """The keys that matter for this reranker, as plain values."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        if self.reranker != "tourrank":
            for key in ("rounds", "plan", "early_stop"):
                values.pop(key, None)
        if self.reranker != "listwise":
            values.pop("listwise_depth")
        if not self.asks:
            values.pop("prompt")
            values.pop("answer")
        if self.preselect is None:
            values.pop("first_stage_depth")
        if self.preselect != "tournament":
            values.pop("preselect_rounds")
        return values

    @property
    def identity(self) -> dict[str, Any]:
        """What decides rankings: the settings, with the content of prompt and model for a path."""
        values = self.to_dict()
        if "cross_encoder" in values:
            values["cross_encoder"] = cross_encoder_content(values["cross_encoder"])
        if "prompt" in values:
            values["prompt"] = load_prompt(values["prompt"]).fingerprint
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "settings") -> RerankSettings:
        """Settings from plain values.

        Raises:
            ObliqError: An unknown key or a value that is not valid; the message starts with
                ``source``.
        """
        known = [item.name for item in fields(cls)]
        for key in values:
            if key not in known:
                raise ObliqError(f"{source}: unknown key {key!r}{nearest(str(key), known)}")
        try:
            return cls(**values)
        except ObliqError as error:
            raise ObliqError(f"{source}: {error}") from None

    @classmethod
    def of_task(cls, task: ObliqTask) -> RerankSettings:
        """What a task's own file says."""
        return cls.from_dict(task.reranking, source=f"task {task.name!r}, key 'reranking'")


def _one_of(key: str, value: Any, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ObliqError(f"key {key!r}: {value!r} is not valid{nearest(str(value), valid)}")


def build_reranker(
    settings: RerankSettings,
    *,
    asking: Asking | None = None,
    seed: int = 0,
    second: Run | None = None,
    second_name: str = "run",
) -> Reranker:
    """The reranker that settings describe.

    Args:
        settings: The settings; their prompt and form of answer go before those of ``asking``.
        asking: Budgets of texts, temperature, thinking.
        seed: Seed of shuffles.
        second: The other run of a pre-selection by fusion.
        second_name: Its name.

    Raises:
        ObliqError: A pre-selection by fusion without another run.
    """
    how = replace(asking or Asking(), prompt=settings.prompt, answer=settings.answer)
    made: Reranker
    if settings.reranker == "tourrank":
        made = TourRank(
            settings.rounds,
            asking=how,
            seed=seed,
            plan=None if settings.plan is None else parse_plan(settings.plan, settings.depth),
            early_stop=settings.early_stop,
        )
    elif settings.reranker == "listwise":
        made = Listwise(settings.listwise_depth, asking=how, seed=seed)
    elif settings.reranker == "cross-encoder":
        made = CrossEncoderReranker(settings.cross_encoder)
    else:
        made = IdentityReranker()
    if settings.fuse is not None:
        made = Fused(made, settings.fuse)
    if settings.preselect is None:
        return made
    if settings.preselect == "fusion":
        if second is None:
            raise ObliqError("a pre-selection by fusion needs another run to fuse with")
        first: Reranker = Fused(StoredScores(second, second_name))
    elif settings.preselect == "cross-encoder":
        first = CrossEncoderReranker(settings.cross_encoder)
    else:
        first = TourRank(settings.preselect_rounds, asking=how, seed=seed, stop=settings.depth)
    return Cascade(((first, settings.depth), (made, settings.depth)))


_SPEC = re.compile(r"([a-z-]+)(?::([^+@]+))?((?:[+@][A-Za-z0-9_./-]+)*)")


def parse_rerankers(text: str, *, base: RerankSettings | None = None) -> list[RerankSettings]:
    """Rerankers as the command line writes them.

    ``identity``; ``tourrank:5`` or ``tourrank:1..10``; ``listwise:20`` or ``listwise:10..100`` (the
    depths 10, 20, 50, 100 within); ``cross-encoder:NAME``. Each may be followed by ``@generic``
    (the prompt) and by ``+zscore`` or ``+rrf`` (fused with the first stage).

    Args:
        text: Rerankers, comma-separated.
        base: Settings for all that is not written.

    Returns:
        Settings, in the order written, each once.

    Raises:
        ObliqError: Something else, or two cross-encoders that results could not tell apart.
    """
    base = base or RerankSettings()
    found: dict[str, RerankSettings] = {}
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        match = _SPEC.fullmatch(part)
        if match is None or match[1] not in KINDS:
            kind = match[1] if match else part
            raise ObliqError(f"unknown reranker {part!r}{nearest(kind, KINDS)}")
        kind, value, marks = match.groups()
        changes: dict[str, Any] = {"reranker": kind}
        for mark in re.findall(r"[+@][^+@]+", marks):
            changes["prompt" if mark[0] == "@" else "fuse"] = mark[1:]
        if kind == "cross-encoder":
            changes["cross_encoder"] = value or base.cross_encoder
            many = [changes]
        elif kind in ("tourrank", "listwise"):
            key = "rounds" if kind == "tourrank" else "listwise_depth"
            default = base.rounds if kind == "tourrank" else min(base.listwise_depth, base.depth)
            numbers = _numbers(part, value, default, kind == "listwise")
            many = [{**changes, key: number} for number in numbers]
        elif value:
            raise ObliqError(f"reranker {part!r} takes no number")
        else:
            many = [changes]
        for values in many:
            settings = replace(base, **values)
            if found.setdefault(settings.label, settings) != settings:
                raise ObliqError(
                    f"two rerankers have one label, {settings.label!r}; rename the folder of one"
                )
    if not found:
        raise ObliqError("name at least one reranker, such as identity or tourrank:5")
    return list(found.values())


def _numbers(part: str, value: str | None, default: int, ladder: bool) -> list[int]:
    if value is None:
        return [default]
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise ObliqError(f"{part!r}: give a number, or a range such as 1..10")
    if low == high:
        return [low]
    if not ladder:
        return list(range(low, high + 1))
    return [depth for depth in LISTWISE_DEPTHS if low <= depth <= high] or [low, high]

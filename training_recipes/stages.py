"""Stages of a run: each finds its finished result, resumes its unfinished one, or runs.

A run folder keeps one small file per stage below ``stages/``: what the stage was asked to do (a
hash), what it was given (the builds of the stages before it) and which files it left. A stage
runs again when any of these no longer holds. Before it runs, the marks of all stages that build
on it are removed, so that an interrupted run never joins new inputs to old results.

``stages/made.json`` lists the files and folders that runs have made here. Nothing else in the
folder is ever removed: what somebody put where a stage writes stops the run before it begins.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import content_hash, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

__all__ = ["Stage", "StageRunner", "run_lock"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """One step of a run.

    Attributes:
        name: The stage's name, also on the command line.
        outputs: Files and folders below the run folder that it writes, and nobody else does.
        config: Everything that decides its result, besides its inputs; JSON values.
        inputs: Names of the stages whose outputs it reads.
        run: Does the work, and may say in a few words what came of it. It may find outputs that
            an interrupted run of the same stage with the same config and inputs has left, and go
            on from them.
        about: A few words for the progress line.
        scratch: Further files and folders that it may leave while it is unfinished.
        check: Raises where it cannot run; called before any stage of a run that reaches it.
        verify: Raises where stages after it cannot use its result; called with the names of those
            that are about to run, as soon as the result is there, made or found.
    """

    name: str
    outputs: tuple[str, ...]
    config: dict[str, Any]
    inputs: tuple[str, ...]
    run: Callable[[], str | None]
    about: str = ""
    scratch: tuple[str, ...] = ()
    check: Callable[[], None] | None = None
    verify: Callable[[Collection[str]], None] | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """All files and folders that it writes."""
        return (*self.outputs, *self.scratch)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Keep two processes from working in one run folder; released by the system after a kill.

    Raises:
        ObliqError: Another process works there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="utf-8") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such lock on this system: the folder is used without one
            logger.info("no file locks here; do not run two processes in %s", folder)
        except OSError:
            raise ObliqError(
                f"{folder} is in use by another process; wait for it or use another --out"
            ) from None
        yield


@dataclass
class StageRunner:
    """Runs stages in order, skipping what is finished.

    Attributes:
        folder: The run folder.
        stages: The stages; each after those it builds on.
        say: Receives one line per stage.
    """

    folder: Path
    stages: Sequence[Stage]
    say: Callable[[str], None] = field(default=logger.info)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for stage in self.stages:
            unknown = [name for name in stage.inputs if name not in seen]
            if unknown or stage.name in seen:
                raise ValueError(f"stage {stage.name!r} is out of order (inputs {stage.inputs})")
            seen.add(stage.name)

    def _mark(self, name: str) -> Path:
        return self.folder / "stages" / f"{name}.json"

    def _begun(self, name: str) -> Path:
        return self.folder / "stages" / f"{name}.begun.json"

    @property
    def _record(self) -> Path:
        return self.folder / "stages" / "made.json"

    def _made(self) -> set[str]:
        """What runs have made here: files and folders below the run folder."""
        made = set(read_json(self._record)) if self._record.is_file() else set()
        for stage in self.stages:  # a folder of a version that kept no record has these
            if self._mark(stage.name).is_file() or self._begun(stage.name).is_file():
                made.update(stage.places)
        return made

    def _check_foreign(self, stages: Sequence[Stage]) -> None:
        """Refuse to run stages over what no run has made.

        Raises:
            ObliqError: Something else lies where one of them writes.
        """
        made = self._made()
        for stage in stages:
            for place in stage.places:
                if place not in made and os.path.lexists(self.folder / place):
                    raise ObliqError(
                        f"{self.folder / place} was not made by a run, and stage {stage.name!r} "
                        "would replace it; move it elsewhere, or give another --out"
                    )

    def _key(self, stage: Stage) -> str:
        builds = {name: read_json(self._mark(name))["build"] for name in stage.inputs}
        return content_hash({"stage": stage.name, "config": stage.config, "inputs": builds})

    def _files(self, stage: Stage) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for output in stage.outputs:
            path = self.folder / output
            found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
            sizes.update({p.relative_to(self.folder).as_posix(): p.stat().st_size for p in found})
        return sizes

    def finished(self, stage: Stage) -> bool:
        """Whether the stage's result is there, whole, and made from what stands before it now."""
        if not self._mark(stage.name).is_file():
            return False
        if any(not self._mark(name).is_file() for name in stage.inputs):
            return False
        mark = read_json(self._mark(stage.name))
        if mark["key"] != self._key(stage):
            return False
        for name, size in mark["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != size:
                return False
        return True

    def _after(self, stage: Stage) -> list[Stage]:
        reached = {stage.name}
        after = []
        for other in self.stages:
            if reached & set(other.inputs):
                reached.add(other.name)
                after.append(other)
        return after

    def ahead(self, *, until: str | None = None) -> list[Stage]:
        """The stages that :meth:`run` would run: unfinished ones, and all that build on them."""
        ahead: list[Stage] = []
        for stage in self.stages:
            waits = {other.name for other in ahead} & set(stage.inputs)
            if waits or not self.finished(stage):
                ahead.append(stage)
            if stage.name == until:
                break
        return ahead

    def run(self, *, until: str | None = None) -> list[str]:
        """Run what is not finished.

        Args:
            until: Stop after the stage of this name.

        Returns:
            Names of the stages that ran.

        Raises:
            ObliqError: There is no such stage, one that would run says that it cannot, or
                something that no run has made lies where one would write.
        """
        names = [stage.name for stage in self.stages]
        if until is not None and until not in names:
            raise ObliqError(f"no stage {until!r}; stages: {', '.join(names)}")
        ahead = self.ahead(until=until)
        self._check_foreign(ahead)
        for stage in ahead:
            if stage.check is not None:
                stage.check()
        waiting = {stage.name for stage in ahead}
        (self.folder / "stages").mkdir(parents=True, exist_ok=True)
        for leftover in [*self.folder.glob(".*.tmp"), *self.folder.glob(".*.old")]:
            _remove(leftover)
        ran: list[str] = []
        for number, stage in enumerate(self.stages, 1):
            label = f"[{number}/{len(self.stages)}] {stage.name}"
            if self.finished(stage):
                self.say(f"{label}: found")
            else:
                self.say(f"{label}: {stage.about or 'running'} ...")
                started = time.perf_counter()
                result = self._run_one(stage)
                seconds = f"{time.perf_counter() - started:.0f} s"
                self.say(f"{label}: done in {seconds}" + (f": {result}" if result else ""))
                ran.append(stage.name)
            waiting.discard(stage.name)
            if stage.verify is not None and waiting:
                stage.verify(waiting)
            if stage.name == until:
                break
        return ran

    def begin(self, name: str) -> None:
        """Mark a stage as begun, so that what it leaves is gone on from and never thrown away.

        For a stage that is run by itself, outside :meth:`run`. Partial results of other settings
        or inputs are removed.

        Raises:
            ObliqError: There is no such stage, one that it builds on is not finished, or
                something that no run has made lies where it writes.
        """
        known = {stage.name: stage for stage in self.stages}
        if name not in known:
            raise ObliqError(f"no stage {name!r}{nearest(name, known)}")
        missing = [n for n in known[name].inputs if not self.finished(known[n])]
        if missing:
            raise ObliqError(f"stage {name!r} builds on {missing[0]!r}, which is not finished")
        if not self.finished(known[name]):
            self._begin(known[name])

    def _begin(self, stage: Stage) -> str:
        self._check_foreign([stage])
        write_json(self._record, sorted(self._made().union(stage.places)))
        self._mark(stage.name).unlink(missing_ok=True)
        for other in self._after(stage):
            self._mark(other.name).unlink(missing_ok=True)
            self._begun(other.name).unlink(missing_ok=True)
        key = self._key(stage)
        begun = self._begun(stage.name)
        if not (begun.is_file() and read_json(begun).get("key") == key):
            for output in stage.places:
                _remove(self.folder / output)
            write_json(begun, {"stage": stage.name, "key": key})
        return key

    def _run_one(self, stage: Stage) -> str | None:
        key = self._begin(stage)
        result = stage.run()
        files = self._files(stage)
        missing = [o for o in stage.outputs if not (self.folder / o).exists()]
        if missing:
            raise RuntimeError(f"stage {stage.name!r} left no {', '.join(missing)}")
        write_json(
            self._mark(stage.name),
            {
                "stage": stage.name,
                "key": key,
                "build": content_hash(key, files),
                "config": stage.config,
                "files": files,
            },
        )
        self._begun(stage.name).unlink(missing_ok=True)
        return result


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # renamed first: a removal cut short must not look like a result
        doomed = path.with_name(f".{path.name}.{os.getpid()}.old")
        path.rename(doomed)
        shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)

"""The push itself: look, plan, commit on what was looked at, look again if somebody was faster."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from obliq_hf.hub.redaction import find_secret
from obliq_hf.hub.repository import (
    Change,
    Commit,
    HubError,
    LocalFile,
    Pushed,
    Repository,
    Snapshot,
    StaleParentError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["check_public", "check_push", "push_change", "read_text"]

logger = logging.getLogger(__name__)

_ROUNDS = 8


def read_text(repository: Repository, path: str, snapshot: Snapshot | None) -> str | None:
    """A text file of a snapshot, or None where it has none.

    Raises:
        HubError: It is not UTF-8.
    """
    if snapshot is None or path not in snapshot.files:
        return None
    with repository.open(path, snapshot.commit) as file:
        data = file.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HubError(f"{repository.place}: {path} is not UTF-8: {error}") from error


def check_public(repository: Repository, files: Sequence[LocalFile]) -> None:
    """Refuse text files that hold a token or a path of this machine.

    Raises:
        HubError: One does; the file is named, and what it holds is not repeated.
    """
    secrets = [getattr(repository, "token", None)]
    places = {str(Path.home()), str(Path.cwd()), tempfile.gettempdir()}
    for file in files:
        text = file.text()
        if text is None:
            continue
        if find_secret(text, secrets):
            raise HubError(f"{file.path} holds an access token; nothing was published")
        for place in places:
            if len(place) > 1 and f"{place}/" in text:
                raise HubError(
                    f"{file.path} holds a path of this machine (below {place}); "
                    "nothing was published"
                )


def check_push(
    repository: Repository,
    before: Snapshot | None,
    *,
    create_pr: bool,
    version: str | None,
    data: Sequence[LocalFile],
) -> None:
    """Refuse a push that could not be finished, before anything of it is written.

    Args:
        repository: Where to.
        before: Its present state.
        create_pr: Whether a pull request is asked for.
        version: The tag that a person chose, so that it must be new; None where none was chosen.
        data: The files that a version stands for.

    Raises:
        HubError: There is nothing to open a pull request in, or the version names other content.
    """
    if before is None and create_pr:
        raise HubError(f"{repository.place}: there is no repository to open a pull request in")
    if version is not None:
        _check_version(repository, before, version, data)


def push_change(
    repository: Repository,
    plan: Callable[[Snapshot | None], Change],
    *,
    before: Snapshot | None,
    verify: Callable[[str], None],
    version: str | None,
    private: bool | None,
    create_pr: bool,
    dry_run: bool,
) -> Pushed:
    """Make one commit, look whether it holds what was to be written, and tag it.

    Args:
        repository: Where to.
        plan: Gives the change for a state of the repository; an empty one makes no commit.
        before: The state that was looked at first.
        verify: Raises where the revision it is given does not hold what was written.
        version: The tag, set on what is committed but not on a pull request; None for none. One
            that is there already stays where it is.
        private: See :func:`obliq_hf.hub.dataset_push.push_dataset`.
        create_pr: Likewise.
        dry_run: Plan alone.

    Raises:
        HubError: Others kept committing.
    """
    if dry_run:
        return _pushed(repository, plan(before), None, before, dry_run=True)
    pushed = _commit(repository, plan, private=private, create_pr=create_pr)
    verify(pushed.revision)
    if version is None or create_pr:
        return pushed
    if version not in repository.tags():
        repository.tag(version, Commit(pushed.revision, pushed.revision, pushed.url))
    return dataclasses.replace(pushed, version=version)


def _commit(
    repository: Repository,
    plan: Callable[[Snapshot | None], Change],
    *,
    private: bool | None,
    create_pr: bool,
) -> Pushed:
    """Commit, again and again until the commit sits on the state it was planned on."""
    repository.create(private=private)
    for _ in range(_ROUNDS):
        now = repository.snapshot()
        change = plan(now)
        if now is None:
            raise HubError(f"{repository.place}: the repository is gone")
        if not change:
            return _pushed(repository, change, None, now)
        try:
            commit = repository.commit(change, parent=now.commit, create_pr=create_pr)
        except StaleParentError as error:
            logger.info("%s; looking again", error)
            continue
        return _pushed(repository, change, commit, now)
    raise HubError(
        f"{repository.place}: others committed {_ROUNDS} times in a row while this push was "
        "under way; nothing was published, try again"
    )


def _pushed(
    repository: Repository,
    change: Change,
    commit: Commit | None,
    now: Snapshot | None,
    *,
    dry_run: bool = False,
) -> Pushed:
    return Pushed(
        repo_id=repository.repo_id,
        place=repository.place,
        loads_as=repository.loads_as,
        revision=commit.revision if commit else (now.commit if now else ""),
        changed=commit is not None,
        added=[file.path for file in change.add],
        deleted=list(change.delete),
        url=commit.url if commit else "",
        pull_request=commit.pull_request if commit else None,
        dry_run=dry_run,
    )


def _check_version(
    repository: Repository, before: Snapshot | None, version: str, data: Sequence[LocalFile]
) -> None:
    if before is None:
        return
    commit = repository.tags().get(version)
    if commit is None:
        return
    tagged = repository.snapshot(commit)
    held = tagged.files if tagged is not None else {}
    if any(file.path not in held or not held[file.path].same_as(file) for file in data):
        raise HubError(
            f"{repository.place}: version {version!r} is published already, with other content; "
            "choose a new version"
        )

"""Publishing datasets and models to a Hub, or to a folder laid out as one.

A push is one commit on the state it was planned on. It receives a finished card, leaves what is
not its own untouched, and reads the repository back afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from obliq_hf.hub.names import Destination
from obliq_hf.hub.repository import HubError, Pushed, Repository

if TYPE_CHECKING:
    from obliq_hf.hub.names import RepoType

__all__ = ["Destination", "HubError", "Pushed", "Repository", "open_repository"]


def open_repository(
    repo_id: str,
    repo_type: RepoType,
    *,
    to: Destination | str = "hub",
    token: str | None = None,
    endpoint: str | None = None,
    branch: str | None = None,
) -> Repository:
    """The repository of a name, at the Hub or in a folder.

    Args:
        repo_id: ``organisation/name``.
        repo_type: ``dataset`` or ``model``.
        to: ``hub``, ``folder:PATH``, or either parsed.
        token: The Hub's access token; by default that of the environment.
        endpoint: The Hub's address; by default that of the environment.
        branch: The branch to write; made where it is missing. A folder has none.

    Raises:
        ObliqError: The name or the destination is none.
    """
    where = Destination.parse(to) if isinstance(to, str) else to
    arguments: dict[str, Any] = {"repo_id": repo_id, "repo_type": repo_type}
    if where.folder is not None:
        from obliq_hf.hub.folder import FolderRepository

        if branch not in (None, "main"):
            raise HubError(f"{where.folder}: a folder has no branches ({branch!r} was asked for)")

        return FolderRepository(where.folder, **arguments)
    from obliq_hf.hub.remote import RemoteRepository

    return RemoteRepository(**arguments, token=token, endpoint=endpoint, branch=branch or "main")

"""A repository at a Hugging Face Hub."""

from __future__ import annotations

import io
import json
import logging
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import quote

from obliq_hf.errors import ObliqError
from obliq_hf.hub.names import check_repo_id, check_repo_path
from obliq_hf.hub.redaction import check_endpoint, redact
from obliq_hf.hub.remote_file import RemoteRanges
from obliq_hf.hub.repository import (
    Change,
    Commit,
    HubError,
    RemoteFile,
    Snapshot,
    StaleParentError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from obliq_hf.hub.names import RepoType

__all__ = ["RemoteRepository"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 6
_LONGEST_WAIT = 300.0


@dataclass
class RemoteRepository:
    """One repository at a Hub.

    Attributes:
        repo_id: ``organisation/name``.
        repo_type: ``dataset`` or ``model``.
        endpoint: The Hub's address; by default the one that ``HF_ENDPOINT`` names.
        token: The access token; by default the one of the environment. Never shown.
        branch: The branch that is written.
        sleep: Waits the given seconds between two attempts.
    """

    repo_id: str
    repo_type: RepoType
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    branch: str = "main"
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        check_repo_id(self.repo_id)
        from huggingface_hub import HfApi, constants, get_token

        self.endpoint = check_endpoint(self.endpoint or constants.ENDPOINT)
        self.token = self.token or get_token()
        self._api: Any = HfApi(endpoint=self.endpoint, token=self.token or False)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.repo_type} {self.repo_id} at {self.endpoint}"

    @property
    def loads_as(self) -> str:
        """What a loader is given."""
        return self.repo_id

    @property
    def _page(self) -> str:
        kind = "datasets/" if self.repo_type == "dataset" else ""
        return f"{self.endpoint}/{kind}{self.repo_id}"

    # ------------------------------------------------------------------ before a push

    def check_access(self, *, create_pr: bool, private: bool | None = None) -> None:
        """Ask the Hub who the token belongs to and whether it may write here.

        Args:
            create_pr: Whether the change is only proposed.
            private: Whether the repository must be private.

        Raises:
            HubError: There is no token, it is unknown, it only reads, a repository of the
                other type has this name and this type has none, the repository is public and
                ``private`` was asked for, or the branch to propose a change for is missing.
        """
        if not self.token:
            raise HubError(
                f"{self.place}: no token; set HF_TOKEN or run 'hf auth login', or publish to a "
                "folder with --to folder:PATH"
            )
        who = self._call("whoami", lambda: self._api.whoami())
        role = ((who.get("auth") or {}).get("accessToken") or {}).get("role")
        if role == "read" and not create_pr:
            raise HubError(
                f"{self.place}: the token of {who.get('name')!r} may only read; a token with the "
                "role 'write' is needed (or --create-pr, which proposes the change)"
            )
        info = self._info()
        if info is None:
            other = "model" if self.repo_type == "dataset" else "dataset"
            if self._info(other) is not None:
                raise HubError(
                    f"{self.place}: {self.repo_id} is a {other} repository; "
                    f"a {self.repo_type} needs another name"
                )
            return
        self._check_private(info, private)
        if create_pr and self.branch != "main" and self._info(revision=self.branch) is None:
            raise HubError(
                f"{self.place} has no branch {self.branch!r} to open a pull request for; leave the "
                "branch out, or make it there first"
            )

    def _check_private(self, info: Any, private: bool | None) -> None:
        if private and not info.private:
            raise HubError(
                f"{self.place} is public already; make it private there first, "
                "or leave --private out"
            )

    def _info(self, repo_type: str | None = None, revision: str | None = None) -> Any:
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        def ask() -> Any:
            try:
                return self._api.repo_info(
                    self.repo_id, repo_type=repo_type or self.repo_type, revision=revision
                )
            except (RepositoryNotFoundError, RevisionNotFoundError):
                return None

        return self._call("look it up", ask)

    def create(self, *, private: bool | None) -> None:
        """Make the repository, or check that the one there is as private as asked.

        Raises:
            HubError: It may not be made, or it is public and ``private`` was asked for.
        """
        info = self._info()
        if info is None:
            self._call(
                "create it",
                lambda: self._api.create_repo(
                    self.repo_id, repo_type=self.repo_type, private=private, exist_ok=True
                ),
            )
        else:
            self._check_private(info, private)
        if self.branch != "main":
            self._call(
                f"make its branch {self.branch}",
                lambda: self._api.create_branch(
                    self.repo_id, branch=self.branch, repo_type=self.repo_type, exist_ok=True
                ),
            )

    # ------------------------------------------------------------------ reading

    def snapshot(self, revision: str | None = None) -> Snapshot | None:
        """The files at a revision, or None where the repository or revision is missing."""
        info = self._info(revision=revision or self.branch)
        if info is None:
            return None
        from huggingface_hub.hf_api import RepoFile

        def tree() -> dict[str, RemoteFile]:
            rows = self._api.list_repo_tree(
                self.repo_id, repo_type=self.repo_type, revision=info.sha, recursive=True
            )
            return {
                row.path: RemoteFile(
                    row.size, sha256=row.lfs.sha256 if row.lfs else None, git_oid=row.blob_id
                )
                for row in rows
                if isinstance(row, RepoFile)
            }

        return Snapshot(info.sha, self._call("list its files", tree))

    def open(self, path: str, revision: str) -> BinaryIO:
        """Open a file; only the ranges that are read are fetched."""
        from huggingface_hub import get_hf_file_metadata

        place = f"{quote(revision, safe='')}/{quote(check_repo_path(path))}"
        url = f"{self._page}/resolve/{place}"
        what = f"read {path} of it"
        token = self.token or False
        found = self._call(
            what, lambda: get_hf_file_metadata(url, token=token, endpoint=self.endpoint)
        )

        def fetch(start: int, stop: int) -> bytes:
            return self._call(what, lambda: self._range(url, start, stop))

        ranges = RemoteRanges(fetch, int(found.size or 0))
        return cast("BinaryIO", io.BufferedReader(ranges, buffer_size=1 << 17))

    def _range(self, url: str, start: int, stop: int) -> bytes:
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        headers = build_hf_headers(token=self.token or False)
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        response = get_session().get(url, headers=headers, follow_redirects=True)
        hf_raise_for_status(response)
        return bytes(response.content)

    def tags(self) -> dict[str, str]:
        """Version tag -> commit id."""
        if self._info() is None:
            return {}
        refs = self._call(
            "list its tags",
            lambda: self._api.list_repo_refs(self.repo_id, repo_type=self.repo_type),
        )
        return {tag.name: tag.target_commit for tag in refs.tags}

    # ------------------------------------------------------------------ writing

    def commit(self, change: Change, *, parent: str, create_pr: bool = False) -> Commit:
        """Upload what the Hub lacks, then make one commit on ``parent``.

        Raises:
            StaleParentError: The branch has moved on, or it cannot be told whether a commit
                whose answer was lost was made; look at the branch and try again.
            HubError: The upload or the commit failed; the branch is as it was, and what was
                uploaded need not be uploaded again.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = []
        for file in change.add:
            content = file.content if isinstance(file.content, bytes) else str(file.content)
            operation = CommitOperationAdd(check_repo_path(file.path), content)
            operation.upload_info.sha256 = bytes.fromhex(file.sha256)
            operations.append(operation)
        additions = list(operations)
        operations += [CommitOperationDelete(path, is_folder=False) for path in change.delete]
        self._call(
            "upload to it",
            lambda: self._api.preupload_lfs_files(
                self.repo_id,
                additions,
                repo_type=self.repo_type,
                revision=self.branch,
                create_pr=create_pr,
                num_threads=2,
                free_memory=False,
            ),
            attempts=2,  # the client repeats each request of an upload by itself
        )
        info = self._call(
            "commit to it",
            lambda: self._api.create_commit(
                self.repo_id,
                operations,
                commit_message=change.message,
                repo_type=self.repo_type,
                revision=self.branch,
                parent_commit=parent,
                create_pr=create_pr,
                num_threads=2,
            ),
            lost=self._lost_pull_request if create_pr else self._lost_commit,
        )
        return Commit(
            id=info.oid,
            revision=info.pr_revision if create_pr else info.oid,
            url=info.pr_url if create_pr else f"{self._page}/commit/{info.oid}",
            pull_request=info.pr_url if create_pr else None,
        )

    def tag(self, name: str, commit: Commit) -> None:
        """Give a commit a version tag."""
        self._call(
            f"tag it {name}",
            lambda: self._api.create_tag(
                self.repo_id,
                tag=name,
                revision=commit.id,
                repo_type=self.repo_type,
                exist_ok=True,
            ),
        )

    # ------------------------------------------------------------------ failures

    def _call(
        self,
        what: str,
        call: Callable[[], T],
        *,
        attempts: int = _ATTEMPTS,
        lost: Callable[[Exception], HubError] | None = None,
    ) -> T:
        """Make a request; wait and repeat it while the Hub is busy; explain what fails.

        Args:
            what: What the request is for, for messages.
            call: Makes it.
            attempts: How often it is made at most.
            lost: For a request that may have been carried out although its answer was lost: the
                error to raise instead of repeating it blindly.
        """
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        for attempt in range(1, attempts + 1):
            try:
                return call()
            except ObliqError:
                raise
            except OfflineModeIsEnabled:
                raise HubError(
                    f"{self.place}: HF_HUB_OFFLINE is set, so nothing can be asked of the Hub; "
                    "unset it, or publish to a folder with --to folder:PATH"
                ) from None
            except (HfHubHTTPError, httpx2.TransportError, json.JSONDecodeError) as error:
                status = _status(error)
                if status == 412 or (status == 409 and lost is not None):
                    if status == 409:  # another commit is being made at this moment
                        self.sleep(_wait(error, attempt))
                    raise StaleParentError(f"{self.place} was changed meanwhile") from None
                busy = status is None or status == 429 or status >= 500
                if not busy or attempt == attempts:
                    raise self._explained(what, error, status) from None
                wait = _wait(error, attempt)
                if lost is not None and status != 429:
                    self.sleep(wait)
                    raise lost(error) from None
                logger.warning(
                    "%s: could not %s (%s); trying again in %.0f s",
                    *(self.place, what, self._short(error), wait),
                )
                self.sleep(wait)
            except (RuntimeError, ValueError, OSError) as error:
                raise self._explained(what, error, None) from None
        raise AssertionError("unreachable")

    def _lost_commit(self, error: Exception) -> HubError:
        return StaleParentError(
            f"{self.place}: the answer to a commit was lost ({self._short(error)})"
        )

    def _lost_pull_request(self, error: Exception) -> HubError:
        return HubError(
            f"{self.place}: the answer was lost ({self._short(error)}); a pull request may have "
            f"been opened, look at {self._page}/discussions before you try again"
        )

    def _short(self, error: BaseException) -> str:
        cause = error.__cause__
        text = " ".join(f"{error} {cause if cause is not None else ''}".split())
        return redact(f"{type(error).__name__}: {text}"[:500], [self.token])

    def _explained(self, what: str, error: BaseException, status: int | None) -> HubError:
        advice = {
            401: "the token is not accepted; check HF_TOKEN or run 'hf auth login'",
            403: "the token may not do this; it needs the right to write to the repository",
            404: "there is no such repository, or the token may not see it",
            413: "the Hub finds it too large",
        }.get(status or 0, "nothing was committed; run the same command again to go on")
        return HubError(f"{self.place}: could not {what}: {advice} ({self._short(error)})")


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _wait(error: BaseException, attempt: int) -> float:
    """Seconds to wait: what the Hub asks for, else 1, 2, 4, ... up to 30."""
    response = getattr(error, "response", None)
    asked = response.headers.get("Retry-After") if response is not None else None
    if asked:
        try:
            seconds = float(asked)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(asked).timestamp() - time.time()
            except ValueError:
                seconds = 0.0
        return min(max(seconds, 0.0), _LONGEST_WAIT)
    return min(2.0 ** (attempt - 1), 30.0)

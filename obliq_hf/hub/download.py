"""Fetching single files of datasets, with errors that say from where."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError
from obliq_hf.hub.names import check_repo_id, check_repo_path
from obliq_hf.hub.redaction import redact
from obliq_hf.hub.repository import HubError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fetch_file", "fetching"]


@contextlib.contextmanager
def fetching(what: str, *, token: str | None = None) -> Iterator[None]:
    """Say in one line what could not be had from a Hub, or from its cache, within the block.

    Args:
        what: The repository, with its address and revision where they are known.
        token: A token that must not be repeated.

    Raises:
        HubError: No such repository or file, no access, or no connection.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except ObliqError:
        raise
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:
        raise HubError(f"{what}: cannot be had ({redact(str(error), [token])[:300]})") from None


def fetch_file(
    repository: str,
    file: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    cache_folder: str | Path | None = None,
) -> tuple[Path, str]:
    """Fetch one file of a dataset repository, or find it in the cache.

    Args:
        repository: ``organisation/name``.
        file: Its path in the repository.
        revision: Branch, tag or commit.
        token: The Hub's token; by default that of the environment.
        endpoint: The Hub's address, likewise.
        cache_folder: Where downloads are kept.

    Returns:
        The local file, and the commit it is from.

    Raises:
        HubError: It cannot be had; endpoint and revision are named.
    """
    from huggingface_hub import constants, hf_hub_download

    check_repo_id(repository)
    check_repo_path(file)
    server = redact(endpoint or constants.ENDPOINT)
    place = f"{file} of dataset {repository} at {server}, revision {revision or 'main'}"
    with fetching(place, token=token):
        path = Path(
            hf_hub_download(
                repository,
                file,
                repo_type="dataset",
                revision=revision,
                token=token,
                endpoint=endpoint,
                cache_dir=cache_folder,
            )
        )
    inside = path.parts
    return path, inside[inside.index("snapshots") + 1]

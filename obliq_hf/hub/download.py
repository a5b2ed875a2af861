"""Fetching single files of datasets, with errors that say from where."""

from __future__ import annotations

from pathlib import Path

from obliq_hf.hub.names import check_repo_id, check_repo_path
from obliq_hf.hub.redaction import redact
from obliq_hf.hub.repository import HubError

__all__ = ["fetch_file"]


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
    import httpx2
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    check_repo_id(repository)
    check_repo_path(file)
    try:
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
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:
        raise HubError(
            f"{file} of dataset {repository} at {redact(endpoint or constants.ENDPOINT)}, revision "
            f"{revision or 'main'}: cannot be had ({redact(str(error), [token])[:300]})"
        ) from None
    inside = path.parts
    return path, inside[inside.index("snapshots") + 1]

"""From the words of a command line or a recipe to a client with its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.llm.cached_client import CachedClient

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from obliq_hf.llm.accounting import Budget, Price
    from obliq_hf.llm.chat import ChatClient, SessionClient

__all__ = ["load_client"]

_KINDS = "an address (http://127.0.0.1:8000/v1), hub, hub:PROVIDER, vllm, batch:FOLDER or embedded"


def load_client(
    spec: str,
    *,
    model: str | None = None,
    revision: str | None = None,
    cache: str | Path | None = None,
    api_key: str | None = None,
    concurrency: int = 64,
    timeout: float = 600.0,
    budget: Budget | None = None,
    price: Price | None = None,
    structured: str = "response_format",
    extra_body: Mapping[str, Any] | None = None,
) -> ChatClient:
    """Make a client from a description.

    Args:
        spec: `http(s)://...`: an OpenAI-compatible server. `hub` or `hub:PROVIDER`: the Hub's
            inference providers. `vllm`: vLLM in this process. `batch:FOLDER`: batch files.
            `embedded` or `embedded:FOLDER`: a model in this process through transformers.
        model: The model's name; needed by all but `embedded`.
        revision: Commit or tag of its weights.
        cache: File of the answer cache; None asks without one.
        api_key: Key of the server or provider; see
            :class:`obliq_hf.llm.endpoint.EndpointClient`.
        concurrency: Calls at once.
        timeout: Seconds before a call counts as lost.
        budget: Limits; for servers and providers.
        price: Of a million tokens.
        structured: How a schema is enforced.
        extra_body: Further fields of every request's body.

    Raises:
        ObliqError: An unknown description, a missing model, a package that is not installed.
    """
    client = _client(
        spec,
        model=model,
        revision=revision,
        api_key=api_key,
        concurrency=concurrency,
        timeout=timeout,
        budget=budget,
        price=price,
        structured=structured,
        extra_body=extra_body,
    )
    return client if cache is None else CachedClient(client, cache)


def _client(
    spec: str,
    *,
    model: str | None,
    revision: str | None,
    api_key: str | None,
    concurrency: int,
    timeout: float,
    budget: Budget | None,
    price: Price | None,
    structured: str,
    extra_body: Mapping[str, Any] | None,
) -> SessionClient:
    kind, _, rest = spec.partition(":")
    if kind == "embedded":
        from obliq_hf.llm.embedded import EmbeddedClient

        if budget is not None:
            raise ObliqError("a budget goes with servers and providers, not with 'embedded'")
        return EmbeddedClient(rest or None)
    if kind not in ("http", "https", "hub", "vllm", "batch"):
        raise ObliqError(f"language model {spec!r} is not valid; give {_KINDS}")
    if not model:
        raise ObliqError(f"language model {spec!r} needs the name of the model (--model)")
    if kind in ("http", "https", "hub"):
        from obliq_hf.llm.endpoint import EndpointClient

        return EndpointClient(
            None if kind == "hub" else spec,
            model=model,
            revision=revision,
            api_key=api_key,
            provider=(rest or None) if kind == "hub" else None,
            concurrency=concurrency,
            timeout=timeout,
            budget=budget,
            price=price,
            structured=structured,
            extra_body=extra_body,
        )
    if budget is not None:
        raise ObliqError(f"a budget goes with servers and providers, not with {spec!r}")
    if kind == "vllm":
        from obliq_hf.llm.vllm import VLLMClient

        template = dict((extra_body or {}).get("chat_template_kwargs", {}))
        return VLLMClient(model, revision=revision, template=template)
    if not rest:
        raise ObliqError("batch files need a folder: batch:FOLDER")
    from obliq_hf.llm.batch_files import BatchFileClient

    return BatchFileClient(
        rest,
        model=model,
        revision=revision,
        structured=structured,
        extra_body=extra_body,
        price=price,
    )

"""The card of an encoder that is pushed by itself, without a run to tell of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_own_card", "plain_card"]

TAG = "obliq"


def is_own_card(text: str) -> bool:
    """Whether a README was written by this project, so that it may be written again."""
    from obliq_hf.hub.card_header import CardHeader, split_card
    from obliq_hf.hub.repository import HubError

    try:
        tags = CardHeader(split_card(text)[1], "README.md").data.get("tags")
    except HubError:
        return False
    return isinstance(tags, list) and TAG in tags


def plain_card(
    name: str,
    prompts: Mapping[str, str],
    *,
    base: str | None = None,
    revision: str | None = None,
    adapter: bool = False,
) -> str:
    """A short card: how to use the model, its prompts, its base. No data are looked at.

    Args:
        name: The repository, or a heading.
        prompts: Prompt name -> text.
        base: The base model's name on the Hub.
        revision: Its commit.
        adapter: Whether the weights are an adapter's alone.
    """
    header = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", TAG],
    }
    if base:
        header |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    tasks = [n for n in prompts if n not in {"query", "document"} and not n.endswith("-query")]
    task = tasks[0] if tasks else "query"
    rows = [
        f"| {n} | `{text.replace(chr(10), '⏎')}` |" if text else f"| {n} | (nothing) |"
        for n, text in prompts.items()
        if not n.endswith(("-query", "-document"))
    ]
    stands = "" if base is None else f"Base: {base}, commit {revision or 'not recorded'}.\n\n"
    return (
        "---\n"
        + yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
        + "---\n"
        + f"# {name.split('/')[-1]}\n\n"
        + "A sentence encoder for oblique retrieval: finding texts by an attribute that they do "
        + "not state.\n\n"
        + "```python\n"
        + "from sentence_transformers import SentenceTransformer\n\n"
        + f'model = SentenceTransformer("{name}")\n'
        + f'queries = model.encode_query(["..."], prompt_name="{task}")\n'
        + 'documents = model.encode_document(["..."])\n'
        + "```\n\n"
        + stands
        + "| prompt_name | text before the query |\n|---|---|\n"
        + "\n".join(rows)
        + "\n\nThe licence of its base goes with it. A retriever of authorship can be used to find "
        + "the person behind an anonymous text: do not.\n"
    )

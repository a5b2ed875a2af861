"""What decides an encoder's vectors, as one digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from obliq_hf.files import content_hash

__all__ = ["model_fingerprint"]

_NOT_CONTENT = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures"}


def model_fingerprint(model: Any, *, include_prompt: bool = True) -> str:
    """SHA-256 over what decides a model's vectors: weights, module settings, tokenizer.

    Prompts and the length that texts are cut to are no part of it, nor are paths, names, versions
    and dates: the same weights under two names are one model, two checkpoints of one training
    never are.

    Args:
        model: A SentenceTransformer, or another torch module made of modules like its.
        include_prompt: Whether it counts that pooling includes a prompt's tokens, which decides
            nothing where texts have no prompt.

    Returns:
        64 hexadecimal characters.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    configs = [_module_config(module) for module in model]
    if not include_prompt:
        for config in configs:
            config.pop("include_prompt", None)
    digest.update(content_hash([_jsonable(config) for config in configs]).encode())
    return digest.hexdigest()


def _module_config(module: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"class": type(module).__name__}
    if hasattr(module, "get_config_dict"):
        config.update(module.get_config_dict())
    inner = getattr(module, "auto_model", None)
    if inner is not None and hasattr(inner, "config"):
        own = inner.config.to_dict()
        config["transformer"] = {
            k: v for k, v in own.items() if k not in _NOT_CONTENT and not k.startswith("_")
        }
    config.pop("max_seq_length", None)
    tokenizer = getattr(module, "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        config["tokenizer"] = _tokenizer_digest(backend)
    return config


def _tokenizer_digest(backend: Any) -> str:
    """Digest of a tokenizer without what its last use has left there: padding and truncation."""
    content = json.loads(backend.to_str())
    for state in ("padding", "truncation"):
        content.pop(state, None)
    return content_hash(content)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)

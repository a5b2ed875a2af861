"""Bidirectional Llama checkpoints that ask for remote code, as stock ``LlamaModel``.

Such a checkpoint (``model_type: llama_bidirec``) holds the weights of a plain Llama; its code only
takes the causal mask away. The stock class does the same with ``is_causal: false``.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import ObliqError
from obliq_hf.files import atomic_path, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from torch import nn

__all__ = ["MODEL_TYPE", "ConversionReport", "convert_bidirectional_llama"]

logger = logging.getLogger(__name__)

MODEL_TYPE = "llama_bidirec"
PROBES = (
    "A short text.",
    "A text that is rather longer than the other one, so that the batch has to be padded.",
    "1 + 1 = 2",
)
"""Texts on which a conversion is compared with its original."""

_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.jinja")
_DROPPED_KEYS = ("auto_map", "architectures", "model_type", "_name_or_path", "transformers_version")


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        source: Id or name of the original, never a path.
        revision: Its commit, if known.
        tensors: Number of weight tensors; all of them the stock class's, and all of the class's.
        parameters: Number of weights.
        verified: Whether vectors were compared with the original's.
        max_difference: Largest absolute difference of a component, if they were.
    """

    source: str | None
    revision: str | None
    tensors: int
    parameters: int
    verified: bool = False
    max_difference: float | None = None


def convert_bidirectional_llama(
    source: str | Path,
    target: str | Path,
    *,
    source_id: str | None = None,
    revision: str | None = None,
    link: bool = False,
    reference: tuple[Sequence[str], np.ndarray] | None = None,
    verify: Literal["auto", "require", "never"] = "auto",
    tolerance: float = 1e-3,
) -> ConversionReport:
    """Write a remote-code bidirectional Llama as a stock ``LlamaModel`` with ``is_causal: false``.

    Args:
        source: Folder of the original: ``config.json``, safetensors weights, tokenizer.
        target: Folder to write; it appears only when everything is right.
        source_id: The original's id on the Hub, for the record.
        revision: Its commit, for the record.
        link: Link to the weights instead of copying them, for a folder of short life.
        reference: Texts and the original's mean-pooled unit vectors for them, float [n, d],
            computed elsewhere.
        verify: Compare with the original where it can be had: from ``reference``, or because the
            caller has registered its class with transformers. ``require`` makes it an error when
            it cannot.
        tolerance: Largest difference of a component that counts as equal.

    Returns:
        What was done; also written to ``conversion.json`` in the folder.

    Raises:
        ObliqError: Not such a checkpoint, pickled weights, tensors missing or left over or of
            another shape, or vectors that differ from the original's.
    """
    folder, out = Path(source), Path(target)
    config = read_json(folder / "config.json")
    if config.get("model_type") != MODEL_TYPE:
        raise ObliqError(
            f"{folder / 'config.json'}: model_type is {config.get('model_type')!r}, "
            f"not {MODEL_TYPE!r}"
        )
    stock = {key: value for key, value in config.items() if key not in _DROPPED_KEYS}
    stock = {
        "architectures": ["LlamaModel"],
        "model_type": "llama",
        **stock,
        "is_causal": False,
        "use_cache": False,
    }
    shards = _weight_files(folder)
    prefix, tensors, parameters = _check_weights(folder, shards, stock)
    if out.exists() and any(out.iterdir()):
        raise ObliqError(f"{out}: already there; give the folder of a new model")
    with atomic_path(out) as temporary:
        temporary.mkdir()
        write_json(temporary / "config.json", stock)
        for pattern in _TOKENIZER_FILES:
            for file in sorted(folder.glob(pattern)):
                if file.suffix not in {".py", ".pkl", ".bin"}:
                    shutil.copyfile(file, temporary / file.name)
        _drop_remote_tokenizer(temporary / "tokenizer_config.json")
        _write_weights(folder, temporary, shards, prefix, link=link)
        difference = _compare(folder, temporary, reference, verify)
        if difference is not None and not difference <= tolerance:
            raise ObliqError(
                f"{folder}: converted vectors differ from the original's by {difference:.2g}, "
                f"more than {tolerance:.2g}"
            )
        report = ConversionReport(
            source=source_id,
            revision=revision,
            tensors=tensors,
            parameters=parameters,
            verified=difference is not None,
            max_difference=difference,
        )
        write_json(temporary / "conversion.json", asdict(report))
    return report


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index)["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if Path(name).name != name:
            raise ObliqError(f"{index}: weight file {name!r} is not beside the index")
        if not (folder / name).is_file():
            pickled = sorted(file.name for file in folder.glob("*.bin"))
            raise ObliqError(
                f"{folder}: weight file {name} is missing"
                + (f"; pickled weights ({', '.join(pickled)}) are never loaded" if pickled else "")
            )
    return names


def _check_weights(folder: Path, shards: list[str], config: dict[str, Any]) -> tuple[str, int, int]:
    """Compare the tensors' names and shapes with those of the stock class."""
    import torch
    from safetensors import safe_open
    from transformers import LlamaConfig, LlamaModel

    found: dict[str, tuple[int, ...]] = {}
    for name in shards:
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                if key in found:
                    raise ObliqError(f"{folder / name}: tensor {key!r} stands in two files")
                found[key] = tuple(file.get_slice(key).get_shape())
    prefix = "model." if found and all(key.startswith("model.") for key in found) else ""
    with torch.device("meta"):
        model = LlamaModel(LlamaConfig.from_dict(dict(config)))
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    given = {key.removeprefix(prefix): shape for key, shape in found.items()}
    problems = []
    for title, keys in (
        ("missing", sorted(wanted.keys() - given.keys())),
        ("unexpected", sorted(given.keys() - wanted.keys())),
        ("of another shape", sorted(k for k in wanted if given.get(k, wanted[k]) != wanted[k])),
    ):
        if keys:
            more = f" and {len(keys) - 10} more" if len(keys) > 10 else ""
            problems.append(f"{title}: {', '.join(keys[:10])}{more}")
    if problems:
        raise ObliqError(f"{folder}: weights are not LlamaModel's; {'; '.join(problems)}")
    return prefix, len(wanted), sum(value.numel() for value in model.state_dict().values())


def _write_weights(folder: Path, out: Path, shards: list[str], prefix: str, *, link: bool) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for name in shards:
        if prefix:
            with safe_open(folder / name, framework="pt") as file:
                weights = {k.removeprefix(prefix): file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            save_file(weights, out / name, metadata={"format": "pt"})
        elif link:
            (out / name).symlink_to((folder / name).resolve())
        else:
            shutil.copyfile(folder / name, out / name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = read_json(index)
        content["weight_map"] = {
            key.removeprefix(prefix): value for key, value in content["weight_map"].items()
        }
        write_json(out / index.name, content)


def _drop_remote_tokenizer(file: Path) -> None:
    if file.is_file():
        config = json.loads(file.read_text(encoding="utf-8-sig"))
        if config.pop("auto_map", None) is not None:
            write_json(file, config)


def _compare(
    original: Path,
    converted: Path,
    reference: tuple[Sequence[str], np.ndarray] | None,
    verify: str,
) -> float | None:
    import numpy as np
    from transformers import AutoModel

    if verify == "never":
        return None
    texts: Sequence[str] = PROBES
    if reference is not None:
        texts, expected = reference
    else:
        try:
            model = AutoModel.from_pretrained(
                original, trust_remote_code=False, use_safetensors=True, dtype="float32"
            )
        except (ValueError, OSError) as error:
            if verify == "require":
                raise ObliqError(
                    f"{original}: the original cannot be loaded to compare with ({error}); "
                    "register its class, or give its vectors as reference"
                ) from error
            logger.info("%s: the original is not loadable here; vectors not compared", original)
            return None
        expected = _mean_vectors(model, converted, texts)
    stock = AutoModel.from_pretrained(converted, use_safetensors=True, dtype="float32")
    given = _mean_vectors(stock, converted, texts)
    expected = np.asarray(expected, dtype=np.float32)
    if expected.shape != given.shape:
        raise ObliqError(f"reference vectors have shape {expected.shape}, not {given.shape}")
    return float(np.abs(given - expected).max())


def _mean_vectors(model: nn.Module, folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Mean-pooled unit vectors, [n, d], of one padded batch."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(os.fspath(folder))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(list(texts), return_tensors="pt", padding=True, truncation=True)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    model.eval()
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state.float()
    mask = inputs["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1).numpy()

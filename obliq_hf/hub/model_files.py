"""The files of a saved encoder that are published, checked to load by themselves."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash, read_json
from obliq_hf.hub.names import check_repo_id
from obliq_hf.hub.repository import HubError, LocalFile

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BaseModel", "ModelFiles", "collect_model"]

logger = logging.getLogger(__name__)

_PUBLISHED = (".json", ".safetensors", ".txt", ".model", ".jinja")
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack")
_STATE = re.compile(
    r"optimizer.*|scheduler\.pt|scaler\.pt|rng_state.*|training_args\.bin|trainer_state\.json|"
    r"complete\.json|training\.json|events\.out\..*|README\.md|\.gitattributes"
)
_NAME_KEYS = ("_name_or_path", "name_or_path", "tokenizer_file", "vocab_file")


@dataclass(frozen=True)
class BaseModel:
    """What a checkpoint was trained from.

    Attributes:
        id: Its name on the Hub, ``organisation/name``.
        revision: Its commit there, where it is known.
    """

    id: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> BaseModel:
        """Read ``organisation/name`` or ``organisation/name@revision``.

        Raises:
            ObliqError: It is neither.
        """
        name, _, revision = text.partition("@")
        return cls(check_repo_id(name), revision or None)


@dataclass(frozen=True)
class ModelFiles:
    """A checkpoint, ready to be published.

    Attributes:
        kind: ``model`` with whole weights, or ``adapter``.
        files: What goes into the repository.
        base: What it was trained from; None where it says that of no base.
        dtype: Precision of the weights, as safetensors names it.
        parameters: Number of weights in the files.
        prompts: Prompt name -> text.
        config: ``config_sentence_transformers.json``.
        adapter: ``adapter_config.json`` of an adapter.
        notes: Files left out.
    """

    kind: Literal["model", "adapter"]
    files: list[LocalFile]
    base: BaseModel | None
    dtype: str
    parameters: int
    prompts: dict[str, str]
    config: dict[str, Any]
    adapter: dict[str, Any] | None
    notes: list[str]

    @cached_property
    def default_tag(self) -> str:
        """The version tag where a person chose none."""
        digest = content_hash(sorted((file.path, file.sha256) for file in self.files))
        return f"model-{digest[:12]}"


def collect_model(folder: str | Path, *, base: BaseModel | None = None) -> ModelFiles:
    """Take the files of a saved encoder that belong into a repository, and check them.

    Weights are safetensors, whole and unpickled; every module is stock and present, so that the
    repository loads by itself. What a training leaves beside a model stays where it is. Paths of
    this machine are taken out of the configuration.

    Args:
        folder: The saved model or adapter.
        base: What it was trained from, where it does not say so itself.

    Raises:
        HubError: It would not load, or its base is a local path or unknown.
    """
    root = Path(folder)
    if not root.is_dir():
        raise HubError(f"{root}: no such folder")
    modules = _modules(root)
    is_adapter = (root / "adapter_config.json").is_file()
    config = read_json(root / "config_sentence_transformers.json")
    recorded = config.get("base_model") or {}
    notes: list[str] = []
    chosen: list[LocalFile] = []
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root).as_posix()
        if not file.is_file() or _left_out(inside):
            continue
        if inside.endswith(_PICKLED):
            raise HubError(
                f"{file}: pickled weights are not published; save the model as safetensors"
            )
        if inside.endswith(_PUBLISHED):
            chosen.append(LocalFile(inside, file))
        else:
            notes.append(f"{inside} is not part of the model; left out")
    dtype, parameters = _check_weights(root, modules, is_adapter)
    known = base or _recorded_base(recorded)
    adapter = None
    if is_adapter:
        adapter = read_json(root / "adapter_config.json")
        whole = [
            f.path for f in chosen if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", f.path)
        ]
        if whole:
            raise HubError(f"{root}: {whole[0]} holds whole weights beside the adapter's own")
        known = _adapter_base(root, adapter, recorded, base)
    elif known is None and recorded:
        raise HubError(
            f"{root}: its base is a folder of this machine, which nobody else can load or judge; "
            "name the base on the Hub with --base organisation/name@revision"
        )
    files = [_published(file, known) for file in chosen]
    return ModelFiles(
        kind="adapter" if is_adapter else "model",
        files=files,
        base=known,
        dtype=dtype,
        parameters=parameters,
        prompts=dict(config.get("prompts") or {}),
        config=config,
        adapter=adapter,
        notes=notes,
    )


def _left_out(inside: str) -> bool:
    parts = PurePosixPath(inside).parts
    return (
        _STATE.fullmatch(parts[-1]) is not None
        or any(part.startswith((".", "checkpoint-", "__pycache__")) for part in parts)
        or parts[0] in {"runs", "eval", "figures"}
    )


def _modules(root: Path) -> list[dict[str, Any]]:
    file = root / "modules.json"
    if not file.is_file():
        raise HubError(
            f"{root}: no modules.json, so loaders would guess the pooling; save the whole model "
            "with save_pretrained"
        )
    modules = read_json(file)
    if not isinstance(modules, list) or not modules:
        raise HubError(f"{file}: a list of modules is needed")
    for module in modules:
        if not str(module.get("type", "")).startswith("sentence_transformers."):
            raise HubError(
                f"{file}: module {module.get('type')!r} is not one of sentence-transformers' own; "
                "loaders refuse it without remote code"
            )
        place = root / str(module.get("path", ""))
        if not place.is_dir() and "Normalize" not in module["type"]:
            raise HubError(f"{file}: names the folder {module['path']!r}, which is missing")
    return modules


def _weight_files(root: Path, is_adapter: bool) -> Iterator[Path]:
    name = "adapter_model" if is_adapter else "model"
    index = root / f"{name}.safetensors.index.json"
    if index.is_file():
        for shard in sorted(set(read_json(index)["weight_map"].values())):
            yield root / str(shard)
    else:
        yield root / f"{name}.safetensors"


def _check_weights(root: Path, modules: list[dict[str, Any]], is_adapter: bool) -> tuple[str, int]:
    first = root / str(modules[0].get("path", ""))
    dtypes: dict[str, int] = {}
    for file in _weight_files(root if is_adapter else first, is_adapter):
        for name, tensor in _safetensors_header(file).items():
            if name != "__metadata__":
                count = 1
                for length in tensor["shape"]:
                    count *= length
                dtypes[tensor["dtype"]] = dtypes.get(tensor["dtype"], 0) + count
    if not dtypes:
        raise HubError(f"{root}: its weights hold no tensors")
    return max(dtypes, key=lambda dtype: dtypes[dtype]), sum(dtypes.values())


def _safetensors_header(file: Path) -> dict[str, Any]:
    """The header of a safetensors file, after a check that the file is as long as it says."""
    if not file.is_file():
        raise HubError(f"{file}: no such file; only safetensors weights are published")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(length)) if 2 <= length < size else None
        except (json.JSONDecodeError, UnicodeDecodeError):
            header = None
    ends = [t["data_offsets"][1] for n, t in (header or {}).items() if n != "__metadata__"]
    if header is None or 8 + length + max(ends, default=0) != size:
        raise HubError(f"{file}: not a whole safetensors file")
    return dict(header)


def _is_local(name: str) -> bool:
    try:
        check_repo_id(name)
    except ObliqError:
        return True
    return Path(name).exists()


def _recorded_base(recorded: dict[str, Any]) -> BaseModel | None:
    name = recorded.get("id")
    if not isinstance(name, str) or _is_local(name):
        return None
    return BaseModel(name, recorded.get("revision"))


def _adapter_base(
    root: Path, adapter: dict[str, Any], recorded: dict[str, Any], base: BaseModel | None
) -> BaseModel:
    if any(recorded.get(key) for key in ("layers", "converted")) or (
        recorded.get("bidirectional") is not None
    ):
        raise HubError(
            f"{root}: its base was cut or converted, so stock libraries cannot build it from a "
            "name; publish the merged model instead"
        )
    if base is None:
        name = adapter.get("base_model_name_or_path")
        if not isinstance(name, str) or not name or _is_local(name):
            raise HubError(
                f"{root}: adapter_config.json names the base {name!r}, which nobody else can "
                "load; name the base on the Hub with --base organisation/name@revision"
            )
        base = BaseModel(name, adapter.get("revision") or recorded.get("revision"))
    if base.revision is None:
        raise HubError(
            f"{root}: the commit of its base {base.id} is not recorded, so the adapter could come "
            "to sit on other weights; give it with --base organisation/name@commit"
        )
    return base


def _published(file: LocalFile, base: BaseModel | None) -> LocalFile:
    """The file as it is published: configurations without places, with base and revision."""
    if not file.path.endswith(".json") or not isinstance(file.content, Path):
        return file
    name = PurePosixPath(file.path).name
    if name not in {
        "config.json", "adapter_config.json", "tokenizer_config.json",
        "config_sentence_transformers.json", "sentence_bert_config.json",
    }:  # fmt: skip
        return file
    before = read_json(file.content)
    value = json.loads(json.dumps(before))
    for key in _NAME_KEYS:
        if isinstance(value.get(key), str) and _is_local(value[key]):
            del value[key]
    if name == "adapter_config.json" and base is not None:
        value["base_model_name_or_path"], value["revision"] = base.id, base.revision
    if name == "config_sentence_transformers.json" and isinstance(value.get("base_model"), dict):
        value["base_model"].pop("path", None)
        if base is not None:
            value["base_model"] |= {"id": base.id, "revision": base.revision}
    if value == before:
        return file
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    return replace(file, content=text.encode())

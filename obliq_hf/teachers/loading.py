"""From a teacher's name in a recipe to the teacher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from obliq_hf.errors import ObliqError
from obliq_hf.teachers.luar import LuarTeacher, check_trust
from obliq_hf.teachers.sentence_transformer import SentenceTransformerTeacher
from obliq_hf.teachers.stylometric import StylometricProfile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obliq_hf.teachers.teacher import Teacher

__all__ = ["check_teacher", "load_teacher"]


def _raw_luar(spec: str) -> str | None:
    """The model that a spec loads as raw LUAR, or None."""
    name = spec.removeprefix("luar:")
    called = name.rsplit("/", 1)[-1].startswith("LUAR-") and "sentence-transformers" not in name
    return name if name != spec or called else None


def check_teacher(spec: str | Path, *, trust_remote_code: bool = False) -> None:
    """Check what can be said of a teacher without loading it.

    Args:
        spec: As for :func:`load_teacher`.
        trust_remote_code: Likewise.

    Raises:
        ObliqError: A path that does not exist or holds no teacher, or raw LUAR whose code is not
            trusted.
    """
    if str(spec) == StylometricProfile.name:
        return
    name = str(spec).removeprefix("luar:")
    folder = Path(name)
    if not folder.is_dir() and (
        folder.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1
    ):
        raise ObliqError(f"teacher {name}: no such folder")
    if folder.is_dir() and not any(
        (folder / file).is_file() for file in ("profile.json", "modules.json", "config.json")
    ):
        raise ObliqError(f"teacher {name}: the folder holds neither a profile nor a model")
    raw = _raw_luar(str(spec))
    if raw is not None and not (folder / "profile.json").is_file():
        check_trust(raw, trust_remote_code)


def load_teacher(
    spec: str | Path,
    *,
    corpus_texts: Sequence[str] | None = None,
    revision: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> Teacher:
    """Load or fit a teacher.

    Args:
        spec: ``"stylometric"``: a profile fitted on ``corpus_texts``. A folder: a saved profile
            or a SentenceTransformer. ``"embedded"``: the packaged MiniLM. Any other name: a
            SentenceTransformer on the hub; one that begins with ``LUAR-`` (``rrivera1849/
            LUAR-MUD``) is loaded as raw LUAR unless it says that it is a port to
            sentence-transformers; ``luar:NAME`` loads NAME as raw LUAR.
        corpus_texts: The texts that will be screened.
        revision: Revision on the hub.
        device: Device of a neural teacher.
        trust_remote_code: Whether code from a model's repository may run; raw LUAR needs it.

    Raises:
        ObliqError: A profile is asked for without texts, a path does not exist, or the teacher
            cannot be loaded as asked.
    """
    name = str(spec)
    if name == StylometricProfile.name:
        if corpus_texts is None:
            raise ObliqError(
                "the stylometric teacher is fitted on the texts it screens: pass corpus_texts, "
                "or the folder of a saved profile"
            )
        return StylometricProfile.fit(corpus_texts)
    check_teacher(spec, trust_remote_code=trust_remote_code)
    if (Path(spec) / "profile.json").is_file():
        return StylometricProfile.load(spec)
    raw = _raw_luar(name)
    if raw is not None:
        return LuarTeacher(
            raw, trust_remote_code=trust_remote_code, revision=revision, device=device or "cpu"
        )
    return SentenceTransformerTeacher(
        name, revision=revision, device=device, trust_remote_code=trust_remote_code
    )

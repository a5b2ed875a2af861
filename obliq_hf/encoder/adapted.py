"""A sentence encoder that may carry LoRA adapters: how it is trained on, saved and merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer

from obliq_hf.encoder import adapters
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.files import atomic_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from obliq_hf.encoder.lora import MergeReport
    from obliq_hf.encoder.sources import BaseRecord

__all__ = ["AdaptedSentenceTransformer", "check_dtype"]

_DTYPES = ("float32", "bfloat16", "float16")
_PROBES = ("The sea was calm.", "He would not say why, and she did not ask.", "1, 2, 3")


def check_dtype(dtype: str | None) -> None:
    """Refuse a precision that weights cannot have; None stands for that of the base.

    Raises:
        ObliqError: The nearest valid one is named.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise ObliqError(f"dtype {dtype!r} is not valid{nearest(str(dtype), _DTYPES)}")


class AdaptedSentenceTransformer(SentenceTransformer):
    """A :class:`SentenceTransformer` whose transformer may carry LoRA adapters.

    Attributes:
        base: What it was built on.
        merge_report: What merging changed, on a copy that :meth:`merged` gave.
    """

    base: BaseRecord
    merge_report: MergeReport | None

    @property
    def has_adapter(self) -> bool:
        """Whether the transformer carries LoRA adapters."""
        return self._peft is not None

    @property
    def _peft(self) -> Any:
        return adapters.peft_model(self[0])

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Enable gradient checkpointing so that adapters get gradients, whichever came first."""
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, **kwargs)
        if self.has_adapter:
            self._peft.enable_input_require_grads()

    def save(  # type: ignore[override]
        self,
        path: str | Path,
        model_name: str | None = None,
        create_model_card: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save the model, or with adapters those alone, so that stock libraries can load it.

        No card is written by default: the stock one copies training texts.
        """
        folder = Path(path)
        had_card = (folder / "README.md").exists()
        if self.has_adapter:
            config = self._peft.peft_config[self._peft.active_adapter]
            name = config.base_model_name_or_path
            config.base_model_name_or_path = ""  # keeps peft from asking the Hub about the base
            try:
                super().save(str(folder), model_name, create_model_card, **kwargs)
            finally:
                config.base_model_name_or_path = name
            adapters.check_saved(folder, self._peft)
            adapters.finish_saved(folder, self.base)
        else:
            super().save(str(folder), model_name, create_model_card, **kwargs)
        if not create_model_card and not had_card:
            (folder / "README.md").unlink(missing_ok=True)

    def save_pretrained(  # type: ignore[override]
        self,
        path: str | Path,
        model_name: str | None = None,
        create_model_card: bool = False,
        **kwargs: Any,
    ) -> None:
        """The same as :meth:`save`."""
        self.save(path, model_name, create_model_card, **kwargs)

    def save_adapter(self, folder: str | Path) -> None:
        """Save the adapter, with pooling, prompts and tokenizer, all or nothing.

        ``SentenceTransformer(folder)`` loads it where the base can be reached under its name;
        ``ObliqSentenceTransformer.from_adapter`` pins the base's revision as well.

        Raises:
            ObliqError: There is no adapter, or it cannot be saved completely.
        """
        if not self.has_adapter:
            raise ObliqError("the model has no adapter to save")
        with atomic_path(folder) as temporary:
            self.save(temporary)

    def merged(self, dtype: str | None = None, *, texts: Sequence[str] = _PROBES) -> Self:
        """A copy with the adapter merged into the weights, in fp32, then cast.

        Args:
            dtype: Precision of the copy; None for that of the base.
            texts: Texts on which merged and adapter embeddings are compared.

        Returns:
            The copy, on the same device; its ``merge_report`` says what changed.

        Raises:
            ObliqError: No adapter, or merged embeddings that are not the adapter's.
        """
        check_dtype(dtype)
        target = None if dtype is None else getattr(torch, dtype)
        return adapters.merged_copy(self, target, list(texts))

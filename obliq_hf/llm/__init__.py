"""Asking language models: requests, a cache of every answer, adapters, parsing, cost.

    from obliq_hf.llm import CachedClient, ChatRequest, EndpointClient, run_flows, parse_object

=====================  ============================================================================
`chat`                 `ChatRequest`, `ChatAnswer`, the protocols `ChatClient` and `ChatSession`
`flows`                `run_flows`: many multi-step conversations at once, each a generator
`cached_client`        `CachedClient`: answers from a cache, asks only what is new
`cache`                `AnswerCache`: one SQLite file, safe for several processes
`endpoint`             `EndpointClient`: any OpenAI-compatible server, and the Hub's providers
`batch_files`          `BatchFileClient`: requests to a JSONL file, answers from one
`embedded`             `EmbeddedClient`: SmolLM2 or any folder through transformers, in this process
`vllm`                 `VLLMClient`: vLLM in this process
`load`                 `load_client("http://..." | "hub" | "vllm" | "batch:DIR" | "embedded", ...)`
`parsing`              `parse_object`, `answer_object`: JSON out of what a model wrote
`accounting`           `Accounting`, `Budget`, `Price`
=====================  ============================================================================

Importing this package loads no HTTP client and no model code.
"""

from __future__ import annotations

from obliq_hf.llm.accounting import Accounting, Budget, Price, Usage
from obliq_hf.llm.cache import AnswerCache
from obliq_hf.llm.cached_client import CachedClient
from obliq_hf.llm.chat import (
    BatchPending,
    ChatAnswer,
    ChatClient,
    ChatRequest,
    ChatSession,
    LLMError,
    SessionClient,
    request_key,
)
from obliq_hf.llm.endpoint import EndpointClient
from obliq_hf.llm.flows import run_flow, run_flows
from obliq_hf.llm.load import load_client
from obliq_hf.llm.parsing import ParseFailure, answer_object, parse_object, strip_thinking
from obliq_hf.llm.retries import RetryPolicy

__all__ = [
    "Accounting",
    "AnswerCache",
    "BatchPending",
    "Budget",
    "CachedClient",
    "ChatAnswer",
    "ChatClient",
    "ChatRequest",
    "ChatSession",
    "EndpointClient",
    "LLMError",
    "ParseFailure",
    "Price",
    "RetryPolicy",
    "SessionClient",
    "Usage",
    "answer_object",
    "load_client",
    "parse_object",
    "request_key",
    "run_flow",
    "run_flows",
    "strip_thinking",
]

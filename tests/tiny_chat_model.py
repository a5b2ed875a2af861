"""A tiny random chat model over bytes, and a vLLM server for it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def make_tiny_chat_model(folder: Path, *, room: int = 8192) -> Path:
    """Write a random 2-layer Qwen2 over bytes, with a chat template and so many positions."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocab = {"<pad>": 0, "<end>": 1}
    vocab.update({b: i for i, b in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 2)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocab),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=room,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(str(folder))
    fast.save_pretrained(str(folder))
    return folder


def vllm_environment() -> dict[str, str]:
    """The variables under which vLLM runs offline, with a small cache, on a CPU."""
    return {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


@contextlib.contextmanager
def vllm_server(python: str, model: Path, log: Path, *, name: str = "tiny") -> Iterator[str]:
    """Start vLLM's server on a free port and give its address; stopped afterwards."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [
                *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
                *("--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)),
                *("--max-model-len", "8192", "--dtype", "float32", "--enforce-eager"),
                # on a CPU, vLLM dies of a seeded request whose prompt it reads in parts
                *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "65536"),
            ],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=vllm_environment(),
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 900
    try:
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    text = log.read_text(encoding="utf-8", errors="replace")
                    raise RuntimeError(f"vLLM did not start:\n{text[-3000:]}") from None
                time.sleep(1)
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)

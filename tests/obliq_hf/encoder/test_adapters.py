from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny_encoders import SHA, TEXTS, build, gap, put_in_cache, shake

from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer
from obliq_hf.errors import ObliqError


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

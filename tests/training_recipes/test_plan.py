from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny_llama import make_bidirectional_llama

from obliq_hf import cli
from obliq_hf.encoder import LoraSettings, ObliqSentenceTransformer
from obliq_hf.errors import ObliqError
from training_recipes.architecture import find_device, read_architecture, step_memory
from training_recipes.plan import plan_recipe, shown
from training_recipes.recipe import load_recipe
from training_recipes.sections import LoraConfig, TrainingConfig

if TYPE_CHECKING:
    from pathlib import Path

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("lora", [None, LoraConfig(r=4, targets=SEVEN), LoraConfig(r=3)])
def test_parameters_are_those_of_the_model_that_training_builds(tmp_path, lora, layers):
    base = make_bidirectional_llama(tmp_path / "base")
    found = read_architecture(TrainingConfig(base=str(base), lora=lora, layers=layers))
    adapters = lora and LoraSettings(r=lora.r, targets=lora.targets and tuple(lora.targets))
    model = ObliqSentenceTransformer.from_base(base, lora=adapters, layers=layers, device="cpu")
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    assert found.parameters == sum(n for n, _ in sizes)
    assert found.trained == sum(n for n, trained in sizes if trained)


def test_the_3b_recipe_says_what_it_takes_without_its_base_or_its_data(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "obliq_ir_3b", "--dry-run", "--device", "8xh100"]) == 0
    text = capsys.readouterr().out
    assert "24.3 M trained" in text  # r 16 on seven projections of 28 layers
    assert "out of reach here" in text
    assert "twitter-queries" in text
    assert "10,389" in text
    assert "8 x h100" in text
    assert list(tmp_path.iterdir()) == []
    plan = plan_recipe(load_recipe("obliq_ir_3b"), device="h100")
    assert sum(d.rows or 0 for d in plan.datasets) == 3 * 45_000 + 3508 + 10_389 + 5000
    assert plan.hours(plan.flops) == pytest.approx(8 * 0.9 * plan_hours("8xh100"), rel=1e-6)
    assert 3.1e9 < plan.architecture.parameters < 3.4e9


def plan_hours(device: str) -> float:
    plan = plan_recipe(load_recipe("obliq_ir_3b"), device=device)
    hours = plan.hours(plan.flops)
    assert hours is not None
    return hours


def test_what_saves_memory_or_time_shows(tmp_path):
    recipe = load_recipe("obliq_ir_3b")
    architecture = plan_recipe(recipe).architecture

    def memory(**changes: object) -> float:
        from dataclasses import replace

        config = replace(recipe.training, **changes)
        return step_memory(architecture, config, length=512, negatives=4).total

    assert memory(gradient_checkpointing=False) > 2 * memory()
    assert memory(loss="plain") > memory()
    assert memory(mini_batch_size=64) > memory()
    assert 8e9 < memory() < 24e9
    small = plan_recipe(load_recipe("obliq_ir_3b", ["--graph.dose", "0"])).flops
    assert small < plan_recipe(recipe).flops


def test_a_recipe_whose_corpus_is_unknown_says_so(tiny_model_dir: Path, tmp_path, capsys):
    words = [
        "--training.base",
        str(tiny_model_dir),
        "--out",
        str(tmp_path / "r"),
        "--graph.dose",
        "null",
    ]
    plan = plan_recipe(load_recipe("quickstart", words), device="cpu")
    assert plan.steps is None
    text = shown(plan)
    assert "unknown" in text
    assert "known once the corpus is there" in text
    assert "Hours:      unknown" in text


def test_a_training_that_is_cut_short_costs_its_share(tmp_path):
    words = ["--out", str(tmp_path / "r")]
    whole = plan_recipe(load_recipe("quickstart", words), device="cpu")
    short = plan_recipe(load_recipe("quickstart", [*words, "--max_steps", "7"]), device="cpu")
    assert short.steps == 7
    assert short.complete == whole.steps == whole.complete
    for cost in ("tokens", "flops"):
        assert getattr(short, cost) == pytest.approx(getattr(whole, cost) * 7 / whole.steps)
    long = plan_recipe(load_recipe("quickstart", [*words, "--max_steps", "99999"]))
    assert long.steps == whole.steps
    assert long.tokens == whole.tokens


def test_tokens_and_hours_of_unknown_rows_are_unknown_also_with_a_number_of_steps(tmp_path):
    words = ["--out", str(tmp_path / "r"), "--graph.dose", "null", "--max_steps", "7"]
    plan = plan_recipe(load_recipe("quickstart", words), device="cpu")
    assert (plan.steps, plan.tokens, plan.flops) == (7, None, None)
    text = shown(plan)
    assert "Steps:      7 of" in text
    assert "Tokens:     unknown" in text
    assert "Hours:      unknown" in text


def test_memory_is_that_of_the_longest_texts_and_hours_are_of_the_usual_ones(
    tiny_model_dir, write_mixture, tmp_path
):
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = ["--training.base", str(tiny_model_dir), "--out", str(tmp_path), "--lora", "null"]
    words += ["--max_length", "400", "--batch_size", "4", "--training.lengths", "{}"]

    def planned():
        return plan_recipe(load_recipe("quickstart", words))

    assert {d.longest for d in planned().datasets} == {400}
    folder = write_mixture(tmp_path / "mixture", ("rows", "graph", 1000, 0))
    before = planned()
    assert before.datasets[0].longest < 60
    table = pq.read_table(folder / "rows.parquet")
    texts = table["positive"].to_pylist()
    texts[501] = "the sea and the king " * 100  # none of those sampled
    changed = table.set_column(
        table.schema.get_field_index("positive"), table.schema.field("positive"), pa.array(texts)
    )
    pq.write_table(changed, folder / "rows.parquet")
    after = planned()
    assert after.datasets[0].longest == 400
    assert after.flops == pytest.approx(before.flops, rel=0.2)
    assert after.memory().activations > 5 * before.memory().activations


def test_devices_are_named_alone_or_several_of_a_kind():
    assert find_device("h100")[0] == 1
    assert find_device("8xA100-80GB")[0] == 8
    assert find_device("2xrtx4090")[1].memory == 24e9
    with pytest.raises(ObliqError, match="did you mean 'h100'"):
        find_device("h101")


def test_a_base_that_cannot_be_had_and_a_device_without_a_dry_run_are_told(capsys, tmp_path):
    assert cli.main(["run", "quickstart", "--device", "h100"]) == 1
    assert "--dry-run" in capsys.readouterr().err
    words = [
        "run",
        "quickstart",
        "--dry-run",
        "--training.base",
        "nobody/nothing",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(words) == 1
    assert "config.json cannot be read" in capsys.readouterr().err
    words = ["run", "quickstart", "--dry-run", "--lora", "{targets: [q_proj]}"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 1
    assert "no projection 'q_proj'" in capsys.readouterr().err

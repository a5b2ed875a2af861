from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from obliq_hf.errors import ObliqError
from training_recipes.recipe import Recipe, load_recipe
from training_recipes.settings import leaves

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def test_values_are_coerced_from_what_yaml_and_the_command_line_give(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.yaml",
        "training: {learning_rate: 1e-4, batch_size: 16.0, weight_decay: '0.5', lora: {r: 8}}\n"
        "negatives: {fill: null}\n",
    )
    recipe = load_recipe(
        path,
        [
            "--training.max-length", "96", "--gradient_checkpointing", "--bf16=false",
            "--evaluation.systems", "bm25,base", "--queries.tasks", "[scene, writing]",
            "--alpha", "8",
            "--training.repeat.queries", "4", "--repo_id", "null",
        ],
    )  # fmt: skip
    training = recipe.training
    assert (training.learning_rate, training.batch_size, training.weight_decay) == (1e-4, 16, 0.5)
    assert isinstance(training.batch_size, int)
    assert training.lora is not None
    assert (training.lora.r, training.lora.alpha) == (8, 8.0)
    assert training.max_length == 96
    assert training.gradient_checkpointing is True
    assert training.bf16 is False
    assert training.repeat == {"queries": 4}
    assert recipe.evaluation.systems == ["bm25", "base"]
    assert recipe.queries.tasks == ["scene", "writing"]
    assert recipe.negatives.fill == "none"
    assert recipe.hub.repo_id is None
    assert (recipe.name, recipe.out) == ("a", "runs/a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training: {learing_rate: 1}", ["a.yaml", "training.learing_rate", "'learning_rate'"]),
        ("traning: {}", ["a.yaml", "traning", "'training'"]),
        ("training: {learning_rate: fast}", ["training.learning_rate", "a number", "'fast'"]),
        ("training: {learning_rate: .nan}", ["training.learning_rate", "a number"]),
        ("training: {learning_rate: 0}", ["training.learning_rate", "above 0"]),
        ("training: {batch_size: 2.5}", ["training.batch_size", "an integer"]),
        ("training: {batch_size: true}", ["training.batch_size", "an integer"]),
        ("training: {loss: cachd}", ["training.loss", "plain | cached"]),
        ("training: {lora: 16}", ["training.lora", "mapping"]),
        ("training: {lora: {rank: 16}}", ["training.lora.rank", "unknown key"]),
        ("training: {revision: 1234}", ["training.revision", "quotes"]),
        ("training: {repeat: {graph: -1}}", ["training.repeat.graph", "at least 0"]),
        ("evaluation: {systems: bm25}", ["evaluation.systems", "a list, each item a string"]),
        ("tasks: writing", ["tasks", "a list, each item a string"]),
        ("negatives: {first_rank: 50, last_rank: 20}", ["negatives", "last_rank", "first_rank 50"]),
        ("seed: 1\nseed: 2", ["a.yaml", "'seed' is given twice"]),
        ("- 1", ["a.yaml", "a mapping"]),
        ("a: [", ["a.yaml", "not readable as YAML"]),
        ("extends: 3", ["a.yaml", "extends"]),
        ("extends: b.yaml", ["a.yaml", "b.yaml", "does not exist"]),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, text: str, said: list[str]) -> None:
    path = write(tmp_path, "a.yaml", text)
    with pytest.raises(ObliqError) as caught:
        load_recipe(path)
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--path", "x"], ["--corpus.path", "--queries.path"]),
        (["--learing_rate", "1"], ["learing_rate", "'learning_rate'"]),
        (["--graph.neighbors", "random"], ["'graph.neighbours'"]),
        (["--batch_size"], ["--training.batch_size needs a value", "an integer"]),
        (["--graph.neighbours", "randm"], ["graph.neighbours", "teacher | random"]),
        (["learning_rate", "1"], ["'learning_rate'", "--key value"]),
        (["--queries", "3"], ["queries", "mapping"]),
        (["--tasks", "[a"], ["tasks", "not readable"]),
        (["--xyzzy", "1"], ["--xyzzy", "its sections are", "training"]),
    ],
)
def test_a_mistake_on_the_command_line_says_what_to_write(
    tmp_path: Path, words: list[str], said: list[str]
) -> None:
    path = write(tmp_path, "a.yaml", "name: a\n")
    with pytest.raises(ObliqError) as caught:
        load_recipe(path, words)
    for part in said:
        assert part in str(caught.value)


def test_a_recipe_builds_on_others_and_the_nearest_setting_wins(tmp_path: Path) -> None:
    write(
        tmp_path,
        "base/a.yaml",
        "name: a\nnegatives: {first_rank: 200, last_rank: 300}\n"
        "training: {lora: {r: 8, dropout: 0.1}, repeat: {queries: 4}}\n",
    )
    write(tmp_path, "b.yaml", "extends: base/a.yaml\ntraining: {lora: {r: 4}}\n")
    # first_rank alone would contradict the default last_rank; the parent's holds
    path = write(
        tmp_path,
        "c.yaml",
        "extends: b.yaml\nnegatives: {first_rank: 250}\ntraining: {repeat: {graph: 2}}\n",
    )
    recipe = load_recipe(path)
    assert recipe.name == "c"
    assert recipe.training.lora is not None
    assert (recipe.training.lora.r, recipe.training.lora.dropout) == (4, 0.1)
    assert recipe.training.repeat == {"queries": 4, "graph": 2}
    assert (recipe.negatives.first_rank, recipe.negatives.last_rank) == (250, 300)
    without = load_recipe(path, ["--lora", "null"])
    assert without.training.lora is None
    again = load_recipe(path, ["--lora", "null", "--r", "2"])
    assert again.training.lora is not None
    assert (again.training.lora.r, again.training.lora.dropout) == (2, 0.0)


def test_recipes_that_build_on_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    path = write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(ObliqError, match=r"circle: b.yaml -> a.yaml -> b.yaml"):
        load_recipe(path)


def test_files_are_found_beside_the_recipe_and_words_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "r/scene.yaml", "x: 1\n")
    (tmp_path / "r" / "writing").mkdir()
    (tmp_path / "r" / "models" / "tiny").mkdir(parents=True)
    write(
        tmp_path,
        "r/a.yaml",
        "tasks: [writing, scene.yaml]\ncorpus: {path: data}\ntraining: {base: models/tiny}\n",
    )
    child = write(tmp_path, "b.yaml", "extends: r/a.yaml\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    recipe = load_recipe(child)
    assert recipe.tasks == ["writing", str(tmp_path / "r" / "scene.yaml")]
    assert recipe.corpus.path == str(tmp_path / "r" / "data")
    assert recipe.training.base == str(tmp_path / "r" / "models" / "tiny")
    given = load_recipe(child, ["--corpus.path", "mine", "--training.base", "org/model"])
    assert given.corpus.path == str(tmp_path / "here" / "mine")
    assert given.training.base == "org/model"


def test_the_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.yaml",
        "tasks: [writing]\nout: 'runs/x: y'\ntraining: {lora: {}, learning_rate: 3e-05}\n",
    )
    recipe = load_recipe(path)
    again = load_recipe(write(tmp_path, "dumped.yaml", recipe.to_yaml()))
    assert again == recipe
    assert again.hash() == recipe.hash()


def test_the_hash_follows_content_and_not_places(tmp_path: Path) -> None:
    text = "tasks: [t.yaml]\ncorpus: {path: data}\ntraining: {base: ./m}\n"
    for folder in ("one", "two"):
        write(tmp_path, f"{folder}/t.yaml", "name: t\n")
        write(tmp_path, f"{folder}/a.yaml", text)
    one = load_recipe(tmp_path / "one/a.yaml")
    two = load_recipe(tmp_path / "two/a.yaml", ["--out", "elsewhere", "--name", "other"])
    assert one.hash() == two.hash()
    write(tmp_path, "two/t.yaml", "name: changed\n")
    assert one.hash() != two.hash()
    faster = load_recipe(tmp_path / "one/a.yaml", ["--learning_rate", "1e-3"])
    assert faster.hash() != one.hash()
    assert faster.hash("graph", "seed") == one.hash("graph", "seed")
    unrelated = ["--save_steps", "7", "--endpoint", "http://x", "--push_to_hub"]
    assert load_recipe(tmp_path / "one/a.yaml", unrelated).hash() == one.hash()


def test_every_setting_says_what_it_does() -> None:
    for key, declared, _ in leaves(Recipe):
        assert len(declared.metadata["help"]) > 8, key


def test_a_missing_recipe_lists_those_that_ship() -> None:
    with pytest.raises(ObliqError, match="no such recipe"):
        load_recipe("nowhere/nothing.yaml")

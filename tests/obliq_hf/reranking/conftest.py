"""A task to rerank for."""

from __future__ import annotations

import pytest

from obliq_hf.tasks import ObliqTask


@pytest.fixture
def task() -> ObliqTask:
    return ObliqTask(
        name="style",
        mechanism="analogue",
        attribute="authorial style",
        instruction="Find passages by the same hand",
        lens="analogue",
        exclusion="none",
        reranking={"reranker": "tourrank", "rounds": 2},
        reranking_ignore="topic and plot; compare rhythm",
    )

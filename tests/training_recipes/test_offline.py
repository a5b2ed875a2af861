"""A process that is told to stay offline asks for no connection, whatever it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hub_fixtures import fresh_process, hub, online
from hub_state import OWNER
from huggingface_hub import snapshot_download
from published import files
from run_folder import make_corpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub_server import LocalHub

__all__ = ["fresh_process", "hub", "online"]

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import socket, sys

tried = []

def refuse(*given, **more):
    tried.append(given)
    raise OSError("no connection may be asked for")

for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = refuse

from obliq_hf.cli import main
from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.errors import ObliqError
from obliq_hf.tasks import load_tasks
from training_recipes.sections import TrainingConfig
from training_recipes.train import train

mixture, corpus, out = sys.argv[1:]
settings = TrainingConfig(base="acme/base", batch_size=8, max_length=64, max_steps=1)
result = train(settings, mixture, out, tasks=load_tasks(["writing"]), reload_check=False)
print("steps", result.report["steps"], result.report["base"]["id"])
model = ObliqSentenceTransformer(str(result.model))
print("encoded", model.encode_query(["the sea"], prompt_name="writing").shape)
words = ["--model", str(result.model), "--tasks", "writing", "--out", out + "/eval"]
assert main(["evaluate", "--data", corpus, *words]) == 0
try:
    ObliqSentenceTransformer.from_base("acme/gone", tasks=["writing"])
except ObliqError as error:
    print("refused", error)
print("tried", tried)
"""


@pytest.mark.usefixtures("online")
def test_offline_a_base_from_the_cache_is_trained_encoded_and_scored_without_a_connection(
    hub: LocalHub, tiny_model_dir: Path, make_mixture: Callable[..., Path],
    fresh_process: Callable[..., str], tmp_path: Path,
) -> None:  # fmt: skip
    commit = hub.put("acme/base", files(tiny_model_dir), kind="model")
    cache = tmp_path / "cache"
    snapshot_download("acme/base", endpoint=hub.url, token=OWNER, cache_dir=cache)
    mixture = make_mixture(("w-graph", "graph", 16, 0))
    corpus = make_corpus(tmp_path / "corpus")
    printed = fresh_process(
        ["-c", CODE, str(mixture), str(corpus), str(tmp_path / "run")],
        env={"HF_HUB_CACHE": str(cache), "PYTHONPATH": str(ROOT)},
        token=None,
    )
    assert "steps 1 acme/base" in printed
    assert "encoded (1, 32)" in printed
    assert "refused acme/gone: no config.json" in printed
    assert printed.splitlines()[-1] == "tried []", "nothing was asked for, so nothing waited for"
    assert commit in (tmp_path / "run" / "training.json").read_text(encoding="utf-8")

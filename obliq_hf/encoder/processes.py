"""Encoding in several processes: one per device, each with a share of the shards."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from obliq_hf.errors import ObliqError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Workers", "launch"]

T = TypeVar("T")
_LONGEST_WAIT = timedelta(days=7)  # for processes whose share is encoded to wait for the others
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Workers:
    """The processes of one encoding, as Accelerate knows them.

    Attributes:
        rank: Number of this process.
        count: Number of processes.
        device: This process's device; None leaves the choice to the model's loader.
    """

    rank: int = 0
    count: int = 1
    device: str | None = None

    @classmethod
    def here(cls) -> Workers:
        """The processes that a launcher (``accelerate launch``, :func:`launch`) has started.

        Raises:
            ObliqError: More processes on this machine than it has GPUs, or processes that do not
                know of each other.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        check_devices(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise ObliqError(
                'several processes need accelerate; run: pip install "obliq-hf[train]"'
            ) from error
        import torch

        cpu = _on_cpu() or not torch.cuda.is_available()  # Accelerate does not look by itself
        state = PartialState(cpu=cpu, timeout=_LONGEST_WAIT)
        if state.num_processes != int(os.environ["WORLD_SIZE"]):
            raise ObliqError(
                f"{os.environ['WORLD_SIZE']} processes were started, but Accelerate knows of "
                f"{state.num_processes}; each would encode everything"
            )
        return cls(state.process_index, state.num_processes, str(state.device))

    @property
    def first(self) -> bool:
        """Whether this is the process that plans and finishes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's items; every item is one process's, also where there are fewer items."""
        if self.count == 1:
            return list(items)
        from accelerate import PartialState

        with PartialState().split_between_processes(list(items)) as own:
            return list(own)

    def agree(self, value: T) -> T:
        """What the first process gives; the others wait for it."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        given: list[Any] = [value]
        agreed: T = broadcast_object_list(given)[0]
        return agreed

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()


def _on_cpu() -> bool:
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true"}


def check_devices(processes: int) -> None:
    """Refuse more processes on this machine than it has GPUs; without any, they share the CPU.

    Raises:
        ObliqError: There are too many.
    """
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() and not _on_cpu() else 0
    if devices and processes > devices:
        raise ObliqError(
            f"{processes} processes were asked for, but this machine has {devices} GPUs; use "
            f"{devices} processes at most"
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def launch(arguments: Sequence[str], processes: int) -> None:
    """Run ``python ARGUMENTS`` in several processes that know of each other, and wait for them.

    When one fails, the others are ended.

    Args:
        arguments: What follows ``python``.
        processes: Number of processes on this machine.

    Raises:
        ObliqError: Too many processes for the GPUs, or one failed; the message is its last line.
    """
    check_devices(processes)
    import torch

    # what another launcher has left in the environment must not decide who is first here
    foreign = ("ACCELERATE_", "TORCHELASTIC_", "PMI_", "OMPI_", "MV2_", "FSDP_", "CCL_")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(foreign)},
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    environment.setdefault("OMP_NUM_THREADS", threads)
    if not torch.cuda.is_available():
        environment["ACCELERATE_USE_CPU"] = "true"
    with tempfile.TemporaryDirectory(prefix="obliq-") as folder:
        logs = [Path(folder) / f"{rank}.txt" for rank in range(processes)]
        running = [
            _start(arguments, {**environment, "RANK": str(r), "LOCAL_RANK": str(r)}, log)
            for r, log in enumerate(logs)
        ]
        try:
            failed = _wait(running)
        finally:
            for process in running:
                if process.poll() is None:
                    process.terminate()
            for process in running:
                process.wait()
        if failed is None:
            return
        lines = logs[failed].read_text(encoding="utf-8", errors="replace").strip().splitlines()
        why = lines[-1] if failed and lines else "see above"
        raise ObliqError(f"process {failed} of {processes} failed: {why}")


def _start(
    arguments: Sequence[str], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start one process; only the first one is heard."""
    first = environment["RANK"] == "0"
    with log.open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdout=None if first else subprocess.DEVNULL,
            stderr=None if first else errors,
        )


def _wait(running: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all processes; the number of the first that failed, or None."""
    while True:
        states = [process.poll() for process in running]
        bad = [rank for rank, state in enumerate(states) if state]
        if bad:
            return bad[0]
        if all(state == 0 for state in states):
            return None
        time.sleep(_POLL_SECONDS)

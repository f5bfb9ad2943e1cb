"""The machine a run is executed on: its device, its generators, its memory."""

import contextlib
import os
import platform
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dualavg_bench.store.results import Machine


def describe() -> Machine:
    """Return the machine and the versions that a run is executed with."""
    from importlib.metadata import version

    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        system=platform.system(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        dualavg=version("dualavg"),
    )


def _cpu() -> str:
    """Return the processor's name, which Python does not know on Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device() -> torch.device:
    """Return this process's GPU, or the CPU."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))  # torchrun's
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def to(batch: Any, device: torch.device) -> Any:
    """Return a batch, whatever it consists of, with its tensors on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to(value, device) for value in batch)
    return batch


def seed_torch(seed: int) -> None:
    """As torch.manual_seed, which takes a hundred times as long: it looks for every kind of device."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def seed_all(seed: int) -> None:
    """Seed whatever a recipe may draw from: torch's generators, numpy's global one and Python's."""
    seed_torch(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - others use it


def reset_peak_memory() -> None:
    """Let the high-water mark start anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark starts anew


def peak_memory() -> float:
    """Peak memory of the run in MB: the device's, or else the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

"""The machine a run is executed on: its device, its generators, its memory."""

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

import torch


def describe() -> dict[str, Any]:
    """Say what a run was executed on."""
    from importlib.metadata import version

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dualavg": version("dualavg"),
    }


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


def seed_torch(seed: int) -> None:
    """As torch.manual_seed, which takes a hundred times as long: it looks for every kind of device."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


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

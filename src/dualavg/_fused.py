"""The update in one pass over memory: a small C++ kernel on CPUs, what torch.compile generates elsewhere.

A step of MDA reads g, x, x0 and s and writes x and s: 24 bytes a float32 parameter, and memory is the limit.
The for-loop goes over memory three times. The C++ file beside this one does the same operations in the same
order in one pass; it needs no header of torch, so that a compiler builds it in a second, once a machine. The
result is kept in the user's cache, under a name made of its text, the compiler and the processor.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("_fused.cpp")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-std=c++17", "-ffp-contract=off")
_KINDS = {  # dtypes of parameter, gradient, anchor and sum, by the number that the kernel has for them
    (torch.float32, torch.float32, torch.float32, torch.float32): 0,
    (torch.float32, torch.float32, torch.bfloat16, torch.float32): 1,
    (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32): 2,
    (torch.float64, torch.float64, torch.float64, torch.float64): 3,
}


class _Part(ctypes.Structure):
    """A tensor of the list, as the kernel wants it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "g", "x0", "s")),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("decayed", "lam", "pull")),
    )


def update(
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Any],
    betas: Sequence[Any],
    *,
    c: Any,
    weight_decay: float,
    maximize: bool,
) -> list[int]:
    """Advance what the kernel can take, and return the indices of the rest: odd dtypes, strides, no compiler.

    All tensors are dense, real and on the CPU.
    """
    kernel = library()
    if kernel is None:
        return list(range(len(params)))
    c = float(c)
    parts: dict[int, list[Any]] = {}
    rest, copies = [], []
    for i, (x, g, x0, s) in enumerate(zip(params, grads, x0s, sums, strict=True)):
        kind = _KINDS.get((x.dtype, g.dtype, x0.dtype, s.dtype))
        plain = x.is_contiguous() and g.is_contiguous() and x0.is_contiguous() and s.is_contiguous()
        if kind is None or not (plain or _lie_alike(x, x0, s)):
            rest.append(i)
            continue
        if not plain and g.stride() != x.stride():
            g = torch.empty_like(x, memory_format=torch.preserve_format).copy_(g)  # noqa: PLW2901
            copies.append(g)
        lam = float(lambdas[i])
        how = (lam * weight_decay, -lam if maximize else lam, -(c / float(betas[i])))
        row = (x.data_ptr(), g.data_ptr(), x0.data_ptr(), s.data_ptr(), x.numel(), *how)
        parts.setdefault(kind, []).append(row)
    threads = torch.get_num_threads()
    for kind, rows in parts.items():
        kernel((_Part * len(rows))(*rows), len(rows), c, threads, kind)
    return rest


def _lie_alike(x: Tensor, *others: Tensor) -> bool:
    """Whether the elements of all lie in one block without gaps, in the same order."""
    expected, strides = 1, x.stride()
    for stride, size in sorted(zip(strides, x.shape, strict=True)):
        if size > 1 and stride != expected:
            return x.numel() == 0
        expected *= size
    return all(other.stride() == strides for other in others)


def update_compiled(
    for_loop: Callable[..., None],
    params: list[Tensor],
    grads: list[Tensor],
    x0s: list[Tensor],
    sums: list[Tensor],
    lambdas: Sequence[Any],
    betas: Sequence[Any],
    *,
    c: Any,
    weight_decay: float,
    maximize: bool,
) -> list[int]:
    """Do the same by torch.compile, from the for-loop's own text, for devices that it generates code for.

    Numbers are handed over as tensors, so that a moving lr compiles nothing anew.
    """
    device, n = params[0].device, len(params)
    numbers = [*lambdas, *betas, c]
    if not any(isinstance(number, Tensor) for number in numbers):
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64
        numbers = list(torch.tensor(numbers, dtype=dtype, device=device).unbind())
    how = {"weight_decay": weight_decay, "maximize": maximize, "differentiable": False}
    try:
        _compiled(for_loop)(params, grads, x0s, sums, numbers[:n], numbers[n : 2 * n], c=numbers[-1], **how)
    except torch._dynamo.exc.BackendCompilerFailed as error:  # before anything was changed
        _say_once(f"torch.compile cannot generate it for {device.type} ({error.inner_exception})")
        return list(range(n))
    return []


@functools.cache
def _compiled(for_loop: Callable[..., None]) -> Any:
    return torch.compile(for_loop, fullgraph=True, dynamic=False)


@functools.cache
def _say_once(why: str) -> None:
    warnings.warn(
        f"MDA(fused=True) runs its multi-tensor path, because its kernel cannot be built: {why}.",
        stacklevel=2,
    )


@functools.cache
def library() -> Any:
    """Return the kernel for CPUs, built if it is not there yet; None, and one warning, if it cannot be."""
    try:
        return _load(_build())
    except (OSError, subprocess.SubprocessError) as error:
        _say_once(" ".join(str(getattr(error, "stderr", None) or error).split())[:300].rstrip("."))
        return None


def _load(path: Path) -> Any:
    kernel = ctypes.CDLL(str(path)).dualavg_update
    kernel.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int, ctypes.c_int)
    kernel.restype = ctypes.c_int
    return kernel


def _build() -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise OSError("there is no C++ compiler (c++, g++ or clang++) on the path, and CXX names none")
    said = subprocess.run(  # noqa: S603 - the user's own compiler
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    text = _SOURCE.read_bytes()
    key = hashlib.sha256("\n".join([*_FLAGS, said, _processor()]).encode() + text).hexdigest()[:16]
    target = cache_folder() / f"fused-{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            compile_library(compiler, _SOURCE, Path(folder) / target.name)
            (Path(folder) / target.name).replace(target)  # whole or not at all, whoever else builds it now
    return target


def compile_library(compiler: str, source: Path, target: Path) -> None:
    """Build a library that takes OpenMP from whoever has loaded it: torch, whose threads it shares then."""
    compiled = str(target.with_suffix(".o"))
    for command in ([*_FLAGS, "-c", str(source), "-o", compiled], ["-shared", compiled, "-o", str(target)]):
        subprocess.run([compiler, *command], capture_output=True, text=True, check=True, timeout=300)  # noqa: S603


def cache_folder() -> Path:
    """Return where built kernels are kept: DUALAVG_CACHE, or the user's cache."""
    own = os.environ.get("DUALAVG_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dualavg"


def _processor() -> str:
    """What the machine code depends on: a home folder may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"

"""The fused operator: one pass over memory on CPUs, compiled at the first step with the user's compiler.

A step must move 24 bytes per float32 parameter, and memory is the limit. `csrc/mda.cpp` does the for-loop's
operations in one pass, as the torch operator `dualavg::step_`. The built library is cached. Its name contains
hashes of all it depends on and of its own content, so that a file that is cut short is built again.
"""

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

# The lists x, g, x_0, s, step, lambda_k, beta_k, k + 1 and inner products, with one entry per parameter each.
Columns: TypeAlias = tuple[list[Any], ...]

_SOURCE = Path(__file__).parent / "csrc" / "mda.cpp"
_TORCH = Path(torch.__file__).parent
_PLAIN = {Tensor, torch.nn.Parameter}
_FLAGS = ["-O3", "-march=native", "-fPIC", "-std=c++17", "-ffp-contract=off", "-fopenmp-simd"]
if platform.machine().lower() in ("x86_64", "amd64"):
    _FLAGS.append("-mprefer-vector-width=256")  # measured to be faster than 512


def is_available(device: torch.device) -> bool:
    """Whether the fused operator can be used on a device; warn once if not."""
    if device.type == "cpu":
        return _operator() is not None
    advice = "use torch.compile(optimizer.step) for one pass over memory"
    _warn_once(f"there is no fused operator for {device.type}; {advice}")
    return False


def is_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether none is of a subclass, such as DTensor, whose elements may lie elsewhere."""
    return _PLAIN.issuperset(map(type, tensors))


def step(columns: Columns, *, c: float, weight_decay: float, maximize: bool) -> Columns:
    """Advance the parameters that fit the operator; return the columns of the others, or ().

    Of plain tensors, only the operator decides what fits. It raises before it changes anything.
    """
    params, grads, x0s, sums, steps, *_ = columns
    if not is_plain(chain(params, grads)) or torch.is_inference_mode_enabled():  # no versions there
        return columns
    try:
        increment_version(chain(params, sums, steps))  # torch does not do it for operators of the stable ABI
        _call(columns, c, weight_decay, maximize)
    except RuntimeError:
        misfits = _misfits(params, grads, x0s, sums, steps)
        fits = [i for i in range(len(params)) if i not in misfits]
        if fits:
            _call(_select(columns, fits), c, weight_decay, maximize)
        return _select(columns, misfits)
    return ()


def _call(columns: Columns, *numbers: float) -> None:
    *operands, products = columns
    if products[0] is None:
        _operator().step_(*operands, *numbers, None)
        return
    out = torch.empty(len(products), 3, dtype=torch.float64, device="cpu")
    _operator().step_(*operands, *numbers, out)
    for found, row in zip(products, out.tolist(), strict=True):
        found[:] = row


def _misfits(*lists: list[Tensor]) -> list[int]:
    """Return the indices of the parameters that do not fit: all, if torch refuses the operator as such."""
    every = list(range(len(lists[0])))
    try:
        return _operator().misfits(*lists) or every
    except RuntimeError:  # inside of torch.vmap or torch.func.functionalize
        return every


def _select(columns: Columns, indices: list[int]) -> Columns:
    return tuple([column[i] for i in indices] for column in columns)


@functools.cache
def _operator() -> Any:
    """Load the operator, building it if needed; None, after one warning, if that fails."""
    if hasattr(torch.ops.dualavg, "step_"):  # to register an operator twice would end the process
        return torch.ops.dualavg
    path = None
    try:
        path = _build()
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except (OSError, subprocess.SubprocessError) as error:
        if path:
            path.unlink(missing_ok=True)  # or the next process would try it again
        _warn_once(f"its operator cannot be built: {' '.join(str(error).split())[:300].rstrip('.')}")
        return None
    # For torch.compile and FakeTensor: the operator changes its arguments and returns nothing.
    torch.library.register_fake("dualavg::step_", lambda *_: None)
    return torch.ops.dualavg


@functools.cache
def _warn_once(reason: str) -> None:
    """Warn that fused=True falls back, at the caller's line outside of dualavg and torch."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("dualavg", "torch"):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(f"fused=True runs the default kernel: {reason}.", stacklevel=depth)


def _build() -> Path:
    """Return the path of the built library, from the cache if an intact one is there."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise OSError(f"it needs torch 2.10 or later, and this is {torch.__version__}")
    parts = [*_FLAGS, _processor(), torch.__version__, _SOURCE.read_text()]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    cache = _cache_folder()
    _check_owner(cache)
    for found in cache.glob(f"fused-{key}-*.so"):
        if found.stem.endswith(_digest(found)):
            return found
        found.unlink(missing_ok=True)  # cut short or damaged: loading it could end the process
    compiler = find_compiler()
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / "fused.so"
            include, lib = _TORCH / "include", _TORCH / "lib"
            compile_library(compiler, _SOURCE, fresh, f"-I{include}", f"-L{lib}", "-ltorch_cpu")
            target = cache / f"fused-{key}-{_digest(fresh)}.so"
            fresh.replace(target)  # atomic: other processes may build it at the same time
    except OSError as error:
        raise OSError(f"{error}: set DUALAVG_CACHE to a folder that you can write to") from error
    return target


def _check_owner(folder: Path) -> None:
    """Refuse a folder that others can write to: a library put there would be loaded."""
    if not folder.exists() or not hasattr(os, "getuid"):
        return
    status = folder.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
        raise OSError(f"others can write to its cache {folder}: set DUALAVG_CACHE to a folder of your own")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler: CXX with its arguments, or the first one on the path."""
    try:
        if command := shlex.split(os.environ.get("CXX", "")):
            return command
    except ValueError as error:
        raise OSError(f"CXX is not a valid command ({error})") from None
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise OSError("there is no C++ compiler (c++, g++ or clang++) on the path, and CXX is not set")


def compile_library(compiler: list[str], source: Path, target: Path, *flags: str) -> None:
    """Compile one source file to a shared library."""
    name = f"the compiler {shlex.join(compiler)}"
    command = [*compiler, *_FLAGS, "-shared", str(source), "-o", str(target), *flags]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler
            command, capture_output=True, text=True, errors="replace", timeout=300, check=False
        )
    except OSError as error:
        raise subprocess.SubprocessError(f"{name} cannot be run ({error.strerror})") from error
    if done.returncode != 0:
        raise subprocess.SubprocessError(done.stderr.strip() or f"{name} exits with {done.returncode}")
    if not target.exists():
        raise subprocess.SubprocessError(f"{name} writes no library")


def _cache_folder() -> Path:
    """Return the cache: DUALAVG_CACHE, or `dualavg` in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "dualavg")
    try:
        return Path(os.environ.get("DUALAVG_CACHE") or default).expanduser()
    except RuntimeError as error:
        raise OSError(f"there is no cache folder ({error}): set DUALAVG_CACHE") from None


def _processor() -> str:
    """Describe what -march=native depends on: machines of several kinds may share a home folder."""
    cpuinfo = Path("/proc/cpuinfo")  # of Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {features}"

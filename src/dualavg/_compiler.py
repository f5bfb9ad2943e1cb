"""Builds the fused kernel with the user's own compiler, once a machine.

It needs no header of torch, so that a compiler builds it in a second. The result is kept in the user's cache,
under a name made of its text, the processor, and what is in it: a file that was cut short is built again.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SOURCES = [Path(__file__).with_name(name) for name in ("_fused.cpp", "_fused_look.cpp")]
_HEADER = Path(__file__).with_name("_fused.h")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-std=c++17", "-ffp-contract=off")
_TUNED = {  # by the processor's maker, as measured: AMD's look ahead by themselves, at two places best
    "GenuineIntel": ("-DLOOK_AHEAD=1",),
    "AuthenticAMD": ("-mprefer-vector-width=256", "-DFRONTS=2"),
}
# How the kernel looks at a tensor: functions that torch keeps stable for code compiled ahead of time.
_LOOKS = (
    *("data_ptr", "dtype", "layout", "device_type", "dim", "sizes", "strides"),
    *("storage_size", "storage_offset"),
)
# How it looks at what Python has: functions that Python keeps stable, so that no header of its is needed.
_OF_PYTHON = (
    *("PyList_Size", "PyList_GetItem", "PyList_Append", "PyDict_Size", "PyDict_GetItemWithError"),
    *("PyObject_GetAttr", "PyObject_CallFunctionObjArgs", "PyObject_Type", "PyLong_AsVoidPtr"),
    *("Py_IncRef", "Py_DecRef", "PyErr_Occurred"),
)
_THINGS = (
    *("grad", "_cdata", "x0", "s", "step"),
    *(Tensor.is_neg, None, False, Tensor, torch.nn.Parameter),
)
_CODES = ("dtype_float32", "dtype_bfloat16", "dtype_float64", "layout_strided", "device_type_cpu")


@functools.cache
def say_once(why: str) -> None:
    """Warn, at the line of the caller's that led here, that the kernel cannot be had."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("dualavg", "torch"):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(
        f"MDA(fused=True) runs its multi-tensor path, because its kernel cannot be built: {why}.",
        stacklevel=depth,
    )


@functools.cache
def library() -> Any:
    """Return the kernel for CPUs, built if it is not there yet; None, and one warning, if it cannot be."""
    try:
        path = _build()
        try:
            return _load(path)
        except (OSError, AttributeError):
            path.unlink(missing_ok=True)  # or it would be found again, once there is a better compiler
            raise
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        say_once(" ".join(str(getattr(error, "stderr", None) or error).split())[:300].rstrip("."))
        return None


def _load(path: Path) -> Any:
    kernel: Any = ctypes.CDLL(str(path))
    number, block, count, flag = ctypes.c_double, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int
    kernel.dualavg_update.argtypes = (block, count, number, flag, flag)
    kernel.dualavg_are_apart.argtypes = (block, count, flag)
    kernel.dualavg_step.argtypes = (block, count, block)
    _introduce(kernel)
    held = ctypes.PyDLL(str(path)).dualavg_prepare  # it asks Python's objects, whose lock it must hold
    held.argtypes = (ctypes.py_object, count, *3 * [ctypes.py_object], block)
    kernel.dualavg_prepare = held
    return kernel


def _introduce(kernel: ctypes.CDLL) -> None:
    """Tell the kernel how to look at tensors, if this torch says so; it prepares nothing otherwise."""
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        functions = [getattr(torch_cpu, f"aoti_torch_get_{name}") for name in _LOOKS]
        looks = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
        codes = [getattr(torch_cpu, f"aoti_torch_{name}")() for name in _CODES]
        python = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _OF_PYTHON]
    except (OSError, AttributeError):
        return
    address = ctypes.c_void_p
    kernel.dualavg_introduce(
        (address * len(looks))(*looks),
        (ctypes.c_int32 * len(codes))(*codes),
        (address * len(python))(*python),
        (address * len(_THINGS))(*map(id, _THINGS)),
    )


def _build() -> Path:
    """Return the built kernel: from the cache if a whole one is there, whatever compiler made it."""
    text = b"".join(source.read_bytes() for source in (*_SOURCES, _HEADER))
    key = hashlib.sha256("\n".join([*_flags(), _processor()]).encode() + text).hexdigest()[:16]
    cache = cache_folder()
    _check_alone(cache)
    for found in cache.glob(f"fused-{key}-*.so"):
        if found.stem.endswith(_digest(found)):
            return found
        found.unlink(missing_ok=True)  # cut short or spoilt: to load it could end the process
    compiler = find_compiler()
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / "fused.so"
            compile_library(compiler, _SOURCES, fresh)
            target = cache / f"fused-{key}-{_digest(fresh)}.so"
            fresh.replace(target)  # whole or not at all, whoever else builds it now
    except OSError as error:
        raise OSError(f"{error}: let DUALAVG_CACHE name a folder to keep it in") from error
    return target


def _check_alone(folder: Path) -> None:
    """Refuse a folder that others can put a library into, which would be loaded."""
    if not folder.exists() or not hasattr(os, "getuid"):
        return
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(
            f"others can write to {folder}, where it is kept: let DUALAVG_CACHE name a folder of your own"
        )


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler: CXX, with its arguments if any, or what is on the path."""
    try:
        if named := shlex.split(os.environ.get("CXX", "")):
            return named
    except ValueError as error:
        raise OSError(f"CXX does not name a compiler ({error})") from None
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise OSError("there is no C++ compiler (c++, g++ or clang++) on the path, and CXX names none")


def compile_library(compiler: list[str], sources: list[Path], target: Path) -> None:
    """Build a library that takes OpenMP from whoever has loaded it: torch, whose threads it shares then."""
    parts = [str(target.with_name(f"{source.stem}.o")) for source in sources]
    how: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": 300}
    commands = [
        [*_flags(), "-c", str(source), "-o", part] for source, part in zip(sources, parts, strict=True)
    ]
    name = shlex.join(compiler)
    try:
        for what in (*commands, ["-shared", *parts, "-o", str(target)]):
            subprocess.run([*compiler, *what], check=True, **how)  # noqa: S603 - the user's own compiler
    except subprocess.CalledProcessError as error:
        if error.stderr.strip():
            raise
        raise subprocess.SubprocessError(f"the compiler {name} ends with {error.returncode}") from error
    except OSError as error:
        raise subprocess.SubprocessError(f"the compiler {name} cannot be run ({error.strerror})") from error
    if not target.exists():
        raise subprocess.SubprocessError(f"the compiler {name} ends well and leaves no library")


def cache_folder() -> Path:
    """Return where built kernels are kept: DUALAVG_CACHE, or the user's cache."""
    try:
        if own := os.environ.get("DUALAVG_CACHE"):
            return Path(own).expanduser()
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared) / "dualavg"
        return Path.home() / ".cache" / "dualavg"
    except RuntimeError as error:
        raise OSError(f"there is no place to keep it ({error}): let DUALAVG_CACHE name a folder") from None


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, *_TUNED.get(_cpuinfo("vendor_id"), ()))


def _processor() -> str:
    """What the machine code depends on: a home folder may be shared by machines of several kinds."""
    flags = _cpuinfo("flags") or _cpuinfo("Features")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"


def _cpuinfo(key: str) -> str:
    """What Linux says of the first processor, or nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")

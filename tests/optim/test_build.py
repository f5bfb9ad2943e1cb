"""Building the fused operator: once per machine, safely; one warning where it cannot be built."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.versions import newer_torch

from dualavg import _fused

pytestmark = [
    pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler"),
    newer_torch,
]

# Reads environments from a line of standard input, takes three fused steps in each, prints their warnings.
STEPS = """
import json, os, sys, warnings, torch
from dualavg import MDA, _fused
results = []
for environment in json.loads(sys.stdin.readline()):
    before = dict(os.environ)
    os.environ.update(environment)
    _fused._operator.cache_clear()
    _fused._warn_once.cache_clear()
    x = torch.nn.Parameter(torch.ones(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = MDA([x], fused=True)
        for _ in range(3):
            x.grad = torch.ones(3)
            optimizer.step()
    assert x[0] < 1
    results.append([str(warning.message) for warning in caught])
    os.environ.clear()
    os.environ.update(before)
json.dump(results, sys.stdout)
"""


def start(**environment: str) -> subprocess.Popen[str]:
    """Start a process that takes steps in the environments that it reads."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(_fused.__file__).parents[1]),
        **environment,
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-c", STEPS], env=environment, text=True, start_new_session=True, **pipes
    )


def script(folder: Path, name: str, content: bytes) -> str:
    """Write an executable that pretends to be a compiler."""
    path = folder / name
    path.write_bytes(b"#!/bin/sh\n" + content + b"\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a built library in it."""
    cache = tmp_path_factory.mktemp("cache", numbered=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUALAVG_CACHE", str(cache))
        _fused._build()
    return cache


@pytest.fixture
def cache(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in use, and no compiler that works."""
    copied = shutil.copytree(built, tmp_path / "cache")
    monkeypatch.setenv("DUALAVG_CACHE", str(copied))
    monkeypatch.setenv("CXX", "false")
    return copied


def test_a_library_in_the_cache_needs_no_compiler(cache: Path) -> None:
    (library,) = cache.iterdir()
    assert _fused._build() == library


@pytest.mark.parametrize("change", ["flags", "torch", "processor"])
def test_what_the_library_depends_on_is_in_its_name(
    change: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "flags":
        monkeypatch.setattr(_fused, "_FLAGS", [*_fused._FLAGS, "-DOTHER"])
    elif change == "torch":
        monkeypatch.setattr(torch, "__version__", "2.99.0")
    else:
        monkeypatch.setattr(_fused, "_processor", lambda: "another one")
    with pytest.raises(subprocess.SubprocessError):  # it is built again, and the compiler is false
        _fused._build()


@pytest.mark.parametrize("size", [0, 4096, -1])
def test_a_library_that_is_cut_short_is_built_again(
    cache: Path, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (library,) = cache.iterdir()
    content = library.read_bytes()
    (tmp_path / "intact.so").write_bytes(content)
    library.write_bytes(content[:size])
    copier = script(
        tmp_path, "copier", b'while [ "$1" != -o ]; do shift; done; cp %s/intact.so "$2"' % bytes(tmp_path)
    )
    monkeypatch.setenv("CXX", copier)
    assert _fused._build().read_bytes() == content
    assert len(list(cache.iterdir())) == 1


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    processes = [start(DUALAVG_CACHE=str(tmp_path / "cache")) for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(lambda process: process.communicate("[{}]\n"), processes))
    assert [json.loads(output) for output, _ in results] == [[[]], [[]]]
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".so"}


def test_a_build_that_was_killed_leaves_nothing_that_is_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = script(tmp_path, "slow", b'while [ "$1" != -o ]; do shift; done; echo part > "$2"; exec sleep 60')
    (library,) = cache.iterdir()
    content = library.read_bytes()
    library.unlink()
    process = start(DUALAVG_CACHE=str(cache), CXX=slow)
    assert process.stdin
    process.stdin.write("[{}]\n")
    process.stdin.flush()
    while not list(cache.glob("*/*.so")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # with its compiler
    process.communicate()
    (tmp_path / "intact.so").write_bytes(content)
    copier = script(
        tmp_path, "copier", b'while [ "$1" != -o ]; do shift; done; cp %s/intact.so "$2"' % bytes(tmp_path)
    )
    monkeypatch.setenv("CXX", copier)
    assert _fused._build().read_bytes() == content


def test_what_prevents_the_build_is_one_warning(tmp_path: Path) -> None:
    """And the steps are taken all the same, by the default kernel."""
    (tmp_path / "file").write_text("")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    garbage = script(tmp_path, "garbage", b'while [ "$1" != -o ]; do shift; done; echo nothing > "$2"')
    environments = {
        "there is no C++ compiler": {"PATH": str(tmp_path)},
        "the compiler false exits with 1.": {"CXX": "false"},
        "the compiler true writes no library.": {"CXX": "true"},
        "the compiler nosuch -O3 cannot be run (No such file or directory).": {"CXX": "nosuch -O3"},
        "\ufffd\ufffd no": {"CXX": script(tmp_path, "binary", b"printf '\\377\\376 no' >&2; exit 1")},
        "CXX is not a valid command": {"CXX": "g++ '"},
        "its operator cannot be built": {"CXX": garbage},
        "there is no cache folder": {"DUALAVG_CACHE": "~nosuchuser/x"},
        "set DUALAVG_CACHE to a folder that you can write to": {"DUALAVG_CACHE": "/proc/nosuch"},
        "cannot be built": {"DUALAVG_CACHE": str(tmp_path / "file" / "below")},
        "others can write to its cache": {"DUALAVG_CACHE": str(shared)},
    }
    process = start(DUALAVG_CACHE=str(tmp_path / "cache"), HOME=str(tmp_path))
    output, errors = process.communicate(json.dumps(list(environments.values())) + "\n")
    assert process.returncode == 0, errors
    for (message, environment), caught in zip(environments.items(), json.loads(output), strict=True):
        assert len(caught) == 1, environment
        assert caught[0].startswith("fused=True runs the default kernel: "), environment
        assert message in caught[0]
        assert "\n" not in caught[0]
    assert list((tmp_path / "cache").iterdir()) == []  # what could not be loaded is not kept


def test_an_older_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(OSError, match=r"it needs torch 2\.10 or later, and this is 2\.9\.1"):
        _fused._build()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.sep + "home")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("DUALAVG_CACHE", "~/kept")
    assert _fused._cache_folder() == Path(os.sep, "home", "kept")
    monkeypatch.delenv("DUALAVG_CACHE")
    assert _fused._cache_folder() == Path(os.sep, "home", ".cache", "dualavg")
    monkeypatch.setenv("XDG_CACHE_HOME", os.sep + "somewhere")
    assert _fused._cache_folder() == Path(os.sep, "somewhere", "dualavg")

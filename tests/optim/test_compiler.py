"""Building the fused kernel: once a machine, whatever lies in the cache; one sentence where it cannot be."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.cases import parameters, train

from dualavg import MDA, _compiler, _fused

pytestmark = pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler here")

STEPS = """
import sys, warnings, torch
from dualavg import MDA
x = torch.nn.Parameter(torch.ones(3))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    optimizer = MDA([x], fused=True)
    for _ in range(3):
        x.grad = torch.ones(3)
        optimizer.step()
assert x[0] < 1
print(*(warning.message for warning in said), sep="|", end="")
"""


def steps(**environment: str) -> str:
    """What three steps in a process of their own warn of."""
    whole = {"PATH": "/usr/bin:/bin", **environment}
    command = [sys.executable, "-c", STEPS]
    return subprocess.run(command, env=whole, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with a kernel in it."""
    assert steps(DUALAVG_CACHE=str(tmp_path / "cache"), HOME=str(tmp_path)) == ""
    return tmp_path / "cache"


def test_it_is_built_once(cache: Path) -> None:
    (built,) = cache.iterdir()
    stamp = built.stat().st_mtime_ns
    assert steps(DUALAVG_CACHE=str(cache)) == ""
    assert [path.name for path in cache.iterdir()] == [built.name]
    assert built.stat().st_mtime_ns == stamp


def test_other_flags_or_another_text_are_another_kernel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALAVG_CACHE", str(cache))
    first = _compiler._build()
    assert first.parent == cache
    monkeypatch.setattr(_compiler, "_FLAGS", (*_compiler._FLAGS, "-DOTHER"))
    assert _compiler._build() != first


@pytest.mark.parametrize("maker", [*_compiler._TUNED, "somebody else"])
@pytest.mark.parametrize("anchor", [None, torch.bfloat16], ids=str)
def test_every_makers_kernel_gives_the_for_loops_bits(
    maker: str, anchor: torch.dtype | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the flags of a processor that this machine has not: what looks ahead must stop in time, and two
    fronts must meet without a gap."""
    said = _compiler._cpuinfo
    monkeypatch.setattr(_compiler, "_cpuinfo", lambda key: maker if key == "vendor_id" else said(key))
    monkeypatch.setenv("DUALAVG_CACHE", str(tmp_path / "cache"))
    kernel = _compiler._load(_compiler._build())
    monkeypatch.setattr(_fused, "library", lambda: kernel)
    shapes = [(n,) for n in (5000, 575, 576, 577, 63, 1)]  # 512 ahead, in blocks of 64
    shapes += [(n,) for n in (16_383, 16_384, 17_407, 17_408, 40_001)]  # fronts from 16,384 on, 512 a turn
    slow, fast = (parameters(*shapes, dtype=torch.float32) for _ in range(2))
    train(MDA(slow, weight_decay=0.1, foreach=False, fused=False, anchor_dtype=anchor), range(3))
    train(MDA(fast, weight_decay=0.1, fused=True, anchor_dtype=anchor), range(3))
    for p, q in zip(slow, fast, strict=True):
        assert torch.equal(p, q)


def test_a_kernel_in_the_cache_needs_no_compiler(cache: Path, tmp_path: Path) -> None:
    assert steps(DUALAVG_CACHE=str(cache), PATH=str(tmp_path)) == ""


@pytest.mark.parametrize("size", [0, 4096, 14000])
def test_a_kernel_that_was_cut_short_is_built_again(cache: Path, size: int) -> None:
    (built,) = cache.iterdir()
    whole = built.read_bytes()
    built.write_bytes(whole[:size])
    assert steps(DUALAVG_CACHE=str(cache)) == ""
    assert next(cache.iterdir()).stat().st_size == len(whole)


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = steps(DUALAVG_CACHE=str(tmp_path / "cache"), CXX="nosuch -O3")
    assert "the compiler nosuch -O3 cannot be run (No such file or directory)." in said
    assert "DUALAVG_CACHE" not in said


def test_a_compiler_that_fails_without_a_word_is_named(tmp_path: Path) -> None:
    assert "the compiler false ends with 1." in steps(DUALAVG_CACHE=str(tmp_path / "cache"), CXX="false")


def test_a_compiler_that_leaves_nothing_is_named(tmp_path: Path) -> None:
    said = steps(DUALAVG_CACHE=str(tmp_path / "cache"), CXX="true")
    assert "the compiler true ends well and leaves no library." in said


def test_a_library_that_cannot_be_loaded_is_not_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    without = tmp_path / "linker"  # one that leaves something that is no library
    without.write_text('#!/bin/sh\nfor last; do :; done\necho nothing > "$last"\n')
    without.chmod(0o755)
    assert "cannot be built" in steps(DUALAVG_CACHE=str(cache), CXX=str(without))
    assert list(cache.iterdir()) == []
    assert steps(DUALAVG_CACHE=str(cache)) == ""


def test_a_compiler_with_arguments(tmp_path: Path) -> None:
    assert steps(DUALAVG_CACHE=str(tmp_path / "cache"), CXX="c++ -DANY") == ""


def test_the_cache_may_be_named_by_a_tilde(tmp_path: Path) -> None:
    assert steps(DUALAVG_CACHE="~/kept", HOME=str(tmp_path)) == ""
    assert len(list((tmp_path / "kept").iterdir())) == 1


def shouting(folder: Path) -> str:
    """A compiler whose message is no text."""
    script = folder / "shouting"
    script.write_bytes(b"#!/bin/sh\nprintf '\\377\\376 no' >&2\nexit 1\n")
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return str(script)


@pytest.mark.parametrize("compiler", ["none", "false", "shouting", "/no/such/compiler"])
def test_without_a_compiler_it_says_so_once_and_runs(tmp_path: Path, compiler: str) -> None:
    environment = {"DUALAVG_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    if compiler == "none":
        environment["PATH"] = str(tmp_path)
    else:
        environment["CXX"] = shouting(tmp_path) if compiler == "shouting" else compiler
    said = steps(**environment)
    start = "MDA(fused=True) runs its multi-tensor path, because its kernel cannot be built:"
    assert said.startswith(start)
    assert "|" not in said
    assert "\n" not in said


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be built" in steps(DUALAVG_CACHE=str(tmp_path / "file" / "below"))


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUALAVG_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(OSError, match="let DUALAVG_CACHE name a folder"):
        _compiler.cache_folder()


def test_the_user_s_cache_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUALAVG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.sep + "somewhere")
    assert _compiler.cache_folder() == Path(os.sep, "somewhere", "dualavg")


def test_a_folder_that_others_can_write_to_is_not_trusted(cache: Path) -> None:
    cache.chmod(0o777)
    said = steps(DUALAVG_CACHE=str(cache))
    assert f"others can write to {cache}, where it is kept" in said
    cache.chmod(0o700)
    assert steps(DUALAVG_CACHE=str(cache)) == ""


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"CXX": "g++ '"}, "CXX does not name a compiler"),
        ({"DUALAVG_CACHE": "~nosuchuser/x"}, "let DUALAVG_CACHE name a folder"),
        ({"DUALAVG_CACHE": "/proc/nosuch"}, "let DUALAVG_CACHE name a folder"),
    ],
)
def test_what_is_wrong_with_the_environment_is_said(environment, sentence, tmp_path: Path) -> None:
    said = steps(**{"DUALAVG_CACHE": str(tmp_path / "cache"), **environment})
    assert sentence in said
    assert "|" not in said


def test_the_warning_is_of_the_line_that_took_the_step(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    lines = (
        "import torch",
        "from dualavg import MDA",
        "x = torch.nn.Parameter(torch.ones(3))",
        "x.grad = torch.ones(3)",
        "MDA([x], fused=True).step()",
    )
    script.write_text("\n".join(lines))
    environment = {"PATH": str(tmp_path), "DUALAVG_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(script)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"{script}:5: UserWarning: MDA(fused=True)" in said

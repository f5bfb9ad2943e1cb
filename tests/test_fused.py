"""The fused path: the for-loop's numbers in one pass over memory, whatever the tensors look like."""

import copy
import ctypes
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from cases import gradient, parameters, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dualavg import MDA, _fused, _kernels

ULP = {torch.float32: 2**-23, torch.bfloat16: 2**-7, torch.float64: 2**-52}


@pytest.fixture(autouse=True)
def kernel() -> None:
    """Every test here is about the kernel: on a machine without a compiler there is nothing to test."""
    if _fused.library() is None:
        pytest.skip("there is no C++ compiler here")


def ulps(a: Tensor, b: Tensor) -> float:
    """Largest distance in units of the last place of the larger."""
    if a.numel() == 0:
        return 0.0
    size = torch.maximum(a.abs(), b.abs()).double().clamp(min=1e-30)
    unit = 2.0 ** size.log2().floor() * ULP[a.dtype]
    return float(((a.double() - b.double()).abs() / unit).max())


def pair(make: Any, **more: Any) -> tuple[list[Tensor], MDA, list[Tensor], MDA]:
    """The same parameters twice, one for each path."""
    slow, fast = make(), make()
    return slow, MDA(slow, foreach=False, **more), fast, MDA(fast, fused=True, **more)


def layouts() -> dict[str, Any]:
    """Makers of one tensor each, all of which a parameter may be."""
    return {
        "plain": torch.randn,
        "empty": lambda _: torch.randn(0, 3),
        "scalar": lambda _: torch.randn(()),
        "odd": lambda n: torch.randn(n, 3, 1),
        "unaligned": lambda n: torch.randn(n + 1)[1:],
        "transposed": lambda n: torch.randn(n, 4).t(),
        "channels-last": lambda n: torch.randn(2, 3, n, 2).to(memory_format=torch.channels_last),
        "gaps": lambda n: torch.randn(n, 6)[:, ::2],
        "expanded-size-one": lambda n: torch.randn(1, n)[:, :n],
    }


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(sorted(layouts())),
    n=st.integers(1, 70_000),
    other_strides=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.01]),
    maximize=st.booleans(),
    momentum=st.sampled_from([0.0, 0.4, 0.9]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 99),
)
def test_equals_the_for_loop(
    layout: str, n: int, other_strides: bool, dtype: torch.dtype, seed: int, **how: Any
) -> None:
    if layout not in ("plain", "unaligned"):
        n = 1 + n % 300
    torch.manual_seed(seed)
    start = layouts()[layout](n).to(dtype)
    slow, a, fast, b = pair(lambda: [torch.nn.Parameter(start.clone())], lr=0.5, **how)
    for _ in range(3):
        grad = torch.randn(start.shape).to(dtype)
        if other_strides and grad.ndim > 1:
            grad = grad.transpose(0, -1).contiguous().transpose(0, -1)
        for p, optimizer in ((slow[0], a), (fast[0], b)):
            p.grad = grad.clone(memory_format=torch.preserve_format)
            optimizer.step()
        assert ulps(slow[0].detach(), fast[0].detach()) <= 2
        assert ulps(a.state[slow[0]]["s"], b.state[fast[0]]["s"]) <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("anchor", [None, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_many_steps_are_the_for_loop_s_bit_for_bit(dtype, anchor, threads) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shapes = ((), (3,), (40_001,), (64, 9))
        slow, a, fast, b = pair(
            lambda: parameters(*shapes, dtype=dtype), lr=0.3, weight_decay=0.01, anchor_dtype=anchor
        )
        for optimizer in (a, b):
            train(optimizer, range(200 if threads == 1 else 10))
    finally:
        torch.set_num_threads(before)
    for p, q in zip(slow, fast, strict=True):
        assert torch.equal(p, q)
        for key in ("x0", "s"):
            assert torch.equal(a.state[p][key], b.state[q][key])


def test_the_kernel_really_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_single_tensor", "_multi_tensor"):
        monkeypatch.setattr(_kernels, name, lambda *_, **__: pytest.fail("not the kernel"))
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        optimizer = MDA(parameters((5,), (3, 2), dtype=dtype), fused=True)
        train(optimizer, range(2), gradient=lambda x, k: torch.ones_like(x) * k)


@pytest.mark.parametrize("dtype", [torch.float16])
def test_what_the_kernel_has_no_code_for_goes_the_other_way(dtype: torch.dtype) -> None:
    (p,), (q,) = (parameters((9,), dtype=dtype) for _ in range(2))
    mixed = parameters((5,), dtype=torch.float32)
    fast, slow = MDA([p, *mixed], fused=True), MDA([q, *copy.deepcopy(mixed)], foreach=True)
    for optimizer in (fast, slow):
        train(optimizer, range(5))
    assert torch.equal(p, q)
    for a, b in zip(fast.param_groups[0]["params"], slow.param_groups[0]["params"], strict=True):
        assert torch.equal(a, b)


def test_a_sparse_gradient_goes_the_other_way() -> None:
    (p,), (q,) = (parameters((6, 2), dtype=torch.float32) for _ in range(2))
    fast, slow = MDA([p], fused=True), MDA([q], foreach=False)
    for x, optimizer in ((p, fast), (q, slow)):
        x.grad = torch.eye(6, 2).to_sparse()
        optimizer.step()
    assert torch.equal(p, q)


def test_a_step_allocates_no_tensor() -> None:
    params = parameters((500_000,), (1000, 100), dtype=torch.float32)
    optimizer = MDA(params, fused=True, weight_decay=0.01)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    allocated = sum(max(0, event.cpu_memory_usage) for event in profile.events())
    assert allocated < 0.01 * 4 * sum(p.numel() for p in params)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_the_part_that_torch_compile_generates_has_the_same_numbers() -> None:
    """What other devices run, run here: the for-loop's text, compiled, numbers as tensors."""
    first = parameters((7,), (3, 2), dtype=torch.float32)
    lists = []
    for _ in range(2):
        xs = [p.detach().clone() for p in first]
        lists.append((xs, [gradient(x, 0) for x in xs], [x.clone() for x in xs], [x.clone() for x in xs]))
    numbers: Any = ([0.5, 0.25], [2.0, 3.0])
    how: Any = {"c": 0.1, "weight_decay": 0.01, "maximize": True}
    _kernels._single_tensor(*lists[0], *numbers, differentiable=False, **how)
    assert _fused.update_compiled(_kernels._single_tensor, *lists[1], *numbers, **how) == []
    for a, b in zip((*lists[0][0], *lists[0][3]), (*lists[1][0], *lists[1][3]), strict=True):
        assert ulps(a, b) <= 2


def test_a_moving_lr_compiles_nothing_anew() -> None:
    counted = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(_kernels._single_tensor, fullgraph=True, dynamic=False, backend=counted)
    x = [torch.randn(4)]
    for k in range(5):
        numbers = torch.tensor([0.1 + k, 1.0 + k, 0.1]).unbind()
        compiled(
            x,
            x,
            x,
            x,
            [numbers[0]],
            [numbers[1]],
            c=numbers[2],
            weight_decay=0.0,
            maximize=False,
            differentiable=False,
        )
    assert counted.frame_count == 1


WITHOUT_COMPILER = """
import warnings, torch
from dualavg import MDA
x = torch.nn.Parameter(torch.ones(3))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    optimizer = MDA([x], fused=True)
    for _ in range(3):
        x.grad = torch.ones(3)
        optimizer.step()
print(len(said), said[0].message)
assert x[0] < 1
"""


@pytest.mark.parametrize("compiler", ["", "false"], ids=["none", "broken"])
def test_without_a_compiler_it_says_so_once_and_runs(tmp_path: Path, compiler: str) -> None:
    environment = {"PATH": str(tmp_path), "DUALAVG_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    if compiler:
        environment |= {"CXX": compiler, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], env=environment, capture_output=True, text=True, check=True
    )
    count, sentence = done.stdout.strip().split(" ", 1)
    assert count == "1"
    assert sentence.startswith(
        "MDA(fused=True) runs its multi-tensor path, because its kernel cannot be built:"
    )
    assert "\n" not in sentence


def test_it_is_built_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALAVG_CACHE", str(tmp_path))
    first = _fused._build()
    stamp = first.stat().st_mtime_ns
    assert _fused._build() == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    monkeypatch.setattr(_fused, "_FLAGS", (*_fused._FLAGS, "-DOTHER"))
    assert _fused._build() != first
    assert isinstance(_fused._load(first), ctypes._CFuncPtr)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"fused": True, "foreach": True}, "ask for one of them"),
        ({"fused": True, "differentiable": True}, "fused=True cannot be differentiated through"),
        ({"anchor_dtype": torch.float16}, "anchor_dtype must be None or torch.bfloat16"),
        ({"anchor_dtype": torch.bfloat16, "differentiable": True}, "anchor_dtype rounds parameters"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(how: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MDA(parameters((2,)), **how)


def test_the_default_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, "library", lambda: pytest.fail("compiled"))
    train(MDA(parameters((3,))), range(2))


def test_half_of_the_step_is_never_taken() -> None:
    """Nothing is changed where a gradient is refused."""
    params = parameters((3,), (4,), dtype=torch.float32)
    optimizer = MDA(params, fused=True)
    params[0].grad = torch.ones(3)
    params[1].grad = torch.ones(4)
    params[1].data = torch.zeros(5)
    before = params[0].detach().clone()
    with pytest.raises(ValueError, match="has shape"), warnings.catch_warnings():
        optimizer.step()
    assert torch.equal(params[0], before)

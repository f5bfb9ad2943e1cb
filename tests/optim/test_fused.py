"""The fused path: the for-loop's numbers in one pass over memory, whatever the tensors look like."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import gradient, parameters, train
from support.layouts import HOW, layouts, ulps
from torch import Tensor

from dualavg import MDA, _fused, _kernels


@pytest.fixture(autouse=True)
def kernel() -> None:
    """Every test here is about the kernel: on a machine without a compiler there is nothing to test."""
    if _fused.library() is None:
        pytest.skip("there is no C++ compiler here")


def pair(make: Any, **more: Any) -> tuple[list[Tensor], MDA, list[Tensor], MDA]:
    """The same parameters twice, one for each path."""
    slow, fast = make(), make()
    return slow, MDA(slow, foreach=False, **more), fast, MDA(fast, fused=True, **more)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 70_000), **HOW)
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_part_that_torch_compile_generates_has_the_same_numbers(dtype: torch.dtype) -> None:
    """What other devices run, run here: the for-loop's text, compiled, numbers as tensors."""
    first = parameters((700,), (3, 2), dtype=dtype)
    lists = []
    for _ in range(2):
        xs = [p.detach().clone() for p in first]
        lists.append((xs, [gradient(x, 0) for x in xs], [x.clone() for x in xs], [x.float() for x in xs]))
    numbers: Any = ([0.5, 0.25], [2.0, 3.0], [4.0, 9.0])
    how: Any = {"c": 0.1, "weight_decay": 0.01, "maximize": True}
    _kernels._single_tensor(*lists[0], *numbers, differentiable=False, **how)
    assert _fused.update_compiled(_kernels._single_tensor, *lists[1], *numbers, **how) == []
    # Inductor may multiply and add in two roundings where torch's kernels take one: units of the terms count.
    for a, b, first_a in zip(
        (*lists[0][0], *lists[0][3]), (*lists[1][0], *lists[1][3]), 2 * first, strict=True
    ):
        assert ulps(a, b, first_a) <= 2


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU stand in for a device that has no kernel of ours."""
    monkeypatch.setattr(_fused, "update", partial(_fused.update_compiled, _kernels._single_tensor))
    monkeypatch.setattr(_fused, "prepare", lambda *_: None)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_many_lists_are_compiled_and_too_many_take_the_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    monkeypatch.setattr(_fused, "_MOST_COMPILED", 10)
    torch._dynamo.reset()
    shapes = [(i,) for i in range(2, 14)]
    slow, fast = (parameters(*shapes, dtype=torch.float32) for _ in range(2))
    loop = MDA(slow, lr=0.1, foreach=False)
    optimizer = MDA([{"params": [p]} for p in fast], lr=0.1, fused=True)
    train(loop, range(1))
    with pytest.warns(UserWarning, match="runs its multi-tensor path"):
        train(optimizer, range(1))
    for p, q in zip(slow, fast, strict=True):
        torch.testing.assert_close(p, q)
        assert optimizer.state[q]["step"] == 1


def test_a_device_that_torch_compile_has_no_code_for_takes_the_other_path(monkeypatch) -> None:
    from torch._inductor.exc import TritonMissing

    elsewhere(monkeypatch)

    def backend(*_: Any) -> Any:
        raise TritonMissing(None)

    compiled = torch.compile(_kernels._single_tensor, fullgraph=True, dynamic=False, backend=backend)
    monkeypatch.setattr(_fused, "_compiled", lambda _: compiled)
    torch._dynamo.reset()
    (p,), (q,) = (parameters((5,), dtype=torch.float32) for _ in range(2))
    optimizer, loop = MDA([p], fused=True), MDA([q], foreach=False)
    train(loop, range(2))
    with pytest.warns(UserWarning, match="torch.compile cannot generate it for cpu") as said:
        train(optimizer, range(2))
    assert len(said) == 1
    torch.testing.assert_close(p, q)


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
            [numbers[1] ** 2],
            c=numbers[2],
            weight_decay=0.0,
            maximize=False,
            differentiable=False,
        )
    assert counted.frame_count == 1


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

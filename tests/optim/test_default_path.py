"""The default path on CPUs: sum and step by torch's fused SGD, or the for-loop piece by piece."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import parameters as any_parameters
from support.cases import train
from support.layouts import HOW, layouts
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dualavg import MDA, DualAveraging, _kernels

parameters = partial(any_parameters, dtype=torch.float32)
CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # two roundings more or less


@pytest.fixture
def borrowed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of torch's kernel got, none being small."""
    monkeypatch.setattr(_kernels, "_SMALL", 0)
    calls: list[int] = []
    kernel = torch._fused_sgd_

    def spy(xs: list[torch.Tensor], *args: Any, **how: Any) -> None:
        calls.append(len(xs))
        kernel(xs, *args, **how)

    monkeypatch.setattr(torch, "_fused_sgd_", spy)
    return calls


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), lr=st.sampled_from([1e-9, 1e-7, 0.5, 30.0]), small=st.booleans(), **HOW)
def test_equals_the_for_loop(
    layout: str,
    n: int,
    other_strides: bool,
    dtype: torch.dtype,
    seed: int,
    lr: float,
    small: bool,
    **how: Any,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "_SMALL", 1 << 15 if small else 0)
        check_equals_the_for_loop(layout, n, other_strides, dtype, seed, lr, how)


def check_equals_the_for_loop(
    layout: str, n: int, other_strides: bool, dtype: torch.dtype, seed: int, lr: float, how: dict[str, Any]
) -> None:
    torch.manual_seed(seed)
    start = layouts()[layout](1 + n % 300 if layout != "plain" else n).to(dtype)
    slow, fast = (torch.nn.Parameter(start.clone()) for _ in range(2))
    a, b = MDA([slow], lr=lr, foreach=False, fused=False, **how), MDA([fast], lr=lr, **how)
    size = 1 / lr  # so that the steps are of the size of the parameters, whatever lr is
    for _ in range(3):
        grad = (size * torch.randn(start.shape)).to(dtype)
        if other_strides and grad.ndim > 1:
            grad = grad.transpose(0, -1).contiguous().transpose(0, -1)
        for p, optimizer in ((slow, a), (fast, b)):
            p.grad = grad.clone(memory_format=torch.preserve_format)
            optimizer.step()
        torch.testing.assert_close(fast.detach(), slow.detach(), **CLOSE)
        torch.testing.assert_close(b.state[fast]["s"], a.state[slow]["s"], **CLOSE)
        if dtype != torch.float32:
            assert torch.equal(fast, slow)


def test_contiguous_and_channels_last_float32_takes_it(borrowed: list[int]) -> None:
    params = parameters((5,), (3, 2), (4, 3, 2, 2))
    params[2].data = params[2].data.to(memory_format=torch.channels_last)
    train(MDA(params, lr=0.1), range(2))
    assert borrowed == [3, 3]


def test_parameters_at_one_k_share_a_call_and_others_get_their_own(borrowed: list[int]) -> None:
    params = parameters((5,), (3,), (2,))
    optimizer = MDA(params, lr=0.1)
    late = params[2]
    for k in range(3):
        for p in params:
            p.grad = torch.ones_like(p) if p is not late or k > 0 else None
        optimizer.step()
    assert borrowed == [2, 2, 1, 2, 1]
    alone = MDA(parameters((5,), (3,), (2,))[2:], lr=0.1, fused=False, foreach=False)
    for _ in range(2):
        alone.param_groups[0]["params"][0].grad = torch.ones(2)
        alone.step()
    torch.testing.assert_close(late.detach(), alone.param_groups[0]["params"][0].detach(), **CLOSE)


@pytest.mark.parametrize(
    "how",
    [
        {"fused": False},
        {"foreach": False, "fused": False},
        {"foreach": True},
        {"foreach": False},
        {"capturable": True},
        {"lr": 1e-9},
        {"lr": 0.0},
        {"anchor_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_what_it_is_not_for(how: dict[str, Any], borrowed: list[int]) -> None:
    train(MDA(parameters((5,)), **how), range(2))
    assert borrowed == []


def test_small_tensors_are_spared_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, **__: pytest.fail("threads for a few numbers"))
    slow, fast = (parameters((100, 300), (7,)) for _ in range(2))
    train(MDA(slow, weight_decay=0.1, foreach=False, fused=False), range(3))
    train(MDA(fast, weight_decay=0.1), range(3))
    for p, q in zip(slow, fast, strict=True):
        assert torch.equal(p, q)


def test_large_tensors_go_in_pieces_and_small_ones_together(
    borrowed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_kernels, "_PIECE_OF_TWO_PASSES", 100)
    shapes = ((25, 10), (7,), (100,), (40,), (50,))  # pieces of 100, 100, 50; the 7 still fit; 100; 40 and 50
    slow, fast = (parameters(*shapes) for _ in range(2))
    loop, pieces = MDA(slow, weight_decay=0.1, foreach=False, fused=False), MDA(fast, weight_decay=0.1)
    train(loop, range(4))
    train(pieces, range(4))
    assert borrowed == 4 * [1, 1, 2, 1, 2]
    for p, q in zip(slow, fast, strict=True):
        torch.testing.assert_close(q.detach(), p.detach(), **CLOSE)
        torch.testing.assert_close(pieces.state[q]["s"], loop.state[p]["s"], **CLOSE)


def test_the_for_loop_is_not_taken_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernels, "_single_tensor", lambda *_, **__: pytest.fail("the for-loop"))
    train(MDA(parameters((5,), (3, 2))), range(2))


def test_dual_averaging_takes_it_too(borrowed: list[int]) -> None:
    train(DualAveraging(parameters((5,)), momentum=0.9), range(2))
    assert borrowed == [1, 1]


def test_gradients_are_left_as_they_are() -> None:
    (p,) = parameters((5,))
    p.grad = torch.linspace(-1, 1, 5)
    MDA([p], weight_decay=0.1, maximize=True).step()
    assert torch.equal(p.grad, torch.linspace(-1, 1, 5))


@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        (torch.bfloat16, {"weight_decay": 0.01}),
        (torch.float16, {"maximize": True}),
        (torch.float32, {"anchor_dtype": torch.bfloat16}),
    ],
    ids=str,
)
def test_large_tensors_of_mixed_dtypes_go_by_pieces(
    dtype: torch.dtype, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    for_loop = _kernels._single_tensor

    def spy(xs: list[torch.Tensor], *args: Any, **more: Any) -> None:
        seen.append(max(x.numel() for x in xs))
        for_loop(xs, *args, **more)

    monkeypatch.setattr(_kernels, "_single_tensor", spy)
    slow, fast = (any_parameters((33, 31), (7,), dtype=dtype) for _ in range(2))
    train(MDA(slow, foreach=False, fused=False, **how), range(5))
    assert max(seen) == 33 * 31
    seen.clear()
    monkeypatch.setattr(_kernels, "_PIECE", 100)
    train(MDA(fast, **how), range(5))
    assert max(seen) == 100
    for p, q in zip(slow, fast, strict=True):
        assert torch.equal(p, q)


def test_pieces_take_next_to_no_memory() -> None:
    (p,) = any_parameters((3_000_000,), dtype=torch.bfloat16)
    optimizer = MDA([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    made: list[int] = []

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            given = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
            made.extend(
                t.untyped_storage().nbytes()
                for t in tree_leaves(result)
                if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given
            )
            return result

    with Largest():
        optimizer.step()
    assert 0 < max(made) <= 4 * _kernels._PIECE

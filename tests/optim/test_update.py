"""The for-loop and the multi-tensor kernel: which one runs, what they allocate, and that they agree."""

import sys
from typing import Any

import pytest
import torch
from support.cases import assert_bitwise, gradient, parameters, snapshot, train
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dualavg import MDA, _fused, _update


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that ran."""
    names: list[str] = []
    for name in ("_single_tensor", "_multi_tensor"):
        kernel = getattr(_update, name)

        def spy(*args: Any, kernel: Any = kernel, name: str = name, **settings: Any) -> None:
            names.append(name)
            kernel(*args, **settings)

        monkeypatch.setattr(_update, name, spy)
    return names


@pytest.mark.parametrize(
    ("settings", "kernel"),
    [
        ({}, "_single_tensor"),
        ({"foreach": False}, "_single_tensor"),
        ({"foreach": True}, "_multi_tensor"),
        ({"fused": False}, "_single_tensor"),
        ({"fused": True, "capturable": True}, "_single_tensor"),
    ],
    ids=str,
)
def test_the_kernel_of_a_setting_on_a_cpu(settings: dict[str, Any], kernel: str, used: list[str]) -> None:
    train(MDA(parameters((3,)), **settings), range(2))
    assert used == [kernel, kernel]


def test_without_the_operator_fused_is_the_default_kernel(
    monkeypatch: pytest.MonkeyPatch, used: list[str]
) -> None:
    monkeypatch.setattr(_fused, "is_available", lambda device: False)
    train(MDA(parameters((3,)), fused=True), range(2))
    assert used == ["_single_tensor", "_single_tensor"]


def test_the_default_is_multi_tensor_where_torch_s_is(
    monkeypatch: pytest.MonkeyPatch, used: list[str]
) -> None:
    optimizer_module = sys.modules["torch.optim.optimizer"]  # torch.optim hides the attribute
    monkeypatch.setattr(optimizer_module, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    train(MDA(parameters((3,))), range(1))
    assert used == ["_multi_tensor"]


def test_a_sparse_gradient_needs_the_for_loop(used: list[str]) -> None:
    (p,) = parameters((4, 3), dtype=torch.float32)
    p.grad = torch.eye(4, 3).to_sparse()
    MDA([p], foreach=True).step()
    assert used == ["_single_tensor"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_multi_tensor_equals_the_for_loop_bit_for_bit(dtype: torch.dtype) -> None:
    """With parameters of several dtypes and ages in one group: each bucket has one of each."""
    optimizers = []
    for foreach in (True, False):
        params = [*parameters((3,), (40, 7), (), dtype=dtype), *parameters((4,), seed=1)]
        optimizer = MDA(params, foreach=foreach, weight_decay=0.01, maximize=True)
        for k in range(10):
            for i, p in enumerate(params):
                p.grad = gradient(p, k) if k >= 2 * i else None
            optimizer.step()
        optimizers.append(optimizer)
    assert_bitwise(*map(snapshot, optimizers))


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        (torch.bfloat16, {"weight_decay": 0.01}),
        (torch.float16, {"maximize": True}),
        (torch.float32, {"anchor_dtype": torch.bfloat16}),
    ],
    ids=str,
)
def test_large_tensors_of_mixed_dtypes_in_pieces_give_the_same_bits(
    dtype: torch.dtype, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizers = []
    for piece in (1 << 17, 100):
        monkeypatch.setattr(_update, "_PIECE", piece)
        optimizer = MDA(parameters((33, 31), (7,), dtype=dtype), **settings)
        train(optimizer, range(5))
        optimizers.append(optimizer)
    assert_bitwise(*map(snapshot, optimizers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_default_allocates_less_than_one_percent(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_update, "_PIECE", 1 << 11)
    (p,) = parameters((1_000_000,), dtype=dtype)
    optimizer = MDA([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    largest = 0

    class Allocations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            inputs = {
                t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, torch.Tensor)
            }
            for t in tree_leaves(result):
                if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in inputs:
                    largest = max(largest, t.untyped_storage().nbytes())
            return result

    with Allocations():
        optimizer.step()
    assert largest <= 0.01 * p.nbytes

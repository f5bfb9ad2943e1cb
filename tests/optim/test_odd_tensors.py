"""Unusual tensors: every kernel gives the for-loop's result or raises a one-line error."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import parameters, train
from support.versions import newer_torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from dualavg import MDA

KERNELS: list[dict[str, Any]] = [{}, {"fused": True}, {"foreach": True}, {"foreach": False}]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def two() -> tuple[Tensor, Tensor]:
    return tuple(parameters((8,), dtype=torch.float32)[0] for _ in range(2))  # type: ignore[return-value]


def after(gradient: Any, kernel: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The result of three steps, and of the for-loop with an ordinary copy of the gradient."""
    ends = []
    for p, settings, plain in zip(two(), (kernel, {"foreach": False}), (False, True), strict=True):
        optimizer = MDA([p], lr=0.1, **settings)
        for k in range(3):
            g = gradient(p, k)
            p.grad = g.clone() + 0 if plain else g
            optimizer.step()
        ends.append(p.detach())
    return ends[0], ends[1]


@every_kernel
@pytest.mark.parametrize(
    "gradient",
    [
        lambda p, k: torch._neg_view(torch.linspace(1, 2 + k, 8)),
        lambda p, k: torch._efficientzerotensor(8),
        lambda p, k: p.detach(),
        lambda p, k: torch.ones(1).expand(8),
    ],
    ids=["negative bit", "zero tensor", "the parameter itself", "expanded"],
)
def test_an_unusual_gradient_counts_like_an_ordinary_copy(gradient: Any, kernel: dict[str, Any]) -> None:
    result, loop = after(gradient, kernel)
    torch.testing.assert_close(result, loop)


@every_kernel
@pytest.mark.parametrize("key", ["x0", "s"])
@pytest.mark.parametrize("spoilt", [lambda t: t[:4].clone(), lambda t: t.to("meta")], ids=["shape", "device"])
def test_state_of_another_shape_or_device_raises(kernel: dict[str, Any], key: str, spoilt: Any) -> None:
    (p, _) = two()
    optimizer = MDA([p], **kernel)
    train(optimizer, range(2))
    here, step = p.detach().clone(), optimizer.state[p]["step"].item()
    p.grad = torch.ones(8)
    optimizer.state[p][key] = spoilt(optimizer.state[p][key])
    with pytest.raises(ValueError, match=r"0 of group 0 was .* at its last step"):
        optimizer.step()
    assert torch.equal(p, here)
    assert optimizer.state[p]["step"].item() == step


@every_kernel
def test_a_functionalized_step(kernel: dict[str, Any]) -> None:
    def steps(x: Tensor, g: Tensor) -> Tensor:
        p = torch.nn.Parameter(x.clone())
        p.grad = g
        optimizer = MDA([p], **kernel)
        optimizer.step()
        optimizer.step()
        return p.detach()

    inputs = torch.linspace(-1, 1, 8), torch.linspace(1, 2, 8)
    torch.testing.assert_close(torch.func.functionalize(steps)(*inputs), steps(*inputs))


@every_kernel
def test_fake_tensors(kernel: dict[str, Any]) -> None:
    with FakeTensorMode():
        p = torch.nn.Parameter(torch.randn(8))
        p.grad = torch.randn(8)
    optimizer = MDA([p], **kernel)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[p]["s"].shape == (8,)


@pytest.mark.parametrize(
    "kernel", [{}, {"fused": True}], ids=str
)  # torch's foreach kernels cannot do this either
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_listed_twice_takes_two_steps(kernel: dict[str, Any]) -> None:
    p, q = two()
    optimizer, loop = MDA([p, p], **kernel), MDA([q, q], foreach=False)
    for _ in range(3):
        p.grad, q.grad = torch.ones(8), torch.ones(8)
        optimizer.step()
        loop.step()
    torch.testing.assert_close(p, q)
    assert optimizer.state[p]["step"] == 6


@pytest.mark.parametrize("kernel", [{"fused": True}, {}], ids=str)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("again", ["the same parameter", "another on its storage", "half on its storage"])
def test_shared_memory_is_not_updated_by_two_threads(kernel: dict[str, Any], again: str) -> None:
    n = 100_000  # so many that several threads are at work
    ends = []
    for settings in (kernel, kernel, {"foreach": False, "fused": False}):
        base = torch.ones(n)
        first = torch.nn.Parameter(base)
        second = first if again == "the same parameter" else torch.nn.Parameter(base)
        if again == "half on its storage":
            second = torch.nn.Parameter(base[n // 2 :])
        optimizer = MDA([first, second], lr=0.1, **settings)
        for k in range(3):
            first.grad, second.grad = torch.full_like(first, 1.0 + k), torch.full_like(second, 1.0 + k)
            optimizer.step()
        ends.append(first.detach())
    assert torch.equal(ends[0], ends[1])
    if kernel or again == "the same parameter":  # torch's own fused steps go over all parameters at once, too
        torch.testing.assert_close(ends[0], ends[2])


@every_kernel
@pytest.mark.parametrize("behind", [True, False])
def test_a_gradient_that_overlaps_its_parameter_is_read_before_the_parameter_changes(
    kernel: dict[str, Any], behind: bool
) -> None:
    ends = []
    for settings in (kernel, {"foreach": False, "fused": False}):
        base = torch.linspace(-1, 1, 1001)
        p = torch.nn.Parameter(base[1:] if behind else base[:-1])
        optimizer = MDA([p], lr=0.1, **settings)
        for _ in range(3):
            p.grad = base[:-1] if behind else base[1:]
            optimizer.step()
        ends.append(p.detach())
    torch.testing.assert_close(ends[0], ends[1])


@every_kernel
def test_an_inference_tensor_raises(kernel: dict[str, Any]) -> None:
    with torch.inference_mode():
        p = torch.ones(3)
    p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"created in torch\.inference_mode"):
        MDA([p], **kernel).step()
    assert torch.equal(p, torch.ones(3))


@every_kernel
def test_torch_s_default_device_has_no_effect(kernel: dict[str, Any]) -> None:
    p, q = two()
    with torch.device("meta"):
        optimizer = MDA([p], **kernel)
        p.grad = torch.ones(8, device="cpu")
        optimizer.step()
        optimizer.step()
    plain = MDA([q], **kernel)
    q.grad = torch.ones(8)
    plain.step()
    plain.step()
    assert torch.equal(p, q)


@newer_torch  # 2.6 cannot batch a view as another dtype
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vmap_over_steps(dtype: torch.dtype, fused: bool | None) -> None:
    def step(x: Tensor, g: Tensor) -> Tensor:
        p = x.clone()
        p.grad = g
        MDA([p], fused=fused).step()
        return p

    starts, gradients = torch.randn(5, 8).to(dtype), torch.randn(5, 8).to(dtype)
    together = torch.vmap(step)(starts, gradients)
    assert torch.equal(together, torch.stack([step(x, g) for x, g in zip(starts, gradients, strict=True)]))


@every_kernel
def test_autograd_notices_the_step(kernel: dict[str, Any]) -> None:
    (p, _) = two()
    optimizer = MDA([p], **kernel)
    train(optimizer, range(2))
    loss = (p * p).sum()
    p.grad = torch.ones(8)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_kernel
def test_a_numpy_bool_is_a_bool(kernel: dict[str, Any]) -> None:
    p, q = two()
    optimizer, loop = MDA([p], **kernel), MDA([q], foreach=False)
    for value in (False, False, np.True_):
        for one, x in ((optimizer, p), (loop, q)):
            one.param_groups[0]["maximize"] = value
            x.grad = torch.ones(8)
            one.step()
    torch.testing.assert_close(p, q)


Case = tuple[list[Tensor], Callable[[int, int], Tensor]]


def twice() -> Case:
    data = torch.randn(6)
    return [Parameter(data), Parameter(data)], lambda _, k: torch.full((6,), k + 1.0)


def twice_and_a_gradient_of_another_order() -> Case:
    data, other = torch.randn(4, 3), torch.randn(3, 4).t()
    return [Parameter(data), Parameter(data)], lambda i, k: other if i else torch.full((4, 3), k + 1.0)


def twice_and_a_negative_gradient() -> Case:
    data = torch.randn(4, 3)
    return [
        Parameter(data),
        Parameter(data),
    ], lambda i, _: torch.ones(4, 3) if i else torch._neg_view(torch.ones(4, 3))


def every_other_column_and_all() -> Case:
    data = torch.randn(4, 6)
    params = [Parameter(data[:, ::2]), Parameter(data)]
    return params, lambda i, k: torch.full_like(params[i], i + k + 1.0)


def overlapping_halves() -> Case:
    data = torch.randn(9)
    return [Parameter(data[:6]), Parameter(data[3:])], lambda i, k: torch.full((6,), i + k + 1.0)


def a_gradient_that_is_another_parameter() -> Case:
    params = [Parameter(torch.randn(3, 3)), Parameter(torch.randn(3, 3))]
    return params, lambda i, k: params[0].data if i else torch.full((3, 3), k + 1.0)


def a_gradient_that_is_another_parameter_in_another_order() -> Case:
    params = [Parameter(torch.randn(3, 3)), Parameter(torch.randn(3, 3))]
    return params, lambda i, k: params[0].data.t() if i else torch.full((3, 3), k + 1.0)


def trained(make: Callable[[], Case], **kernel: Any) -> list[Tensor]:
    torch.manual_seed(0)
    params, gradient = make()
    optimizer = MDA(params, lr=1.0, **kernel)
    for k in range(4):
        for i, p in enumerate(params):
            p.grad = gradient(i, k)
        optimizer.step()
    return [p.detach().clone() for p in params]


SHARED = [
    twice,
    twice_and_a_gradient_of_another_order,
    twice_and_a_negative_gradient,
    every_other_column_and_all,
    overlapping_halves,
    a_gradient_that_is_another_parameter,
    a_gradient_that_is_another_parameter_in_another_order,
]


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("make", SHARED)
def test_shared_memory_is_updated_in_the_for_loop_s_order(
    make: Callable[[], Case], fused: bool | None
) -> None:
    expected = trained(make, foreach=False, fused=False)
    for p, q in zip(trained(make, fused=fused), expected, strict=True):
        assert torch.equal(p, q)


@every_kernel
def test_a_conjugated_gradient_counts_as_its_value(kernel: dict[str, Any]) -> None:
    results = []
    for resolved in (False, True):
        p = Parameter(torch.arange(4.0) + 1j)
        optimizer = MDA([p], **kernel)
        for _ in range(3):
            gradient = (torch.arange(4.0) - 2j).to(p.dtype).conj()
            p.grad = gradient.resolve_conj() if resolved else gradient
            optimizer.step()
        results.append(p.detach())
    assert torch.equal(*results)


class NotATensor:
    _cdata = 8


@every_kernel
@pytest.mark.parametrize("value", [NotATensor(), torch.ones(5).untyped_storage(), np.ones(8), 1.0, None])
@pytest.mark.parametrize("key", ["x0", "s", "step"])
def test_state_that_is_not_a_tensor_raises_and_nothing_changes(
    key: str, value: Any, kernel: dict[str, Any]
) -> None:
    params = parameters((3,), (8,), dtype=torch.float32)
    optimizer = MDA(params, **kernel)
    train(optimizer, range(2))
    optimizer.state[params[1]][key] = value
    before = [p.detach().clone() for p in params]
    with pytest.raises(
        ValueError, match=rf"Parameter 1 of group 0 has .* as its state '{key}', which must be"
    ):
        train(optimizer, range(2, 3))
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert optimizer.state[params[0]]["step"] == 2


@every_kernel
def test_state_with_other_keys_or_of_another_type_raises(kernel: dict[str, Any]) -> None:
    (p,) = parameters((8,), dtype=torch.float32)
    optimizer = MDA([p], **kernel)
    train(optimizer, range(1))
    optimizer.state[p]["sum"] = optimizer.state[p].pop("s")
    with pytest.raises(ValueError, match=r"Parameter 0 of group 0 has the state .*'sum'.* settings need"):
        optimizer.step()
    optimizer.state[p] = NotATensor()
    with pytest.raises(ValueError, match=r"has .*NotATensor.* as its state, which must be a dict"):
        optimizer.step()


@every_kernel
def test_numpy_numbers_in_a_group_become_floats(kernel: dict[str, Any]) -> None:
    p, q = two()
    optimizers = MDA([p], weight_decay=0.1, **kernel), MDA([q], weight_decay=0.1, foreach=False)
    for optimizer in optimizers:
        optimizer.param_groups[0].update(weight_decay=np.float32(0.013), momentum=np.float32(0.8))
        train(optimizer, range(2))
        assert type(optimizer.param_groups[0]["weight_decay"]) is float
    assert torch.equal(p, q)


@every_kernel
def test_swapped_and_copied_parameters(kernel: dict[str, Any]) -> None:
    """torch.utils.swap_tensors, as `module.to` uses it, exchanges contents under the same Python object."""
    p, q = two()
    optimizers = MDA([p], **kernel), MDA([q], foreach=False)
    for x, optimizer in zip((p, q), optimizers, strict=True):
        train(optimizer, range(2))
        x.grad = None
        torch.utils.swap_tensors(x, Parameter(x.detach().clone() + 1))
        train(optimizer, range(2, 4))
    assert torch.equal(p, q)

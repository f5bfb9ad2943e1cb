"""Tensors that are not what they seem: every path gives the for-loop's numbers, or says what is wrong."""

from typing import Any

import numpy as np
import pytest
import torch
from support.cases import parameters, train
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dualavg import MDA, _fused

PATHS: list[dict[str, Any]] = [{}, {"fused": True}, {"foreach": True}, {"foreach": False}]
every_path = pytest.mark.parametrize("how", PATHS, ids=str)


def two() -> tuple[Tensor, Tensor]:
    return tuple(parameters((8,), dtype=torch.float32)[0] for _ in range(2))  # type: ignore[return-value]


def after(gradient: Any, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Where three steps lead: along a path, and along the for-loop with an ordinary copy of the gradient."""
    ends = []
    for p, settings, plain in zip(two(), (how, {"foreach": False}), (False, True), strict=True):
        optimizer = MDA([p], lr=0.1, **settings)
        for k in range(3):
            g = gradient(p, k)
            p.grad = g.clone() + 0 if plain else g
            optimizer.step()
        ends.append(p.detach())
    return ends[0], ends[1]


@every_path
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
def test_an_odd_gradient_is_read_as_what_it_means(gradient: Any, how: dict[str, Any]) -> None:
    mine, loop = after(gradient, how)
    torch.testing.assert_close(mine, loop)


@every_path
@pytest.mark.parametrize("key", ["x0", "s"])
@pytest.mark.parametrize("spoilt", [lambda t: t[:4].clone(), lambda t: t.to("meta")], ids=["shape", "device"])
def test_state_of_another_shape_or_place_is_refused(how: dict[str, Any], key: str, spoilt: Any) -> None:
    (p, _) = two()
    optimizer = MDA([p], **how)
    train(optimizer, range(2))
    here, step = p.detach().clone(), optimizer.state[p]["step"].item()
    p.grad = torch.ones(8)
    optimizer.state[p][key] = spoilt(optimizer.state[p][key])
    with pytest.raises(ValueError, match=r"0 of group 0 was .* at its last step"):
        optimizer.step()
    assert torch.equal(p, here)
    assert optimizer.state[p]["step"].item() == step


@pytest.mark.parametrize("which", ["gradient", "parameter", "x0", "s", "step"])
def test_freed_storage_is_none_of_the_kernel_s_business(which: str) -> None:
    """torch's own operators raise, or crash."""
    (p, _) = two()
    optimizer = MDA([p], fused=True)
    train(optimizer, range(2))
    p.grad = torch.ones(8)
    state = optimizer.state[p]
    {"gradient": p.grad, "parameter": p, **state}[which].untyped_storage().resize_(0)
    assert _fused.prepare([p], optimizer.state) is None
    if which != "step":
        lists = [p], [p.grad], [state["x0"]], [state["s"]], [1.0], [1.0], [1.0]
        assert _fused.update(*lists, c=0.1, weight_decay=0.0, maximize=False) == [0]


@every_path
def test_functionalized(how: dict[str, Any]) -> None:
    def steps(x: Tensor, g: Tensor) -> Tensor:
        p = torch.nn.Parameter(x.clone())
        p.grad = g
        optimizer = MDA([p], **how)
        optimizer.step()
        optimizer.step()
        return p.detach()

    inputs = torch.linspace(-1, 1, 8), torch.linspace(1, 2, 8)
    torch.testing.assert_close(torch.func.functionalize(steps)(*inputs), steps(*inputs))


@every_path
def test_imagined_tensors(how: dict[str, Any]) -> None:
    with FakeTensorMode():
        p = torch.nn.Parameter(torch.randn(8))
        p.grad = torch.randn(8)
    optimizer = MDA([p], **how)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[p]["s"].shape == (8,)


@every_path
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_there_twice_takes_two_steps(how: dict[str, Any]) -> None:
    p, q = two()
    optimizer, loop = MDA([p, p], **how), MDA([q, q], foreach=False)
    for _ in range(3):
        p.grad, q.grad = torch.ones(8), torch.ones(8)
        optimizer.step()
        loop.step()
    torch.testing.assert_close(p, q)
    assert optimizer.state[p]["step"] == 6


@pytest.mark.parametrize("how", [{"fused": True}, {}], ids=str)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("again", ["the same parameter", "another on its storage", "half on its storage"])
def test_memory_that_is_there_twice_is_not_shared_out_among_threads(how: dict[str, Any], again: str) -> None:
    n = 100_000  # so many that several threads are at work
    ends = []
    for settings in (how, how, {"foreach": False, "fused": False}):
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
    if how or again == "the same parameter":  # torch's own fused steps go over all parameters at once, too
        torch.testing.assert_close(ends[0], ends[2])


@every_path
@pytest.mark.parametrize("behind", [True, False])
def test_a_gradient_that_overlaps_its_parameter_is_read_whole_first(
    how: dict[str, Any], behind: bool
) -> None:
    ends = []
    for settings in (how, {"foreach": False, "fused": False}):
        base = torch.linspace(-1, 1, 1001)
        p = torch.nn.Parameter(base[1:] if behind else base[:-1])
        optimizer = MDA([p], lr=0.1, **settings)
        for _ in range(3):
            p.grad = base[:-1] if behind else base[1:]
            optimizer.step()
        ends.append(p.detach())
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize("which", ["gradient", "parameter", "x0", "s"])
def test_storage_that_was_cut_short_is_none_of_the_kernel_s_business(which: str) -> None:
    (p, _) = two()
    optimizer = MDA([p], fused=True)
    train(optimizer, range(2))
    p.grad = torch.ones(8)
    state = optimizer.state[p]
    {"gradient": p.grad, "parameter": p, **state}[which].untyped_storage().resize_(28)
    assert _fused.prepare([p], optimizer.state) is None
    lists = [p], [p.grad], [state["x0"]], [state["s"]], [1.0], [1.0], [1.0]
    assert _fused.update(*lists, c=0.1, weight_decay=0.0, maximize=False) == [0]


@every_path
def test_an_inference_tensor_is_refused(how: dict[str, Any]) -> None:
    with torch.inference_mode():
        p = torch.ones(3)
    p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"made in torch\.inference_mode"):
        MDA([p], **how).step()
    assert torch.equal(p, torch.ones(3))


@every_path
def test_where_torch_makes_tensors_by_default_is_no_matter(how: dict[str, Any]) -> None:
    p, q = two()
    with torch.device("meta"):
        optimizer = MDA([p], **how)
        p.grad = torch.ones(8, device="cpu")
        optimizer.step()
        optimizer.step()
    plain = MDA([q], **how)
    q.grad = torch.ones(8)
    plain.step()
    plain.step()
    assert torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vmap_over_steps(dtype: torch.dtype) -> None:
    def step(x: Tensor, g: Tensor) -> Tensor:
        p = x.clone()
        p.grad = g
        MDA([p], foreach=False, fused=False).step()
        return p

    starts, gradients = torch.randn(5, 8).to(dtype), torch.randn(5, 8).to(dtype)
    together = torch.vmap(step)(starts, gradients)
    assert torch.equal(together, torch.stack([step(x, g) for x, g in zip(starts, gradients, strict=True)]))


@every_path
def test_autograd_hears_of_the_step(how: dict[str, Any]) -> None:
    (p, _) = two()
    optimizer = MDA([p], **how)
    train(optimizer, range(2))
    loss = (p * p).sum()
    p.grad = torch.ones(8)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_path
def test_true_of_another_kind_is_true(how: dict[str, Any]) -> None:
    p, q = two()
    optimizer, loop = MDA([p], **how), MDA([q], foreach=False)
    for value in (False, False, np.True_):
        for one, x in ((optimizer, p), (loop, q)):
            one.param_groups[0]["maximize"] = value
            x.grad = torch.ones(8)
            one.step()
    torch.testing.assert_close(p, q)

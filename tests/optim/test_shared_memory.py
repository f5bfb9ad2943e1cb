"""Parameters and gradients that share memory: default and fused do as the for-loop, one after the other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from dualavg import MDA

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


def trained(make: Callable[[], Case], **how: Any) -> list[Tensor]:
    torch.manual_seed(0)
    params, gradient = make()
    optimizer = MDA(params, lr=1.0, **how)
    for k in range(4):
        for i, p in enumerate(params):
            p.grad = gradient(i, k)
        optimizer.step()
    return [p.detach().clone() for p in params]


CASES = [
    twice,
    twice_and_a_gradient_of_another_order,
    twice_and_a_negative_gradient,
    every_other_column_and_all,
    a_gradient_that_is_another_parameter,
    a_gradient_that_is_another_parameter_in_another_order,
]
# Where tensors end, the default path does not look: that would make a small network's step slower.
ALL = [*((make, fused) for make in CASES for fused in (None, True)), (overlapping_halves, True)]


@pytest.mark.parametrize(("make", "fused"), ALL)
def test_shared_memory_is_worked_on_in_the_for_loops_order(
    make: Callable[[], Case], fused: bool | None
) -> None:
    expected = trained(make, foreach=False, fused=False)
    for p, q in zip(trained(make, fused=fused), expected, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "how", [{}, {"foreach": True}, {"fused": True}, {"foreach": False, "fused": False}], ids=str
)
def test_a_conjugated_gradient_counts_as_what_it_says(how: dict[str, Any]) -> None:
    results = []
    for resolved in (False, True):
        p = Parameter(torch.arange(4.0) + 1j)
        optimizer = MDA([p], **how)
        for _ in range(3):
            gradient = (torch.arange(4.0) - 2j).to(p.dtype).conj()
            p.grad = gradient.resolve_conj() if resolved else gradient
            optimizer.step()
        results.append(p.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("fused", [None, True])
def test_a_state_that_lacks_something_is_a_sentence(fused: bool | None) -> None:
    p = Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = MDA([p], fused=fused)
    optimizer.step()
    optimizer.state[p]["sum"] = optimizer.state[p].pop("s")
    with pytest.raises(
        ValueError, match=r"Parameter 0 of group 0 keeps .*'sum'.* but its group's settings need"
    ):
        optimizer.step()

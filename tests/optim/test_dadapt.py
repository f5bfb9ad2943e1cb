"""DAdaptMDA: the distance is bounded from below, on every path, and found at any scale."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.cases import gradient, parameters, train
from torch import Tensor

from dualavg import MDA
from dualavg._dadapt import DAdaptMDA

KERNELS: list[dict[str, Any]] = [{}, {"foreach": True}, {"fused": True}]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def convex_functions(solution: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    n = len(solution)
    a = torch.randn(2 * n, n, generator=generator, dtype=torch.float64)
    return {
        "least squares": lambda x: (a @ (x - solution)).square().mean(),
        "absolute values": lambda x: (x - solution).abs().mean(),
        "largest": lambda x: (x - solution).abs().max(),
        "norm": lambda x: (x - solution).norm(),
        "fourth powers": lambda x: (x - solution).pow(4).mean(),
        "log cosh": lambda x: (a @ (x - solution)).cosh().log().mean(),
    }


def minimize(function: Callable[[Tensor], Tensor], x: Tensor, steps: int, **settings: Any) -> DAdaptMDA:
    optimizer = DAdaptMDA([x], **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        function(x).backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 2, 20])
def test_d_never_exceeds_the_distance_of_a_convex_problem(n: int, momentum: float) -> None:
    solution = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    for name, function in convex_functions(solution).items():
        for lr in (1.0, 10.0):  # lr has no part in the bound
            x = torch.nn.Parameter(torch.zeros(n, dtype=torch.float64))
            optimizer = minimize(function, x, 300, lr=lr, momentum=momentum)
            assert optimizer.param_groups[0]["d"] <= solution.norm(), name
            if momentum <= 0.9:
                assert optimizer.param_groups[0]["d"] > 0.01 * solution.norm(), name  # from 1e-6


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("steepness", [1e-3, 1.0, 1e3])
def test_the_same_default_solves_least_squares_at_any_scale(scale: float, steepness: float) -> None:
    solution = scale * torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    function = convex_functions(solution)["least squares"]
    x = torch.nn.Parameter(torch.zeros(20, dtype=torch.float64))
    start = function(x).item()
    minimize(lambda x: steepness * function(x), x, 1000)
    assert function(x) < 1e-3 * start


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_is_that_of_mda_with_the_step_size_that_was_found(
    kernel: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, theirs = parameters((50, 3), (7,), dtype=dtype), parameters((50, 3), (7,), dtype=dtype)
    settings = {"weight_decay": 0.01, "couple_momentum": False, **kernel}
    found, given = DAdaptMDA(ours, d0=1e-3, **settings), MDA(theirs, **settings)
    for k in range(50):
        for p, q in zip(ours, theirs, strict=True):
            p.grad, q.grad = gradient(p, k), gradient(p, k)
        found.step()
        given.param_groups[0]["lr"] = found.param_groups[0]["eta"]
        given.step()
        for p, q in zip(ours, theirs, strict=True):
            assert torch.equal(p, q)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_kernels_and_thread_counts_agree_bit_for_bit(dtype: torch.dtype, weight_decay: float) -> None:
    """Sums are in float64, and the step size is rounded to float32 before it meets a tensor."""
    results = {}
    threads = torch.get_num_threads()
    for kernel, settings in enumerate(KERNELS):
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            params = parameters((140_001,), (17, 1000), (5,), dtype=dtype)
            optimizer = DAdaptMDA(params, d0=1e-3, weight_decay=weight_decay, **settings)
            train(optimizer, range(4))
            results[kernel, count] = params, optimizer.param_groups[0]["d"]
    torch.set_num_threads(threads)
    first, d = results[0, 1]
    for (kernel, _), (params, other_d) in results.items():
        assert other_d == results[kernel, 1][1]
        assert other_d == pytest.approx(d, rel=1e-12)
        tolerance = 1e-12 if dtype == torch.float64 else 0  # there the step size is not rounded
        for p, q in zip(params, first, strict=True):
            torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@every_kernel
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_never_enter_d(kernel: dict[str, Any], bad: float) -> None:
    for bad_step in (0, 5):
        (p,) = parameters((10,))
        optimizer = DAdaptMDA([p], d0=1e-3, **kernel)
        for k in range(10):
            p.grad = gradient(p, k)
            if k == bad_step:
                p.grad[3] = bad
            before = optimizer.param_groups[0]["estimate"].clone()
            optimizer.step()
            after = optimizer.param_groups[0]["estimate"]
            assert after.isfinite().all()
            if k >= bad_step > 0:  # s is not finite from here on
                assert torch.equal(after, before)


def test_lr_zero_changes_neither_parameters_nor_the_estimate() -> None:
    first, second = parameters((4,), (5,))
    optimizer = DAdaptMDA([first, second], d0=1e-3)
    train(optimizer, range(20))
    before = optimizer.param_groups[0]["estimate"].clone()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(optimizer.param_groups[0]["estimate"], before)


def test_a_parameter_without_gradient_keeps_its_share_of_the_norm_of_s() -> None:
    """Otherwise a step of a small layer alone would divide r of all layers by the s of this one."""
    function = convex_functions(torch.randn(20, generator=torch.Generator().manual_seed(3)).double())["norm"]
    large, small = (torch.nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (19, 1))
    for frozen_by_lr in (False, True):
        optimizer = DAdaptMDA([{"params": [large]}, {"params": [small]}])
        for k in range(200):
            optimizer.zero_grad()
            function(torch.cat([large, small])).backward()
            if k >= 100 and frozen_by_lr:
                optimizer.param_groups[0]["lr"] = 0.0
            elif k >= 100:
                large.grad = None
            if k == 100:
                d = optimizer.param_groups[0]["d"]
            optimizer.step()
        assert optimizer.param_groups[0]["d"] < 1.5 * d


def test_steps_of_different_sizes_are_those_of_one_size_for_scaled_variables() -> None:
    """A group with a times the step size: one step size for x / sqrt(a)."""
    a = 0.04
    first, second = parameters((4,), (5,))
    one, other = (torch.nn.Parameter(p.detach().clone()) for p in (first, second))
    other.data /= a**0.5
    groups = [{"params": [first]}, {"params": [second], "lr": a}]
    optimizers = DAdaptMDA(groups), DAdaptMDA([one, other])
    for optimizer in optimizers:  # d_0 and G_0 are those of the variables as they are
        optimizer.param_groups[0]["estimate"].copy_(torch.tensor([0.01, 0.0, 1.0, 1.0, 0.0]))
    for k in range(100):
        first.grad, second.grad = gradient(first, k), gradient(second, k)
        one.grad = gradient(one, k)
        other.grad = a**0.5 * gradient(other.detach() * a**0.5, k)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(first, one, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(second, other * a**0.5, rtol=1e-9, atol=1e-9)
    assert optimizers[0].param_groups[0]["d"] > 0.1


def test_d_and_eta_can_be_read_as_numbers() -> None:
    (p,) = parameters((4,))
    optimizer = DAdaptMDA([p], lr=0.5)
    p.grad = torch.ones_like(p)
    optimizer.step()
    (group,) = optimizer.param_groups
    d0 = 1e-6 * (1 + optimizer.state[p]["x0"].norm().item())
    assert group["d"] == pytest.approx(d0)
    assert group["eta"] == pytest.approx(0.5 * d0 / 2)  # ||g|| = 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d0": 0.0}, "d0 must be a number above 0, at most 1, got 0.0"),
        ({"d0": "small"}, "d0 must be a number above 0, at most 1, got 'small'"),
        ({"growth_rate": 1.0}, "growth_rate must be a number above 1, got 1.0"),
        ({"growth_rate": float("nan")}, "growth_rate must be a number above 1, got nan"),
        ({"lr": -1.0}, "lr must be a number from 0"),
    ],
)
def test_a_bad_setting_raises(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DAdaptMDA(parameters((4,)), **settings)


def test_the_step_cannot_be_differentiable() -> None:
    with pytest.raises(ValueError, match="DAdaptMDA has no differentiable step"):
        DAdaptMDA([{"params": parameters((4,)), "differentiable": True}])


def test_the_state_of_mda_is_refused_and_the_other_way_round() -> None:
    optimizers = [cls(parameters((4,))) for cls in (MDA, DAdaptMDA)]
    for optimizer in optimizers:
        train(optimizer, range(2))
    for to, source in (optimizers, reversed(optimizers)):
        with pytest.raises(ValueError, match=f"This is not a state dict of {type(to).__name__}"):
            to.load_state_dict(source.state_dict())

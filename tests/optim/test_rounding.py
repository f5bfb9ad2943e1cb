"""Dithered rounding: the rule, and that it is unbiased, deterministic and stateless."""

from typing import Any

import pytest
import torch
from support.cases import parameters
from torch import Tensor, nn

from dualavg import MDA
from dualavg._rounding import round_

HALF = {torch.bfloat16: 7, torch.float16: 10}  # digits of the fraction
every_half = pytest.mark.parametrize("half", HALF, ids=str)
KERNELS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}, {}]


def ulp(y: Tensor, half: torch.dtype) -> Tensor:
    """The distance between the two neighbours of y."""
    return torch.exp2(torch.frexp(y.double()).exponent.double() - 1 - HALF[half])


def mixed(k: int) -> int:
    bits = (k * 0x9E3779B1) % 2**32
    return ((bits ^ (bits >> 16)) * 0x85EBCA6B) % 2**32


def by_the_rule(y: Tensor, s: Tensor, half: torch.dtype, k: int, c: float) -> Tensor:
    """The rule, number by number in float64."""
    uppers = [(int(bits) >> 16) % 2**32 for bits in s.view(torch.int32)]
    width = 23 - HALF[half]  # bits of the hash: those of float32 that `half` does not have
    words = [(upper ^ mixed(k)) * 0x9E3779B1 % 2**32 >> (32 - width) | 1 for upper in uppers]
    d = torch.tensor([(word - 2**width if word >= 2 ** (width - 1) else word) / 2**width for word in words])
    unit = ulp(y, half)
    inner = (y.abs() / unit).floor()
    f = y.abs() / unit - inner
    return y.sign() * (inner + (f + (1 - c**2) * d >= 0.5)) * unit


def rounded(y: Tensor, s: Tensor, half: torch.dtype, k: int, c: float) -> Tensor:
    y = y.clone()
    round_(y, s, half, k, c)
    assert torch.equal(y.to(half).float(), y)
    return y.to(half)


@every_half
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_kernel_rounds_by_the_rule(kernel: dict[str, Any], half: torch.dtype) -> None:
    torch.manual_seed(0)
    start = (torch.rand(2000) + 0.5).to(half)
    p = nn.Parameter(start.clone())
    optimizer = MDA([p], lr=0.1, momentum=0.8, **kernel)
    agree, nearest = 0, 0
    for k in range(1, 30):
        x = p.detach().double()
        p.grad = (0.1 * torch.randn(2000)).to(half)
        optimizer.step()
        z = start.double() - optimizer.state[p]["s"].double() / k**0.5
        y = 0.8 * x + 0.2 * z
        agree += int((p.detach().double() == by_the_rule(y, optimizer.state[p]["s"], half, k, 0.2)).sum())
        nearest += int((p.detach().double() == y.to(half).double()).sum())
    assert agree > 0.998 * 29 * 2000  # for the rest, float32 rounding decides
    assert nearest < 0.8 * 29 * 2000


@every_half
@pytest.mark.parametrize("c", [0.01, 0.3, 0.9])
def test_the_function_rounds_by_the_rule(half: torch.dtype, c: float) -> None:
    torch.manual_seed(0)
    s = torch.randn(5000)
    y = (torch.rand(5000) + 0.01) * torch.exp2(torch.randint(-4, 12, (5000,))) * torch.randn(5000).sign()
    for k in (1, 2, 1000, 2**24):
        agree = rounded(y, s, half, k, c).double() == by_the_rule(y.double(), s, half, k, c)
        assert agree.sum() > 0.999 * len(y)  # for the rest, float32 rounding decides


@every_half
@pytest.mark.parametrize("c", [0.1, 1e-4])
def test_a_representable_number_never_changes(half: torch.dtype, c: float) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(half)
    every = every[every.isfinite()]
    torch.manual_seed(0)
    for k in range(1, 40):
        assert torch.equal(rounded(every.float(), torch.randn(len(every)), half, k, c), every)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_inf_and_nan_stay(kernel: dict[str, Any]) -> None:
    bits = [0x7FFFFFFF, -1, 0x7FC00000, -0x400000]  # a NaN of CUDA, its negative, other NaNs
    odd = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    for half in HALF:
        p = nn.Parameter(torch.ones(8, dtype=half))
        optimizer = MDA([p], **kernel)
        p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.state[p]["s"][:4] = odd
        optimizer.state[p]["s"][4:6] = torch.tensor([torch.inf, -torch.inf])
        optimizer.step()
        assert p[:4].isnan().all()
        assert p.detach()[4:].tolist() == [-torch.inf, torch.inf, 1.0, 1.0]


@every_half
@pytest.mark.parametrize("c", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("size", [1.0, 2.0**-13])
def test_rounding_is_unbiased_over_the_steps(half: torch.dtype, c: float, size: float) -> None:
    torch.manual_seed(0)
    y, s = size * (1 + torch.rand(500)), torch.randn(500)
    total = sum(rounded(y, s, half, k, c).double() for k in range(1, 2001))
    bias = (total / 2000 - y.double()) / ulp(y, half)
    assert bias.abs().max() < c**2 / 2 + 4 * 0.5 / 2000**0.5  # four standard errors
    assert ((y.to(half).double() - y.double()) / ulp(y, half)).abs().max() > 0.4  # rounding to nearest


def test_below_float16_s_normal_numbers_the_lag_is_at_most_a_few_subnormal_units() -> None:
    """There the last conversion rounds to nearest: x lags by up to 1/(2c) units of 6e-8, which is 3e-7."""
    c, unit = 0.1, 2.0**-24
    z = torch.linspace(1e-5, 6e-5, 500)
    x = torch.zeros(500, dtype=torch.float16)
    for k in range(1, 500):
        y = torch.lerp(x.float(), z, c)
        round_(y, torch.randn(500), torch.float16, k, c)
        x = y.to(torch.float16)
    assert (x.double() - z.double()).abs().max() <= (0.5 / c + 1) * unit


def test_rounding_is_unbiased_over_the_elements() -> None:
    """Equal weights, such as gains of 1, do not all round up at the same step."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
    optimizer = MDA([p], lr=0.1)
    exact = torch.ones(4000, dtype=torch.float64)
    for k in range(1, 60):
        p.grad = (0.02 * torch.randn(4000)).to(torch.bfloat16)
        optimizer.step()
        exact = 0.9 * exact + 0.1 * (1 - optimizer.state[p]["s"].double() / k**0.5)
        error = (p.detach().double() - exact) / 2**-8
        assert error.mean().abs() < 6 * error.std() / 4000**0.5 + 0.02


@pytest.mark.parametrize("period", [1, 2, 3, 5, 21])
def test_rounding_is_unbiased_for_a_periodic_sequence(period: int) -> None:
    """If z and s repeat after a few steps, d_k still differs."""
    torch.manual_seed(0)
    c, n, half = 0.1, 400, torch.bfloat16
    points = 1 + 0.9 * torch.rand(period, n)
    sums = torch.randn(period, n)
    x = points[0].to(half).float()
    exact, total = x.double(), torch.zeros(n, dtype=torch.float64)
    for k in range(1, 4001):
        z = points[k % period]
        exact = (1 - c) * exact + c * z.double()
        x = torch.lerp(x, z, c)
        round_(x, sums[k % period], half, k, c)
        total += (x.double() - exact) / 2**-7
    assert (total / 4000).pow(2).mean().sqrt() < 0.15


@every_half
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_without_momentum_y_is_rounded_to_nearest(kernel: dict[str, Any], half) -> None:
    (p,) = parameters((500,), dtype=half)
    q = nn.Parameter(p.detach().float())
    low, high = MDA([p], momentum=0.0, **kernel), MDA([q], momentum=0.0, **kernel)
    for _ in range(5):
        p.grad = torch.randn(500).to(half)
        q.grad = p.grad.float()
        q.data.copy_(p)
        low.step()
        high.step()
        assert torch.equal(p, q.to(half))


@every_half
@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_x_follows_the_exact_average(kernel: dict[str, Any], momentum: float, half: torch.dtype) -> None:
    torch.manual_seed(0)
    c, n, steps = 1 - momentum, 2000, 600
    start = (0.05 * torch.randn(n)).to(half)
    p = nn.Parameter(start.clone())
    optimizer = MDA([p], lr=1.0, momentum=momentum, **kernel)
    size = (0.5 + torch.rand(n)) * 2e-4 * 2.0 ** (7 - HALF[half])
    exact, drift = start.double(), torch.randn(n).sign() * size
    lags = []
    for k in range(1, steps + 1):
        p.grad = drift.to(half)
        optimizer.step()
        z = start.double() - optimizer.state[p]["s"].double() / k**0.5
        exact = momentum * exact + c * z
        if k > steps // 2:
            x = p.detach().double()
            far = x.abs() > 1e-2  # where a step is less than half an ulp
            lags.append(((x - exact) * drift.sign() / ulp(x, half))[far])
    lag = torch.cat(lags)
    # Rounded to nearest, x would lag by about 1/(2c) ulps, always on the same side.
    assert lag.mean().abs() < 0.25
    assert lag.abs().median() < 1.5 * (0.1 / c) ** 0.5


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_sharded_parameter_is_rounded_like_the_full_one(kernel: dict[str, Any]) -> None:
    torch.manual_seed(0)
    start = torch.randn(12, 5).to(torch.bfloat16)
    full = nn.Parameter(start.clone())
    parts = [nn.Parameter(rows.clone()) for rows in start.split(4)]
    together, apart = MDA([full], **kernel), MDA(parts, **kernel)
    for _ in range(20):
        full.grad = torch.randn(12, 5).to(torch.bfloat16)
        for part, rows in zip(parts, full.grad.split(4), strict=True):
            part.grad = rows.clone()
        together.step()
        apart.step()
    assert torch.equal(full, torch.cat([part.detach() for part in parts]))


def test_the_derivative_of_a_rounded_step_is_that_of_an_exact_one() -> None:
    lr = torch.tensor(0.5, requires_grad=True)
    start = torch.randn(20).to(torch.bfloat16)
    slopes = []
    for dtype in (torch.bfloat16, torch.float32):
        x = start.to(dtype).clone().requires_grad_()
        p = x.clone()
        p.grad = torch.ones_like(p)
        MDA([p], lr=lr, differentiable=True).step()
        slopes.append(torch.autograd.grad(p.float().sum(), lr)[0])
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_zero_step_changes_nothing_at_any_momentum(kernel: dict[str, Any]) -> None:
    for half in HALF:
        p = nn.Parameter(torch.tensor([1.0, 1.5, 0.3, 0.0, -2.0, 1e-7], dtype=half))
        before = p.detach().clone()
        optimizer = MDA([p], momentum=0.9999, **kernel)
        for _ in range(300):
            p.grad = torch.zeros_like(p)
            optimizer.step()
            assert torch.equal(p, before)

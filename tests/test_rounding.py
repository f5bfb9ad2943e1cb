"""How parameters in half precision are rounded: the rule, and what it is for."""

from typing import Any

import pytest
import torch
from cases import parameters
from torch import Tensor, nn

from dualavg import MDA
from dualavg._rounding import round_

HALF = {torch.bfloat16: 7, torch.float16: 10}  # digits of the fraction
every_half = pytest.mark.parametrize("half", HALF, ids=str)
PATHS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}, {}]


def ulp(y: Tensor, half: torch.dtype) -> Tensor:
    """The distance between the two neighbours of y."""
    return torch.exp2(torch.frexp(y.double()).exponent.double() - 1 - HALF[half])


def by_the_rule(y: Tensor, x0: Tensor, k: int, c: float) -> Tensor:
    """The rule, number by number in float64."""
    bits = [int(b) % 2**16 for b in x0.view(torch.int16)]
    d = torch.tensor([((b * 27146 + k * 40502 + 1 + 2**15) % 2**16 - 2**15) / 2**16 for b in bits])
    unit = ulp(y, x0.dtype)
    inner = (y.abs() / unit).floor()
    f = y.abs() / unit - inner
    return y.sign() * (inner + (f + (1 - c**2) * d >= 0.5)) * unit


def rounded(y: Tensor, x0: Tensor, k: int, c: float) -> Tensor:
    y = y.clone()
    round_([y], [x0], x0.dtype, [k], c)
    assert torch.equal(y.to(x0.dtype).float(), y)
    return y.to(x0.dtype)


@every_half
@pytest.mark.parametrize("how", PATHS, ids=str)
def test_every_path_rounds_by_the_rule(how: dict[str, Any], half: torch.dtype) -> None:
    torch.manual_seed(0)
    start = (torch.rand(2000) + 0.5).to(half)
    p = nn.Parameter(start.clone())
    optimizer = MDA([p], lr=0.1, momentum=0.8, **how)
    agree, nearest = 0, 0
    for k in range(1, 30):
        x = p.detach().double()
        p.grad = (0.1 * torch.randn(2000)).to(half)
        optimizer.step()
        z = start.double() - optimizer.state[p]["s"].double() / k**0.5
        y = 0.8 * x + 0.2 * z
        agree += int((p.detach().double() == by_the_rule(y, start, k, 0.2)).sum())
        nearest += int((p.detach().double() == y.to(half).double()).sum())
    assert agree > 0.998 * 29 * 2000  # the rest lie so close to the limit that float32's rounding decides
    assert nearest < 0.8 * 29 * 2000


@every_half
@pytest.mark.parametrize("c", [0.01, 0.3, 0.9])
def test_the_function_rounds_by_the_rule(half: torch.dtype, c: float) -> None:
    torch.manual_seed(0)
    x0 = torch.randn(5000).to(half)
    y = (torch.rand(5000) + 0.01) * torch.exp2(torch.randint(-4, 12, (5000,))) * torch.randn(5000).sign()
    for k in (1, 2, 1000, 2**24):
        agree = rounded(y, x0, k, c).double() == by_the_rule(y.double(), x0, k, c)
        assert agree.sum() > 0.999 * len(y)  # the others lie where float32's rounding decides


@every_half
def test_what_two_bytes_hold_stays_as_it_is(half: torch.dtype) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(half)
    every = every[every.isfinite()]
    generator = torch.Generator().manual_seed(0)
    for k in range(1, 200):
        x0 = every[torch.randperm(len(every), generator=generator)]
        assert torch.equal(rounded(every.float(), x0, k, 0.1), every)


@pytest.mark.parametrize("how", PATHS, ids=str)
def test_what_is_not_finite_stays_so(how: dict[str, Any]) -> None:
    bits = [0x7FFFFFFF, -1, 0x7FC00000, -0x400000]  # a NaN of CUDA, its opposite, other NaNs
    odd = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    for half in HALF:
        p = nn.Parameter(torch.ones(8, dtype=half))
        optimizer = MDA([p], **how)
        p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.state[p]["s"][:4] = odd
        optimizer.state[p]["s"][4:6] = torch.tensor([torch.inf, -torch.inf])
        optimizer.step()
        assert p[:4].isnan().all()
        assert p.detach()[4:].tolist() == [-torch.inf, torch.inf, 1.0, 1.0]


@every_half
@pytest.mark.parametrize("c", [0.02, 0.1, 0.5])
def test_the_errors_of_successive_steps_cancel(half: torch.dtype, c: float) -> None:
    torch.manual_seed(0)
    x0, y = torch.randn(500).to(half), torch.randn(500)
    total = sum(rounded(y, x0, k, c).double() for k in range(1, 2001))
    bias = (total / 2000 - y.double()) / ulp(y, half)
    assert bias.abs().max() < c**2 / 2 + 0.002
    assert ((y.to(half).double() - y.double()) / ulp(y, half)).abs().max() > 0.4  # as the nearest is


@every_half
@pytest.mark.parametrize("how", PATHS, ids=str)
def test_where_nothing_is_averaged_y_is_rounded_to_the_nearest(how: dict[str, Any], half) -> None:
    (p,) = parameters((500,), dtype=half)
    q = nn.Parameter(p.detach().float())
    low, high = MDA([p], momentum=0.0, **how), MDA([q], momentum=0.0, **how)
    for _ in range(5):
        p.grad = torch.randn(500).to(half)
        q.grad = p.grad.float()
        q.data.copy_(p)
        low.step()
        high.step()
        assert torch.equal(p, q.to(half))


@every_half
@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("how", PATHS, ids=str)
def test_x_follows_the_exact_average(how: dict[str, Any], momentum: float, half: torch.dtype) -> None:
    torch.manual_seed(0)
    c, n, steps = 1 - momentum, 2000, 600
    start = (0.05 * torch.randn(n)).to(half)
    p = nn.Parameter(start.clone())
    optimizer = MDA([p], lr=1.0, momentum=momentum, **how)
    exact, drift = start.double(), torch.randn(n).sign() * 2e-4 * 2.0 ** (7 - HALF[half])
    lags = []
    for k in range(1, steps + 1):
        p.grad = drift.to(half)
        optimizer.step()
        z = start.double() - optimizer.state[p]["s"].double() / k**0.5
        exact = momentum * exact + c * z
        if k > steps // 2:
            x = p.detach().double()
            far = x.abs() > 1e-2  # where a step is less than half a unit
            lags.append(((x - exact) * drift.sign() / ulp(x, half))[far])
    lag = torch.cat(lags)
    # To the nearest, x would lag by about 1/(2c) units, all one way.
    assert lag.mean().abs() < 0.25
    assert lag.abs().median() < 0.6


@pytest.mark.parametrize("how", PATHS, ids=str)
def test_parts_of_a_parameter_are_rounded_as_the_whole_is(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    start = torch.randn(12, 5).to(torch.bfloat16)
    whole = nn.Parameter(start.clone())
    parts = [nn.Parameter(rows.clone()) for rows in start.split(4)]
    together, apart = MDA([whole], **how), MDA(parts, **how)
    for _ in range(20):
        whole.grad = torch.randn(12, 5).to(torch.bfloat16)
        for part, rows in zip(parts, whole.grad.split(4), strict=True):
            part.grad = rows.clone()
        together.step()
        apart.step()
    assert torch.equal(whole, torch.cat([part.detach() for part in parts]))


def test_autograd_sees_a_rounded_step_as_an_exact_one() -> None:
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

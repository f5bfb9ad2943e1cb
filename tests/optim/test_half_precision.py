"""Pure bfloat16 training loses nothing to the optimizer: rounding errors of x do not accumulate.

Settings, seeds and the factor 5 were fixed before these tests were first run: the middle lr that
benchmarks/bf16_training.py takes for each optimizer, and seeds 0 to 4, each of which must satisfy the claim
on its own. One declaration did not survive: that SGD+M and Adam each lose more than 30%. In these short runs
SGD+M loses 20% to 26%, so only the comparison with MDA is asserted.
"""

import functools

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from dualavg import MDA
from dualavg._reference import ReferenceMDA
from dualavg.schedules import WarmupLinearDecay

BF16 = torch.bfloat16
SEEDS = range(5)
STEPS, BATCH, HIDDEN = 500, 64, 64
OPTIMIZERS = {
    "mda": lambda params: MDA(params, lr=1.0),
    "mda-uncoupled": lambda params: MDA(params, lr=1.0, couple_momentum=False),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.03),
}

pytestmark = pytest.mark.usefixtures("one_thread")


@functools.cache
def train(name: str, dtype: torch.dtype) -> tuple[Tensor, torch.optim.Optimizer]:
    """Final loss of each seed on the full training set, in float32, and the optimizer.

    The seeds are slices of one batched network: the optimizers are elementwise, so seeds do not interact.
    """
    data = load_digits()
    images, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    starts = []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        shapes = (64, HIDDEN), (1, HIDDEN), (HIDDEN, 10), (1, 10)
        starts.append([(2 * torch.rand(shape, generator=generator) - 1) / 8 for shape in shapes])
    # Rounded in float32 as well: both dtypes start at the same point.
    weights = [nn.Parameter(torch.stack(same).to(BF16).to(dtype)) for same in zip(*starts, strict=True)]
    optimizer = OPTIMIZERS[name](weights)
    scheduler = WarmupLinearDecay(optimizer, STEPS // 20, STEPS)
    orders = [torch.Generator().manual_seed(1000 + seed) for seed in SEEDS]
    for _ in range(STEPS):
        batch = torch.stack([torch.randint(len(images), (BATCH,), generator=order) for order in orders])
        output = logits(weights, images[batch].to(dtype)).flatten(0, 1)
        optimizer.zero_grad()
        (F.cross_entropy(output, labels[batch].flatten(), reduction="sum") / BATCH).backward()
        optimizer.step()
        scheduler.step()
    assert all(w.dtype == dtype for w in weights)
    with torch.no_grad():
        output = logits([w.float() for w in weights], images.expand(len(SEEDS), -1, -1))
        return torch.stack([F.cross_entropy(one, labels) for one in output]), optimizer


def logits(weights: list[Tensor], images: Tensor) -> Tensor:
    w1, b1, w2, b2 = weights
    return torch.baddbmm(b2, torch.relu(torch.baddbmm(b1, images, w1)), w2)


def relative_gap(name: str) -> Tensor:
    """The loss in bfloat16 minus that in float32 with the same seed, relative to the latter."""
    exact, _ = train(name, torch.float32)
    rounded, _ = train(name, BF16)
    return (rounded - exact) / exact


def ulp(x: Tensor) -> Tensor:
    """The distance between neighbours in bfloat16, whose significand has 8 bits."""
    return torch.exp2(torch.frexp(x.double()).exponent.double() - 8)


def z_of(p: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    state = optimizer.state[p]
    return state["x0"].double() - state["s"].double() / state["step"].double().sqrt()


def test_bf16_training_ends_at_the_loss_of_float32() -> None:
    assert relative_gap("mda").abs().max() < 0.05


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_bf16_costs_others_far_more_than_mda(name: str) -> None:
    assert relative_gap(name).min() > 5 * relative_gap("mda").abs().max()


def test_after_a_decay_x_is_z_rounded_once() -> None:
    # The coupling has raised c to 1: x does not average any more.
    _, optimizer = train("mda", BF16)
    for p in optimizer.state:
        x, z = p.detach().double(), z_of(p, optimizer)
        # Half an ulp of one rounding, and the errors of float32 arithmetic.
        assert ((x - z).abs() <= 0.5 * ulp(z) + 1e-6).all()


def test_without_coupling_x_follows_z_too() -> None:
    # With c = 0.1 to the end, rounding to nearest would leave x up to 5 ulps from z, and 4 in the median.
    # Dithered, errors of variance 1/6 ulp^2 per step add up to (1/6) / (1 - 0.9^2): about 1 ulp.
    _, optimizer = train("mda-uncoupled", BF16)
    for p in optimizer.state:
        x, z = p.detach().double(), z_of(p, optimizer)
        moved = x != optimizer.state[p]["x0"].double()
        assert ((x - z).abs() / ulp(x))[moved].median() < 1.5


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("foreach", [False, True])
def test_the_rounding_error_does_not_grow(momentum: float, foreach: bool) -> None:
    # e_{k+1} = (1-c) e_k + r_k with |r_k| <= (1 - c^2/2) ulp gives |e_k| <= (1 - c^2/2)/c ulp, for any k.
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(1000, generator=generator).to(BF16))
    drift = torch.randn(1000, generator=generator)
    optimizer = MDA([p], lr=1.0, momentum=momentum, foreach=foreach)
    reference = ReferenceMDA(p)
    largest = ulp(p.detach())
    for _ in range(500):
        p.grad = (1e-3 * drift + 1e-2 * torch.randn(1000, generator=generator)).to(BF16)
        optimizer.step()
        exact = reference.step(p.grad, lr=1.0, c=1 - momentum)
        largest = torch.maximum(largest, torch.maximum(ulp(exact), ulp(p.detach())))
        c = 1 - momentum
        bound = largest * (1 - c**2 / 2) / c
        assert ((p.detach().double() - exact).abs() <= 1.001 * bound + 1e-6).all()


def test_gradients_too_small_for_bf16_sgd_move_the_parameter() -> None:
    # A step of SGD with momentum tends to lr g / (1 - 0.9) = 1e-3: less than half an ulp of these weights.
    start = torch.linspace(1, 2, 129).to(BF16)
    tiny = torch.full_like(start, 1e-3)
    assert (ulp(start) / 4 > 1e-3).all()
    stuck = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    moving = nn.Parameter(start.clone())
    optimizers = [
        torch.optim.SGD([stuck[0]], lr=0.1, momentum=0.9),
        torch.optim.Adam([stuck[1]], lr=1e-3),
        MDA([moving], lr=1.0),
    ]
    reference = ReferenceMDA(start)
    for _ in range(2000):
        for p in (*stuck, moving):
            p.grad = tiny.clone()
        for optimizer in optimizers:
            optimizer.step()
        exact = reference.step(tiny, lr=1.0, c=0.1)
    assert torch.equal(stuck[0], start)
    assert torch.equal(stuck[1], start)
    assert ((start.double() - exact) > 1).all()
    # Well within the bound of the test above, with the ulp of the largest value.
    assert ((moving.detach().double() - exact).abs() <= 1.5 * ulp(start)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ten_bytes_per_parameter(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(1000, dtype=dtype))
    optimizer = MDA([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    tensors = [p, p.grad, *(t for t in optimizer.state[p].values() if t.numel() > 1)]
    assert sum(t.numel() * t.element_size() for t in tensors) == 10 * p.numel()

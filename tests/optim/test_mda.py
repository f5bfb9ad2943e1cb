"""MDA itself: its signature, its conversion from SGD, its coupling, its error messages."""

import inspect
import io
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from support.cases import gradient, parameters
from torch import Tensor

from dualavg import MDA
from dualavg._reference import ReferenceMDA


def test_the_signature_is_the_documented_one() -> None:
    signature = inspect.signature(MDA)
    assert {name: p.default for name, p in signature.parameters.items() if name != "params"} == {
        "lr": 1.0,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "couple_momentum": True,
        "maximize": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "fused": None,
        "anchor_dtype": None,
    }
    keyword_only = [n for n, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY]
    paths = ["foreach", "capturable", "differentiable", "fused", "anchor_dtype"]
    assert keyword_only == ["couple_momentum", "maximize", *paths]


def test_momentum_has_the_meaning_it_has_in_sgd() -> None:
    """One step from x0 with gradient g: z = x0 - lr g, and x goes a tenth of the way at momentum 0.9."""
    p = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    p.grad = torch.tensor([2.0], dtype=torch.float64)
    MDA([p], lr=3.0, momentum=0.9).step()
    assert p.item() == pytest.approx(1.0 - 0.1 * 3.0 * 2.0, abs=1e-15)


def test_from_sgd_takes_the_first_step_of_sgd() -> None:
    """s/beta = lr g / (1 - momentum) and c = 1 - momentum: the first step is SGD's, with decay too."""
    ours, theirs = parameters((5,))[0], parameters((5,))[0]
    optimizers = (
        MDA.from_sgd([ours], lr=0.1, momentum=0.9, weight_decay=0.01),
        torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01),
    )
    ours.grad = theirs.grad = gradient(ours, 0)
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(1.0)


def test_from_sgd_converts_the_settings_of_each_group() -> None:
    a, b, c = parameters((1,), (1,), (1,))
    groups = [{"params": [a], "lr": 0.2}, {"params": [b], "momentum": 0.5}, {"params": [c]}]
    optimizer = MDA.from_sgd(groups, lr=0.1, momentum=0.9, weight_decay=1e-4, maximize=True)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([2.0, 0.2, 1.0])
    assert [g["momentum"] for g in optimizer.param_groups] == [0.9, 0.5, 0.9]
    assert all(g["weight_decay"] == 1e-4 and g["maximize"] for g in optimizer.param_groups)
    assert groups[0]["lr"] == 0.2  # the caller's dict is unchanged


def test_from_sgd_takes_named_parameters_and_a_tensor_lr() -> None:
    optimizer = MDA.from_sgd(torch.nn.Linear(2, 2).named_parameters(), torch.tensor(0.1), 0.5)
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.2)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize("tensor", [False, True])
def test_the_averaging_weight_rises_as_the_step_size_falls(tensor: bool) -> None:
    """c_k = min(1, c peak_lr / lr_k), read off the step itself; a warm-up leaves c alone."""
    (p,) = parameters((1,))
    lrs = [0.5, 1.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.0, 3.0]
    expected = [0.1, 0.1, 0.1, 0.2, 0.4, 1.0, 1.0, 1.0, 0.1]
    optimizer = MDA([p], lr=torch.tensor(1.0, dtype=torch.float64) if tensor else 1.0)
    for k, lr in enumerate(lrs):
        optimizer.param_groups[0]["lr"] = torch.tensor(lr, dtype=torch.float64) if tensor else lr
        p.grad = torch.ones_like(p)
        before = p.item()
        optimizer.step()
        state = optimizer.state[p]
        z = (state["x0"] - state["s"] / math.sqrt(k + 1)).item()
        assert (p.item() - before) / (z - before) == pytest.approx(expected[k], rel=1e-9)
    assert optimizer.param_groups[0]["peak_lr"].item() == 3.0


def test_groups_do_not_share_their_peak() -> None:
    a, b = parameters((1,), (1,))
    optimizer = MDA([{"params": [a], "lr": 2.0}, {"params": [b], "lr": 0.5}])
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    optimizer.step()
    assert [g["peak_lr"].item() for g in optimizer.param_groups] == [2.0, 0.5]


def test_torch_schedulers_that_cycle_momentum_work() -> None:
    (p,) = parameters((3,))
    optimizer = MDA([p])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2.0, total_steps=20)
    momenta = set()
    for k in range(20):
        p.grad = gradient(p, k)
        optimizer.step()
        momenta.add(optimizer.param_groups[0]["momentum"])
        if k < 19:
            scheduler.step()
    assert len(momenta) > 5
    assert p.isfinite().all()


def test_gradients_flow_through_a_differentiable_step() -> None:
    """The derivative of three steps by start, gradient and step size, against finite differences."""

    def steps(x: Tensor, a: Tensor, lr: Tensor) -> Tensor:
        p = x.clone()
        optimizer = MDA([p], lr=lr, weight_decay=0.1, differentiable=True)
        optimizer.param_groups[0]["lr"] = lr
        for factor in (1.0, 0.5, 0.25):
            optimizer.param_groups[0]["lr"] = lr * factor
            p.grad = torch.sin(a * p.clone())
            optimizer.step()
        return p

    x, a = (t.detach().clone().requires_grad_() for t in parameters((4,), (4,)))
    lr = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(steps, (x, a, lr))


def test_hypergradients_see_the_anchor() -> None:
    """x_1 = x_0 - c lr g: the start counts in full, not only with the weight 1 - c of the old iterate."""
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    p = x.clone()
    optimizer = MDA([p], differentiable=True)
    p.grad = torch.ones_like(p).detach()
    optimizer.step()
    p.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_two_hundred_steps_of_a_tensor_lr_with_one_element_and_one_dimension() -> None:
    (p,) = parameters((3,))
    reference = ReferenceMDA(p)
    optimizer = MDA([p], lr=torch.tensor([0.5], dtype=torch.float64))
    for k in range(200):
        p.grad = gradient(p, k)
        reference.step(gradient(reference.x[k], k), 0.5, 1 - 0.9)
        optimizer.step()
    torch.testing.assert_close(p.detach(), reference.x[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": -0.1}, "lr must be a number from 0 to 1e+15, got -0.1."),
        ({"lr": math.nan}, "lr must be a number from 0 to 1e+15, got nan."),
        ({"lr": math.inf}, "lr must be a number from 0 to 1e+15, got inf."),
        ({"lr": "1.0"}, "lr must be a number from 0 to 1e+15, got '1.0'."),
        ({"lr": None}, "lr must be a number from 0 to 1e+15, got None."),
        (
            {"lr": torch.ones(2)},
            "A tensor lr must be one floating-point number, got torch.float32 of shape (2,).",
        ),
        ({"lr": 1e39}, "lr must be a number from 0 to 1e+15, got 1e+39."),
        (
            {"lr": torch.tensor(2)},
            "A tensor lr must be one floating-point number, got torch.int64 of shape ().",
        ),
        ({"lr": torch.tensor(-1.0)}, "lr must be a number from 0 to 1e+15, got -1.0."),
        ({"lr": torch.tensor(math.nan)}, "lr must be a number from 0 to 1e+15, got nan."),
        ({"momentum": 1.0}, "momentum must be a number from 0 to below 1 (0.9 is usual), got 1.0."),
        ({"momentum": -0.1}, "momentum must be a number from 0 to below 1 (0.9 is usual), got -0.1."),
        ({"momentum": math.nan}, "momentum must be a number from 0 to below 1 (0.9 is usual), got nan."),
        ({"weight_decay": -1e-4}, "weight_decay must be a number from 0 to 1e+15, got -0.0001."),
        ({"weight_decay": math.nan}, "weight_decay must be a number from 0 to 1e+15, got nan."),
        (
            {"foreach": True, "differentiable": True},
            "foreach=True is not differentiable: leave foreach=None.",
        ),
    ],
)
def test_an_invalid_setting_raises_a_one_line_error(settings: dict[str, object], sentence: str) -> None:
    (p,) = parameters((2,))
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the full message is compared below
        MDA([p], **settings)
    assert str(raised.value) == sentence
    optimizer = MDA([p])
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        optimizer.add_param_group({"params": parameters((2,)), **settings})
    assert str(raised.value) == sentence
    assert len(optimizer.param_groups) == 1


def test_from_sgd_refuses_a_momentum_of_one_without_dividing_by_zero() -> None:
    with pytest.raises(ValueError, match=r"momentum must be a number from 0 to below 1"):
        MDA.from_sgd(parameters((2,)), lr=0.1, momentum=1.0)
    with pytest.raises(ValueError, match=r"momentum must be a number from 0 to below 1"):
        MDA.from_sgd([{"params": parameters((2,)), "momentum": 1.0}], lr=0.1, momentum=0.9)


@pytest.mark.parametrize("lr", [math.nan, -1.0])
def test_an_invalid_tensor_lr_from_a_scheduler_raises_before_anything_changes(lr: float) -> None:
    (p,) = parameters((2,))
    optimizer = MDA([p], lr=torch.tensor(1.0))
    p.grad = torch.ones_like(p)
    optimizer.step()
    before, peak = p.detach().clone(), optimizer.param_groups[0]["peak_lr"].clone()
    optimizer.param_groups[0]["lr"].fill_(lr)
    with pytest.raises(ValueError, match="lr must be a number from 0"):
        optimizer.step()
    assert torch.equal(p, before)
    assert torch.equal(optimizer.param_groups[0]["peak_lr"], peak)
    assert optimizer.state[p]["step"] == 1


@pytest.mark.parametrize("foreach", [False, True])
def test_a_gradient_of_another_shape_raises_before_anything_changes(foreach: bool) -> None:
    first, second = parameters((2,), (3,))
    optimizer = MDA([first, second], foreach=foreach)
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    second.data = torch.zeros(4, dtype=torch.float64)
    before = first.detach().clone()
    with pytest.raises(
        ValueError, match=r"Parameter 1 of group 0 has shape \(4,\), but its gradient has shape \(3,\)"
    ):
        optimizer.step()
    assert torch.equal(first, before)
    assert not optimizer.state


def test_settings_of_any_numeric_type_are_saved_as_plain_floats() -> None:
    (p,) = parameters((2,))
    optimizer = MDA([{"params": [p], "lr": Fraction(1, 2)}], momentum=np.float64(0.5), weight_decay=0)
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = np.float32(0.25)  # as a scheduler might
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    group = torch.load(file, weights_only=True)["param_groups"][0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.25, 0.5, 0.0)
    assert all(type(group[key]) is float for key in ("lr", "momentum", "weight_decay"))


def test_reset_anchor_after_a_parameter_changed_its_shape_starts_with_the_new_one() -> None:
    p = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = MDA([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    p.grad, p.data = None, torch.zeros(4)
    optimizer.reset_anchor()
    assert optimizer.state[p]["s"].shape == optimizer.state[p]["x0"].shape == (4,)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


def test_at_lr_zero_the_pull_continues() -> None:
    """As the algorithm defines and the guide says: z = x0 - s/beta with a fixed s returns to x0."""
    (p,) = parameters((1,))
    optimizer = MDA([p])
    start = p.item()
    p.grad = torch.ones_like(p)
    for _ in range(100):
        optimizer.step()
    away = abs(p.item() - start)
    optimizer.param_groups[0]["lr"] = 0.0
    for _ in range(300):
        optimizer.step()
    assert abs(p.item() - start) < 0.8 * away

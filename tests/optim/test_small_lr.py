"""MDA warns once when it is created with an lr of Adam's size, and at no other time."""

import copy
import linecache
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import parameters

from dualavg import MDA, DualAveraging


class Subclass(MDA):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)


class SubSubclass(Subclass):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)


def warned(make: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make()
    return found


@pytest.mark.parametrize("lr", [5e-5, 1e-3, torch.tensor(5e-5), np.float64(1e-4)])
def test_an_lr_of_adams_size_is_legal_and_warns_in_one_line(lr: Any) -> None:
    (found,) = warned(lambda: MDA(parameters((2,)), lr=lr))
    assert found.category is UserWarning
    message = str(found.message)
    assert "\n" not in message
    assert message.startswith(f"lr={float(lr):g} hardly moves a network")
    assert "usual is 0.1 to 15" in message
    assert "MDA.from_sgd(" in message


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0), math.nextafter(1e-3, 1), 0.01, 1.0, 15.0])
def test_other_lrs_do_not_warn(lr: Any) -> None:
    assert not warned(lambda: MDA(parameters((2,)), lr=lr))


def test_groups_with_a_small_lr_warn_once_together() -> None:
    groups = [{"params": parameters((2,), seed=i), "lr": lr} for i, lr in enumerate((1.0, 1e-4, 1e-5))]
    assert len(warned(lambda: MDA(groups))) == 1


def test_a_default_that_no_group_uses_does_not_warn() -> None:
    assert not warned(lambda: MDA([{"params": parameters((2,)), "lr": 1.0}], lr=5e-5))


def test_from_sgd_warns_about_the_converted_lr() -> None:
    assert not warned(lambda: MDA.from_sgd(parameters((2,)), lr=1e-3, momentum=0.9))
    (found,) = warned(lambda: MDA.from_sgd(parameters((2,)), lr=1e-5, momentum=0.9))
    assert str(found.message).startswith("lr=0.0001 ")


@pytest.mark.parametrize("make", [MDA, Subclass, SubSubclass, MDA.from_sgd])
def test_the_warning_points_to_the_line_that_creates_the_optimizer(make: Callable[..., Any]) -> None:
    (found,) = warned(lambda: make(parameters((2,)), lr=1e-4))  # this line
    assert found.filename == __file__
    assert "# this line" in linecache.getline(__file__, found.lineno)


def test_nothing_after_the_creation_warns() -> None:
    (p,) = parameters((2,))
    optimizer = MDA([p])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1e-4 if k else 0.0)

    def use() -> None:
        for _ in range(3):
            p.grad = torch.ones_like(p)
            optimizer.step()
            scheduler.step()
        optimizer.add_param_group({"params": parameters((3,)), "lr": 1e-4})
        copy.deepcopy(optimizer).load_state_dict(optimizer.state_dict())

    assert not warned(use)


def test_dual_averaging_does_not_warn() -> None:
    """Its lr has another meaning: with weighting="constant" the weights of gradients do not grow with k."""
    assert not warned(lambda: DualAveraging(parameters((2,)), lr=1e-4))

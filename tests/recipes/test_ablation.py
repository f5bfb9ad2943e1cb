"""The ablation: three optimizers that differ by one choice each, on the CIFAR-10 recipe."""

from dataclasses import fields

import pytest
import torch

from dualavg import DualAveraging
from dualavg_bench.recipe import Point, registry
from dualavg_bench.recipes import cifar10, cifar10_ablation

SCALES = ("quick", "mini", "paper")
ROWS = ["da", "da+momentum", "mda"]


def path_of(make, steps=30):
    """The iterates of an optimizer on a noisy quadratic."""
    rng = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    optimizer = make([x])
    path = []
    for _ in range(steps):
        optimizer.zero_grad()
        noise = torch.randn(2, generator=rng, dtype=torch.float64)
        (0.5 * (x - 1).square() + 0.1 * noise * x).sum().backward()
        optimizer.step()
        path.append(x.detach().clone())
    return torch.stack(path)


def row(name):
    return lambda params: registry.make(name, params, Point(0.3, 1e-4), {})


def test_rows_have_the_order_of_the_paper():
    for scale in SCALES:
        assert list(cifar10_ablation.recipe(scale).grids) == ROWS


def test_the_second_row_adds_momentum_and_nothing_else():
    first, second = (row(name)([torch.nn.Parameter(torch.zeros(1))]).defaults for name in ROWS[:2])
    assert {key for key in first if first[key] != second[key]} == {"momentum"}
    assert (first["momentum"], second["momentum"]) == (0.0, 0.9)


def test_the_third_row_adds_growing_weights_and_nothing_else():
    second = row("da+momentum")([torch.nn.Parameter(torch.zeros(1))]).defaults
    assert second["weighting"] == "constant"
    settings = {**second, "weighting": "sqrt"}
    assert torch.allclose(path_of(lambda p: DualAveraging(p, **settings)), path_of(row("mda")), rtol=1e-12)
    assert not torch.allclose(path_of(row("da+momentum")), path_of(row("mda")), rtol=1e-2)


def test_dual_averaging_rows_report_the_last_iterate_and_scale_by_sqrt():
    for name in ROWS[:2]:
        optimizer = row(name)([torch.nn.Parameter(torch.zeros(1))])
        assert optimizer.defaults["average"] is False
        assert optimizer.defaults["scaling"] == "sqrt"


@pytest.mark.parametrize("scale", SCALES)
def test_everything_but_the_optimizers_is_the_cifar10_recipe(scale):
    ablation, base = cifar10_ablation.recipe(scale), cifar10.recipe(scale)
    for name in {field.name for field in fields(base)} - {"name", "grids", "paper", "about"}:
        # Partials are equal only to themselves; their repr has the function and all arguments.
        assert repr(getattr(ablation, name)) == repr(getattr(base, name)), name
    assert ablation.name == "cifar10_ablation"


@pytest.mark.parametrize("scale", SCALES)
def test_each_row_has_as_many_lrs_and_two_schedules(scale):
    for grid in cifar10_ablation.recipe(scale).grids.values():
        assert len(grid.lr) == (4 if scale == "mini" else 5)
        assert grid.schedule == ("constant", "stagewise")
        assert grid.weight_decay == (1e-4,)
        assert not grid.settings


@pytest.mark.parametrize("scale", ["quick", "mini"])
def test_the_last_row_has_the_lrs_of_the_cifar10_recipe(scale):
    assert cifar10_ablation.recipe(scale).grids["mda"].lr == cifar10.recipe(scale).grids["mda"].lr


def test_the_papers_best_points_are_inside_the_grid():
    grids = cifar10_ablation.recipe("paper").grids
    assert Point(1.0, 1e-4, "constant") in grids["da"].points()
    assert Point(2.5, 1e-4, "constant") in grids["da+momentum"].points()
    assert {1.0} < set(grids["da"].lr[1:-1])
    assert {2.5} < set(grids["da+momentum"].lr[1:-1])

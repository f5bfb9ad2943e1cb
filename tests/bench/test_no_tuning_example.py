"""The recipes of examples/no_tuning run optimizers at their defaults, on the seeds of published studies."""

from pathlib import Path

import pytest
import torch

from dualavg_bench.recipe import registry
from dualavg_bench.recipe.loading import load

FILES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples/no_tuning").glob("*.py")
    if path.stem != "defaults"
)


@pytest.mark.parametrize("scale", ["quick", "mini"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_but_the_schedule_is_a_default(file: Path, scale: str) -> None:
    pytest.importorskip("dadaptation")
    recipe, _ = load(str(file), scale)
    base, _ = load(file.stem, scale)
    assert (
        recipe.name == base.name
    )  # seeds, so data order and initialisation, are those of the published study
    assert recipe.steps == base.steps
    assert len(recipe.grids) == 7
    for name, grid in recipe.grids.items():
        cls, _ = registry.find(name)
        defaults = cls([torch.nn.Parameter(torch.zeros(1))]).defaults
        (point,) = grid.points()
        assert point.lr == defaults["lr"]
        free = name.startswith("schedulefree")
        assert (point.schedule == "constant") == free
        assert free or point.schedule in base.grids["mda"].schedule
        assert dict(grid.settings) == ({"momentum": 0.9} if name == "dadaptation.DAdaptSGD" else {})


def test_there_is_one_for_every_task_of_the_paper() -> None:
    from dualavg_bench.analysis.paper import RECIPES

    # The ablation's task is cifar10's: it would count twice.
    assert {file.stem for file in FILES} == set(RECIPES) - {"cifar10_ablation"}

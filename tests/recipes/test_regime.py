"""A miniature keeps the regime of the paper's experiment: epochs, steps, schedule, regularization.

The table in each docstring says what was kept and what was shrunk. Here it is compared with the recipe.
"""

import importlib
import re
from typing import NamedTuple

import pytest
import torch
from support.real_data import REAL

from dualavg_bench.recipes import builtin

EPOCHS = {"cifar10": 300, "imagenet": 100, "fastmri": 50, "iwslt14": 55, "wikitext103": 31.7, "roberta": 5}
DATA = {  # at mini
    "cifar10": "cifar-10-batches-py",
    "imagenet": "tiny-imagenet-20",
    "fastmri": "chest-mri",
    "iwslt14": "tatoeba.de-en",
    "wikitext103": "wikitext-2",
    "roberta": "books-wiki",
}
SCALES = ("paper", "mini", "quick")
SMALL = [(name, scale) for name in EPOCHS for scale in ("mini", "quick")]
ROWS = {"epochs", "steps", "examples", "parameters", "schedule", "regularization"}


class Column(NamedTuple):
    """A column of a docstring's table."""

    epochs: float
    steps: int
    examples: int
    parameters: int


def module_of(name):
    return importlib.import_module(builtin()[name])


def recipe_of(name, scale):
    return module_of(name).recipe(scale)


def table_of(name):
    """The table of a docstring: cells by row and scale."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in module_of(name).__doc__.splitlines()]
    head = lines.index([*SCALES])
    cells = {}
    for line in lines[head + 1 :]:
        if line == [""]:
            break
        assert len(line) == 1 + len(SCALES), line
        cells[line[0]] = dict(zip(SCALES, line[1:], strict=True))
    return cells


def number(cell):
    """The number that a cell begins with."""
    return float(cell.split()[0].replace(",", ""))


def column(name, scale):
    cells = table_of(name)
    epochs, *counts = (number(cells[row][scale]) for row in Column._fields)
    return Column(epochs, *map(int, counts))


def parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", EPOCHS)
def test_the_table_has_every_row(name):
    assert set(table_of(name)) >= ROWS


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_steps_and_parameters_are_those_of_the_recipe(name, scale):
    recipe, stated = recipe_of(name, scale), column(name, scale)
    assert stated.steps == recipe.steps
    assert stated.parameters == parameters(recipe.model())


@pytest.mark.parametrize("name", EPOCHS)
def test_the_paper_s_column_is_the_recipe_at_paper_scale(name):
    assert column(name, "paper").steps == recipe_of(name, "paper").steps
    assert column(name, "paper").epochs == pytest.approx(EPOCHS[name], rel=0.01)


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_epochs_are_steps_by_examples(name, scale):
    stated, recipe = column(name, scale), recipe_of(name, scale)
    assert stated.epochs == pytest.approx(recipe.steps * recipe.batch_size / stated.examples, abs=0.06)


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_examples_are_those_of_the_training_data(name, scale, tmp_path):
    if scale == "mini" and not (REAL / DATA[name]).is_dir():
        pytest.skip(f"no {DATA[name]} in {REAL}")
    splits = recipe_of(name, scale).data(REAL if scale == "mini" else tmp_path)
    embedded_text = scale == "quick" and name in ("wikitext103", "roberta")  # of this Python's docstrings
    tolerance = 0.2 if embedded_text else 0
    assert len(splits.train) == pytest.approx(column(name, scale).examples, rel=tolerance)


@pytest.mark.parametrize("name", EPOCHS)
def test_a_miniature_has_a_third_of_the_epochs_and_thousands_of_steps(name):
    mini, quick = column(name, "mini"), column(name, "quick")
    assert mini.epochs >= EPOCHS[name] / 3
    assert mini.steps >= 3000
    assert quick.epochs >= min(10, EPOCHS[name])
    assert quick.steps >= 1000


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_parameters_per_example_are_within_a_factor_of_ten(name, scale):
    units = [row for row in ("tokens", "pairs") if row in table_of(name)] or ["examples"]
    cells = table_of(name)

    def ratio(column):
        return number(cells["parameters"][column]) / number(cells[units[0]][column])

    assert 0.1 <= ratio(scale) / ratio("paper") <= 10


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_weight_decay_is_in_the_grid_where_the_paper_has_any(name, scale):
    for optimizer, theirs in recipe_of(name, "paper").grids.items():
        ours = recipe_of(name, scale).grids[optimizer].weight_decay
        assert max(ours) > 0 or max(theirs.weight_decay) == 0
        if optimizer == "adam":  # an L2 decay that suits Adam can be too strong for SGD+M and MDA
            assert set(theirs.weight_decay) & set(ours)


@pytest.mark.parametrize("name", ["iwslt14", "wikitext103", "roberta"])
def test_a_language_network_has_dropout(name, tmp_path):
    assert recipe_of(name, "mini").model.keywords["dropout"] > 0
    recipe = recipe_of(name, "quick")
    network, train = recipe.model().train(), recipe.data(tmp_path).train
    batch = train.batch(torch.arange(recipe.batch_size), torch.Generator().manual_seed(0))
    first, second = (recipe.loss(network, batch).item() for _ in range(2))
    assert first != second


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "fastmri"])
def test_training_images_are_augmented(name, tmp_path):
    train = recipe_of(name, "quick").data(tmp_path).train
    indices = torch.arange(min(8, len(train)))
    first, second = (train.batch(indices, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    part = "mask" if name == "fastmri" else 0  # fastMRI's masks have random offsets
    assert not torch.equal(first[part], second[part])


@pytest.mark.parametrize("scale", ["mini", "quick"])
def test_translation_is_judged_by_the_best_network_as_in_the_paper(scale):
    assert recipe_of("iwslt14", scale).report == recipe_of("iwslt14", "paper").report == "best"


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_a_schedule_has_the_form_that_it_has_in_the_paper(name, scale):
    paper, small = recipe_of(name, "paper"), recipe_of(name, scale)
    theirs = {schedule for grid in paper.grids.values() for schedule in grid.schedule}
    ours = {schedule for grid in small.grids.values() for schedule in grid.schedule}
    assert ours <= theirs | ({"linear"} if name == "wikitext103" else set())  # see its docstring


@pytest.mark.parametrize(("name", "scale"), SMALL)
def test_mda_is_tuned_over_ten_times_the_step_sizes_of_sgd(name, scale):
    grids = recipe_of(name, scale).grids
    assert grids["mda"].lr == pytest.approx([10 * lr for lr in grids["sgd"].lr])
    assert grids["mda"].schedule == grids["sgd"].schedule
    assert grids["mda"].weight_decay == grids["sgd"].weight_decay

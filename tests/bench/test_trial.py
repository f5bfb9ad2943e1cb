"""The trial before a study: mistakes end in one line before any run, and nothing else changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import starting
from support.lines import Lines, evaluate, execute, loss, make_recipe, make_spec, network, numbers
from support.tiny_study import Command, write_recipe
from support.tiny_study import Study as Finished

from dualavg_bench import commands
from dualavg_bench.recipe import Grid, Recipe, RecipeError, Splits
from dualavg_bench.recipe.user_code import RecipeRaised
from dualavg_bench.run import trial
from dualavg_bench.study.study import Study


def specs(recipe: Recipe) -> dict[str, Any]:
    return {
        name: make_spec(recipe, name, point=grid.points()[0], test=False)
        for name, grid in recipe.grids.items()
    }


def try_out(recipe: Recipe, *, timed: bool = False) -> dict[str, trial.Cost]:
    return trial.try_out(specs(recipe), recipe, Path(), timed=timed)


class Raising(torch.optim.SGD):
    """Fails in its first step, as an optimizer does that wants other tensors."""

    def step(self, closure: Any = None) -> None:
        raise RuntimeError("expected two dimensions")


def raising_schedule(optimizer: Any, steps: int) -> Any:
    raise KeyError(steps)


# What it finds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": lambda: torch.nn.Linear(5, 1)},
            r"evaluate .* raised RuntimeError: .* shapes cannot be multiplied",
        ),
        ({"loss": lambda m, b: (m(b[0]) - b[1]).square()}, r"loss of recipe lines must be one number"),
        ({"loss": lambda m, b: loss(m, b).detach()}, r"loss of recipe lines must be one number .*detached"),
        ({"loss": lambda m, b: loss(m, b) * torch.nan}, "first training loss of recipe lines, with seed 0"),
        ({"evaluate": lambda m, b: {"loss": 1.0}}, "evaluate of recipe lines does not return 'error'"),
        ({"evaluate": lambda m, b: 1.0}, "must return a dictionary with 'loss' and 'error', got float"),
        ({"evaluate": lambda m, b: {"loss": 1.0, "error": "low"}}, "returns 'error', which is not a number"),
        ({"evaluate": lambda m, b: {"loss": 1.0, "error": torch.nan}}, "untrained network of recipe lines"),
        ({"evaluate": lambda m, b: {}["error"]}, r"evaluate of recipe lines raised KeyError"),
        (
            {
                "grids": {"mda": Grid(1.0, schedule=("constant", "own"))},
                "schedules": {"own": raising_schedule},
            },
            r"The schedule own of recipe lines raised KeyError: 60",
        ),
        (
            {"grids": {"torch.optim.LBFGS": Grid(1.0)}},
            "'torch.optim.LBFGS' needs a closure for each step",
        ),
    ],
)
def test_a_mistake_is_found_in_one_step(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, RecipeRaised), match=message) as raised:
        try_out(make_recipe(**changes))
    assert "\n" not in str(raised.value)


def test_the_start_is_tried_and_timed_too(tmp_path: Path) -> None:
    recipe = starting.make(tmp_path)
    spec = {"mda": starting.specify(recipe, test=False)}
    cost = trial.try_out(spec, recipe, Path(), timed=True)["mda"]
    assert cost.start > 0
    broken = replace(recipe, start=replace(recipe.start, loss=lambda m, b: loss(m, b) * torch.nan))
    with pytest.raises(RecipeError, match="first training loss of recipe lines-start"):
        trial.try_out(spec, broken, Path())


def test_an_optimizer_that_fails_in_its_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "Raising", Raising, raising=False)
    recipe = make_recipe(grids={"sgd": Grid(0.1), "torch.optim.Raising": Grid(0.1)})
    with pytest.raises((RecipeError, RecipeRaised), match="expected two dimensions"):
        try_out(recipe)


@pytest.mark.parametrize("remote", [False, True])
def test_a_wrong_shape_ends_the_study_before_any_run(
    remote: bool, dualavg: Command, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path)
    text = recipe.read_text().replace("nn.Linear(2, 64)", "nn.Linear(3, 64)")
    recipe.write_text(text)
    line = text[: text.index("outputs = model(inputs)")].count("\n") + 1
    where = ("--scheduler", request.getfixturevalue("scheduler")) if remote else ()
    code, _, errors = dualavg("study", recipe, "--out", tmp_path / "out", *where)
    assert code == 1
    assert errors.startswith("dualavg: evaluate of recipe spirals raised RuntimeError: mat1 and mat2")
    assert errors.endswith(f" (tiny.py, line {line}).")
    assert not list((tmp_path / "out").rglob("runs"))


def test_a_mistake_of_a_reproduction_is_its_studys_alone(
    dualavg: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RecipeError("a wrong shape.")

    monkeypatch.setattr(trial, "try_out", fails)
    code, output, _ = dualavg("reproduce", "--recipes", "cifar10,roberta", "--out", tmp_path)
    assert code == 1
    assert "cifar10 failed: a wrong shape." in output
    assert "roberta failed: a wrong shape." in output


# What it leaves alone -------------------------------------------------------------------------------------


def test_it_reads_no_example_of_test_and_one_batch_of_validation() -> None:
    class Closed(Lines):
        def batch(self, indices: Any, rng: Any) -> Any:
            raise AssertionError("the trial reads test")

    seen: list[int] = []

    def counting(model: Any, batches: Any) -> dict[str, float]:
        batches = list(batches)
        seen.append(len(batches))
        return evaluate(model, batches)

    splits = Splits(Lines(100, 0), Lines(40, 1), Closed(40, 2))
    try_out(make_recipe(splits, evaluate=counting))
    assert seen == [1, 1, 1, 1]  # the untrained network, then each of three optimizers


def test_a_step_takes_one_part_of_a_batch() -> None:
    splits = Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))
    try_out(make_recipe(splits, accumulate=4))
    assert [len(indices) for indices in splits.train.asked] == [4, 4, 4]


@pytest.mark.parametrize("answer", ["raise", "nan"])
def test_a_score_that_needs_all_examples_is_no_mistake(answer: str) -> None:
    def of_all(model: Any, batches: Any) -> dict[str, float]:
        batches = list(batches)
        if sum(len(targets) for _, targets in batches) < 40:
            if answer == "raise":
                raise ValueError("Only one class present.")
            return {"loss": 1.0, "error": torch.nan}
        return evaluate(model, batches)

    costs = try_out(make_recipe(evaluate=of_all), timed=True)
    assert costs.keys() == {"mda", "sgd", "adam"}


def test_a_run_has_the_same_numbers_after_a_trial(tmp_path: Path) -> None:
    recipe = make_recipe()
    before = execute(tmp_path / "before", recipe, make_spec(recipe))
    try_out(recipe, timed=True)
    assert numbers(execute(tmp_path / "after", recipe, make_spec(recipe))) == numbers(before)


def test_a_divergence_is_no_mistake() -> None:
    recipe = make_recipe(model=network, grids={"sgd": Grid(1e30)})
    assert try_out(recipe, timed=True).keys() == {"sgd"}


def test_a_finished_study_needs_no_trial(
    undisturbed: Finished, dualavg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise AssertionError("tried again")

    monkeypatch.setattr(commands.trial, "try_out", fails)
    arguments = ("--out", undisturbed.out, "--no-extend", "--optimizers", "mda,sgd")
    code, output, errors = dualavg("study", undisturbed.recipe, *arguments)
    assert code == 0, output + errors
    assert "trial" not in output


def test_what_is_known_to_work_is_not_tried_again(undisturbed: Finished) -> None:
    study = Study.of(str(undisturbed.recipe), "quick", undisturbed.out)
    assert list(study.to_try()) == ["adam"]  # the others have finished runs
    assert list(study.to_try(everything=True)) == ["mda", "sgd", "adam"]
    longer = study.at_length(7)
    assert list(longer.to_try()) == ["mda", "sgd", "adam"]
    longer.tried.update(longer.to_try())
    assert not study.at_length(8).to_try()


def test_costs_grow_with_the_run() -> None:
    short, long = (try_out(make_recipe(steps=steps), timed=True)["sgd"] for steps in (100, 100_000))
    assert 0 < short.tuning < short.confirmation
    assert long.tuning > 100 * short.tuning

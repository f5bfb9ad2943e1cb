"""Mistakes in a recipe: each is a one-line error that says what was expected and, if code raised, where."""

import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.lines import Lines, evaluate, execute, loss, make_recipe, make_spec, steps_of
from support.tiny_study import TEMPLATE, Command, write_recipe

from dualavg_bench.recipe import Grid, Metric, RecipeError, Seeds, Splits, registry
from dualavg_bench.recipe.loading import load
from dualavg_bench.recipe.settings import FIRST_CONFIRMATION_SEED
from dualavg_bench.recipe.user_code import RecipeRaised
from dualavg_bench.run.data import check, read
from dualavg_bench.study.study import Study

NAN, INF = math.nan, math.inf


# When a recipe is made ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "accuracy"}, "metric of recipe lines must be a Metric"),
        (
            {"model": torch.nn.Linear(6, 1)},
            "model of recipe lines must be a function or a class that returns",
        ),
        ({"model": None}, "model of recipe lines must be a function, got None"),
        ({"loss": "mse"}, "loss of recipe lines must be a function, got 'mse'"),
        (
            {"precision": "fp8"},
            "precision of recipe lines must be one of float32, bfloat16, float16, got 'fp8'",
        ),
        ({"report": "worst"}, "report of recipe lines must be one of last, best, got 'worst'"),
        ({"scale": "huge"}, "scale of recipe lines must be one of quick, mini, paper, got 'huge'"),
        ({"seeds": 3}, "seeds of recipe lines must be Seeds"),
        ({"grids": {"mda": {"lr": 1.0}}}, "grids of recipe lines must be Grids by optimizer"),
        ({"clip_norm": -1.0}, "clip_norm of recipe lines must be a number > 0, or None"),
        ({"clip_norm": 0}, "clip_norm of recipe lines must be a number > 0, or None"),
        ({"clip_norm": NAN}, "clip_norm of recipe lines must be a number > 0, or None"),
        ({"clip_norm": INF}, "clip_norm of recipe lines must be a number > 0, or None"),
        ({"diverged_above": NAN}, "diverged_above of recipe lines must be a number > 0, got nan"),
        ({"eval_batch_size": 0}, "eval_batch_size of recipe lines must be a whole number >= 1, got 0"),
        ({"steps": True}, "steps of recipe lines must be a whole number >= 1, got True"),
    ],
)
def test_wrong_values_of_a_recipe_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_recipe(**changes)


@pytest.mark.parametrize("lr", [0, 0.0, -1.0, NAN, INF, True, "0.1", None])
def test_a_step_size_is_a_finite_number_above_zero(lr: Any) -> None:
    with pytest.raises(ValueError, match="lr of a grid must be numbers > 0, got"):
        Grid(lr=[0.1, lr])


@pytest.mark.parametrize("name", ["lr", "weight_decay", "schedule"])
def test_an_axis_of_the_grid_cannot_be_a_fixed_setting(name: str) -> None:
    with pytest.raises(ValueError, match=rf"give {name} as Grid\({name}=...\) instead"):
        Grid(lr=0.1, settings={name: 0.5})


def test_settings_are_plain_values_or_dtypes() -> None:
    with pytest.raises(ValueError, match="settings of a grid must be plain values"):
        Grid(lr=0.1, settings={"momentum": object()})
    with pytest.raises(ValueError, match="settings of a grid must be a dictionary by name"):
        Grid(lr=0.1, settings=[("momentum", 0.9)])
    fixed = {"anchor_dtype": torch.bfloat16, "betas": (0.9, 0.99)}
    spec = make_spec(make_recipe(), optimizer_settings=Grid(lr=0.1, settings=fixed).settings)
    assert spec.hash != make_spec(make_recipe(), optimizer_settings={"betas": (0.9, 0.99)}).hash


def test_lists_and_arrays_are_tuples_of_numbers() -> None:
    grid = Grid(lr=[0.1, 1.0], weight_decay=np.array([0.0, 0.5], dtype=np.float32), schedule=["linear"])
    assert grid == Grid(lr=(0.1, 1.0), weight_decay=(0.0, 0.5), schedule=("linear",))
    assert {type(value) for value in grid.lr + grid.weight_decay} == {float}


def test_tuning_seeds_end_before_those_of_confirmation() -> None:
    Seeds(tune=FIRST_CONFIRMATION_SEED)
    with pytest.raises(ValueError, match=r"Seeds.tune must be at most 1000, the first seed of confirmation"):
        Seeds(tune=FIRST_CONFIRMATION_SEED + 1)


@pytest.mark.parametrize("arguments", [("step", True), ("", True), (3, True), ("error", "lower")])
def test_a_metric_has_a_name_of_its_own_and_a_direction(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"A metric needs a name other than 'step'|must be True or False"):
        Metric(*arguments)


def test_the_rule_of_divergence_can_be_turned_off(tmp_path: Path) -> None:
    recipe = make_recipe(diverged_above=INF)
    assert execute(tmp_path, recipe, make_spec(recipe)).status == "finished"


# When it is loaded ----------------------------------------------------------------------------------------


def test_a_recipe_of_another_scale_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TEMPLATE.read_text().replace("scale=scale,", ""))
    assert load(str(file), "quick")[0].scale == "quick"
    with pytest.raises(RecipeError, match="returned a Recipe of scale 'quick'"):
        load(str(file), "mini")


def test_a_recipe_takes_the_scale(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def recipe():\n    pass\n")
    with pytest.raises(RecipeError, match=r"mine.py must take one argument, the scale \(too many"):
        load(str(tmp_path / "mine.py"), "quick")


def test_a_file_without_its_ending_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(
        RecipeError, match=r"no recipe called 'mine': give mine.py, which exists here, or a name"
    ):
        load("mine", "quick")


@pytest.mark.parametrize("exits", ["raise ValueError('no')", "import sys; sys.exit(3)"])
def test_a_file_that_raises_is_reported_with_the_line(exits: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"x = 1\n{exits}\n")
    with pytest.raises(RecipeError, match=r"\((ValueError: no|SystemExit: 3)\) \(mine.py, line 2\)"):
        load(str(tmp_path / "mine.py"), "quick")
    (tmp_path / "mine.py").write_text(f"def recipe(scale):\n    {exits}\n")
    with pytest.raises(RecipeError, match=r" raised (ValueError: no|SystemExit: 3) \(mine.py, line 2\)"):
        load(str(tmp_path / "mine.py"), "quick")


def test_an_unknown_setting_of_an_optimizer_is_reported_before_training(tmp_path: Path) -> None:
    file = write_recipe(tmp_path)
    wrong = 'schedule=("linear",), settings={"momentun": 0.5}),  # about'
    file.write_text(file.read_text().replace('schedule=("linear",)),  # about', wrong))
    with pytest.raises(ValueError, match=r"'mda' cannot be made .* unexpected keyword argument 'momentun'"):
        Study.of(str(file), "quick", tmp_path, tmp_path)


@pytest.mark.parametrize("settings", [{"momentum": 2.0}, {"momentum": "high"}])
def test_a_wrong_value_of_an_optimizer_is_reported_before_training(settings: Any) -> None:
    with pytest.raises(ValueError, match="'mda' cannot be made with"):
        registry.try_out("mda", Grid(lr=1.0, settings=settings))


# What its functions return --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"data of recipe lines must return Splits\(train, valid, test\), got NoneType"),
        ((1, 2, 3), r"data of recipe lines must return Splits\(train, valid, test\), got tuple"),
        (Splits([1], [2], [3]), r"The train split of recipe lines must have a length and a method batch"),
    ],
)
def test_data_are_three_splits(data: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read(make_recipe(data=lambda _: data), Path())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": lambda: None}, "model of recipe lines must return a torch.nn.Module, got NoneType"),
        ({"loss": lambda _model, _batch: None}, "loss of recipe lines must be one number .* got NoneType"),
        ({"loss": lambda _model, _batch: {"loss": 1}}, "loss of recipe lines must be one number .* got dict"),
        ({"loss": lambda _model, _batch: 1.0}, "loss of recipe lines must be one number .* got float"),
        (
            {"loss": lambda model, batch: loss(model, batch) * NAN},
            "first training loss of recipe lines, with seed 0, is nan: the network is not trained yet",
        ),
        (
            {"evaluate": lambda _model, _batches: None},
            "must return a dictionary with 'loss' and 'error', got",
        ),
        ({"evaluate": lambda m, b: {**evaluate(m, b), "step": 1}}, "returns a score called 'step'"),
        ({"evaluate": lambda m, b: {**evaluate(m, b), 3: 1}}, "returns a score called 3"),
        ({"evaluate": steps_of(lambda right: {**right, "more": 1})}, "must return the same names every time"),
        ({"evaluate": lambda _m, _b: {"loss": 1, "error": NAN}}, "untrained .*the validation error is nan"),
        ({"evaluate": lambda _m, _b: {"loss": INF, "error": 1}}, "untrained .*the validation loss is inf"),
    ],
)
def test_unusable_scores_are_refused(changes: Any, message: str, tmp_path: Path) -> None:
    recipe = make_recipe(**changes)
    with pytest.raises(RecipeError, match=message):
        execute(tmp_path, recipe, make_spec(recipe))


def test_an_untrained_network_without_test_score_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    splits = Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))
    splits.test.targets[:] = NAN
    recipe = make_recipe(splits)
    with pytest.raises(RecipeError, match=r"no score with seed 0 \(the test loss is nan\): .* finite number"):
        execute(tmp_path, recipe, make_spec(recipe))
    assert not splits.train.asked


def test_another_score_that_is_not_finite_is_left_out_and_no_divergence(tmp_path: Path) -> None:
    recipe = make_recipe(evaluate=lambda m, b: {**evaluate(m, b), "more": INF, "other": 2})
    result = execute(tmp_path, recipe, make_spec(recipe))
    assert result.status == "finished"
    assert set(result.valid.names) == {"loss", "error", "other"}
    assert set(result.test) == {"loss", "error", "other"}


# What they raise ------------------------------------------------------------------------------------------


def raises(*_: Any) -> Any:
    raise KeyError("wrong")


def leaves(*_: Any) -> Any:
    sys.exit("bye")


@pytest.mark.parametrize("raising", [raises, leaves])
@pytest.mark.parametrize("name", ["model", "loss", "evaluate", "samples"])
def test_what_a_recipe_raises_is_reported_with_its_line(name: str, raising: Any, tmp_path: Path) -> None:
    recipe = make_recipe(**{name: raising})
    with pytest.raises(RecipeRaised) as raised:
        execute(tmp_path, recipe, make_spec(recipe))
    line = raising.__code__.co_firstlineno + 1
    what = "KeyError: 'wrong'" if raising is raises else "SystemExit: bye"
    part = "A training step" if name == "loss" else name
    assert str(raised.value) == f"{part} of recipe lines raised {what} (test_mistakes.py, line {line})."
    assert ("raise KeyError" if raising is raises else "sys.exit") in raised.value.details
    assert "training.py" not in raised.value.details
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.details) == (str(raised.value), raised.value.details)


def test_data_that_raise_are_reported_with_the_users_line_and_not_a_packages(
    dualavg: Command, tmp_path: Path
) -> None:
    file = write_recipe(tmp_path)
    text = file.read_text().replace(
        "    # The step size is chosen", "    torch.zeros(2) + torch.zeros(3)\n    #"
    )
    file.write_text(text)
    line = text[: text.index("torch.zeros(2)")].count("\n") + 1
    code, _, err = dualavg("run", file, "--lr", "1", "--out", tmp_path)
    assert code == 1
    assert err.startswith("dualavg: data of recipe spirals raised RuntimeError: The size of tensor a")
    assert err.endswith(f"(tiny.py, line {line}).")


def test_missing_data_of_a_built_in_recipe_keep_their_message(dualavg: Command, tmp_path: Path) -> None:
    code, _, err = dualavg(
        "run", "cifar10", "--lr", "1", "--scale", "mini", "--data", tmp_path, "--out", tmp_path
    )
    assert code == 1
    assert "data_batch_1 is missing" in err
    assert "raised" not in err


def test_a_batch_that_raises_is_reported_with_its_line() -> None:
    class Wrong(Lines):
        def batch(self, indices, rng):
            raise IndexError("no such example")

    with pytest.raises(
        RecipeRaised, match=r"batch of recipe lines raised IndexError: no such example \(test_m"
    ):
        check(Splits(Wrong(100, 0), Lines(40, 1), Lines(40, 2)), make_recipe())


def test_a_test_split_that_raises_is_reported_with_its_line_and_tuning_is_kept(
    dualavg: Command, scheduler: str, tmp_path: Path
) -> None:
    extra = """

_evaluate = evaluate


def evaluate(model, batches):
    batches = list(batches)
    if sum(len(targets) for _, targets in batches) == 1000:
        raise SystemExit("no test")
    return _evaluate(model, batches)
"""
    recipe = write_recipe(tmp_path, steps=10, confirm=1, extra=extra)
    line = recipe.read_text()[: recipe.read_text().index("raise SystemExit")].count("\n") + 1
    arguments = ("--out", tmp_path / "out", "--no-extend", "--optimizers", "mda", "--scheduler", scheduler)
    code, _, errors = dualavg("study", recipe, *arguments)
    assert code == 1
    said = f"seed 1000: evaluate of recipe spirals raised SystemExit: no test (tiny.py, line {line})."
    assert said in errors
    assert "Traceback" not in errors
    assert len(list(tmp_path.rglob("result.json"))) == 3

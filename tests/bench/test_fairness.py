"""The fairness rules of the design, each with a test that fails when it is broken."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.lines import make_recipe, make_spec
from support.pretended_study import make_study, pretend

from dualavg_bench.recipe import Grid, Point, RecipeError, Seeds
from dualavg_bench.recipe.loading import load
from dualavg_bench.recipe.settings import FIRST_CONFIRMATION_SEED
from dualavg_bench.run.spec import RunSpec


def test_a_recipe_with_unequal_grids_is_refused() -> None:
    grids = {"mda": Grid(lr=(0.1, 1.0)), "sgd": Grid(lr=(0.1,))}
    with pytest.raises(ValueError, match="must get the same number of grid points"):
        make_recipe(grids=grids)


def test_every_optimizer_gets_the_same_points_and_seeds(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    points = {name: study.recipe.grids[name].points() for name in study.names}
    specs = study.tuning(points)
    assert len(specs) == 2 * 3 * 2
    seeds = {name: sorted((s.point, s.seed) for s in specs if s.optimizer == name) for name in study.names}
    assert seeds["mda"] == seeds["sgd"]


def test_confirmation_is_on_seeds_that_tuning_never_saw(tmp_path: Path) -> None:
    executed: list[RunSpec] = []
    make_study(tmp_path).run(pretend({"mda": 1.0, "sgd": 1.0}, executed))
    tuning = {spec.seed for spec in executed if not spec.test}
    confirmation = {spec.seed for spec in executed if spec.test}
    assert tuning == {0, 1}
    assert confirmation == {FIRST_CONFIRMATION_SEED + i for i in range(3)}


def test_only_the_chosen_setting_reads_the_test_split(tmp_path: Path) -> None:
    executed: list[RunSpec] = []
    make_study(tmp_path).run(pretend({"mda": 1.0, "sgd": 0.9}, executed))
    confirmed = {(spec.optimizer, spec.point.lr) for spec in executed if spec.test}
    assert confirmed == {("mda", 1.0), ("sgd", 1.0)}


def test_a_best_lr_at_the_end_extends_every_grid_until_it_is_inside(tmp_path: Path) -> None:
    executed: list[RunSpec] = []
    summary, _ = make_study(tmp_path).run(pretend({"mda": 300.0, "sgd": 1.2}, executed))
    chosen = {name: row.chosen for name, row in summary.optimizers.items()}
    assert chosen["mda"].lr == 100.0 or chosen["mda"].lr == 1000.0
    assert chosen["mda"].edge == []
    grids = {name: row.grid for name, row in summary.optimizers.items()}
    assert grids["mda"].points == grids["sgd"].points > 3
    assert grids["mda"].extended == grids["sgd"].extended == grids["mda"].points - 3
    assert max(s.point.lr for s in executed if s.optimizer == "sgd") == 10.0  # its extra points lie inside


def test_without_extension_the_verdict_names_the_edge(tmp_path: Path) -> None:
    summary, _ = make_study(tmp_path).run(pretend({"mda": 300.0, "sgd": 1.0}, []), extend=False)
    assert summary.optimizers["mda"].chosen.edge == ["lr"]
    assert "one may be better; grids were not extended (--no-extend)" in summary.verdict
    assert summary.command.endswith(" --no-extend")


def test_a_spec_has_the_class_and_all_settings_of_its_optimizer(tmp_path: Path) -> None:
    grid = Grid(lr=(1.0,), settings={"nesterov": True})
    spec = make_study(tmp_path, grids={"sgd": grid}).spec("sgd", Point(1.0), seed=0, test=False)
    assert spec.optimizer_class == "torch.optim.sgd.SGD"
    assert spec.optimizer_settings == {"momentum": 0.9, "nesterov": True}


def test_the_hash_covers_what_can_change_a_result() -> None:
    recipe = make_recipe()
    spec = make_spec(recipe)
    changes = [
        {"source": "another text"},
        {"data": "another data set"},
        {"processes": 2},
        {"settings": make_recipe(steps=61).settings()},
        {"settings": make_recipe(batch_size=20).settings()},
        {"settings": make_recipe(precision="bfloat16").settings()},
        {"settings": make_recipe(clip_norm=1.0).settings()},
        {"settings": make_recipe(threads=2).settings()},
        {"optimizer": "sgd"},
        {"point": Point(2.0, 0.0, "linear")},
        {"point": Point(1.0, 0.1, "linear")},
        {"point": Point(1.0, 0.0, "constant")},
        {"optimizer_settings": {"momentum": 0.5}},
        {"optimizer_class": "torch.optim.sgd.SGD"},
        {"seed": 1},
        {"test": False},
        {"versions": {"torch": "3"}},
    ]
    hashes = [spec.hash, *(dataclasses.replace(spec, **change).hash for change in changes)]
    assert len(set(hashes)) == len(hashes)
    assert dataclasses.replace(spec, recipe="moved/lines.py").hash == spec.hash


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no function recipe"),
        ("def recipe(scale): return 3", "returned int, not a Recipe"),
        ("import nosuchmodule", "cannot be imported (ModuleNotFoundError: No module named 'nosuchmodule')"),
        ("def recipe(scale:", "cannot be imported (SyntaxError"),
        ("def recipe(scale): return Recipe(batchsize=3)", "got an unexpected keyword argument 'batchsize'"),
        ("def recipe(scale): return 1 / 0", "raised ZeroDivisionError: division by zero (mine.py, line 2)"),
    ],
)
def test_a_file_without_a_recipe_is_a_one_line_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"from dualavg_bench.recipe import Recipe\n{text}")
    with pytest.raises(RecipeError) as raised:
        load(str(tmp_path / "mine.py"), "quick")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../evil"}, "The name of a recipe also names a folder"),
        ({"name": ".hidden"}, "The name of a recipe also names a folder"),
        ({"grids": {"mda": {"schedule": "lineer"}}}, "has unknown schedules, lineer: give its own or one of"),
        ({"grids": {"mda": {"lr": ("0.1",)}}}, "lr of a grid must be numbers > 0, got '0.1'"),
        ({"grids": {"mda": {"lr": (-1.0,)}}}, "lr of a grid must be numbers > 0, got -1.0"),
        ({"grids": {"mda": {"weight_decay": (float("nan"),)}}}, "weight_decay of a grid must be numbers"),
        ({"seeds": {"confirm": 0}}, "Seeds.confirm must be a whole number >= 1, got 0"),
    ],
)
def test_a_recipe_that_cannot_run_is_refused_when_it_is_created(changes: Any, message: str) -> None:
    def make() -> None:
        grids = {name: Grid(**{"lr": (1.0,), **grid}) for name, grid in changes.pop("grids", {}).items()}
        seeds = {"seeds": Seeds(**changes.pop("seeds"))} if "seeds" in changes else {}
        make_recipe(**changes, **seeds, **({"grids": grids} if grids else {}))

    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_one_value_is_a_grid_of_one() -> None:
    assert Grid(lr=0.1, weight_decay=0, schedule="linear") == Grid((0.1,), (0,), ("linear",))


def test_a_recipe_can_import_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("def recipe(scale): raise SystemError(scale)\n")
    (tmp_path / "mine.py").write_text("from beside_it import recipe\n")
    with pytest.raises(RecipeError, match="SystemError: quick"):
        load(str(tmp_path / "mine.py"), "quick")

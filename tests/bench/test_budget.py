"""A study with a budget: what it gives up, that it stays fair, and that it can be completed."""

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_study import Command, write_recipe

from dualavg_bench import commands
from dualavg_bench.recipe import Grid
from dualavg_bench.run.trial import Cost
from dualavg_bench.study.budget import MARGIN, REPORT, Allowance, Budget, smaller_grids
from dualavg_bench.study.study import Study

LRS = tuple(10.0**k for k in range(8))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """4 grid points with 3 tuning seeds of 3 optimizers, then 5 seeds; nothing has run."""
    folder = tmp_path_factory.mktemp("budget")
    recipe = write_recipe(folder)
    text = recipe.read_text().replace("tune=1", "tune=3").replace("confirm=2", "confirm=5")
    for three, four in {"1.0, 3.0)": "1.0, 3.0, 9.0)", "1e9)": "1.0, 1e9)", "0.03)": "0.03, 0.1)"}.items():
        text = text.replace(three, four)
    recipe.write_text(text)
    return Study.of(str(recipe), "quick", folder / "out")


def allowance(study: Study, runs: float, workers: int = 1) -> Allowance:
    """Enough time for so many runs, each of which takes 1000 seconds."""
    budget = Budget("1h", 1000 * runs + 500, time.monotonic())
    costs = dict.fromkeys(study.names, Cost(1000.0, 1000.0))
    return Allowance(budget, study, costs, workers, correction=1.0, workers_started=True)


def size(study: Study) -> tuple[int, int]:
    (points,) = {len(grid) for grid in study.points().values()}
    return study.recipe.seeds.tune, points


# What is given up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        (3 * (3 * 4 + 5), (3, 4)),
        (3 * (3 * 4 + 5) - 1, (2, 4)),  # first a tuning seed
        (3 * (2 * 4 + 5), (2, 4)),
        (3 * (1 * 4 + 5), (1, 4)),
        (3 * (1 * 4 + 3), (1, 4)),  # then confirmation seeds
        (3 * (1 * 3 + 3), (1, 3)),  # then grid points
        (3 * (1 * 2 + 3), (1, 2)),
    ],
)
def test_seeds_are_given_up_first_then_grid_points(study: Study, runs: int, kept: tuple[int, int]) -> None:
    planned = allowance(study, runs).plan()
    assert size(planned) == kept
    assert planned.recipe.steps == study.recipe.steps


def test_the_runs_of_a_part_are_runs_of_the_whole(study: Study) -> None:
    def runs(part: Study) -> set[str]:
        return {spec.hash for spec in part.tuning(part.points())}

    parts = [runs(allowance(study, n).plan()) for n in (3 * 5, 3 * 6, 3 * 7, 3 * 13, 3 * 17)]
    for smaller, larger in pairwise(parts):
        assert smaller < larger
    assert parts[-1] == runs(study)


def test_workers_share_the_runs(study: Study) -> None:
    assert size(allowance(study, 3 * 17 / 3, workers=3).plan()) == (3, 4)


def test_all_workers_wait_for_the_network_that_runs_start_from(tmp_path: Path) -> None:
    study = Study.of("finetune_lm", "quick", tmp_path, names=["mda", "sgd"])
    tuning = study.tuning(study.points())
    choice = {name: points[0] for name, points in study.points().items()}
    confirmation = study.confirmation(choice, 2)
    budget = allowance(study, 100, workers=2)
    budget.costs = dict.fromkeys(study.names, Cost(1000.0, 1000.0, start=700.0))
    assert budget.plan().recipe.adapt == {}  # it names adamw+lora, which is not run
    assert budget._time(tuning) == pytest.approx(700 + 1000 * len(tuning) / 2)
    assert budget._time(confirmation) == pytest.approx(1000 * len(confirmation) / 2)  # it is trained by then


def test_a_time_that_is_too_short_is_an_error_with_the_time_needed(study: Study) -> None:
    with pytest.raises(ValueError, match=r"--budget 1h is too short: .* 2 step sizes with 1 seed and then 3"):
        allowance(study, 3 * 5 - 1).plan()
    with pytest.raises(ValueError, match=r"each of 3 optimizers, takes about 4\.2 h on 1 worker\. Fewer"):
        allowance(study, 1).plan()


def test_three_confirmation_seeds_stay_in_any_case(study: Study) -> None:
    choice = {name: points[0] for name, points in study.points().items()}
    assert [allowance(study, 3 * n).confirmation_seeds(study, choice) for n in (0, 3, 4, 5, 9)] == [
        3,
        3,
        4,
        5,
        5,
    ]


def test_the_first_runs_correct_the_estimate(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = allowance(study, 3 * 17)
    assert size(budget.plan()) == (3, 4)
    clock = iter([0.0, 24_000.0])
    with monkeypatch.context() as context:
        context.setattr("dualavg_bench.study.budget.time", SimpleNamespace(monotonic=lambda: next(clock)))
        budget.measured(lambda _: [])(budget.first_seed(study))  # 12 runs take twice as long
    assert budget.correction == pytest.approx(2)
    assert size(budget.plan()) == (1, 4)


@pytest.mark.parametrize("text", ["", "10", "m", "10 minutes", "-5m", "0s", "1e3s", "nan", "10d"])
def test_a_budget_is_a_number_with_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match=r"--budget must be a time such as 90s, 10m or 2h, got"):
        Budget.parse(text, 0.0)


def test_units_are_seconds_minutes_and_hours() -> None:
    assert [Budget.parse(text, 0.0).seconds for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]


# Fairness ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grids",
    [
        {
            "mda": Grid(LRS),
            "sgd": Grid(LRS[:4], (0.0, 0.1)),
            "adam": Grid(LRS[:4], 0.0, ("linear", "cosine")),
        },
        {"mda": Grid(LRS[::-1], (0.0, 0.1, 0.2)), "sgd": Grid(LRS, (0.0, 0.1, 0.2))},
        {"mda": Grid(LRS[:3]), "sgd": Grid(LRS[:3])},
    ],
)
def test_smaller_grids_are_equal_in_size_and_keep_the_ends(grids: dict[str, Grid]) -> None:
    sizes = [len(grids["mda"].points())]
    for smaller in smaller_grids(grids):
        (points,) = {len(grid.points()) for grid in smaller.values()}
        sizes.append(points)
        for name, grid in smaller.items():
            assert set(grid.points()) < set(grids[name].points())
            assert {min(grids[name].lr), max(grids[name].lr)} <= set(grid.lr)
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-2:] == [3, 2]


def test_weight_decays_go_before_step_sizes() -> None:
    grids = {"mda": Grid(LRS[:4], (0.0, 0.1)), "sgd": Grid(LRS[:4], (0.0, 0.1))}
    shapes = [(len(g["sgd"].lr), len(g["sgd"].weight_decay or ())) for g in smaller_grids(grids)]
    assert shapes == [(3, 2), (4, 1), (3, 1), (2, 1)]


def test_a_single_setting_cannot_become_less() -> None:
    assert not list(smaller_grids({"mda": Grid(1.0), "sgd": Grid(0.1)}))


# The command ------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Pretend that a run takes an hour, and that nothing else takes any time."""
    spent = [0.0]

    def costs(study: Study, _: Any, *, timed: bool) -> dict[str, Cost]:
        assert timed
        return dict.fromkeys(study.names, Cost(3600 / MARGIN, 3600 / MARGIN))

    def measured(self: Allowance, execute: Any) -> Any:
        def executing(specs: Any) -> Any:
            spent[0] += self._time(specs)
            return execute(specs)

        return executing

    with monkeypatch.context() as context:
        context.setattr(commands, "_try_out", costs)
        context.setattr(Allowance, "measured", measured)
        context.setattr(Allowance, "_left", lambda self: self.budget.seconds - REPORT - spent[0])
        yield context


def test_a_reduced_study_says_so_and_is_completed_by_the_command_without_a_budget(
    dualavg: Command, scheduler: str, slow: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, steps=20, confirm=4)
    command = ("study", recipe, "--out", tmp_path / "out", "--no-extend", "--optimizers", "mda,adam")
    command += ("--scheduler", scheduler)
    folder = tmp_path / "out" / "spirals-quick"
    code, output, errors = dualavg(*command, "--budget", "5.5h")
    assert code == 0, output + errors
    assert (
        "budget 5.5h: 2 of 3 grid points of each optimizer, 3 of 4 confirmation seeds; about 5.0 h" in output
    )
    assert "adam without lr 0.01" in output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["command"].endswith("--budget 5.5h --no-extend")
    assert summary["reduced"] == {
        "budget": "5.5h",
        "tuning_seeds": [1, 1],
        "grid_points": [2, 3],
        "confirmation_seeds": [3, 4],
        "extension_refused": False,
    }
    assert [entry["test"]["n"] for entry in summary["optimizers"].values()] == [3, 3]
    page = " ".join((folder / "report.html").read_text().split())
    said = "2 of 3 grid points of each optimizer, 3 of 4 confirmation seeds (--budget 5.5h;"
    assert f"<strong>Reduced study:</strong> {said}" in page
    assert f"REDUCED STUDY: {said}" in " ".join(output.split())
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    assert len(written) == 2 * (2 + 3)

    slow.undo()
    code, output, errors = dualavg(*command)
    assert code == 0, output + errors
    assert "REDUCED" not in output
    assert written.items() <= {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}.items()
    assert json.loads((folder / "summary.json").read_text())["reduced"] is None


def test_grids_are_not_extended_without_time_and_the_verdict_says_why(
    dualavg: Command, scheduler: str, slow: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, steps=20, confirm=1)
    text = recipe.read_text()
    for lrs in ("(0.3, 1.0, 3.0)", "(0.03, 0.1, 1e9)", "(0.003, 0.01, 0.03)"):
        text = text.replace(lrs, "(0.1,)")  # a single lr is at the end of its grid
    recipe.write_text(text)
    command = ("study", recipe, "--out", tmp_path / "out", "--optimizers", "mda", "--scheduler", scheduler)
    code, output, _ = dualavg(*command, "--budget", "2.5h")
    said = " ".join(output.split())
    assert code == 0
    assert "budget 2.5h: the whole study fits" in said
    assert "REDUCED STUDY: no extension of grids (--budget 2.5h; run it without" in said
    assert "one may be better; there was no time to extend grids (--budget 2.5h)" in said

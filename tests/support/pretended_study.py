"""A study whose runs are made up: its grid and seeds are real, nothing is trained."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dualavg_bench.recipe import Grid, Seeds
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.results import Curve, RunResult, RunTime
from dualavg_bench.study.study import Study
from support.lines import make_recipe
from support.synthetic_runs import MACHINE


def make_study(folder: Path, **changes: Any) -> Study:
    grids = {name: Grid(lr=(0.1, 1.0, 10.0), schedule=("linear",)) for name in ("mda", "sgd")}
    recipe = make_recipe(**{"grids": grids, "seeds": Seeds(tune=2, confirm=3), **changes})
    fingerprints = {False: "data", True: "data and test"}
    return Study(recipe, "lines.py", Path(__file__), folder, tuple(recipe.grids), folder, 40, fingerprints)


def pretend(best: dict[str, float], executed: list[RunSpec]):
    """An executor that trains nothing: an optimizer's error is the distance of its lr from its best."""

    def execute(specs):
        executed.extend(specs)
        return [result(spec, best) for spec in specs]

    return execute


def result(spec: RunSpec, best: dict[str, float]) -> RunResult:
    error = abs(math.log(spec.point.lr / best[spec.optimizer])) + 0.01 * (spec.seed % 7)
    return RunResult(
        hash=spec.hash,
        recipe="lines",
        scale="quick",
        optimizer=spec.optimizer,
        **asdict(spec.point),
        seed=spec.seed,
        phase="confirm" if spec.test else "tune",
        metric="error",
        higher_is_better=False,
        unit="",
        status="finished",
        diverged_at=None,
        why=None,
        steps=60,
        spec=spec.to_json(),
        train=Curve.model_validate({"step": [10], "loss": [error]}),
        valid=Curve.model_validate({"step": [0, 60], "loss": [9.0, error], "error": [9.0, error]}),
        test={"loss": error, "error": error} if spec.test else None,
        test_best={"loss": error, "error": error} if spec.test else None,
        report="last",
        samples=[],
        time=RunTime(seconds=1.0, step_ms=1.0, optimizer_ms=0.1),
        peak_mb=1.0,
        packages={},
        machine=MACHINE,
    )

"""The summary of a study, from its runs."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median_high
from typing import Any

import numpy as np

from dualavg_bench.analysis.curves import steps_to_target, thinned
from dualavg_bench.analysis.scores import Split, also_score, score
from dualavg_bench.analysis.selection import budget, select, sensitivity
from dualavg_bench.analysis.statistics import compare, describe, describe_runs
from dualavg_bench.analysis.verdict import verdict
from dualavg_bench.recipe import Report
from dualavg_bench.store.results import Machine, RunResult
from dualavg_bench.store.summaries import (
    Chosen,
    Cost,
    Extension,
    FailedRun,
    GridPoint,
    GridSize,
    OptimizerSummary,
    Reduced,
    RunEntry,
    Scores,
    Spread,
    Summary,
    Times,
    ToTarget,
)

SAME_IN_ALL_RUNS = ("recipe", "scale", "metric", "higher_is_better", "unit", "also", "report", "steps")


def summarize(
    runs: Sequence[RunResult],
    *,
    command: str,
    extension: Extension,
    test_examples: int,
    extended: Mapping[str, int] | None = None,
    failures: Sequence[FailedRun] = (),
    reduced: Reduced | None = None,
    about: str = "",
    paper: str = "",
    workers: int | None = None,
    own_schedules: Collection[str] | None = None,
) -> Summary:
    """Return the summary of a study. It does not depend on the order of the runs.

    Args:
        runs: all results of the study, tuning and confirmation.
        command: the command that runs the study.
        extension: whether grids could be extended, and how many times they were.
        test_examples: size of the test set.
        extended: how many points were added to each optimizer's grid.
        failures: runs without a result. Their optimizers are not among the confirmed.
        reduced: what `--budget` left out.
        about: the recipe's sentence.
        paper: the recipe's part of the paper.
        workers: how many runs were executed at the same time, if known.
        own_schedules: the names of the recipe's own schedules, if known.
    """
    runs = sorted(runs, key=lambda run: (run.phase, run.optimizer, run.point, run.seed))
    tuning = [run for run in runs if run.phase == "tune"]
    confirmation = [run for run in runs if run.phase == "confirm"]
    if not tuning:
        raise ValueError("There are no tuning runs to summarize.")
    for field in SAME_IN_ALL_RUNS:
        if len({getattr(run, field) for run in runs}) > 1:
            raise ValueError(f"These runs are from different studies: their {field} differs.")
    chosen, grids = select(tuning), sensitivity(tuning)
    _check_confirmation(tuning, confirmation, chosen, {failure.optimizer for failure in failures})
    target = _target(confirmation)
    summary = Summary(
        recipe=runs[0].recipe,
        scale=runs[0].scale,
        metric=runs[0].metric,
        higher_is_better=runs[0].higher_is_better,
        unit=runs[0].unit,
        also=runs[0].also,
        report=runs[0].report,
        target=target,
        test_examples=test_examples,
        about=about,
        paper=paper,
        command=command,
        optimizers={
            name: OptimizerSummary(
                grid=_grid_size(points, (extended or {}).get(name, 0)),
                chosen=chosen[name],
                test=_scores(confirmation, name, "test"),
                valid_final=_scores(confirmation, name, "valid"),
                test_last=_scores(confirmation, name, "test", "last"),
                test_best=_scores(confirmation, name, "test", "best"),
                train=_scores([run for run in confirmation if run.train.step], name, "train"),
                to_target=_to_target(confirmation, name, target),
                test_loss=_test_loss(confirmation, name),
                **_construction([run for run in runs if run.optimizer == name]),
            )
            for name, points in grids.items()
        },
        extension=extension,
        reduced=reduced,
        failures=sorted(failures, key=lambda run: (run.phase, run.optimizer, run.point, run.seed)),
        comparisons=compare(confirmation),
        verdict="",
        sensitivity=grids,
        budget=budget(tuning),
        runs={run.hash: _entry(run) for run in sorted(runs, key=lambda run: run.hash)},
        curves={
            run.hash: thinned(run, len(confirmation))
            for run in sorted(confirmation, key=lambda run: run.hash)
        },
        machines=_machines(runs),
        packages=_packages(runs),
        times=_times(runs, workers),
        own_schedules=None if own_schedules is None else sorted(own_schedules),
        parameters=max((run.parameters for run in runs if run.parameters is not None), default=None),
    )
    return summary.model_copy(update={"verdict": str(verdict(summary))})


def _check_confirmation(
    tuning: Sequence[RunResult],
    confirmation: Sequence[RunResult],
    chosen: Mapping[str, Chosen],
    failed: Collection[str],
) -> None:
    """Test is read once, for the chosen setting, on seeds that tuning never saw."""
    seen = {run.seed for run in tuning} & {run.seed for run in confirmation}
    if seen:
        raise ValueError(f"Confirmation used the seeds {sorted(seen)} that tuning has already seen.")
    for run in confirmation:
        if run.optimizer not in chosen:
            raise ValueError(f"{run.optimizer} was confirmed but never tuned.")
        if run.point != chosen[run.optimizer].point:
            raise ValueError(
                f"Run {run.hash} confirms {run.optimizer} at lr {run.lr:g}, which is not the setting "
                "chosen on validation."
            )
    if confirmation and not {run.optimizer for run in confirmation} | set(failed) >= set(chosen):
        raise ValueError("Some optimizers are confirmed and some are not. Finish the study first.")


def _grid_size(points: Sequence[GridPoint], extended: int) -> GridSize:
    runs, diverged = sum(point.n for point in points), sum(point.diverged for point in points)
    return GridSize(points=len(points), runs=runs, diverged=diverged, extended=extended)


def _scores(
    confirmation: Sequence[RunResult], optimizer: str, split: Split, report: Report | None = None
) -> Scores | None:
    runs = [run for run in confirmation if run.optimizer == optimizer]
    return describe_runs(runs, split, report) if runs else None


def _test_loss(confirmation: Sequence[RunResult], optimizer: str) -> Scores | None:
    """Return the loss on test of the network that decides."""
    runs = [run for run in confirmation if run.optimizer == optimizer]
    tests = [run.test_best if run.report == "best" else run.test for run in runs]
    losses = [test["loss"] for test in tests if test and "loss" in test]
    if not losses or len(losses) < len(runs):
        return None
    diverged = sum(run.diverged for run in runs)
    return Scores(**dict(describe(losses)), diverged=diverged, runs=[run.hash for run in runs])


def _construction(runs: Sequence[RunResult]) -> dict[str, Any]:
    """Return the fixed settings of an optimizer, and the bytes of its state."""
    sizes = [run.state_bytes for run in runs if run.state_bytes is not None]
    return {"settings": runs[0].spec.get("optimizer_settings"), "state_bytes": max(sizes, default=None)}


def _target(confirmation: Sequence[RunResult]) -> float | None:
    """Return the worst validation score of all optimizers, which every one of them should reach.

    One that diverged on any seed does not set it. None with fewer than two others, or if the untrained
    networks are as good.
    """
    by_name: dict[str, list[RunResult]] = {}
    for run in confirmation:
        by_name.setdefault(run.optimizer, []).append(run)
    sound = [runs for runs in by_name.values() if not any(run.diverged for run in runs)]
    if len(sound) < 2:
        return None
    sign = 1 if confirmation[0].higher_is_better else -1
    worst = min(sign * describe_runs(runs, "valid").mean for runs in sound)
    untrained = fmean(sign * run.valid[run.metric][0] for run in confirmation)
    return sign * worst if worst > untrained else None


def _to_target(confirmation: Sequence[RunResult], optimizer: str, target: float | None) -> ToTarget | None:
    runs = [run for run in confirmation if run.optimizer == optimizer]
    if target is None or not runs:
        return None
    steps = [steps_to_target(run, target) for run in runs]
    middle = median_high(step if step is not None else math.inf for step in steps)
    return ToTarget(
        steps=None if middle == math.inf else int(middle),
        reached=sum(step is not None for step in steps),
        n=len(runs),
        runs=[run.hash for run in runs],
    )


def _entry(run: RunResult) -> RunEntry:
    return RunEntry(
        optimizer=run.optimizer,
        **asdict(run.point),
        seed=run.seed,
        phase=run.phase,
        status=run.status,
        diverged_at=run.diverged_at,
        why=run.why,
        steps=run.steps,
        valid=score(run, "valid"),
        test=score(run, "test") if run.phase == "confirm" else None,
        test_last=score(run, "test", "last") if run.phase == "confirm" else None,
        test_best=score(run, "test", "best") if run.phase == "confirm" else None,
        train=score(run, "train") if run.train.step else None,
        also_valid=also_score(run, "valid"),
        also_test=also_score(run, "test"),
    )


def _machines(runs: Sequence[RunResult]) -> list[Machine]:
    distinct = {run.machine.model_dump_json(): run.machine for run in runs}
    return [distinct[text] for text in sorted(distinct)]


def _packages(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return the versions of each package that the runs were executed with."""
    versions: dict[str, list[str]] = {}
    for name, version in sorted({pair for run in runs for pair in run.packages.items()}):
        versions.setdefault(name, []).append(version)
    return versions


def _times(runs: Sequence[RunResult], workers: int | None) -> Times:
    """Collect all times and memory: two summaries of one study are equal except for these."""
    costs = {}
    for optimizer in sorted({run.optimizer for run in runs}):
        own = [run for run in runs if run.optimizer == optimizer]
        costs[optimizer] = Cost(
            step_ms=_spread({run.hash: run.time.step_ms for run in own}),
            optimizer_ms=_spread({run.hash: run.time.optimizer_ms for run in own}),
            peak_mb=_spread({run.hash: run.peak_mb for run in own if run.peak_mb is not None}),
        )
    return Times(seconds=math.fsum(run.time.seconds for run in runs), workers=workers, optimizers=costs)


def _spread(measured: Mapping[str, float]) -> Spread | None:
    """Return median, quartiles and range of a measurement by run."""
    if not measured:
        return None
    low, lower, median, upper, high = np.quantile(list(measured.values()), (0, 0.25, 0.5, 0.75, 1)).tolist()
    return Spread(
        median=median, low=low, lower=lower, upper=upper, high=high, n=len(measured), runs=sorted(measured)
    )

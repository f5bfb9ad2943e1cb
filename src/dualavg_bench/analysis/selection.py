"""The choice of a setting on validation, and what a larger tuning budget would buy."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

from dualavg_bench.analysis.scores import check_unique
from dualavg_bench.analysis.statistics import describe_runs
from dualavg_bench.recipe.settings import Point
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Budget, Chosen, GridPoint, NumericAxis, Scores

NUMERIC_AXES: tuple[NumericAxis, ...] = get_args(NumericAxis)


def sensitivity(tuning: Sequence[RunResult]) -> dict[str, list[GridPoint]]:
    """Return every grid point of every optimizer with its validation scores over the tuning seeds."""
    check_unique(tuning, key=lambda run: (run.optimizer, run.point, run.seed))
    groups: dict[tuple[str, Point], list[RunResult]] = {}
    for run in sorted(tuning, key=lambda run: (run.optimizer, run.point, run.seed)):
        groups.setdefault((run.optimizer, run.point), []).append(run)
    grids: dict[str, list[GridPoint]] = {}
    for (optimizer, point), runs in groups.items():
        scored = GridPoint(**asdict(point), **dict(describe_runs(runs, "valid")))
        grids.setdefault(optimizer, []).append(scored)
    return grids


def select(tuning: Sequence[RunResult]) -> dict[str, Chosen]:
    """Return the best setting of each optimizer, by the mean of its final validation scores.

    Divergence counts twice: a diverged seed enters the mean with the untrained score, and a setting that
    diverged in any seed, or lacks a seed that others have, ranks behind every setting that did not. Ties go
    to the smaller step size, then the smaller weight decay, then the schedule's name; see `rounded`.

    `edge` names the axes on which the best is at an end of its grid. A single weight decay is fixed, and no
    edge. A single step size is an edge: nothing beside it was tried. Zero is no edge: nothing is beyond it.
    """
    chosen = {}
    for optimizer, points in _ranked(tuning).items():
        best, edge = points[0], list[NumericAxis]()
        tried: dict[NumericAxis, tuple[float, float]] = {}
        for axis in NUMERIC_AXES:
            values = sorted({getattr(point, axis) for point in points})
            tried[axis] = (values[0], values[-1])
            searched = len(values) > 1 or axis == "lr"
            if searched and getattr(best, axis) in tried[axis] and getattr(best, axis) != 0:
                edge.append(axis)
        valid = Scores(mean=best.mean, se=best.se, n=best.n, diverged=best.diverged, runs=best.runs)
        chosen[optimizer] = Chosen(**asdict(best.point), valid=valid, edge=edge, tried=tried)
    return chosen


def best_so_far(tuning: Sequence[RunResult]) -> dict[str, GridPoint]:
    """Return the best setting of each optimizer among the runs so far, the best optimizer first.

    Other than in `select`, settings may have different numbers of seeds: the study is still running.
    """
    sign = 1 if tuning[0].higher_is_better else -1

    def rank(point: GridPoint) -> tuple[bool, float, Point]:
        return point.diverged > 0, -sign * rounded(point.mean), point.point

    best = {optimizer: min(points, key=rank) for optimizer, points in sensitivity(tuning).items()}
    return dict(sorted(best.items(), key=lambda item: rank(item[1])))


def rounded(score: float) -> float:
    """Return a score to six digits, so that the rounding of sums does not decide between equal settings.

    Examples:
        >>> rounded((99.1666667 + 97.5) / 2) == rounded((98.3333333 + 98.3333333) / 2)
        True
    """
    return float(f"{score:.6g}")


def budget(tuning: Sequence[RunResult]) -> dict[str, Budget]:
    """Return the expected validation score of the best of m random grid points, for m = 1 to N.

    With the points ranked from worst to best, s_1 to s_N, and m of them drawn without replacement,

        E[best of m] = sum over i of s_i C(i - 1, m - 1) / C(N, m),

    because point i is the best drawn when the other m - 1 are among the i - 1 that are worse.
    """
    budgets = {}
    for optimizer, points in _ranked(tuning).items():
        means, n = [point.mean for point in reversed(points)], len(points)
        expected = [
            math.fsum(s * (math.comb(i, m - 1) / math.comb(n, m)) for i, s in enumerate(means))
            for m in range(1, n + 1)
        ]
        hashes = sorted(run for point in points for run in point.runs)
        budgets[optimizer] = Budget(scores=expected, n=min(point.n for point in points), runs=hashes)
    return budgets


def _ranked(tuning: Sequence[RunResult]) -> dict[str, list[GridPoint]]:
    """Return the points of each optimizer, best first, by the rule of `select`."""
    grids = sensitivity(tuning)
    sign = 1 if tuning[0].higher_is_better else -1
    seeds = max(point.n for points in grids.values() for point in points)

    def rank(point: GridPoint) -> tuple[bool, float, Point]:
        return point.diverged > 0 or point.n < seeds, -sign * rounded(point.mean), point.point

    return {optimizer: sorted(points, key=rank) for optimizer, points in grids.items()}

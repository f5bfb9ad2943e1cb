"""Two scores against each other: the metric and the recipe's second score, such as new and old task.

Each grid point is a dot: the means of both scores on validation over the tuning seeds. The frontier of an
optimizer is the line through the dots that no other dot of its own beats in both scores. Between two of them,
the second score at a given value of the metric is interpolated along the line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from dualavg_bench.analysis.statistics import describe
from dualavg_bench.analysis.verdict import rank
from dualavg_bench.recipe.settings import Point
from dualavg_bench.store.summaries import Statistics, Summary

SHARE = 0.9  # of the gain that optimizers reach: see `levels`
RESAMPLES = 2000
LEAST_REACHED = 0.95  # of the resamples, for an interval
Pairs = Sequence[tuple[float, float]]  # metric and second score; higher is better for both


@dataclass(frozen=True)
class Dot:
    """A grid point: both scores over its tuning seeds, and whether it is on its optimizer's frontier."""

    point: Point
    metric: Statistics
    also: Statistics
    on_line: bool


@dataclass(frozen=True)
class Estimate:
    """The second score of an optimizer at a level of the metric.

    `value` is None if its frontier does not reach the level. Intervals are None with one seed, or if
    resampled frontiers often do not reach it. `difference` is from the best optimizer at the level.
    """

    optimizer: str
    value: float | None
    interval: tuple[float, float] | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Level:
    """A value of the metric, and the second score of each optimizer there, from best to worst."""

    metric: float
    reached_by: int  # of the optimizers' best dots, the level is nine tenths of the gain of this many
    estimates: list[Estimate]
    seeds: int


def start(summary: Summary) -> tuple[float, float] | None:
    """Return both scores before training, mean over the runs that have curves; None if there are none."""
    if summary.also is None:
        return None
    also = summary.also.name
    curves = [both.valid for both in summary.curves.values() if also in both.valid.names]
    if not curves:
        return None
    return fmean(curve[summary.metric][0] for curve in curves), fmean(curve[also][0] for curve in curves)


def both_scores(summary: Summary) -> dict[str, tuple[Statistics, Statistics]]:
    """Return metric and second score on test of the confirmed optimizers, best metric first."""
    found: dict[str, tuple[Statistics, Statistics]] = {}
    for name in rank(summary):
        test = summary.optimizers[name].test
        runs = [summary.runs[run] for run in test.runs] if test else []
        also = [run.also_test for run in runs if run.also_test is not None]
        if test and also:
            found[name] = (test, describe(also))
    return found


def dots(summary: Summary) -> dict[str, list[Dot]]:
    """Return the dots of each optimizer, by their settings. A setting that diverged in any seed has none."""
    signs = _signs(summary)
    found = {}
    for name, points in _scores(summary).items():
        means = {point: _means(scores, signs) for point, scores in points.items()}
        on_line = set(line(list(means.values())))
        found[name] = [
            Dot(
                point,
                describe(metric for metric, _ in scores.values()),
                describe(also for _, also in scores.values()),
                means[point] in on_line,
            )
            for point, scores in sorted(points.items())
        ]
    return found


def line(pairs: Pairs) -> list[tuple[float, float]]:
    """Return the pairs that no other beats in both, from the lowest first score to the highest.

    >>> line([(1.0, 9.0), (2.0, 5.0), (1.5, 4.0), (3.0, 1.0)])
    [(1.0, 9.0), (2.0, 5.0), (3.0, 1.0)]
    """
    kept: list[tuple[float, float]] = []
    for pair in sorted(set(pairs), reverse=True):
        if not kept or pair[1] > kept[-1][1]:
            kept.append(pair)
    return kept[::-1]


def interpolate(pairs: Pairs, level: float) -> float | None:
    """Return the second score on a frontier where the first one has the value `level`.

    Beyond the end with the higher first score there is none. Before the other end it is that of the end,
    which is better than the level asks for.

    >>> [interpolate([(1.0, 9.0), (2.0, 5.0)], level) for level in (0.5, 1.25, 3.0)]
    [9.0, 8.0, None]
    """
    if not pairs or level > pairs[-1][0]:
        return None
    for (low, below), (high, above) in pairwise(pairs):
        if low < level <= high:
            return below + (above - below) * (level - low) / (high - low)
    return pairs[0][1]


def at_equal_score(summary: Summary) -> list[Level]:
    """Return the second score of every optimizer at equal values of the metric.

    The first level is nine tenths of the way from the start to the worst optimizer's best dot, so all reach
    it. The second is the same for the median optimizer. Intervals are percentiles of a bootstrap over the
    tuning seeds: the same resampled seeds for all optimizers and grid points; means, frontiers and
    interpolation anew. They cover what a seed changes, the order of the data and dropout; not the choice of
    the grid or of the validation examples.
    """
    begin, signs = start(summary), _signs(summary)
    scores = {name: points for name, points in _scores(summary).items() if points}
    if begin is None or not scores:
        return []
    origin = signs[0] * begin[0]
    means = {name: [_means(of, signs) for of in points.values()] for name, points in scores.items()}
    best = sorted(max(pair[0] for pair in pairs) for pairs in means.values())
    reached = {value: sum(other >= value for other in best) for value in (best[0], median(best))}
    resampled, seeds = _resampled(scores, signs)
    found = []
    for value, count in reached.items():
        if value > origin:
            level = origin + SHARE * (value - origin)
            estimates = _estimates(means, resampled, level, signs[1])
            found.append(Level(signs[0] * level, count, estimates, seeds))
    return found


def _estimates(
    means: Mapping[str, Pairs], resampled: Sequence[Mapping[str, Pairs]], level: float, sign: int
) -> list[Estimate]:
    values = {name: interpolate(line(pairs), level) for name, pairs in means.items()}
    samples = {name: [interpolate(line(one[name]), level) for one in resampled] for name in means}
    order = sorted(values, key=lambda name: (values[name] is None, -(values[name] or 0.0), name))
    best, estimates = order[0], []
    for name in order:
        value, top = values[name], values[best]
        if value is None or top is None:
            estimates.append(Estimate(name, None))
            continue
        interval = _percentiles([None if x is None else sign * x for x in samples[name]])
        if name == best:
            estimates.append(Estimate(name, sign * value, interval))
            continue
        pairs = zip(samples[name], samples[best], strict=True)
        differences = [None if x is None or y is None else sign * (x - y) for x, y in pairs]
        difference = sign * (value - top)
        estimates.append(Estimate(name, sign * value, interval, difference, _percentiles(differences)))
    return estimates


def _percentiles(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < LEAST_REACHED * len(values):
        return None
    low, high = np.quantile(known, (0.025, 0.975)).tolist()
    return low, high


Scores = dict[int, tuple[float, float]]  # by seed


def _scores(summary: Summary) -> dict[str, dict[Point, Scores]]:
    """Return both scores of the tuning runs, by optimizer, setting and seed; no setting that diverged."""
    found: dict[str, dict[Point, Scores]] = {name: {} for name in summary.optimizers}
    left_out = set()
    for run in summary.runs.values():
        if run.phase == "tune":
            if run.diverged or run.also_valid is None:
                left_out.add((run.optimizer, run.point))
            else:
                found[run.optimizer].setdefault(run.point, {})[run.seed] = (run.valid, run.also_valid)
    return {
        name: {point: scores for point, scores in points.items() if (name, point) not in left_out}
        for name, points in found.items()
    }


def _signs(summary: Summary) -> tuple[int, int]:
    return summary.sign, 1 if summary.also is None or summary.also.higher_is_better else -1


def _means(scores: Scores, signs: tuple[int, int]) -> tuple[float, float]:
    metric, also = zip(*scores.values(), strict=True)
    return signs[0] * fmean(metric), signs[1] * fmean(also)


def _resampled(
    scores: Mapping[str, Mapping[Point, Scores]], signs: tuple[int, int]
) -> tuple[list[dict[str, Pairs]], int]:
    """Return the means of all dots for resampled seeds, and the number of seeds."""
    seeds = sorted(set.intersection(*(set(of) for points in scores.values() for of in points.values())))
    if len(seeds) < 2:
        return [], len(seeds)
    draws = np.random.default_rng(0).integers(len(seeds), size=(RESAMPLES, len(seeds)))
    means = {
        name: np.array([[np.multiply(signs, of[seed]) for seed in seeds] for of in points.values()])[
            :, draws
        ].mean(axis=2)
        for name, points in scores.items()
    }  # by optimizer: (dots, resamples, 2)
    return [
        {name: [(float(a), float(b)) for a, b in array[:, k]] for name, array in means.items()}
        for k in range(RESAMPLES)
    ], len(seeds)

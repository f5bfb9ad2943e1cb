"""The summary of a study in words: the ranking, the edges of grids, and the verdict."""

import math
import textwrap
from dataclasses import dataclass

from dualavg_bench.analysis.formatting import counted, decimals, interval_decimals, p_text, signed, with_error
from dualavg_bench.analysis.statistics import is_significant
from dualavg_bench.store.summaries import FailedRun, NumericAxis, Reduced, Scores, Summary

AXIS_NAMES: dict[NumericAxis, str] = {"lr": "step size", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class Edge:
    """A chosen value at an end of its grid: "the best step size of mda, 1, is the largest tried"."""

    optimizer: str
    axis: str
    value: str
    which: str  # smallest, largest, only one
    beyond: str  # smaller, larger, smaller or larger
    reason: str  # why the grid was not extended further


def verdict(summary: Summary) -> str:
    """Return who is best, whether that is more than noise, every reason for doubt, what is not covered."""
    found = "; ".join([_finding(summary), *_cautions(summary)]) + "."
    return f"{found} {_not_covered(summary)}" if summary.confirmed else found


def rank(summary: Summary) -> list[str]:
    """Return the optimizers from best to worst: by test score, then those without one by validation."""

    def key(name: str) -> tuple[bool, float, str]:
        entry = summary.optimizers[name]
        return entry.test is None, -summary.sign * (entry.test or entry.chosen.valid).mean, name

    return sorted(summary.optimizers, key=key)


def leaders(summary: Summary) -> list[str]:
    """Return the best optimizer, and those that tie with it: equal means up to rounding."""
    means = {name: summary.confirmed[name].mean for name in rank(summary) if name in summary.confirmed}
    best = next(iter(means.values()), 0.0)
    return [name for name, mean in means.items() if math.isclose(mean, best, rel_tol=1e-12)]


def edges(summary: Summary) -> list[Edge]:
    """Return every choice at an end of its grid, from the best optimizer to the worst."""
    found = []
    for name in rank(summary):
        chosen = summary.optimizers[name].chosen
        for axis in chosen.edge:
            low, high = chosen.tried[axis]
            value = getattr(chosen, axis)
            which, beyond = ("smallest", "smaller") if value == low else ("largest", "larger")
            if low == high:
                which, beyond = "only one", "smaller or larger"
            reason = _reason_for_edge(summary, axis)
            found.append(Edge(name, AXIS_NAMES[axis], f"{value:g}", which, beyond, reason))
    return found


def unequal_grids(summary: Summary) -> str:
    """Return the number of grid points of each optimizer if they differ, which is unfair; else nothing."""
    points = {name: summary.optimizers[name].grid.points for name in rank(summary)}
    return ", ".join(f"{name} {n}" for name, n in points.items()) if len(set(points.values())) > 1 else ""


def failures_by_optimizer(summary: Summary) -> dict[str, list[FailedRun]]:
    """Return the failed runs of each optimizer that has no result because of them."""
    failures: dict[str, list[FailedRun]] = {}
    for failure in summary.failures:
        failures.setdefault(failure.optimizer, []).append(failure)
    return failures


def reduction(reduced: Reduced) -> str:
    """Return what a study with a budget has of the whole one."""
    counts = {
        "grid points of each optimizer": reduced.grid_points,
        "tuning seeds": reduced.tuning_seeds,
        "confirmation seeds": reduced.confirmation_seeds,
    }
    parts = [f"{kept} of {whole} {noun}" for noun, (kept, whole) in counts.items() if kept < whole]
    return ", ".join([*parts, "no extension of grids"] if reduced.extension_refused else parts)


def _reason_for_edge(summary: Summary, axis: NumericAxis) -> str:
    extension = summary.extension
    if axis != "lr":
        return "only step sizes are extended"
    if summary.reduced and summary.reduced.extension_refused:
        return f"there was no time to extend grids (--budget {summary.reduced.budget})"
    if not extension.allowed:
        return "grids were not extended (--no-extend)"
    times = "once" if extension.rounds == 1 else f"{extension.rounds} times"
    return f"grids were extended {times}, the maximum"


def _finding(summary: Summary) -> str:
    tests, metric = summary.confirmed, summary.metric
    metric += " (best network)" if summary.report == "best" else ""
    order = [name for name in rank(summary) if name in tests]
    if not order:
        return "Nothing is confirmed yet: there are tuning runs, but no test scores on fresh seeds"
    unit = summary.unit if summary.unit in ("", "%") else f" {summary.unit}"
    best, test = order[0], tests[order[0]]
    places = decimals(scores.se for scores in tests.values())
    value = f"{with_error(test, places)}{unit} (mean ± s.e., n = {test.n})"
    if test.diverged == test.n:
        return _untrained({name: tests[name] for name in order}, metric, value)
    if len(order) == 1:
        reason = "no other optimizer has a result" if summary.failures else "no other optimizer was run"
        return f"{best} has a test {metric} of {value}, and {reason} to compare it with"
    if len(tied := leaders(summary)) > 1:
        mean = f"{test.mean:.{places}f}{unit} (n = {test.n})"
        return f"{', '.join(tied[:-1])} and {tied[-1]} tie for the best test {metric}, a mean of {mean}"
    return f"{best} has the best test {metric}, {value}, {_lead(summary, places, unit)}"


def _lead(summary: Summary, places: int, unit: str) -> str:
    """Return by how much the best leads the second, and whether that is more than noise."""
    pair, pairs = summary.comparisons[0], len(summary.comparisons)
    places = max(places, interval_decimals([(pair.low, pair.high)]))
    lead = f"{summary.sign * pair.difference:.{places}f}"
    if float(lead) == 0:
        lead = f"less than {10**-places:.{places}f}"
    lead = f"{lead}{' points' if unit == '%' else unit} ahead of {pair.b}"
    if pair.p_holm is None or pair.low is None or pair.high is None:
        if pair.n == 1:
            return f"{lead}, which may be seed noise: one seed cannot tell"
        return f"{lead} in each of {pair.n} seeds; without any spread, no p-value can be computed"
    low, high = sorted((summary.sign * pair.low, summary.sign * pair.high))
    significant = is_significant(pair.p_holm)
    noise = "more than seed noise explains" if significant else "no more than seed noise explains"
    if low > 0 and not significant:  # the interval is not corrected for the other pairs
        noise = f"which seed noise can explain when {pairs} pairs are compared"
    interval = f"95% interval {signed(low, places)} to {signed(high, places)}"
    p = f"p {p_text(pair.p_holm)}"
    if pairs > 1:
        interval, p = f"uncorrected {interval}", f"{p} after Holm's correction for {pairs} pairs"
    return f"{lead}, {noise} (paired by seed, {interval}; {p})"


def _untrained(tests: dict[str, Scores], metric: str, value: str) -> str:
    """Return the finding where the best optimizer diverged in every seed."""
    best, test = next(iter(tests.items()))
    if all(scores.diverged == scores.n for scores in tests.values()):
        runs = sum(scores.n for scores in tests.values())
        return (
            f"Nothing trained: all {runs} confirmation runs diverged, so the scores are of untrained networks"
        )
    return (
        f"{best} did not train: all {test.n} of its confirmation runs diverged, and it ranks first only "
        f"because no other optimizer beat the untrained network's test {metric}, {value}"
    )


def _not_covered(summary: Summary) -> str:
    """Return what the intervals and p-values leave out: the choice of settings, and the test examples."""
    seeds = max(entry.chosen.valid.n for entry in summary.optimizers.values())
    examples = counted(summary.test_examples, "example")
    one = f", one of them is {100 / summary.test_examples:.2g} points" if summary.unit == "%" else ""
    return (
        f"Not covered: tuning was done once ({counted(seeds, 'seed')}), and the test set has {examples}{one}."
    )


def _cautions(summary: Summary) -> list[str]:
    cautions = []
    for name, failures in failures_by_optimizer(summary).items():
        why = textwrap.shorten(failures[0].why, 200, placeholder=" \N{HORIZONTAL ELLIPSIS}").rstrip(".")
        first = f"the first: {why}" if len(failures) > 1 else why
        cautions.append(f"NO RESULT: {name}, because {counted(len(failures), 'run')} failed ({first})")
    if summary.reduced:
        cautions.append(
            f"REDUCED STUDY: {reduction(summary.reduced)} (--budget {summary.reduced.budget}; run it without "
            "--budget to complete it)"
        )
    if sizes := unequal_grids(summary):
        cautions.append(f"CAUTION: unequal budgets, grid points tried: {sizes}")
    cautions += [
        f"CAUTION: the best {edge.axis} of {edge.optimizer}, {edge.value}, is the {edge.which} tried, on the "
        f"edge of its grid; {edge.reason}"
        for edge in edges(summary)
    ]
    counts = []
    for name in rank(summary):
        grid, test = summary.optimizers[name].grid, summary.optimizers[name].test
        counts.append((grid.diverged, f"of {grid.runs} tuning runs of {name}"))
        if test:
            counts.append((test.diverged, f"of {test.n} confirmation runs of {name}"))
    diverged = ", ".join(f"{count} {runs}" for count, runs in counts if count)
    return cautions + ([f"diverged: {diverged}"] if diverged else [])

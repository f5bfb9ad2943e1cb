"""The summary of a study in words: the ranking, the edges of grids, and the verdict."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from dualavg_bench.analysis.formatting import (
    MINUS,
    counted,
    listed,
    p_text,
    plain,
    score_places,
    signed,
    with_error,
)
from dualavg_bench.analysis.selection import rounded
from dualavg_bench.analysis.statistics import is_significant
from dualavg_bench.store.summaries import Comparison, FailedRun, NumericAxis, Reduced, Scores, Summary

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


@dataclass(frozen=True)
class Verdict:
    """The answer of a study, in sentences; as a string, all of them in a row."""

    headline: str  # "adam wins by ..., certain to 95%." or "No winner: ..."
    evidence: str  # scores, interval and p
    cautions: list[str]  # what may change the answer
    diverged: str  # how many runs of each optimizer, or ""
    limits: str  # what the interval leaves out, or ""

    def __str__(self) -> str:
        parts = [self.headline, self.evidence, *self.cautions, self.diverged, self.limits]
        return " ".join(part for part in parts if part)


def verdict(summary: Summary) -> Verdict:
    """Return who wins or that nobody does, how certain it is, every reason for doubt, what is not covered."""
    headline, evidence = _finding(summary)
    limits = _not_covered(summary) if summary.confirmed else ""
    return Verdict(headline, evidence, _cautions(summary), _diverged(summary), limits)


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


def reduced_study(summary: Summary) -> str:
    """Return what a study with a budget has of the whole one, and how to complete it; "" if it is whole."""
    if not summary.reduced:
        return ""
    budget = f"--budget {summary.reduced.budget}; run it without --budget to complete it"
    return f"{reduction(summary.reduced)} ({budget})"


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


def places(summary: Summary) -> int:
    """Return the decimals of all scores and differences of a study."""
    return score_places(summary.confirmed.values(), summary.comparisons)


def winner(best: str, pairs: Sequence[tuple[Comparison, float | None]]) -> str | None:
    """Return the best optimizer if it is ahead of every other one, certain to 95%, else None.

    Args:
        best: the optimizer with the best mean.
        pairs: the comparisons, each with its corrected p.
    """
    ahead = [is_significant(p) for pair, p in pairs if pair.a == best]
    return best if ahead and all(ahead) else None


def _finding(summary: Summary) -> tuple[str, str]:
    """Return the headline, and the numbers that it rests on."""
    tests, digits = summary.confirmed, places(summary)
    order = [name for name in rank(summary) if name in tests]
    if not order:
        return (
            "No winner: nothing is confirmed yet.",
            "There are tuning runs, but no test scores on fresh seeds.",
        )
    metric, unit = f"test {summary.metric}", summary.unit if summary.unit in ("", "%") else f" {summary.unit}"
    best, test = order[0], tests[order[0]]
    value = f"{with_error(test, digits)}{unit} (mean ± standard error, n = {test.n})"
    if test.diverged == test.n:
        return _untrained({name: tests[name] for name in order}, metric, value)
    if len(order) == 1:
        reason = "no other optimizer has a result" if summary.failures else "no other optimizer was run"
        return f"No winner: only {best} has a result.", f"Its {metric} is {value}; {reason}."
    if len(tied := leaders(summary)) > 1:
        mean = f"{plain(test.mean, digits)}{unit} (n = {test.n})"
        return f"No winner: {listed(tied)} tie.", f"Each has a mean {metric} of {mean}."
    return _lead(summary, best, digits, unit)


def _lead(summary: Summary, best: str, digits: int, unit: str) -> tuple[str, str]:
    """Return whether the best is ahead of all others, and by how much of the closest one."""
    pairs = [pair for pair in summary.comparisons if pair.a == best]
    # The second, or the first one whose distance can be chance.
    pair = next((pair for pair in pairs if not is_significant(pair.p_holm)), pairs[0])
    unit = " points" if unit == "%" else unit
    lead = plain(summary.sign * pair.difference, digits)
    if float(lead.replace(MINUS, "-")) == 0:
        lead = f"less than {10**-digits:.{digits}f}"
    lead = f"{lead}{unit} in test {summary.metric}"
    scores = [f"{name} {with_error(summary.confirmed[name], digits)}" for name in (best, pair.b)]
    evidence = f"{', '.join(scores)} (mean ± standard error, n = {pair.n})."
    if pair.p_holm is None or pair.low is None or pair.high is None:
        reason = (
            "one seed cannot tell whether that is chance"
            if pair.n == 1
            else f"it is the same in all {pair.n} seeds, so no test is possible"
        )
        return f"No winner: {best} leads {pair.b} by {lead}, and {reason}.", evidence
    low, high = sorted((summary.sign * pair.low, summary.sign * pair.high))
    ends = [signed(end, digits) if low < 0 else plain(end, digits) for end in (low, high)]
    p, others = f"p {p_text(pair.p_holm)}", len(summary.comparisons)
    if others > 1:
        p += f" after correction for {others} pairs"
    evidence += f" The lead is between {ends[0]} and {ends[1]} (95% interval, paired by seed; {p})."
    if winner(best, [(each, each.p_holm) for each in pairs]):
        return f"{best} wins by {lead} over {pair.b}, certain to 95%.", evidence
    chance = "which can be chance"
    if low > 0:  # the interval is not corrected for the other pairs
        chance += f" when {others} pairs are compared"
    return f"No winner: {best} leads {pair.b} by {lead}, {chance}.", evidence


def _untrained(tests: dict[str, Scores], metric: str, value: str) -> tuple[str, str]:
    """Return the finding where the best optimizer diverged in every seed."""
    best, test = next(iter(tests.items()))
    if all(scores.diverged == scores.n for scores in tests.values()):
        runs = sum(scores.n for scores in tests.values())
        return (
            "No winner: nothing trained.",
            f"All {runs} confirmation runs diverged, so the scores are of untrained networks.",
        )
    return (
        f"No winner: {best} ranks first, but did not train.",
        f"Its {test.n} confirmation runs diverged, and no other one beat the untrained {metric}, {value}.",
    )


def _not_covered(summary: Summary) -> str:
    """Return what the intervals and p-values leave out: the choice of settings, and the test examples."""
    seeds = max(entry.chosen.valid.n for entry in summary.optimizers.values())
    examples = counted(summary.test_examples, "example")
    one = f", one of them is {100 / summary.test_examples:.2g} points" if summary.unit == "%" else ""
    best = " Scores are of the best network of each run by validation." if summary.report == "best" else ""
    return (
        f"Not covered: tuning was done once ({counted(seeds, 'seed')}), and the test set has {examples}{one}."
        f"{_tied_settings(summary)}{best}"
    )


def _tied_settings(summary: Summary) -> str:
    """Return which settings of an optimizer have the same validation score as the chosen one."""
    found = []
    for name in rank(summary):
        valid = summary.optimizers[name].chosen.valid
        tied = [
            point.lr
            for point in summary.sensitivity[name]
            if rounded(point.mean) == rounded(valid.mean) and point.diverged == valid.diverged
        ]
        if len(lrs := sorted(set(tied))) > 1:
            found.append(f"{name} with lr {listed([f'{lr:g}' for lr in lrs])}")
    return f" Equal on validation, the smaller was taken: {'; '.join(found)}." if found else ""


def _cautions(summary: Summary) -> list[str]:
    cautions = []
    for name, failures in failures_by_optimizer(summary).items():
        why = textwrap.shorten(failures[0].why, 200, placeholder=" \N{HORIZONTAL ELLIPSIS}").rstrip(".")
        first = f"the first: {why}" if len(failures) > 1 else why
        cautions.append(f"NO RESULT: {name}, because {counted(len(failures), 'run')} failed ({first}).")
    if reduced := reduced_study(summary):
        cautions.append(f"REDUCED STUDY: {reduced}.")
    if sizes := unequal_grids(summary):
        cautions.append(f"CAUTION: not the same number of settings was tried: {sizes}.")
    cautions += [
        f"CAUTION: the best {edge.axis} of {edge.optimizer}, {edge.value}, is the {edge.which} tried, and a "
        f"{edge.beyond} one may be better; {edge.reason}."
        for edge in edges(summary)
    ]
    return cautions


def _diverged(summary: Summary) -> str:
    counts = []
    for name in rank(summary):
        grid, test = summary.optimizers[name].grid, summary.optimizers[name].test
        counts.append((grid.diverged, f"of {grid.runs} tuning runs of {name}"))
        if test:
            counts.append((test.diverged, f"of {test.n} confirmation runs of {name}"))
    diverged = ", ".join(f"{count} {runs}" for count, runs in counts if count)
    return f"Diverged: {diverged}." if diverged else ""

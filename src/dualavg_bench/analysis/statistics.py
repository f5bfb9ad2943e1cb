"""Means with standard errors, paired differences with intervals, and Holm's correction."""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean

from dualavg_bench.analysis.scores import Split, check_unique, score
from dualavg_bench.recipe import Report
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Comparison, Scores, Statistics

ALPHA = 0.05
Interval = tuple[float | None, float | None, float | None]  # low, high, p


def describe(values: Iterable[float]) -> Statistics:
    """Return mean, standard error and n; one value has no standard error.

    >>> describe([1.0, 2.0, 3.0])
    Statistics(mean=2.0, se=0.5773502691896257, n=3)
    >>> describe([1.0])
    Statistics(mean=1.0, se=None, n=1)
    """
    known = list(values)
    if not known:
        raise ValueError("There are no values to describe.")
    n, mean = len(known), fmean(known)
    # s.e. = sqrt(sum (x - mean)^2 / (n - 1) / n)
    se = math.sqrt(math.fsum((x - mean) ** 2 for x in known) / (n - 1) / n) if n > 1 else None
    return Statistics(mean=mean, se=se, n=n)


def describe_runs(runs: Sequence[RunResult], split: Split, report: Report | None = None) -> Scores:
    """Return the statistics of the scores of runs."""
    described = describe(score(run, split, report) for run in runs)
    diverged, hashes = sum(run.diverged for run in runs), [run.hash for run in runs]
    return Scores(**dict(described), diverged=diverged, runs=hashes)


def compare(runs: Sequence[RunResult], split: Split = "test") -> list[Comparison]:
    """Compare every pair of optimizers, paired by seed, from the best optimizer to the worst.

    Where a t test is impossible (one seed, or the same non-zero difference in every seed), interval and p are
    None. Such a pair still counts in Holm's correction. Intervals are not corrected.
    """
    if not runs:
        return []
    check_unique(runs, key=lambda run: (run.optimizer, run.seed))
    by_seed: dict[str, dict[int, RunResult]] = {}
    for run in runs:
        by_seed.setdefault(run.optimizer, {})[run.seed] = run
    seeds = sorted({run.seed for run in runs})
    for name, own in by_seed.items():
        if missing := [seed for seed in seeds if seed not in own]:
            raise ValueError(
                f"The runs do not pair up: {name} lacks the confirmation seeds {missing} that others have. "
                "Finish the study first."
            )
    scores = {name: [score(own[seed], split) for seed in seeds] for name, own in by_seed.items()}
    sign = 1 if runs[0].higher_is_better and split != "train" else -1
    order = sorted(scores, key=lambda name: (-sign * fmean(scores[name]), name))
    pairs = list(combinations(order, 2))
    intervals = [paired_interval(scores[a], scores[b]) for a, b in pairs]
    corrected = holm([p for _, _, p in intervals])
    return [
        Comparison(
            a=a,
            b=b,
            difference=fmean(x - y for x, y in zip(scores[a], scores[b], strict=True)),
            low=low,
            high=high,
            p=p,
            p_holm=p_holm,
            n=len(seeds),
            seeds=seeds,
            runs=[by_seed[name][seed].hash for name in (a, b) for seed in seeds],
        )
        for (a, b), (low, high, p), p_holm in zip(pairs, intervals, corrected, strict=True)
    ]


def paired_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return the 95% t interval of the mean of a - b, and p; None for each where a t test is impossible."""
    from scipy import stats

    differences = [x - y for x, y in zip(a, b, strict=True)]
    rounding = 1e-12 * max(map(abs, [*a, *b]))  # a - b within it is zero
    if len(differences) > 1 and max(map(abs, differences)) <= rounding:
        return 0.0, 0.0, 1.0
    if len(differences) == 1 or max(differences) - min(differences) <= rounding:
        return None, None, None
    test = stats.ttest_rel(a, b)
    interval = test.confidence_interval(1 - ALPHA)
    return float(interval.low), float(interval.high), float(test.pvalue)


def equivalence_p(a: Sequence[float], b: Sequence[float], margin: float) -> float | None:
    """Test whether the mean of a - b is within or beyond ±margin; return p, or None without a t test.

    Two one-sided t tests (TOST) reject "beyond", their mirror images reject "within". p is twice the smaller
    one, so p < 5% if and only if the 95% interval is entirely within the margin, or entirely beyond it.
    """
    from scipy import stats

    low, high, _ = paired_interval(a, b)
    if low is None or low == high:
        return None if low is None else 0.0  # no test; all differences are zero
    differences = [x - y for x, y in zip(a, b, strict=True)]

    def p(bound: float, side: str) -> float:
        return float(stats.ttest_1samp(differences, bound, alternative=side).pvalue)

    within = max(p(-margin, "greater"), p(margin, "less"))
    beyond = min(p(-margin, "less"), p(margin, "greater"))
    return min(1.0, 2 * min(within, beyond))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down correction; None (no test) stays None and still counts as a claim.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected: list[float | None] = [None] * len(ps)
    largest = 0.0
    tested = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    for k, (p, i) in enumerate(tested):
        # p_(k) (m - k + 1), made monotone: no claim may be firmer than one with a smaller p.
        largest = max(largest, min(1.0, p * (len(ps) - k)))
        corrected[i] = largest
    return corrected


def is_significant(p_holm: float | None) -> bool:
    """Return whether a difference is significant at the 5% level, after Holm's correction."""
    return p_holm is not None and p_holm < ALPHA

"""Who is ahead at which run length: every optimizer against the best other one.

They are paired by seed, with Holm's correction over all pairs of all lengths. An optimizer is ahead or behind
if the difference is significant, else within seed noise, which is no evidence that the two are equal. One of
which all runs diverged is behind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dualavg_bench.analysis.statistics import holm, is_significant
from dualavg_bench.store.horizons import Horizon, Length
from dualavg_bench.store.summaries import Comparison

Relation = Literal["ahead", "within noise", "behind", "not tested"]


@dataclass(frozen=True)
class Standing:
    """An optimizer at one length against the best other one: a positive advantage is better in any metric.

    `low` and `high` are a 95% interval, None without a t test. `p_holm` is corrected over all pairs of all
    lengths.
    """

    steps: int
    optimizer: str
    rival: str
    advantage: float
    low: float | None
    high: float | None
    p_holm: float | None
    n: int
    diverged: bool = False  # in all runs

    @property
    def relation(self) -> Relation:
        """Whether the optimizer is ahead of its rival."""
        if self.diverged:
            return "behind"
        if self.p_holm is None:
            return "not tested"
        if not is_significant(self.p_holm):
            return "within noise"
        return "ahead" if self.advantage > 0 else "behind"


def rank(length: Length, sign: int) -> list[str]:
    """Return the optimizers that have a test score, from best to worst."""
    tests = length.confirmed
    return sorted(tests, key=lambda name: (-sign * tests[name].mean, name))


def leaders(length: Length, sign: int) -> list[str]:
    """Return the best optimizer, and those that tie with it: equal means up to rounding."""
    tests, order = length.confirmed, rank(length, sign)
    return [name for name in order if math.isclose(tests[name].mean, tests[order[0]].mean, rel_tol=1e-12)]


def optimizers(horizon: Horizon) -> list[str]:
    """Return all optimizers: by their rank at the longest length at which they have a score, then by name."""
    ranked = [name for length in reversed(horizon.lengths) for name in rank(length, horizon.sign)]
    others = sorted({name for length in horizon.lengths for name in (*length.optimizers, *length.failed)})
    return list(dict.fromkeys([*ranked, *others]))


def standings(horizon: Horizon) -> list[Standing]:
    """Return every optimizer at every length at which it can be compared, from short to long, best first."""
    corrected, found = corrected_ps(horizon), []
    for length in horizon.lengths:
        order = rank(length, horizon.sign)
        pairs = {frozenset((pair.a, pair.b)): pair for pair in length.comparisons}
        for name in order if len(order) > 1 else []:
            rival = order[1] if name == order[0] else order[0]
            pair = pairs[frozenset((name, rival))]
            p = corrected[length.steps, pair.a, pair.b]
            standing = _standing(length.steps, name, rival, pair, p, horizon.sign)
            test = length.confirmed[name]
            found.append(replace(standing, diverged=test.diverged == test.n))
    return found


def keeps_up_from(own: Sequence[Standing]) -> int | None:
    """Return the shortest length from which on an optimizer is never behind; None if it is at the longest.

    Args:
        own: the standings of one optimizer, from short to long.
    """
    steps = None
    for standing in reversed(own):
        if standing.relation not in ("ahead", "within noise"):
            break
        steps = standing.steps
    return steps


def corrected_ps(horizon: Horizon) -> dict[tuple[int, str, str], float | None]:
    """Return Holm's p over all pairs of all lengths, by length and pair."""
    pairs = [(length.steps, pair) for length in horizon.lengths for pair in length.comparisons]
    ps = holm([pair.p for _, pair in pairs])
    return {(steps, pair.a, pair.b): p for (steps, pair), p in zip(pairs, ps, strict=True)}


def _standing(
    steps: int, name: str, rival: str, pair: Comparison, p_holm: float | None, sign: int
) -> Standing:
    sign = sign if pair.a == name else -sign
    low, high = pair.low, pair.high
    if low is not None and high is not None:
        low, high = sorted((sign * low, sign * high))
    return Standing(steps, name, rival, sign * pair.difference, low, high, p_holm, pair.n)

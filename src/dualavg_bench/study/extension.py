"""More grid points for every optimizer alike, while the best step size of one lies on the edge of its grid.

Optimizers may have grids of different shapes, such as eight step sizes with one schedule and four with two. A
further step size is tried with every weight decay and schedule of its grid, so each optimizer gets as many
further step sizes as it takes to give all of them the same number of points.
"""

import math
from collections.abc import Iterable, Sequence

from dualavg_bench.analysis.selection import select
from dualavg_bench.recipe import Point
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Chosen

MOST_EXTENSIONS = 3
FACTOR = 3.0  # between step sizes, where a grid has one alone and so no factor of its own


def further_points(runs: Sequence[RunResult], points: dict[str, list[Point]]) -> dict[str, list[Point]]:
    """Return what each grid gets, equally many points; nothing if every best lr is inside its grid.

    Further out where the best lr is the outermost; else between the best and its neighbours, the better one
    first.
    """
    best = select(runs)
    if not any("lr" in best[name].edge for name in points):
        return {}
    others = {name: sorted({(p.weight_decay, p.schedule) for p in mine}) for name, mine in points.items()}
    each = math.lcm(*map(len, others.values()))
    return {
        name: [
            Point(lr, *other)
            for lr in _more(runs, name, best[name], each // len(others[name]))
            for other in others[name]
        ]
        for name in points
    }


def _more(runs: Sequence[RunResult], name: str, best: Chosen, count: int) -> list[float]:
    """Return as many further step sizes as asked for, none of which was tried."""
    mine = [run for run in runs if run.optimizer == name]
    lrs = sorted({run.lr for run in mine})
    lr, place = best.lr, lrs.index(best.lr)
    if len(lrs) == 1:
        factors = (FACTOR ** (k // 2 + 1 if k % 2 == 0 else -(k // 2 + 1)) for k in range(count))
        return _distinct((lr * factor for factor in factors), lrs)
    if "lr" in best.edge:
        factor = lr / (lrs[1] if place == 0 else lrs[-2])
        return _distinct((lr * factor**k for k in range(1, count + 1)), lrs)
    sides = sorted((lrs[place - 1], lrs[place + 1]), key=lambda other: _badness(mine, other))
    shares = ((sides[0], (count + 1) // 2), (sides[1], count // 2))
    return _distinct(
        (lr * (other / lr) ** (k / (n + 1)) for other, n in shares for k in range(1, n + 1)), lrs
    )


def _badness(mine: Sequence[RunResult], lr: float) -> tuple[bool, float]:
    """How a step size compares with others: smaller is better."""
    (best,) = select([run for run in mine if run.lr == lr]).values()
    sign = 1 if mine[0].higher_is_better else -1
    return best.valid.diverged > 0, -sign * best.valid.mean


def _distinct(values: Iterable[float], taken: Sequence[float]) -> list[float]:
    """These values in three digits, or as many as it takes to tell each from those that are taken."""
    made: list[float] = []
    for value in values:
        rounded = (float(f"{value:.{digits}g}") for digits in range(3, 18))
        made.append(next(short for short in rounded if short not in (*taken, *made)))
    return made

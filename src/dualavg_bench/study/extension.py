"""Further grid points for every optimizer, while the best step size of any is at the end of its grid.

Grids can have different shapes, such as eight step sizes with one schedule and four with two. A further step
size is tried with every weight decay and schedule of its grid. Each optimizer gets so many further step sizes
that all get the same number of points.
"""

import math
from collections.abc import Iterable, Sequence

from dualavg_bench.analysis.selection import select
from dualavg_bench.recipe import Point
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Chosen

MOST_EXTENSIONS = 3
FACTOR = 3.0  # between step sizes, for a grid with a single one


def further_points(runs: Sequence[RunResult], points: dict[str, list[Point]]) -> dict[str, list[Point]]:
    """Return the further points of each grid, the same number for all; {} if no best lr is at an end.

    They lie beyond the end of the grid if the best lr is there; else between the best lr and its neighbours,
    the better neighbour first.
    """
    best = select(runs)
    if not any("lr" in best[name].edge for name in points):
        return {}
    others = {name: sorted({(p.weight_decay, p.schedule) for p in grid}) for name, grid in points.items()}
    count = math.lcm(*map(len, others.values()))
    return {
        name: [
            Point(lr, *other)
            for lr in _further_lrs(
                [run for run in runs if run.optimizer == name], best[name], count // len(others[name])
            )
            for other in others[name]
        ]
        for name in points
    }


def _further_lrs(runs: Sequence[RunResult], best: Chosen, count: int) -> list[float]:
    """Return `count` step sizes that an optimizer has not tried; `runs` are its own."""
    lrs = sorted({run.lr for run in runs})
    lr, place = best.lr, lrs.index(best.lr)
    if len(lrs) == 1:
        factors = (FACTOR ** (k // 2 + 1 if k % 2 == 0 else -(k // 2 + 1)) for k in range(count))
        return _distinct((lr * factor for factor in factors), lrs)
    if "lr" in best.edge:
        factor = lr / (lrs[1] if place == 0 else lrs[-2])
        return _distinct((lr * factor**k for k in range(1, count + 1)), lrs)
    sides = sorted((lrs[place - 1], lrs[place + 1]), key=lambda other: _badness(runs, other))
    counts = ((sides[0], (count + 1) // 2), (sides[1], count // 2))
    return _distinct((lr * (side / lr) ** (k / (n + 1)) for side, n in counts for k in range(1, n + 1)), lrs)


def _badness(runs: Sequence[RunResult], lr: float) -> tuple[bool, float]:
    """Return a key that sorts better step sizes first."""
    (best,) = select([run for run in runs if run.lr == lr]).values()
    sign = 1 if runs[0].higher_is_better else -1
    return best.valid.diverged > 0, -sign * best.valid.mean


def _distinct(values: Iterable[float], taken: Sequence[float]) -> list[float]:
    """Round to three digits, or to more where a value would equal another or one that is taken."""
    distinct: list[float] = []
    for value in values:
        rounded = (float(f"{value:.{digits}g}") for digits in range(3, 18))
        distinct.append(next(short for short in rounded if short not in (*taken, *distinct)))
    return distinct

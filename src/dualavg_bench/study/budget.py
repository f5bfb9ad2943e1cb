"""`--budget`: how much of a study fits into a given time. Finished runs are kept: it can be completed later.

Seeds are given up first, then grid points, never steps:

    tuning seeds down to 1, confirmation seeds down to 3, step sizes down to 3, then to 2

Every optimizer keeps the same number of grid points. Of the step sizes, the smallest and the largest stay,
then those farthest from them. A smaller choice is a part of a larger one, so that its runs are used again.

The time of a run is estimated from a few steps, see `run.trial`. The time that the first tuning seed takes
corrects the estimate, and the study is planned again. Whether grids are extended, and how many confirmation
seeds there are, is decided when it is their turn.
"""

import contextlib
import heapq
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from dualavg_bench.analysis.formatting import counted, duration
from dualavg_bench.analysis.selection import select
from dualavg_bench.analysis.verdict import reduction
from dualavg_bench.recipe import Grid, Point, Seeds
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.run.trial import Cost
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Reduced, Summary
from dualavg_bench.study.failures import StudyFailed
from dualavg_bench.study.study import Execute, Study

LEAST_CONFIRMED, LEAST_LRS, GOOD_LRS = 3, 2, 3
UNITS = {"s": 1, "m": 60, "h": 3600}
FIRST_RUNS = 4.0  # seconds until workers have imported what a run needs
REPORT = 3.0  # seconds to write the page
SHORT = 2.0  # seconds: shorter phases say nothing about the estimate
MARGIN = 1.25  # runs at the same time slow each other down


@dataclass(frozen=True)
class Budget:
    """The time that a command may take, such as "10m", from `started` on."""

    text: str
    seconds: float
    started: float

    @classmethod
    def parse(cls, text: str, started: float) -> "Budget":
        """Read a time; it runs since `started`, of time.monotonic()."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
        if found is None or not float(found[1]):
            raise ValueError(f"--budget must be a time such as 90s, 10m or 2h, got {text!r}.")
        return cls(text, float(found[1]) * UNITS[found[2]], started)


@dataclass
class Allowance:
    """What a study may do in its budget.

    Args:
        budget: the time.
        whole: the study without a budget.
        costs: the seconds of a run, by optimizer.
        workers: that execute runs at the same time.
    """

    budget: Budget
    whole: Study
    costs: Mapping[str, Cost]
    workers: int
    correction: float = MARGIN  # of `costs`, by the time that runs took
    workers_started: bool = False
    extension_refused: bool = False
    results: dict[str, RunResult | None] = field(default_factory=dict)  # by the hash of a run

    def run(
        self, execute: Execute, *, extend: bool, notify: Callable[[str], None]
    ) -> tuple[Summary, list[RunResult]]:
        """Run the part of the study that fits; `notify` prints what it is, and again if the plan changes."""
        planned, measured = self.plan(), self.measured(execute)
        notify(self.describe(planned))
        if first := self.first_seed(planned):
            with contextlib.suppress(StudyFailed):  # reported when they fail again
                measured(first)
            planned = self.plan()
            notify(self.describe(planned))
        return planned.run(measured, extend=extend, workers=self.workers, limit=self)

    def plan(self) -> Study:
        """Return the largest part of the study that fits; raise a one-line error if none does."""
        needed = 0.0
        for study, seeds in _parts(self.whole):
            needed = self._needed(study, seeds)
            if needed <= self._left() or not self._missing(study.tuning(study.points())):
                return study
        lrs = " or ".join(sorted({str(len(study.recipe.grids[name].lr)) for name in study.names}))
        optimizers, then = counted(len(study.names), "optimizer"), counted(seeds, "seed")
        needed += time.monotonic() - self.budget.started + REPORT  # with the time until now
        raise ValueError(
            f"--budget {self.budget.text} is too short: the smallest study of {study.recipe.name}, {lrs} "
            f"step sizes with 1 seed and then {then} for each of {optimizers}, takes about "
            f"{duration(needed)} on {counted(self.workers, 'worker')}. "
            "Fewer optimizers take less: --optimizers."
        )

    def describe(self, study: Study) -> str:
        """Return what a planned study has of the whole one, and how long it takes."""
        seeds = next(n for n in self._confirmation_seeds() if n == self._least or self._fits(study, n))
        left_out = self.reduced(study, seeds)
        estimate = f"about {duration(self._needed(study, seeds) + REPORT)} to go (an estimate)"
        if left_out is None:
            return f"budget {self.budget.text}: the whole study fits, {estimate}"
        lines = [f"budget {self.budget.text}: {reduction(left_out)}; {estimate}"]
        for name, points in self.whole.points().items():
            missing = sorted({point.lr for point in points} - set(study.recipe.grids[name].lr))
            lines += [f"  {name} without lr {', '.join(f'{lr:g}' for lr in missing)}"] if missing else []
        return "\n".join([*lines, "  run it later without --budget to complete it: finished runs are kept"])

    def first_seed(self, study: Study) -> list[RunSpec]:
        """Return the runs after which a study is planned again; none if it has a single tuning seed."""
        return (
            [spec for spec in study.tuning(study.points()) if spec.seed == 0]
            if study.recipe.seeds.tune > 1
            else []
        )

    def measured(self, execute: Execute) -> Execute:
        """Return a function that executes runs, and corrects the estimate by the time that they take."""

        def executing(specs: Sequence[RunSpec]) -> list[RunResult]:
            expected, started = self._time(specs), time.monotonic()
            results = execute(specs)
            if expected > SHORT:
                self.correction *= (time.monotonic() - started) / expected
            self.workers_started = True
            return results

        return executing

    def may_extend(self, study: Study, points: dict[str, list[Point]], tuned: Sequence[RunResult]) -> bool:
        """Return whether there is time to tune these further points, and to confirm."""
        choice = {name: chosen.point for name, chosen in select(tuned).items() if name in points}
        confirmation = study.confirmation(choice, self._least)
        self.extension_refused = self._time(study.tuning(points)) + self._time(confirmation) > self._left()
        return not self.extension_refused

    def confirmation_seeds(self, study: Study, choice: dict[str, Point]) -> int:
        """Return the number of confirmation seeds that there is time for; three in any case."""
        fitting = (
            n for n in self._confirmation_seeds() if self._time(study.confirmation(choice, n)) <= self._left()
        )
        return next(fitting, self._least)

    def reduced(self, study: Study, confirmation_seeds: int) -> Reduced | None:
        """Return what a study has of the whole one; None if it has all of it."""
        seeds, name = self.whole.recipe.seeds, self.whole.names[0]
        kept = Reduced(
            budget=self.budget.text,
            tuning_seeds=(study.recipe.seeds.tune, seeds.tune),
            grid_points=(len(study.points()[name]), len(self.whole.points()[name])),
            confirmation_seeds=(confirmation_seeds, seeds.confirm),
            extension_refused=self.extension_refused,
        )
        return kept if kept.is_reduced else None

    @property
    def _least(self) -> int:
        return min(LEAST_CONFIRMED, self.whole.recipe.seeds.confirm)

    def _confirmation_seeds(self) -> range:
        """Return the numbers of confirmation seeds to try, the largest first."""
        return range(self.whole.recipe.seeds.confirm, self._least - 1, -1)

    def _fits(self, study: Study, seeds: int) -> bool:
        return self._needed(study, seeds) <= self._left()

    def _needed(self, study: Study, seeds: int) -> float:
        """Return the seconds that tuning and confirmation take, as far as their runs have not finished.

        Which settings will be confirmed is not known yet: the best of the finished runs, if there are any.
        """
        points = study.points()
        tuning = study.tuning(points)
        finished = [result for spec in tuning if (result := self._result(spec))]
        best = {name: chosen.point for name, chosen in select(finished).items()} if finished else {}
        choice = {name: best.get(name, points[name][0]) for name in points}
        return self._time(tuning) + self._time(study.confirmation(choice, seeds))

    def _time(self, specs: Sequence[RunSpec]) -> float:
        """Return the seconds until the workers have executed runs; each takes the next when it is free.

        All wait until the network that runs start from is trained.
        """
        busy = [self._start_time(specs)] * self.workers
        for spec in self._missing(specs):
            cost = self.costs[spec.optimizer]
            heapq.heapreplace(busy, busy[0] + (cost.confirmation if spec.test else cost.tuning))
        starting = FIRST_RUNS if max(busy) and not self.workers_started and not specs[0].test else 0.0
        return starting + self.correction * max(busy)

    def _start_time(self, specs: Sequence[RunSpec]) -> float:
        recipe, missing = self.whole.recipe, self._missing(specs)
        trained = not specs or specs[0].test  # by the tuning runs before
        if trained or not missing or missing[0].start is None or recipe.start is None:
            return 0.0
        folder = RunFolder.of(self.whole.out, recipe.start.name, missing[0].start.hash)
        return 0.0 if folder.result() else self.costs[missing[0].optimizer].start

    def _missing(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        return [spec for spec in specs if self._result(spec) is None]

    def _result(self, spec: RunSpec) -> RunResult | None:
        if self.results.get(spec.hash) is None:
            folder = RunFolder.of(self.whole.out, self.whole.recipe.name, spec.hash)
            self.results[spec.hash] = folder.result()
        return self.results[spec.hash]

    def _left(self) -> float:
        return self.budget.started + self.budget.seconds - REPORT - time.monotonic()


def _parts(study: Study) -> Iterator[tuple[Study, int]]:
    """Return ever smaller parts of a study, and the number of confirmation seeds to keep time for."""
    seeds, grids = study.recipe.seeds, {name: study.recipe.grids[name] for name in study.names}
    for tune in range(seeds.tune, 0, -1):
        yield _part(study, tune, grids), seeds.confirm
    least = min(LEAST_CONFIRMED, seeds.confirm)
    for confirm in range(seeds.confirm - 1, least - 1, -1):
        yield _part(study, 1, grids), confirm
    for smaller in smaller_grids(grids):
        yield _part(study, 1, smaller), least


def _part(study: Study, tune: int, grids: dict[str, Grid]) -> Study:
    recipe = study.recipe
    seeds = Seeds(tune=tune, confirm=recipe.seeds.confirm)
    adapt = {name: recipe.adapt[name] for name in recipe.adapt if name in grids}
    return replace(study, recipe=replace(recipe, seeds=seeds, grids=grids, adapt=adapt))


def smaller_grids(grids: Mapping[str, Grid]) -> Iterator[dict[str, Grid]]:
    """Return ever smaller parts of grids, in which every optimizer has the same number of points.

    Those with fewer than three step sizes come last, none has fewer than two. An optimizer gives up weight
    decays and schedules before step sizes.
    """
    shapes = {name: _shapes(grid) for name, grid in grids.items()}
    sizes = sorted(set.intersection(*(set(shape) for shape in shapes.values())), reverse=True)[1:]
    good = [
        size
        for size in sizes
        if all(shapes[name][size][0] >= min(GOOD_LRS, len(grid.lr)) for name, grid in grids.items())
    ]
    for size in good + [size for size in sizes if not good or size < good[-1]]:
        yield {name: _thinned(grid, *shapes[name][size]) for name, grid in grids.items()}


def _shapes(grid: Grid) -> dict[int, tuple[int, int, int]]:
    """Return the numbers of step sizes, weight decays and schedules by number of points: most step sizes."""
    lengths = len(grid.lr), len(grid.weight_decay or (0.0,)), len(grid.schedule)
    ranges = (range(1, length + 1) for length in lengths)
    shapes = sorted(shape for shape in product(*ranges) if shape[0] >= min(LEAST_LRS, lengths[0]))
    return {lrs * decays * schedules: (lrs, decays, schedules) for lrs, decays, schedules in shapes}


def _thinned(grid: Grid, lrs: int, decays: int, schedules: int) -> Grid:
    by_size = sorted(grid.lr)
    kept = {by_size[i] for i in _spread(len(by_size), lrs)}
    decay = grid.weight_decay and tuple(grid.weight_decay[i] for i in _spread(len(grid.weight_decay), decays))
    return replace(
        grid,
        lr=tuple(lr for lr in grid.lr if lr in kept),
        weight_decay=decay,
        schedule=grid.schedule[:schedules],
    )


def _spread(n: int, count: int) -> list[int]:
    """Return some of the places 0 to n - 1: both ends, then always the one farthest from those.

    Examples:
        >>> _spread(8, 2), _spread(8, 3), _spread(8, 4)
        ([0, 7], [0, 3, 7], [0, 3, 5, 7])
    """
    chosen = [0, n - 1][: min(n, count)]
    while len(chosen) < count:
        chosen.append(max(range(n), key=lambda i: min(abs(i - j) for j in chosen)))
    return sorted(chosen)

"""The summary of a study: the schema of `summary.json`. Every number has its n and the hashes of its runs."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import isclose
from statistics import fmean
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, NonNegativeFloat, PositiveInt, model_validator

from dualavg_bench.recipe.settings import Report
from dualavg_bench.scales import Scale
from dualavg_bench.store.documents import Count, Document, Hash, Model, Setting
from dualavg_bench.store.results import Curve, Machine, Phase, SecondScore, Status

NumericAxis = Literal["lr", "weight_decay"]  # the axes of a grid that have ends


class Statistics(Model):
    """Mean, standard error and number of values; one value has no standard error."""

    mean: float
    se: NonNegativeFloat | None
    n: PositiveInt


class Scores(Statistics):
    """The scores of some runs. A diverged run counts with the score of the untrained network."""

    diverged: Count
    runs: list[Hash]


class GridPoint(Setting, Scores):
    """A point of a grid, and its validation scores over the tuning seeds."""


class Chosen(Setting):
    """The best point of a grid by validation.

    `edge` lists the axes on which it is at an end of its grid, `tried` the ends.
    """

    valid: Scores
    edge: list[NumericAxis]
    tried: dict[NumericAxis, tuple[float, float]]


class GridSize(Model):
    """The size of a grid in points and runs; `extended` points were added because a best lr was at an end."""

    points: PositiveInt
    runs: PositiveInt
    diverged: Count
    extended: Count


class ToTarget(Model):
    """How soon runs reach the study's target on validation.

    `steps` is the median over all runs, or None unless more than half of them `reached` it.
    """

    steps: Count | None
    reached: Count
    n: PositiveInt
    runs: list[Hash]


class OptimizerSummary(Model):
    """An optimizer: its grid, its chosen setting, and the scores of that setting on fresh seeds.

    `test` and `valid_final` are scores of the network that decides, the last or the best one. Without
    confirmation runs, all but `grid` and `chosen` are None.
    """

    grid: GridSize
    chosen: Chosen
    test: Scores | None
    valid_final: Scores | None
    test_last: Scores | None
    test_best: Scores | None
    train: Scores | None  # training loss at the end, of the runs that have one
    to_target: ToTarget | None
    # Not in files of earlier versions:
    test_loss: Scores | None = None  # the loss on test, of the network that decides
    settings: dict[str, JsonValue] | None = None  # the fixed ones, such as momentum
    state_bytes: Count | None = None  # of the optimizer's tensors


class Comparison(Model):
    """A pair of optimizers, paired by seed: mean of a - b, 95% t interval, p and Holm's p.

    `a` has the better mean. Without a t test, the interval and both p are None.
    """

    a: str
    b: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    n: PositiveInt
    seeds: list[Count]
    runs: list[Hash]


def check_pairs(comparisons: Sequence[Comparison], confirmed: Iterable[str]) -> None:
    """Raise a ValueError unless every pair of the optimizers with a test score is compared once."""
    pairs = sorted(tuple(sorted((pair.a, pair.b))) for pair in comparisons)
    if pairs != list(combinations(sorted(confirmed), 2)):
        raise ValueError("comparisons are not the pairs of the optimizers that have a test score")


class Budget(Model):
    """Expected best validation score among m = 1, 2, ... random points of a grid."""

    scores: list[float]
    n: PositiveInt  # seeds of the point with the fewest
    runs: list[Hash]


class Extension(Model):
    """Whether grids could be extended, how many times they were, and how many times at most."""

    allowed: bool
    rounds: Count
    most: Count


class Reduced(Model):
    """What a study has because of `--budget`, and what the whole study would have."""

    budget: str
    tuning_seeds: tuple[PositiveInt, PositiveInt]
    grid_points: tuple[PositiveInt, PositiveInt]  # of each optimizer, without extensions
    confirmation_seeds: tuple[PositiveInt, PositiveInt]
    extension_refused: bool  # a best lr was at the end of its grid, and there was no time to extend it

    @property
    def is_reduced(self) -> bool:
        """Whether anything was left out."""
        counts = (self.tuning_seeds, self.grid_points, self.confirmation_seeds)
        return self.extension_refused or any(kept < whole for kept, whole in counts)


class FailedRun(Setting):
    """A run without a result: it raised an exception, or crashed its workers."""

    optimizer: str
    seed: Count
    phase: Phase
    run: Hash
    why: str


class RunEntry(Setting):
    """A run in the list of all runs."""

    optimizer: str
    seed: Count
    phase: Phase
    status: Status
    diverged_at: Count | None
    why: str | None
    steps: Count
    valid: float
    test: float | None  # of the network that decides
    test_last: float | None
    test_best: float | None
    train: float | None  # training loss at the end
    also_valid: float | None = None  # the second score, of the network that decides; None if not finite
    also_test: float | None = None

    @property
    def diverged(self) -> bool:
        """Whether the run diverged."""
        return self.status == "diverged"


class RunCurves(Model):
    """The curves of a confirmation run; that of the training loss is thinned."""

    train: Curve
    valid: Curve


class Spread(Model):
    """Median, quartiles, minimum and maximum over runs."""

    median: float
    low: float
    lower: float
    upper: float
    high: float
    n: PositiveInt
    runs: list[Hash]


class Cost(Model):
    """Time and memory of an optimizer's runs; None where it was not measured."""

    step_ms: Spread | None
    optimizer_ms: Spread | None
    peak_mb: Spread | None


class Times(Model):
    """All that differs between two executions of one study: times and memory."""

    seconds: float
    workers: PositiveInt | None  # runs at the same time; None if unknown
    optimizers: dict[str, Cost]


class Summary(Document):
    """A study: who was best, by how much, with which setting, from which runs."""

    NAME: ClassVar[str] = "summary of a study"
    REMEDY: ClassVar[str] = "run the study's command again to write it anew"

    recipe: str
    scale: Scale
    metric: str
    higher_is_better: bool
    unit: str
    also: SecondScore | None = None
    report: Report
    target: float | None  # worst validation score of the optimizers, see `to_target`; None if there is none
    test_examples: PositiveInt
    about: str
    paper: str
    command: Annotated[str, Field(pattern="^dualavg (study|horizon) .")]
    optimizers: dict[str, OptimizerSummary]
    extension: Extension
    reduced: Reduced | None = None
    failures: list[FailedRun]
    comparisons: list[Comparison]  # ordered by the rank of `a`, then of `b`
    verdict: str
    sensitivity: dict[str, list[GridPoint]]
    budget: dict[str, Budget]
    runs: dict[Hash, RunEntry]
    curves: dict[Hash, RunCurves]  # of the confirmation runs
    machines: list[Machine]
    packages: dict[str, list[str]]
    times: Times
    # Not in files of earlier versions:
    own_schedules: list[str] | None = None  # the recipe's own, beside those of `recipe/schedules.py`
    parameters: Count | None = None  # of the network that are trained

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1."""
        return 1 if self.higher_is_better else -1

    @property
    def confirmed(self) -> dict[str, Scores]:
        """The test scores of the optimizers that have any."""
        return {name: entry.test for name, entry in self.optimizers.items() if entry.test is not None}

    @model_validator(mode="after")
    def _check_optimizers(self) -> "Summary":
        """Every part must be about the same optimizers."""
        names = set(self.optimizers)
        parts: dict[str, Iterable[str]] = {
            "sensitivity": self.sensitivity,
            "budget": self.budget,
            "times.optimizers": self.times.optimizers,
            "runs": {run.optimizer for run in self.runs.values()},
        }
        for part, found in parts.items():
            if set(found) != names:
                raise ValueError(f"{part} has the optimizers {sorted(found)}, optimizers has {sorted(names)}")
        check_pairs(self.comparisons, self.confirmed)
        return self

    @model_validator(mode="after")
    def _check_choice(self) -> "Summary":
        for name, entry in self.optimizers.items():
            if entry.chosen.point not in {point.point for point in self.sensitivity[name]}:
                raise ValueError(f"the chosen setting of {name} is not in its sensitivity")
        return self

    @model_validator(mode="after")
    def _check_runs(self) -> "Summary":
        """Every figure must name runs that are listed."""
        figures: list[Scores | Comparison | Budget | ToTarget | Spread | None] = [
            *self.comparisons,
            *self.budget.values(),
        ]
        for points in self.sensitivity.values():
            figures += points
        for entry in self.optimizers.values():
            figures += (entry.chosen.valid, entry.test, entry.valid_final)
            figures += (entry.test_last, entry.test_best, entry.test_loss, entry.train, entry.to_target)
        for cost in self.times.optimizers.values():
            figures += (cost.step_ms, cost.optimizer_ms, cost.peak_mb)
        unknown = {run for figure in figures if figure for run in figure.runs} - self.runs.keys()
        if unknown:
            raise ValueError(f"runs lacks {min(unknown)}")
        for name, run in self.runs.items():
            for field in ("test", "test_last", "test_best"):
                if (run.phase == "confirm") != (getattr(run, field) is not None):
                    raise ValueError(f"runs.{name} has phase {run.phase} and {field} {getattr(run, field)}")
        if set(self.curves) != {name for name, run in self.runs.items() if run.phase == "confirm"}:
            raise ValueError("curves are not those of the confirmation runs")
        return self

    @model_validator(mode="after")
    def _check_means(self) -> "Summary":
        """A mean must be that of its runs: it cannot be edited by hand."""
        for name, entry in self.optimizers.items():
            for field in ("test", "test_last", "test_best", "train"):
                scores: Scores | None = getattr(entry, field)
                values = [getattr(self.runs[run], field) for run in scores.runs] if scores else []
                if scores and not isclose(scores.mean, fmean(values), rel_tol=1e-9, abs_tol=1e-12):
                    raise ValueError(f"{field} of {name} is not the mean of its runs")
        return self

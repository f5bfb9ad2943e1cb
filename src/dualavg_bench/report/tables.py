"""The rows of the tables on a study's page: text, formatted but not escaped."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualavg_bench.analysis import formatting, verdict
from dualavg_bench.analysis.statistics import is_significant
from dualavg_bench.recipe.settings import Point
from dualavg_bench.store.results import Phase
from dualavg_bench.store.summaries import Comparison, GridSize, RunEntry, Summary, ToTarget

DASH = "\N{EN DASH}"
PHASES: dict[Phase, str] = {"tune": "tuning", "confirm": "confirmation"}


@dataclass(frozen=True)
class ScoreRow:
    """An optimizer in the table of test scores."""

    name: str
    test: str  # of the network that decides
    other: str = DASH  # test score of the other network
    valid: str = DASH
    train: str = DASH
    to_target: str = DASH
    unreached: str = ""  # how many runs never reach the target
    n: int = 0
    diverged: int = 0
    best: bool = False
    differs: str = DASH  # whether it differs from the best, and p


@dataclass(frozen=True)
class PairRow:
    """A pair of optimizers in the table of differences."""

    a: str
    b: str
    n: int
    difference: str
    interval: str
    p: str
    significant: bool
    study: str = ""


@dataclass(frozen=True)
class ChosenRow:
    """An optimizer in the table of chosen settings."""

    name: str
    lr: str
    weight_decay: str
    schedule: str
    valid: str
    n: int
    edge: Sequence[str]
    tried: str


@dataclass(frozen=True)
class EventRow:
    """A failure or a divergence: which run, and what happened."""

    name: str
    phase: str
    setting: str
    event: str


def score_rows(summary: Summary) -> list[ScoreRow]:
    """Return the test scores from best to worst, then the optimizers without any result."""
    failed = verdict.failures_by_optimizer(summary)
    places = formatting.decimals(test.se for test in summary.confirmed.values())
    leaders = verdict.leaders(summary)
    rows = []
    for name in verdict.rank(summary):
        entry = summary.optimizers[name]
        test, valid = entry.test, entry.valid_final
        other = entry.test_last if summary.report == "best" else entry.test_best
        if test is None or other is None or valid is None:
            rows.append(ScoreRow(name, "no result" if name in failed else "not confirmed"))
            continue
        rows.append(
            ScoreRow(
                name=name,
                test=formatting.with_error(test, places),
                other=formatting.with_error(other, places),
                train=_train_loss(summary, name, test.n),
                to_target=_to_target(summary, name),
                unreached=_unreached(entry.to_target),
                valid=formatting.with_error(valid, places),
                n=test.n,
                diverged=test.diverged,
                best=name in leaders and test.diverged < test.n,
                differs=_differs_from_best(summary, name, leaders),
            )
        )
    untuned = [name for name in failed if name not in summary.optimizers]
    return rows + [ScoreRow(name, "no result") for name in untuned]


def _train_loss(summary: Summary, name: str, seeds: int) -> str:
    """Return the training loss; a run that diverged before its first one has none."""
    losses = {other: entry.train for other, entry in summary.optimizers.items() if entry.train}
    if name not in losses:
        return DASH
    places = formatting.decimals(loss.se for loss in losses.values())
    fewer = f" (n = {losses[name].n})" if losses[name].n < seeds else ""
    return formatting.with_error(losses[name], places) + fewer


def _to_target(summary: Summary, name: str) -> str:
    """Return the median steps to the target, and the time that they take."""
    entry, cost = summary.optimizers[name].to_target, summary.times.optimizers[name].step_ms
    if entry is None:
        return DASH
    if entry.steps is None:
        return "not reached"
    if cost is None:
        return f"{entry.steps:,}"
    seconds = entry.steps * cost.median / 1000
    time = formatting.duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"
    return f"{entry.steps:,} ({time})"


def _unreached(entry: ToTarget | None) -> str:
    """Return how many runs never reach the target, if there are any."""
    if entry is None or entry.reached == entry.n:
        return ""
    count = f"by {entry.n - entry.reached} of {entry.n}"
    return count if entry.steps is None else f"not {count}"


def _differs_from_best(summary: Summary, name: str, leaders: Sequence[str]) -> str:
    if name in leaders:
        return DASH if len(leaders) == 1 else "tied for best"
    pair = next(pair for pair in summary.comparisons if (pair.a, pair.b) == (leaders[0], name))
    p = "no test"
    if pair.p_holm is not None:
        space = "\N{NO-BREAK SPACE}"
        p = f"p {formatting.p_text(pair.p_holm)}".replace(" = ", f"{space}={space}")
    return f"{'yes' if is_significant(pair.p_holm) else 'no'} ({p})"


def pair_row(summary: Summary, pair: Comparison, p_holm: float | None) -> PairRow:
    """Return a paired difference with its interval and a corrected p."""
    places = formatting.interval_decimals((other.low, other.high) for other in summary.comparisons)
    interval = "no test possible"
    if pair.low is not None and pair.high is not None:
        interval = f"{formatting.signed(pair.low, places)} to {formatting.signed(pair.high, places)}"
    return PairRow(
        a=pair.a,
        b=pair.b,
        n=pair.n,
        difference=formatting.signed(pair.difference, places),
        interval=interval,
        p=DASH if p_holm is None else formatting.p_text(p_holm).removeprefix("= "),
        significant=is_significant(p_holm),
    )


def chosen_row(summary: Summary, name: str) -> ChosenRow:
    """Return the chosen setting of an optimizer and what was tried."""
    chosen, points = summary.optimizers[name].chosen, summary.sensitivity[name]
    places = formatting.decimals(entry.chosen.valid.se for entry in summary.optimizers.values())
    lrs = ", ".join(f"{lr:g}" for lr in sorted({point.lr for point in points}))
    decays = ", ".join(f"{decay:g}" for decay in sorted({point.weight_decay for point in points}))
    schedules = ", ".join(sorted({point.schedule for point in points}))
    size = _size(summary.optimizers[name].grid)
    return ChosenRow(
        name=name,
        lr=f"{chosen.lr:g}",
        weight_decay=f"{chosen.weight_decay:g}",
        schedule=chosen.schedule,
        valid=formatting.with_error(chosen.valid, places),
        n=chosen.valid.n,
        edge=chosen.edge,
        tried=f"lr {lrs}; weight decay {decays}; {schedules}: {size}",
    )


def _size(grid: GridSize) -> str:
    parts = [formatting.counted(grid.points, "point"), formatting.counted(grid.runs, "run")]
    if grid.diverged:
        parts.append(f"{grid.diverged} diverged")
    if grid.extended:
        parts.append(f"{formatting.counted(grid.extended, 'point')} added because a best lr was on an edge")
    return ", ".join(parts)


def failure_rows(summary: Summary) -> list[EventRow]:
    """Return a row for each failed run."""
    return [
        EventRow(run.optimizer, PHASES[run.phase], f"{run.point}, seed {run.seed}", run.why)
        for run in summary.failures
    ]


def divergence_rows(summary: Summary) -> list[EventRow]:
    """Return a row for each setting and reason, with all its seeds."""
    groups: dict[tuple[bool, str, Point, str], list[RunEntry]] = {}
    for run in summary.runs.values():
        if run.diverged:
            key = (run.phase == "tune", run.optimizer, run.point, run.why or "")
            groups.setdefault(key, []).append(run)
    rows = []
    for (_, name, point, why), runs in sorted(groups.items(), key=lambda item: item[0]):
        runs.sort(key=lambda run: run.seed)
        event = "diverged at " + ", ".join(f"step {run.diverged_at} (seed {run.seed})" for run in runs)
        rows.append(EventRow(name, PHASES[runs[0].phase], str(point), f"{event}: {why}" if why else event))
    return rows

"""The rows of the tables on a study's page: text, formatted but not escaped."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualavg_bench.analysis import formatting, verdict
from dualavg_bench.analysis.frontier import both_scores
from dualavg_bench.analysis.overall import Advantage
from dualavg_bench.analysis.statistics import is_significant
from dualavg_bench.recipe.settings import Point
from dualavg_bench.store.results import Phase
from dualavg_bench.store.summaries import GridSize, RunEntry, Scores, Summary

DASH = "\N{EN DASH}"
PHASES: dict[Phase, str] = {"tune": "tuning", "confirm": "confirmation"}


@dataclass(frozen=True)
class ScoreRow:
    """An optimizer in the table of results."""

    name: str
    test: str  # of the network that decides
    also: str = DASH  # the second score of the same network
    behind: str = DASH  # the best
    certainty: str = ""
    test_loss: str = DASH
    train: str = DASH
    to_target: str = DASH
    to_target_steps: str = ""  # and how many runs never reach it
    state: str = DASH
    state_per_parameter: str = ""
    other: str = DASH  # test score of the other network
    valid: str = DASH
    n: int = 0
    diverged: int = 0
    best: bool = False


@dataclass(frozen=True)
class PairRow:
    """A pair of optimizers: by how much the first is better."""

    a: str
    b: str
    n: int
    advantage: str
    interval: str
    p: str
    certain: bool


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
    """Return the results from best to worst, then the optimizers without any."""
    failed = verdict.failures_by_optimizer(summary)
    places, leaders = verdict.places(summary), verdict.leaders(summary)
    losses = [
        loss for entry in summary.optimizers.values() for loss in (entry.train, entry.test_loss) if loss
    ]
    loss_places = formatting.decimals(loss.se for loss in losses)
    second = {name: also for name, (_, also) in both_scores(summary).items()} if summary.also else {}
    also_places = formatting.decimals(also.se for also in second.values())
    rows = []
    for name in verdict.rank(summary):
        entry = summary.optimizers[name]
        test, valid = entry.test, entry.valid_final
        other = entry.test_last if summary.report == "best" else entry.test_best
        state, per_parameter = _state(summary, name)
        if test is None or other is None or valid is None:
            rows.append(ScoreRow(name, "no result" if name in failed else "not confirmed"))
            continue
        behind, certainty = _behind(summary, name, leaders, places)
        to_target, to_target_steps = _to_target(summary, name)
        rows.append(
            ScoreRow(
                name=name,
                test=formatting.with_error(test, places),
                also=formatting.with_error(second[name], also_places) if name in second else DASH,
                behind=behind,
                certainty=certainty,
                test_loss=_loss(entry.test_loss, loss_places, test.n),
                train=_loss(entry.train, loss_places, test.n),
                to_target=to_target,
                to_target_steps=to_target_steps,
                state=state,
                state_per_parameter=per_parameter,
                other=formatting.with_error(other, places),
                valid=formatting.with_error(valid, places),
                n=test.n,
                diverged=test.diverged,
                best=name in leaders and test.diverged < test.n,
            )
        )
    untuned = [name for name in failed if name not in summary.optimizers]
    return rows + [ScoreRow(name, "no result") for name in untuned]


def _loss(loss: Scores | None, places: int, seeds: int) -> str:
    """Return a loss; a run that diverged before its first training loss has none."""
    if loss is None:
        return DASH
    fewer = f" (n = {loss.n})" if loss.n < seeds else ""
    return formatting.with_error(loss, places) + fewer


def _to_target(summary: Summary, name: str) -> tuple[str, str]:
    """Return the time to the target, and the median steps that it takes."""
    entry, cost = summary.optimizers[name].to_target, summary.times.optimizers[name].step_ms
    if entry is None:
        return DASH, ""
    missed = f"by {entry.n - entry.reached} of {entry.n}"
    if entry.steps is None:
        return "not reached", missed
    steps = formatting.counted(entry.steps, "step")
    unreached = f", not {missed}" if entry.reached < entry.n else ""
    if cost is None:
        return steps, unreached.removeprefix(", ")
    seconds = entry.steps * cost.median / 1000
    time = f"{seconds:.{0 if seconds >= 10 else 1}f} s" if seconds < 600 else formatting.duration(seconds)
    time = time if seconds >= 0.05 else "under 0.1 s"
    return time, steps + unreached


def _state(summary: Summary, name: str) -> tuple[str, str]:
    """Return the size of the optimizer's state, in all and per parameter, where it was measured."""
    state = summary.optimizers[name].state_bytes
    if state is None:
        return DASH, ""
    if not summary.parameters:
        return formatting.size(state), ""
    return formatting.size(state), f"{state / summary.parameters:.3g} bytes per parameter"


def _behind(summary: Summary, name: str, leaders: Sequence[str], places: int) -> tuple[str, str]:
    """Return how far an optimizer is behind the best, and whether that is certain."""
    if name in leaders:
        return ("best" if len(leaders) == 1 else "tied for best"), ""
    pair = next(pair for pair in summary.comparisons if (pair.a, pair.b) == (leaders[0], name))
    behind = formatting.plain(summary.sign * pair.difference, places)
    if pair.p_holm is None:
        return behind, "no test possible"
    return behind, "certain" if is_significant(pair.p_holm) else "can be chance"


def pair_row(a: str, b: str, advantage: Advantage, places: int) -> PairRow:
    """Return by how much the first of a pair is better, with its interval and a corrected p."""
    interval = "no test possible"
    if advantage.low is not None and advantage.high is not None:
        interval = (
            f"{formatting.signed(advantage.low, places)} to {formatting.signed(advantage.high, places)}"
        )
    return PairRow(
        a=a,
        b=b,
        n=advantage.n,
        advantage=formatting.signed(advantage.value, places),
        interval=interval,
        p=DASH if advantage.p is None else formatting.p_text(advantage.p).removeprefix("= "),
        certain=is_significant(advantage.p),
    )


def pair_rows(summary: Summary) -> list[PairRow]:
    """Return the pairs of a study, the better one first, with Holm's correction over these pairs."""
    places = verdict.places(summary)
    rows = []
    for pair in summary.comparisons:
        low, high = pair.low, pair.high
        if low is not None and high is not None:
            low, high = sorted((summary.sign * low, summary.sign * high))
        advantage = Advantage(summary.sign * pair.difference, low, high, pair.p_holm, pair.n)
        rows.append(pair_row(pair.a, pair.b, advantage, places))
    return rows


def memory(summary: Summary) -> str:
    """Return the median peak memory of each optimizer's runs, where it was measured."""
    peaks = {name: cost.peak_mb for name, cost in summary.times.optimizers.items() if cost.peak_mb}
    return ", ".join(f"{name} {peak.median:.0f} MB" for name, peak in peaks.items())


def chosen_row(summary: Summary, name: str) -> ChosenRow:
    """Return the chosen setting of an optimizer and what was tried."""
    chosen, points = summary.optimizers[name].chosen, summary.sensitivity[name]
    places = verdict.places(summary)
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
    parts = [formatting.counted(grid.points, "setting"), formatting.counted(grid.runs, "run")]
    if grid.diverged:
        parts.append(f"{grid.diverged} diverged")
    if grid.extended:
        added = formatting.counted(grid.extended, "setting")
        parts.append(f"{added} added because a best lr was the smallest or largest tried")
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

"""The page of one study, and the page that compares several: HTML without network access or scripts."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from markupsafe import Markup

from dualavg_bench.analysis import formatting, verdict
from dualavg_bench.analysis.statistics import holm
from dualavg_bench.recipe.settings import Report
from dualavg_bench.report import drawing, figures, frontier
from dualavg_bench.report.page import fill_template
from dualavg_bench.report.samples import Gallery, gallery
from dualavg_bench.report.tables import (
    ChosenRow,
    EventRow,
    PairRow,
    ScoreRow,
    chosen_row,
    divergence_rows,
    failure_rows,
    pair_row,
    score_rows,
)
from dualavg_bench.store.results import Phase, RunResult
from dualavg_bench.store.summaries import FailedRun, Summary


@dataclass(frozen=True)
class PhaseRuns:
    """How many runs a phase has, and on which seeds."""

    count: int
    seeds: list[int]


@dataclass(frozen=True)
class StudyView:
    """All that the template prints of a study: text, formatted but not escaped."""

    summary: Summary
    title: str
    unit: str
    direction: str
    decides: Report  # which network's test score decides
    other: Report
    target: str
    worst_end: str
    colors: dict[str, int]
    scores: list[ScoreRow]
    pairs: list[PairRow]
    chosen: list[ChosenRow]
    edges: list[verdict.Edge]
    unequal_grids: str
    failed: dict[str, list[FailedRun]]
    failures: list[EventRow]
    divergences: list[EventRow]
    tuning: PhaseRuns
    confirmation: PhaseRuns
    steps: list[int]
    computing_time: str
    figures: dict[str, Markup]
    workers: str
    has_gpu: bool
    samples: Gallery | None
    install: str | None
    frontier: frontier.FrontierView | None


@dataclass(frozen=True)
class Overview:
    """The tables that compare studies."""

    scores: list[tuple[str, list[ScoreRow | None]]]  # an optimizer, and its row in each study
    pairs: list[PairRow]


def render(summary: Summary, runs: Sequence[RunResult] = ()) -> str:
    """Return the page of one study; without runs, it has no samples."""
    study = _study(summary, runs, "s0")
    return fill_template("report.html.j2", title=study.title, studies=[study], overview=None)


def render_comparison(summaries: Sequence[Summary], names: Sequence[str] | None = None) -> str:
    """Return the page of several studies, with Holm's correction over all their pairs.

    Args:
        summaries: of different studies.
        names: to distinguish studies of one recipe and scale, such as their folders; numbers by default.
    """
    if not summaries:
        raise ValueError("There are no studies to compare.")
    names = names or [f"study {i}" for i in range(1, len(summaries) + 1)]
    for (name, summary), (other_name, other) in combinations(zip(names, summaries, strict=True), 2):
        if set(summary.runs) == set(other.runs):
            raise ValueError(f"{name} and {other_name} are the same study, with the same runs: name it once.")
    studies = [_study(summary, (), f"s{i}") for i, summary in enumerate(summaries)]
    titles = Counter(study.title for study in studies)
    studies = [
        replace(study, title=f"{study.title}, {name}") if titles[study.title] > 1 else study
        for study, name in zip(studies, names, strict=True)
    ]
    pairs = [(study, pair) for study in studies for pair in study.summary.comparisons]
    corrected = holm([pair.p for _, pair in pairs])
    rows = [
        replace(pair_row(study.summary, pair, p), study=study.title)
        for (study, pair), p in zip(pairs, corrected, strict=True)
    ]
    optimizers = sorted({name for summary in summaries for name in summary.optimizers})
    cells = [{row.name: row for row in study.scores} for study in studies]
    scores = [(name, [row.get(name) for row in cells]) for name in optimizers]
    title = f"{len(studies)} studies compared" if len(studies) > 1 else "1 study"
    return fill_template("report.html.j2", title=title, studies=studies, overview=Overview(scores, rows))


def _study(summary: Summary, runs: Sequence[RunResult], prefix: str) -> StudyView:
    order, failed = verdict.rank(summary), verdict.failures_by_optimizer(summary)
    return StudyView(
        summary=summary,
        title=_title(summary),
        unit=f" ({summary.unit})" if summary.unit else "",
        direction="higher is better" if summary.higher_is_better else "lower is better",
        decides=summary.report,
        other="best" if summary.report == "last" else "last",
        target="" if summary.target is None else f"{summary.target:.4g}".replace("-", formatting.MINUS),
        worst_end=figures.worst_end(summary),
        colors=drawing.looks(failed) | drawing.looks(summary.optimizers),
        scores=score_rows(summary),
        pairs=[pair_row(summary, pair, pair.p_holm) for pair in summary.comparisons],
        chosen=[chosen_row(summary, name) for name in order],
        edges=verdict.edges(summary),
        unequal_grids=verdict.unequal_grids(summary),
        failed=failed,
        failures=failure_rows(summary),
        divergences=divergence_rows(summary),
        tuning=_phase_runs(summary, "tune"),
        confirmation=_phase_runs(summary, "confirm"),
        steps=sorted({run.steps for run in summary.runs.values()}),
        computing_time=formatting.duration(summary.times.seconds),
        figures=_figures(summary, prefix),
        workers=_workers(summary.times.workers),
        has_gpu=any(machine.gpu for machine in summary.machines),
        samples=gallery(order, runs),
        install=_install(summary),
        frontier=frontier.view(summary, f"{prefix}-frontier"),
    )


def _title(summary: Summary) -> str:
    """Return recipe and scale, and the run length if it is not the recipe's own."""
    steps = {f", {run.steps:,} steps" for run in summary.runs.values() if " horizon " in summary.command}
    return f"{summary.recipe} ({summary.scale}{''.join(steps)})"


def _phase_runs(summary: Summary, phase: Phase) -> PhaseRuns:
    seeds = [run.seed for run in summary.runs.values() if run.phase == phase]
    return PhaseRuns(len(seeds), sorted(set(seeds)))


def _workers(workers: int | None) -> str:
    if workers is None:
        return "other runs may have shared it"
    return "one run at a time" if workers == 1 else f"with {workers} workers at the same time"


def _figures(summary: Summary, prefix: str) -> dict[str, Markup]:
    drawn: dict[str, str] = {}
    if summary.curves:
        drawn["train"] = figures.training_curves(summary, f"{prefix}-train")
        drawn["valid"] = figures.validation_curves(summary, f"{prefix}-valid")
    if summary.comparisons:
        drawn["differences"] = figures.differences(summary, f"{prefix}-differences")
    drawn["sensitivity"] = figures.sensitivity(summary, f"{prefix}-sensitivity")
    drawn["budget"] = figures.budget(summary, f"{prefix}-budget")
    drawn["time"] = figures.step_time(summary, f"{prefix}-time")
    if any(cost.peak_mb for cost in summary.times.optimizers.values()):
        drawn["memory"] = figures.memory(summary, f"{prefix}-memory")
    return {name: Markup(text) for name, text in drawn.items()}  # noqa: S704, matplotlib escaped it


def _install(summary: Summary) -> str | None:
    """Return the command that installs the study's versions, if all machines had the same.

    dualavg itself is installed from a clone.
    """
    versions = {(machine.torch, machine.dualavg) for machine in summary.machines}
    if len(versions) != 1:
        return None
    ((torch, dualavg),) = versions
    single = {name: found[0] for name, found in summary.packages.items() if len(found) == 1}
    pins = {"torch": torch} | {name: v for name, v in single.items() if name not in ("torch", "dualavg")}
    # Without the local part after a plus: any build of the version will do.
    packages = [f"{name}=={version.partition('+')[0]}" for name, version in pins.items()]
    return f"{shlex.join(['pip', 'install', *packages, '.[bench]'])}  # in a clone of dualavg {dualavg}"

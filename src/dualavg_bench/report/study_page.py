"""The page of one study: HTML without network access, complete without its script."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dualavg_bench.analysis import formatting, verdict
from dualavg_bench.analysis.verdict import Edge, Verdict
from dualavg_bench.recipe.settings import Report
from dualavg_bench.report import copyable, drawing, figures, frontier
from dualavg_bench.report.page import Drawn, all_drawn, fill_template
from dualavg_bench.report.samples import Gallery, gallery
from dualavg_bench.report.tables import (
    ChosenRow,
    EventRow,
    PairRow,
    ScoreRow,
    chosen_row,
    divergence_rows,
    failure_rows,
    memory,
    pair_rows,
    score_rows,
)
from dualavg_bench.store.results import Phase, RunResult
from dualavg_bench.store.summaries import FailedRun, Summary

STEPS: dict[Report, str] = {"last": "the last step", "best": "the best validation score of the run"}


@dataclass(frozen=True)
class PhaseRuns:
    """How many runs a phase has, and on which seeds."""

    count: int
    seeds: list[int]


@dataclass(frozen=True)
class CopyRow:
    """An optimizer and the lines that make it."""

    name: str
    lines: copyable.Lines


@dataclass(frozen=True)
class StudyView:
    """All that the template prints of a study: text, formatted but not escaped."""

    summary: Summary
    title: str
    unit: str
    direction: str
    verdict: Verdict
    order: list[str]  # of the optimizers, best first
    imports: str
    copies: list[CopyRow]
    copy_warning: str
    decides: Report  # which network's test score decides
    deciding_step: str
    other_step: str
    target: str
    has_test_loss: bool
    has_state: bool
    worst_end: str
    colors: dict[str, int]
    scores: list[ScoreRow]
    pairs: list[PairRow]
    chosen: list[ChosenRow]
    edges: list[Edge]
    unequal_grids: str
    reduced: str
    failed: dict[str, list[FailedRun]]
    failures: list[EventRow]
    divergences: list[EventRow]
    diverged_runs: int
    tuning: PhaseRuns
    confirmation: PhaseRuns
    steps: list[str]
    computing_time: str
    figures: dict[str, Drawn]
    workers: str
    memory: str
    has_gpu: bool
    samples: Gallery | None
    install: str | None
    frontier: frontier.FrontierView | None


def render(summary: Summary, runs: Sequence[RunResult] = ()) -> str:
    """Return the page of one study; without runs, it has no samples."""
    study = study_view(summary, runs, "s0")
    return fill_template("report.html.j2", title=study.title, study=study)


def study_view(summary: Summary, runs: Sequence[RunResult], prefix: str) -> StudyView:
    """Return what a page shows of a study.

    Args:
        summary: of the study.
        runs: for the samples; none without them.
        prefix: of all ids, unique in a page.
    """
    order, failed = verdict.rank(summary), verdict.failures_by_optimizer(summary)
    entries = summary.optimizers.values()
    return StudyView(
        summary=summary,
        title=_title(summary),
        unit=f" ({summary.unit})" if summary.unit else "",
        direction="higher is better" if summary.higher_is_better else "lower is better",
        verdict=verdict.verdict(summary),
        order=order,
        imports=copyable.imports(summary),
        copies=[CopyRow(name, copyable.lines(summary, name)) for name in order],
        copy_warning=copyable.warning(summary),
        decides=summary.report,
        deciding_step=STEPS[summary.report],
        other_step=STEPS["best" if summary.report == "last" else "last"],
        target="" if summary.target is None else formatting.plain(summary.target, verdict.places(summary)),
        has_test_loss=summary.metric != "loss" and not summary.also and any(e.test_loss for e in entries),
        has_state=any(entry.state_bytes is not None for entry in entries),
        worst_end=figures.worst_end(summary),
        colors=drawing.looks(failed) | drawing.looks(summary.optimizers),
        scores=score_rows(summary),
        pairs=pair_rows(summary),
        chosen=[chosen_row(summary, name) for name in order],
        edges=verdict.edges(summary),
        unequal_grids=verdict.unequal_grids(summary),
        reduced=verdict.reduced_study(summary),
        failed=failed,
        failures=failure_rows(summary),
        divergences=divergence_rows(summary),
        diverged_runs=sum(run.diverged for run in summary.runs.values()),
        tuning=_phase_runs(summary, "tune"),
        confirmation=_phase_runs(summary, "confirm"),
        steps=[f"{steps:,}" for steps in sorted({run.steps for run in summary.runs.values()})],
        computing_time=formatting.duration(summary.times.seconds),
        figures=_figures(summary, prefix),
        workers=_workers(summary.times.workers),
        memory=memory(summary),
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


def _figures(summary: Summary, prefix: str) -> dict[str, Drawn]:
    found: dict[str, str | Sequence[figures.Plot]] = {}
    if summary.curves:
        found["train"] = figures.training_curves(summary, f"{prefix}-train")
        found["valid"] = figures.validation_curves(summary, f"{prefix}-valid")
    if summary.comparisons:
        found["differences"] = figures.differences(summary, f"{prefix}-differences")
    found["sensitivity"] = figures.sensitivity(summary, f"{prefix}-sensitivity")
    found["budget"] = figures.budget(summary, f"{prefix}-budget")
    found["time"] = figures.step_time(summary, f"{prefix}-time")
    return all_drawn(found)


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

"""Progress of studies and tables of results, on a terminal."""

import importlib
import inspect
import threading
import time
import webbrowser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.table import Table

from dualavg_bench.analysis.formatting import decimals, duration, score_places, short_names, with_error
from dualavg_bench.analysis.frontier import both_scores
from dualavg_bench.analysis.selection import best_so_far
from dualavg_bench.analysis.standings import leaders, optimizers
from dualavg_bench.analysis.statistics import describe_runs
from dualavg_bench.analysis.verdict import failures_by_optimizer, rank, verdict
from dualavg_bench.recipe.loading import data_needed, load, scales_of
from dualavg_bench.recipes import builtin
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import OptimizerSummary, Summary

console = Console(highlight=False)
PRINT_SECONDS = 10  # between two lines of progress, if the output is not a terminal


@dataclass
class _Phase:
    """The phase that a study is in: its progress bar and its counts."""

    name: str
    task: TaskID
    total: int
    optimizers: int  # number of them
    done: int = 0
    diverged: int = 0
    results: list[RunResult] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.total - self.done

    @property
    def has_all(self) -> bool:
        """Whether every optimizer has a result."""
        return len({run.optimizer for run in self.results}) == self.optimizers


class _Bars(Progress):
    """Progress bars, and below them the best results so far."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        self.notes: dict[str, str] = {}  # by study
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn."""
        yield from super().get_renderables()
        yield from (Padding(escape(note), (0, 0, 0, 2)) for note in list(self.notes.values()))


class Display:
    """The progress of studies and the best results so far: bars on a terminal, now and then lines elsewhere.

    Several studies at the same time have a bar each and a common one.
    """

    def __init__(self, client: Any, *, together: bool = False) -> None:
        self.client = client
        self.progress = _Bars(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.phases: dict[str, _Phase] = {}  # by study
        self.seconds: dict[str, list[float]] = {}  # of the finished runs of each study
        self.together = self.progress.add_task("together", total=None, state="") if together else None
        self.printed_at = time.monotonic()
        self.shown_early: set[str] = set()  # names of phases
        self.lock = threading.Lock()  # studies that run together are in different threads

    def begin(
        self, study: str, phase: Literal["tuning", "confirming"], total: int, optimizers: int = 1
    ) -> None:
        """Start the progress bar of a phase of a study: runs in total, of so many optimizers."""
        name = phase if self.together is None else f"{study}, {phase}"
        task = self.progress.add_task(name, total=total, state="")
        with self.lock:
            self.phases[study] = _Phase(name, task, total, optimizers)
            self.seconds.setdefault(study, [])

    def finished(self, study: str, result: RunResult | None) -> None:
        """Count a run; the result is None if it failed."""
        with self.lock:
            phase = self.phases[study]
            phase.done += 1
            if result is not None:
                phase.diverged += result.diverged
                self.seconds[study].append(result.time.seconds)
                phase.results.append(result)
                self.progress.notes[study] = so_far(phase.results)
            self._show(study, phase)

    def workers(self) -> int:
        """Return the number of workers now: they come and go."""
        return max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))

    def _show(self, study: str, phase: _Phase) -> None:
        diverged, activity = f"{phase.diverged} diverged" if phase.diverged else "", self._activity()
        state = diverged
        if self.together is None:
            state = ", ".join(filter(None, (activity, diverged)))
        else:
            done = sum(each.done for each in self.phases.values())
            total = sum(each.total for each in self.phases.values())
            self.progress.update(self.together, completed=done, total=total, state=activity)
        self.progress.update(phase.task, completed=phase.done, state=state)
        is_early = phase.has_all and phase.name not in self.shown_early  # the first result of each optimizer
        due = phase.left == 0 or is_early or time.monotonic() - self.printed_at > PRINT_SECONDS
        if due and not console.is_terminal:
            self.printed_at = time.monotonic()
            self.shown_early |= {phase.name} if is_early else set()
            line = ", ".join(filter(None, (diverged, activity)))
            console.print(f"{phase.name}: {phase.done}/{phase.total} runs done, {line}", markup=False)
            if note := self.progress.notes.get(study):
                console.print(f"  {note}", markup=False, soft_wrap=True)

    def _activity(self) -> str:
        """Return how many runs are running, and the time left if it can be estimated."""
        workers = self.workers()
        left = {study: phase.left for study, phase in self.phases.items() if phase.left}
        running = f"{min(sum(left.values()), workers)} running"
        if not left or not all(self.seconds[study] for study in left):
            return running
        remaining = sum(n * fmean(self.seconds[study]) for study, n in left.items())
        return f"{running}, about {duration(remaining / workers)} left"


def so_far(runs: Sequence[RunResult]) -> str:
    """Return the best setting of each optimizer among tuning runs, or its mean among confirmation runs."""
    short, metric = short_names({run.optimizer for run in runs}), runs[0].metric
    if runs[0].phase == "tune":
        parts = [
            f"{short[name]} diverged" if best.diverged else f"{short[name]} {best.mean:.4g} (lr {best.lr:g})"
            for name, best in best_so_far(runs).items()
        ]
        return f"best {metric} on validation so far: {', '.join(parts)}"
    tests = {name: describe_runs([run for run in runs if run.optimizer == name], "test") for name in short}
    sign = 1 if runs[0].higher_is_better else -1
    order = sorted(tests, key=lambda name: -sign * tests[name].mean)
    parts = [f"{short[name]} {tests[name].mean:.4g} (n = {tests[name].n})" for name in order]
    return f"mean {metric} on test so far: {', '.join(parts)}"


def show_page(page: Path) -> None:
    """Open a page in a browser, or say that there is none."""
    if not webbrowser.open(page.as_uri()):
        console.print("no browser was found: open the page by hand", markup=False)


def announce(summary: Summary, report: Path, kept: Sequence[Path] = ()) -> None:
    """Print the table, the verdict, the path of the page, and which files of an earlier study were kept."""
    failed = failures_by_optimizer(summary)
    without_entry = [name for name in failed if name not in summary.optimizers]
    remarks = {name: _remarks(entry, name in failed) for name, entry in summary.optimizers.items()}
    places = score_places(summary.confirmed.values(), summary.comparisons)
    losses = {name: entry.train for name, entry in summary.optimizers.items() if entry.train}
    loss_places = decimals(loss.se for loss in losses.values())
    short = short_names([*summary.optimizers, *without_entry])
    with_remarks = any(remarks.values()) or bool(failed)
    unit = f" ({summary.unit})" if summary.unit else ""
    title = f"{summary.recipe}, {summary.scale}: test {summary.metric}{unit}, {summary.report} network"
    table = Table(title=escape(title), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("optimizer", overflow="fold", no_wrap=max(map(len, short.values())) <= 20)
    second = both_scores(summary) if summary.also else {}
    also_places = decimals(also.se for _, also in second.values())
    for column in ("mean ± s.e.", "n", *([summary.also.name] if summary.also else []), "train\nloss", "lr"):
        table.add_column(column, no_wrap=True, justify="right")
    table.add_column("weight\ndecay", no_wrap=True)
    for column in ("schedule", *(["remarks"] if with_remarks else [])):
        table.add_column(column, overflow="fold", min_width=len(column))
    for name in rank(summary):
        test, chosen = summary.optimizers[name].test, summary.optimizers[name].chosen
        score = [with_error(test, places), str(test.n)] if test else ["no result", "0"]
        if summary.also:
            score.append(with_error(second[name][1], also_places) if name in second else "")
        loss = f"{losses[name].mean:.{loss_places}f}" if name in losses else ""
        setting = (loss, f"{chosen.lr:g}", f"{chosen.weight_decay:g}", escape(chosen.schedule))
        table.add_row(escape(short[name]), *score, *setting, *([remarks[name]] if with_remarks else []))
    for name in without_entry:
        table.add_row(
            escape(short[name]), "no result", "0", *[""] * (5 if summary.also else 4), "a run failed"
        )
    console.print(table)
    found = verdict(summary)
    console.print(found.headline, markup=False, style="bold")
    for line in filter(None, (found.evidence, *found.cautions, found.diverged, found.limits)):
        console.print(line, markup=False)
    if kept:
        names = " and ".join(path.name for path in kept)
        console.print(f"kept from an earlier study: {names}", markup=False)
    console.print(f"report: {report}", markup=False, soft_wrap=True)


def _remarks(entry: OptimizerSummary, failed: bool) -> str:
    diverged = f"{entry.test.diverged} diverged" if entry.test and entry.test.diverged else ""
    return "; ".join(filter(None, (diverged, "a run failed" if failed else "")))


def announce_horizon(horizon: Horizon, page: Path) -> None:
    """Print the test scores of every length, the verdict and the path of the page."""
    names = optimizers(horizon)
    short = short_names(names)
    unit = f" ({horizon.unit})" if horizon.unit else ""
    title = f"{horizon.recipe}, {horizon.scale}: test {horizon.metric}{unit}, mean ± s.e."
    table = Table(title=escape(title), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("steps", no_wrap=True, justify="right")
    for name in names:
        table.add_column(escape(short[name]), overflow="fold", justify="right")
    table.add_column("n", no_wrap=True, justify="right")
    for length in horizon.lengths:
        tests, best = length.confirmed, leaders(length, horizon.sign)
        places = decimals(test.se for test in tests.values())
        cells = [with_error(tests[name], places) if name in tests else "no result" for name in names]
        cells = [
            f"[bold]{cell}[/]" if name in best else cell for name, cell in zip(names, cells, strict=True)
        ]
        seeds = sorted({test.n for test in tests.values()})
        table.add_row(f"{length.steps:,}", *cells, ", ".join(map(str, seeds)) or "0")
    console.print()
    console.print(table)
    for sentence in horizon.verdict:
        console.print(sentence, markup=False)
    console.print(f"page: {page}", markup=False, soft_wrap=True)


def print_run(result: RunResult) -> None:
    """Print the result of one run."""
    if result.diverged:
        console.print(f"diverged at step {result.diverged_at}: {result.why}", markup=False)
    else:
        also = [result.also.name] if result.also and result.also.name in result.valid.names else []
        names = dict.fromkeys(("loss", result.metric, *also))
        values = ", ".join(f"{name} {result.valid[name][-1]:.5g}" for name in names)
        best = f"; best {result.metric} {result.best_valid:.5g}" if result.report == "best" else ""
        console.print(f"validation after {result.steps} steps: {values}{best}", markup=False)
    memory = "" if result.peak_mb is None else f", peak {result.peak_mb:.0f} MB"
    console.print(f"{result.time.seconds:.1f} s{memory}, run {result.hash}")


def list_recipes() -> None:
    """Print the built-in recipes: a table of sizes and times, then a description and the data of each."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("recipe", "scale", "data"):
        table.add_column(column)
    for column in ("steps", "batch", "time per run"):
        table.add_column(column, justify="right")
    texts = {}
    for name, path in builtin().items():
        module = importlib.import_module(path)
        for scale in scales_of(module):
            recipe, _ = load(name, scale)
            table.add_row(
                name if scale == "quick" else "",
                scale,
                "embedded" if scale == "quick" else "--data DIR",
                f"{recipe.steps:,}",
                recipe.batch_note or f"{recipe.batch_size:,}",
                "not measured" if recipe.expected is None else duration(recipe.expected),
            )
            if scale == "quick":
                texts[name] = [f"Quick: {recipe.about}", data_needed(inspect.getdoc(module))]
    console.print(table)
    for name, lines in texts.items():
        console.print(f"[bold]{name}[/]")
        for line in filter(None, lines):
            console.print(Padding(escape(line), (0, 0, 0, 4)))

"""Progress of studies and tables of results, on a terminal."""

import importlib
import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from dualavg_bench.analysis.formatting import decimals, duration, score_places, short_names, with_error
from dualavg_bench.analysis.standings import leaders, optimizers
from dualavg_bench.analysis.verdict import AXIS_NAMES, failures_by_optimizer, rank
from dualavg_bench.recipe.loading import data_needed, load
from dualavg_bench.recipes import builtin
from dualavg_bench.scales import SCALES
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
    done: int = 0
    diverged: int = 0

    @property
    def left(self) -> int:
        return self.total - self.done


class Display:
    """The progress of studies: bars on a terminal, now and then a plain line elsewhere.

    Several studies at the same time have a bar each and a common one.
    """

    def __init__(self, client: Any, *, together: bool = False) -> None:
        self.client = client
        self.progress = Progress(
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
        self.lock = threading.Lock()  # studies that run together are in different threads

    def begin(self, study: str, phase: Literal["tuning", "confirming"], total: int) -> None:
        """Start the progress bar of a phase of a study."""
        name = phase if self.together is None else f"{study}, {phase}"
        task = self.progress.add_task(name, total=total, state="")
        with self.lock:
            self.phases[study] = _Phase(name, task, total)
            self.seconds.setdefault(study, [])

    def finished(self, study: str, result: RunResult | None) -> None:
        """Count a run; the result is None if it failed."""
        with self.lock:
            phase = self.phases[study]
            phase.done += 1
            if result is not None:
                phase.diverged += result.diverged
                self.seconds[study].append(result.time.seconds)
            self._show(phase)

    def workers(self) -> int:
        """Return the number of workers now: they come and go."""
        return max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))

    def _show(self, phase: _Phase) -> None:
        diverged, activity = f"{phase.diverged} diverged" if phase.diverged else "", self._activity()
        state = diverged
        if self.together is None:
            state = ", ".join(filter(None, (activity, diverged)))
        else:
            done = sum(each.done for each in self.phases.values())
            total = sum(each.total for each in self.phases.values())
            self.progress.update(self.together, completed=done, total=total, state=activity)
        self.progress.update(phase.task, completed=phase.done, state=state)
        due = phase.left == 0 or time.monotonic() - self.printed_at > PRINT_SECONDS
        if due and not console.is_terminal:
            self.printed_at = time.monotonic()
            line = ", ".join(filter(None, (diverged, activity)))
            console.print(f"{phase.name}: {phase.done}/{phase.total} runs done, {line}", markup=False)

    def _activity(self) -> str:
        """Return how many runs are running, and the time left if it can be estimated."""
        workers = self.workers()
        left = {study: phase.left for study, phase in self.phases.items() if phase.left}
        running = f"{min(sum(left.values()), workers)} running"
        if not left or not all(self.seconds[study] for study in left):
            return running
        remaining = sum(n * fmean(self.seconds[study]) for study, n in left.items())
        return f"{running}, about {duration(remaining / workers)} left"


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
    for column in ("mean ± s.e.", "n", "train\nloss", "lr"):
        table.add_column(column, no_wrap=True, justify="right")
    for column in ("weight\ndecay", "schedule", *(["remarks"] if with_remarks else [])):
        table.add_column(column, overflow="fold")
    for name in rank(summary):
        test, chosen = summary.optimizers[name].test, summary.optimizers[name].chosen
        score = (with_error(test, places), str(test.n)) if test else ("no result", "0")
        loss = f"{losses[name].mean:.{loss_places}f}" if name in losses else ""
        setting = (loss, f"{chosen.lr:g}", f"{chosen.weight_decay:g}", escape(chosen.schedule))
        table.add_row(escape(short[name]), *score, *setting, *([remarks[name]] if with_remarks else []))
    for name in without_entry:
        table.add_row(escape(short[name]), "no result", "0", "", "", "", "", "a run failed")
    console.print(table)
    console.print(summary.verdict, markup=False)
    if kept:
        names = " and ".join(path.name for path in kept)
        console.print(f"kept from an earlier study: {names}", markup=False)
    console.print(f"report: {report}", markup=False, soft_wrap=True)


def _remarks(entry: OptimizerSummary, failed: bool) -> str:
    remarks = [f"{AXIS_NAMES[axis]} on the edge" for axis in entry.chosen.edge]
    if entry.test and entry.test.diverged:
        remarks.append(f"{entry.test.diverged} diverged")
    return "; ".join([*remarks, "a run failed"] if failed else remarks)


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
        names = dict.fromkeys(("loss", result.metric))
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
        for scale in SCALES:
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

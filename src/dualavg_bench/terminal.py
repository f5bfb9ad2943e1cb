"""What a person sees while a study runs, and at its end."""

import importlib
import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from dualavg_bench.analysis.formatting import decimals, duration, short_names, with_error
from dualavg_bench.analysis.verdict import EDGES, rank, without_result
from dualavg_bench.recipe.loading import data_needed
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.scales import SCALES

console = Console(highlight=False)


@dataclass
class _Phase:
    """What a study is at: its bar, and how far it has come."""

    name: str
    task: TaskID
    total: int
    done: int = 0
    diverged: int = 0

    @property
    def left(self) -> int:
        return self.total - self.done


class Display:
    """Runs done, running, and the time that is probably left: live bars, or now and then a plain line.

    Of several studies at once, each has its bars, and what they have in common stands in a line of its own.
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
        self.seconds: dict[str, list[float]] = {}
        self.all = self.progress.add_task("together", total=None, state="") if together else None
        self.said = time.monotonic()
        self.lock = threading.Lock()  # studies that run together are in threads of their own

    def begin(self, study: str, specs: Sequence[RunSpec]) -> None:
        """Start a bar for a phase of a study."""
        phase = "confirming" if specs and specs[0].test else "tuning"
        name = phase if self.all is None else f"{study}, {phase}"
        total = len({spec.hash for spec in specs})
        task = self.progress.add_task(name, total=total, state="")
        with self.lock:
            self.phases[study] = _Phase(name, task, total)
            self.seconds.setdefault(study, [])

    def finished(self, study: str, result: Any) -> None:
        """Count a run, whatever came of it."""
        with self.lock:
            self._finished(self.phases[study], self.seconds[study], result)

    def _finished(self, phase: _Phase, seconds: list[float], result: Any) -> None:
        phase.done += 1
        if isinstance(result, dict):
            phase.diverged += result["status"] == "diverged"
            seconds.append(result["time"]["seconds"])
        said, lost = self._said(), f"{phase.diverged} diverged" if phase.diverged else ""
        if self.all is None:
            said, lost = "", ", ".join(filter(None, (said, lost)))
        else:
            phases = self.phases.values()
            done, total = sum(phase.done for phase in phases), sum(phase.total for phase in phases)
            self.progress.update(self.all, completed=done, total=total, state=said)
        self.progress.update(phase.task, completed=phase.done, state=lost)
        if not console.is_terminal and (phase.left == 0 or time.monotonic() - self.said > 10):
            self.said = time.monotonic()
            state = ", ".join(filter(None, (lost, said)))
            console.print(f"{phase.name}: {phase.done}/{phase.total} runs done, {state}", markup=False)

    def workers(self) -> int:
        """How many there are now: they come and go."""
        return max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))

    def _said(self) -> str:
        """How many runs are running, and how long those that are known of will probably take."""
        workers = self.workers()
        left = sum(phase.left for phase in self.phases.values())
        known = [(self.seconds[study], phase.left) for study, phase in self.phases.items() if phase.left]
        said = f"{min(left, workers)} running"
        if known and all(seconds for seconds, _ in known):
            whole = sum(n * sum(seconds) / len(seconds) for seconds, n in known)
            said += f", about {duration(whole / workers)} left"
        return said


def announce(summary: dict[str, Any], report: Path, kept: Sequence[Path] = ()) -> None:
    """Print the table, the verdict, where the page is, and what was kept of an earlier one."""
    order, entries, failed = rank(summary), summary["optimizers"], without_result(summary)
    places = decimals(entries[name]["test"]["se"] for name in order if entries[name]["test"])
    remarks = {name: "; ".join(_remarks(entries[name], name in failed)) for name in order}
    unit = summary["unit"] and f" ({summary['unit']})"
    title = f"{summary['recipe']}, {summary['scale']}: test {summary['metric']}{unit}"
    table = Table(title=escape(title), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    short = short_names([*order, *(name for name in failed if name not in entries)])
    with_remarks = any(remarks.values()) or len(failed) > 0
    table.add_column("optimizer", overflow="fold", no_wrap=max(map(len, short.values())) <= 20)
    table.add_column("mean ± s.e.", no_wrap=True, justify="right")
    for column in ("n", "lr"):
        table.add_column(column, no_wrap=True, justify="right")
    for column in ("weight\ndecay", "schedule", *(["remarks"] if with_remarks else [])):
        table.add_column(column, overflow="fold")
    for name in order:
        test, chosen = entries[name]["test"], entries[name]["chosen"]
        score = (with_error(test, places), str(test["n"])) if test else ("no result", "0")
        setting = (f"{chosen['lr']:g}", f"{chosen['weight_decay']:g}", escape(chosen["schedule"]))
        table.add_row(escape(short[name]), *score, *setting, *([remarks[name]] if with_remarks else []))
    for name in failed:
        if name not in entries:
            table.add_row(escape(short[name]), "no result", "0", "", "", "", "a run failed")
    console.print(table)
    console.print(summary["verdict"], markup=False)
    if kept:
        names = " and ".join(path.name for path in kept)
        console.print(f"kept from an earlier study: {names}", markup=False)
    console.print(f"report: {report}", markup=False, soft_wrap=True)


def _remarks(entry: dict[str, Any], failed: bool) -> list[str]:
    """What to say of an optimizer beside its numbers."""
    said = [f"{EDGES[key]} on the edge" for key in entry["chosen"]["edge"]]
    if entry["test"] and entry["test"]["diverged"]:
        said.append(f"{entry['test']['diverged']} diverged")
    return [*said, "a run failed"] if failed else said


def print_run(result: dict[str, Any], metric: str) -> None:
    """Print what came of one run."""
    if result["status"] == "diverged":
        console.print(f"diverged at step {result['diverged_at']}: {result['why']}", markup=False)
    else:
        values = ", ".join(f"{n} {result['valid'][n][-1]:.5g}" for n in ("loss", metric))
        console.print(f"validation after {result['steps']} steps: {values}", markup=False)
    console.print(f"{result['time']['seconds']:.1f} s, peak {result['peak_mb']:.0f} MB, run {result['hash']}")


def list_recipes() -> None:
    """Print the built-in recipes: a table of sizes and times, then what each is and which data it needs."""
    from dualavg_bench.recipe.loading import load
    from dualavg_bench.recipes import builtin

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("recipe", "scale", "data"):
        table.add_column(column)
    for column in ("steps", "batch", "a run takes"):
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

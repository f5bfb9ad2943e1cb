"""What a person sees while a study runs, and at its end."""

import contextlib
import importlib
import inspect
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dualavg_bench.recipe import RecipeError, RunSpec, Scale
from dualavg_bench.store import RunFolder, StoreError, read_json, write_atomically
from dualavg_bench.text import decimals, duration, short_names, with_error

console = Console(highlight=False)
MENDABLE = (RecipeError, StoreError, ValueError, FileNotFoundError)  # what a person can mend: a sentence


@dataclass(frozen=True)
class Finished:
    """A study that has come to its end."""

    summary: dict[str, Any]
    runs: list[dict[str, Any]]
    report: Path


def run_study(
    reference: str,
    scale: Scale,
    *,
    out: Path,
    data: Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    names: Sequence[str] | None = None,
    extend: bool = True,
    tensorboard: bool = False,
) -> Finished:
    """Run a study with a live display, and write its summary and report."""
    from dualavg_bench.engine import Engine, Unfinished, cluster, finished_runs
    from dualavg_bench.recipe import load
    from dualavg_bench.sinks import require_tensorboard, write_tensorboard
    from dualavg_bench.study import Study

    if tensorboard:
        require_tensorboard()  # now, not when the runs are done
    recipe, _ = load(reference, scale)
    folder = (out / f"{recipe.name}-{scale}").absolute()
    data = data or folder.parent / "data"
    study = Study.of(reference, scale, folder, data, names)
    labels = ", ".join(study.names)
    console.print(f"[bold]{recipe.name}[/] at {scale} scale: {labels} -> {folder}")
    try:
        summary, runs = study.run(lambda specs: finished_runs(folder, recipe.name, specs), extend=extend)
    except Unfinished:
        with cluster(workers, scheduler) as client, (display := _Display(client)).progress:
            engine = Engine(client, folder, data, scale)

            def execute(specs: Sequence[RunSpec]) -> list[dict[str, Any]]:
                display.begin(specs)
                return engine.execute(specs, recipe.name, display.finished)

            summary, runs = study.run(execute, extend=extend)
    if tensorboard:
        write_tensorboard(runs, folder)
    return Finished(summary, runs, _write_report(summary, runs, folder))


class _Display:
    """Runs done, running, and the time that is probably left: a live line, or now and then a plain one."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.seconds: list[float] = []

    def begin(self, specs: Sequence[RunSpec]) -> None:
        self.total, self.done, self.diverged = len({spec.hash for spec in specs}), 0, 0
        self.phase = "confirming" if specs and specs[0].test else "tuning"
        self.task = self.progress.add_task(self.phase, total=self.total, state="")
        self.said = time.monotonic()

    def finished(self, _: RunSpec, result: Any) -> None:
        self.done += 1
        if isinstance(result, dict):
            self.diverged += result["status"] == "diverged"
            self.seconds.append(result["time"]["seconds"])
        left = self.total - self.done
        workers = max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))  # they come and go
        running = min(left, workers)
        state = f"{running} running"
        if self.seconds and left:
            mean = sum(self.seconds) / len(self.seconds)
            state += f", about {duration(mean * left / workers)} left"
        if self.diverged:
            state += f", {self.diverged} diverged"
        self.progress.update(self.task, completed=self.done, state=state)
        if not console.is_terminal and (left == 0 or time.monotonic() - self.said > 10):
            self.said = time.monotonic()
            console.print(f"{self.phase}: {self.done}/{self.total} runs done, {state}")


def announce(finished: Finished) -> None:
    """Print the table, the verdict and where the page is."""
    from dualavg_bench.stats import EDGES, rank

    summary = finished.summary
    order, entries = rank(summary), summary["optimizers"]
    places = decimals(entries[name]["test"]["se"] for name in order)
    remarks = {}
    for name in order:
        diverged, edge = entries[name]["test"]["diverged"], entries[name]["chosen"]["edge"]
        said = [f"{EDGES[key]} on the edge" for key in edge]
        remarks[name] = "; ".join(said + ([f"{diverged} diverged"] if diverged else []))
    unit = summary["unit"] and f" ({summary['unit']})"
    title = f"{summary['recipe']}, {summary['scale']}: test {summary['metric']}{unit}"
    table = Table(title=escape(title), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    short = short_names(order)
    table.add_column("optimizer", overflow="fold", no_wrap=max(map(len, short.values())) <= 20)
    table.add_column("mean ± s.e.", no_wrap=True, justify="right")
    for column in ("n", "lr"):
        table.add_column(column, no_wrap=True, justify="right")
    for column in ("weight\ndecay", "schedule", *(["remarks"] if any(remarks.values()) else [])):
        table.add_column(column, overflow="fold")
    for name in order:
        test, chosen = entries[name]["test"], entries[name]["chosen"]
        numbers = (
            with_error(test, places),
            str(test["n"]),
            f"{chosen['lr']:g}",
            f"{chosen['weight_decay']:g}",
        )
        more = [remarks[name]] if any(remarks.values()) else []
        table.add_row(escape(short[name]), *numbers, escape(chosen["schedule"]), *more)
    console.print(table)
    console.print(summary["verdict"], markup=False)
    console.print(f"report: {finished.report}", markup=False, soft_wrap=True)


def reproduce(scale: Scale, *, out: Path, names: Sequence[str] | None = None, **more: Any) -> bool:
    """Run the paper's experiments one after the other, and write the page of them all.

    A study that cannot be run, or fails, does not keep the others from running. Says whether none did.

    Args:
        scale: quick, mini or paper.
        out: where the studies and the page go.
        names: of recipes; all of the paper's if None.
        more: what `run_study` takes.
    """
    from dualavg_bench import paper
    from dualavg_bench.reproduction import render

    for name in names or ():
        if name not in paper.RECIPES:
            raise ValueError(f"{name!r} is no experiment of the paper: it has {', '.join(paper.RECIPES)}.")
    done: dict[str, Finished] = {}
    missing: dict[str, str] = {}
    for name in names or paper.RECIPES:
        try:
            done[name] = run_study(name, scale, out=out, **more)
        except MENDABLE as error:  # noqa: PERF203 - seven times
            missing[name] = str(error)
            console.print(f"{name} was not run to its end: {error}", markup=False, soft_wrap=True)
        else:
            announce(done[name])
    studies = {name: (finished.summary, finished.runs) for name, finished in done.items()}
    path = out.absolute() / f"reproduction-{scale}.html"
    links = {name: finished.report.relative_to(path.parent).as_posix() for name, finished in done.items()}
    write_atomically(path, render(scale, studies, links, missing).encode())
    console.print(paper.finding(paper.judge({name: runs for name, (_, runs) in studies.items()}), scale))
    console.print(f"page: {path}", markup=False, soft_wrap=True)
    return not missing


def run_one(
    reference: str,
    scale: Scale,
    optimizer: str,
    lr: float,
    weight_decay: float,
    schedule: str | None,
    seed: int,
    data: Path | None,
    out: Path,
    *,
    tensorboard: bool = False,
) -> None:
    """Train one run in this process, or in torchrun's, and print its result."""
    import torch.distributed as dist

    from dualavg_bench import optimizers, runner
    from dualavg_bench.recipe import Point
    from dualavg_bench.sinks import require_tensorboard, write_tensorboard
    from dualavg_bench.study import Study

    if tensorboard:
        require_tensorboard()
    optimizers.find(optimizer)
    data = data or out.absolute() / "data"
    study = Study.of(reference, scale, out, data)
    grid = study.recipe.grids.get(optimizer)
    point = Point(lr, weight_decay, schedule or (grid.schedule[0] if grid else "constant"))
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's
    spec = replace(study.spec(optimizer, point, seed, test=False), processes=processes)
    folder = (out / f"{study.recipe.name}-{scale}").absolute()
    if processes > 1:
        dist.init_process_group()
    try:
        quiet = not console.is_terminal or (processes > 1 and dist.get_rank() > 0)
        with Progress(console=console, disable=quiet) as progress:
            task = progress.add_task(f"{optimizer} lr {lr:g}", total=study.recipe.steps)
            result = runner.run(
                spec,
                study.recipe,
                RunFolder.of(folder, study.recipe.name, spec.hash),
                data,
                progress=lambda done, _: progress.update(task, completed=done),
            )
        if not dist.is_initialized() or dist.get_rank() == 0:
            _print_run(result, study.recipe.metric.name)
            if tensorboard:
                write_tensorboard([result], folder)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _print_run(result: dict[str, Any], metric: str) -> None:
    if result["status"] == "diverged":
        console.print(f"diverged at step {result['diverged_at']}: {result['why']}", markup=False)
    else:
        values = ", ".join(f"{n} {result['valid'][n][-1]:.5g}" for n in ("loss", metric))
        console.print(f"validation after {result['steps']} steps: {values}", markup=False)
    console.print(f"{result['time']['seconds']:.1f} s, peak {result['peak_mb']:.0f} MB, run {result['hash']}")


def write_reports(folders: Sequence[Path], *, compare: bool) -> list[Path]:
    """Write the pages of studies again from what is on disk."""
    from dualavg_bench.report import render_comparison

    files = [folder / "summary.json" for folder in folders]
    summaries = [read_json(file, "summary of a study") for file in files]
    if compare:
        path = folders[0] / "compare.html"
        with _whole(*files):
            page = render_comparison(summaries, _told_apart(folders))
        write_atomically(path, page.encode())
        return [path]
    paths = []
    for summary, folder, file in zip(summaries, folders, files, strict=True):
        with _whole(file):
            paths.append(_write_report(summary, _runs_of(summary, folder), folder))
    return paths


@contextlib.contextmanager
def _whole(*files: Path) -> Iterator[None]:
    """Say in a sentence that a summary lacks something that its page needs."""
    from jinja2 import UndefinedError

    try:
        yield
    except (KeyError, UndefinedError) as error:
        missing = str(error).split()[-1]  # "'runs'", or "... has no attribute 'runs'"
        raise StoreError(
            f"{' or '.join(map(str, files))} is not whole, or a run that it names is not: the page needs "
            f"{missing}. The study's command, given again, writes the summary anew."
        ) from error


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """As much of the end of each path as it takes: studies of one recipe have folders of one name."""
    whole = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in whole)):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(set(whole)):
            return names
    return [str(path) for path in whole]


def _runs_of(summary: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    runs = []
    for run_hash in summary["runs"]:
        run = RunFolder.of(folder, summary["recipe"], run_hash).result()
        if run is None:
            raise StoreError(f"{folder} lacks the run {run_hash} of its summary: run the study again.")
        runs.append(run)
    return runs


def _write_report(summary: dict[str, Any], runs: list[dict[str, Any]], folder: Path) -> Path:
    from dualavg_bench.report import render

    path = folder / "report.html"
    write_atomically(path, render(summary, runs).encode())
    return path


def list_recipes() -> None:
    """Print the built-in recipes: a table of sizes and times, then what each is and which data it needs."""
    from dualavg_bench.recipe import load
    from dualavg_bench.recipes import builtin

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("recipe", "scale", "data"):
        table.add_column(column)
    for column in ("steps", "batch", "a run takes"):
        table.add_column(column, justify="right")
    scales: tuple[Scale, ...] = ("quick", "mini", "paper")
    texts = {}
    for name, module in builtin().items():
        for scale in scales:
            recipe, _ = load(name, scale)
            table.add_row(
                name if scale == "quick" else "",
                scale,
                "embedded" if scale == "quick" else "--data DIR",
                f"{recipe.steps:,}",
                str(recipe.batch_size),
                "not measured" if recipe.expected is None else duration(recipe.expected),
            )
            if scale == "quick":
                texts[name] = [f"Quick: {recipe.about}", _needed(importlib.import_module(module))]
    console.print(table)
    for name, lines in texts.items():
        console.print(f"[bold]{name}[/]")
        for line in filter(None, lines):
            console.print(Padding(escape(line), (0, 0, 0, 4)))


def _needed(module: ModuleType) -> str:
    """What DIR must hold, as the recipe's docstring says: from there to the next blank line."""
    _, found, after = (inspect.getdoc(module) or "").partition("DIR holds")
    return " ".join((found + after).partition("\n\n")[0].split())

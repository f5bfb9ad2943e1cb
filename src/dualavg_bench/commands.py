"""What the commands do: a study, one run, pages from files. `horizon` and `reproduce` have modules."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from rich.progress import Progress

from dualavg_bench.recipe import Grid, Point, RecipeError, Scale, registry
from dualavg_bench.report import horizon_page
from dualavg_bench.report.compare_page import render_comparison
from dualavg_bench.report.study_page import render
from dualavg_bench.report.tensorboard import require_tensorboard, write_tensorboard
from dualavg_bench.run import pretraining, trial
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.documents import has_field, read_document
from dualavg_bench.store.files import StoreError, write_atomically
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.horizons import Horizon
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Summary
from dualavg_bench.study.budget import Allowance, Budget
from dualavg_bench.study.cluster import cluster
from dualavg_bench.study.executor import Executor, Unfinished, finished_runs
from dualavg_bench.study.failures import Failure, Incomplete
from dualavg_bench.study.study import Study
from dualavg_bench.terminal import Display, announce, console, print_run, show_page

Costs = Mapping[str, trial.Cost]  # of a run, by optimizer
USER_ERRORS = (RecipeError, StoreError, ValueError, OSError)  # what the user can fix: printed in one line


def error_message(error: Exception) -> str:
    """Describe an error in one line."""
    if isinstance(error, OSError) and error.strerror:  # the system's: "[Errno 21] Is a directory: 'x'"
        return f"{error.filename}: {error.strerror}." if error.filename is not None else f"{error.strerror}."
    if isinstance(error, USER_ERRORS) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


@dataclass(frozen=True)
class Finished:
    """A study with a summary.

    Args:
        summary: also in summary.json.
        runs: all results.
        report: the path of the page.
        failed: why some optimizers have no result, or "".
    """

    summary: Summary
    runs: list[RunResult]
    report: Path
    failed: str = ""


class WorkerPool:
    """Workers and their display, for one study or for several in threads.

    Only one study is active at a time, except while it waits for its runs: loading data and drawing figures
    use torch's generator and matplotlib, which are global.
    """

    def __init__(self, client: Any, display: Display, *, remote: bool) -> None:
        self.client, self.display = client, display
        self.remote = remote  # workers of a scheduler: their machines may differ from this one
        self.active = threading.Lock()
        self.closed = False
        self.notices: set[str] = set()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let another study be active in the block."""
        self.active.release()
        try:
            yield
        finally:
            self.active.acquire()

    def notify(self, notice: str) -> None:
        """Print a notice, but none twice."""
        if notice not in self.notices:
            self.notices.add(notice)
            console.print(notice, markup=False, soft_wrap=True)


@contextlib.contextmanager
def worker_pool(
    workers: int | None, scheduler: str | None, *, together: bool = False
) -> Iterator[WorkerPool]:
    """Start workers, or connect to a scheduler; close them at the end of the block."""
    with cluster(workers, scheduler) as client, (display := Display(client, together=together)).progress:
        pool = WorkerPool(client, display, remote=scheduler is not None)
        try:
            yield pool
        finally:
            pool.closed = True


def check_one(workers: int | None, scheduler: str | None) -> None:
    """Refuse both a number of workers and a scheduler."""
    if workers is not None and scheduler is not None:
        raise ValueError("--workers starts processes, --scheduler uses those of a cluster: give only one.")


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
    budget: Budget | None = None,
    tensorboard: bool = False,
    open_page: bool = False,
    pool: WorkerPool | None = None,
) -> Finished:
    """Run a study with a live display, write its summary and report, and print the result.

    Args:
        reference: a built-in name, or the path of a file.
        scale: quick, mini or paper.
        out: where the studies go.
        data: the folder with the data set.
        workers: processes at once; default: one per core.
        scheduler: address of a dask scheduler to use instead.
        names: of optimizers; default: all that have a grid.
        extend: add step sizes while the best is at the end of its grid.
        budget: run the part of the study that fits into a time.
        tensorboard: also write event files.
        open_page: show the page in a browser.
        pool: workers shared with other studies, instead of `workers` or `scheduler`.

    Raises:
        Incomplete: some optimizers have no result; raised when all files are written.
    """
    if tensorboard:
        require_tensorboard()  # now, not when the runs have finished
    check_one(workers, scheduler)
    study = Study.of(reference, scale, out, data, names)
    console.print(f"[bold]{study.recipe.name}[/] at {scale} scale: {', '.join(study.names)} -> {study.out}")
    return complete(
        study,
        workers=workers,
        scheduler=scheduler,
        extend=extend,
        budget=budget,
        tensorboard=tensorboard,
        open_page=open_page,
        pool=pool,
    )


def complete(
    study: Study,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    extend: bool = True,
    budget: Budget | None = None,
    tensorboard: bool = False,
    open_page: bool = False,
    pool: WorkerPool | None = None,
) -> Finished:
    """Execute the runs that a study lacks, write its files, and print the result; see `run_study`."""
    incomplete = None
    try:
        try:
            summary, runs = study.run(
                lambda specs: finished_runs(study.out, study.recipe.name, specs), extend=extend
            )
        except Unfinished:
            costs = None
            if not (pool.remote if pool else scheduler):  # before workers are started
                costs = _try_out(study, None, timed=budget is not None)
            with contextlib.ExitStack() as stack:
                if pool is None:
                    pool = stack.enter_context(worker_pool(workers, scheduler))
                    stack.enter_context(pool.active)
                summary, runs = _run_on(pool, study, costs, extend=extend, budget=budget)
    except Incomplete as error:
        incomplete, summary, runs = error, error.summary, error.runs
    if tensorboard:
        write_tensorboard(runs, study.out)
    _write_report(summary, runs, study.report_file)
    announce(summary, study.report_file, study.kept)
    if open_page:
        show_page(study.report_file)
    if incomplete:
        raise incomplete
    return Finished(summary, runs, study.report_file)


def _try_out(study: Study, executor: Executor | None, *, timed: bool) -> Costs:
    """Take one step and one evaluation of each optimizer, on a worker if there is an executor, else here.

    What is known to work is not tried again. Return the costs of runs if `timed`.
    """
    specs = study.to_try(everything=timed)
    if not specs:
        return {}
    started = time.perf_counter()
    if executor is None:
        costs = trial.try_out(specs, study.recipe, study.data, timed=timed)
    else:
        costs = executor.try_out(specs, timed=timed)
    study.tried.update(specs)
    seconds = time.perf_counter() - started
    console.print(f"trial: a step and an evaluation of {', '.join(specs)} in {seconds:.1f} s", markup=False)
    return costs


def _run_on(
    pool: WorkerPool, study: Study, costs: Costs | None, *, extend: bool, budget: Budget | None
) -> tuple[Summary, list[RunResult]]:
    """Run a study on workers, and show its progress."""
    name, display = study.recipe.name, pool.display
    executor = Executor(pool.client, study.out, study.data, study.recipe.scale, pool.notify)
    if costs is None:
        with pool.waiting():
            costs = _try_out(study, executor, timed=budget is not None)

    def execute(specs: Sequence[RunSpec]) -> list[RunResult]:
        phase: Literal["tuning", "confirming"] = "confirming" if specs[0].test else "tuning"
        optimizers = {spec.optimizer for spec in specs}
        display.begin(name, phase, len({spec.hash for spec in specs}), len(optimizers))
        with pool.waiting():
            return executor.execute(specs, name, count)

    def count(_: RunSpec, result: RunResult | Failure) -> None:
        display.finished(name, result if isinstance(result, RunResult) else None)

    workers = display.workers()
    if budget is None:
        return study.run(execute, extend=extend, workers=workers)
    allowance = Allowance(budget, study, costs, workers)
    return allowance.run(execute, extend=extend, notify=pool.notify)


def run_one(
    reference: str,
    scale: Scale,
    optimizer: str,
    lr: float,
    weight_decay: float | None,
    schedule: str | None,
    seed: int,
    data: Path | None,
    out: Path,
    *,
    tensorboard: bool = False,
) -> None:
    """Train one run in this process, or in those of torchrun, and print its result.

    Weight decay and schedule default to the first of the optimizer's grid.
    """
    if tensorboard:
        require_tensorboard()
    study = Study.of(reference, scale, out, data)
    grid = registry.complete(optimizer, study.recipe.grids.get(optimizer) or Grid((1.0,)))
    decay = grid.points()[0].weight_decay if weight_decay is None else weight_decay
    point = Point(lr, decay, schedule or grid.schedule[0])
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's
    spec = study.spec(optimizer, point, seed, test=False).shared_by(processes)
    if processes > 1:
        dist.init_process_group()
    try:
        is_first = not dist.is_initialized() or dist.get_rank() == 0
        with Progress(console=console, disable=not (console.is_terminal and is_first)) as progress:
            task = progress.add_task(f"{optimizer} lr {lr:g}", total=study.recipe.steps)
            result = pretraining.run(
                spec,
                study.recipe,
                RunFolder.of(study.out, study.recipe.name, spec.hash),
                study.data,
                progress=lambda done, _: progress.update(task, completed=done),
            )
        if is_first:
            print_run(result)
            if tensorboard:
                write_tensorboard([result], study.out)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def write_reports(paths: Sequence[Path], *, compare: bool) -> list[Path]:
    """Write the pages of studies and horizons again from their files; return the paths of the pages.

    Args:
        paths: folders of studies, or summaries, or horizons.
        compare: write one page about all studies.
    """
    if not compare:
        return [_write_again(file) for path in paths for file in _documents(path)]
    files = [path if path.suffix == ".json" else path / "summary.json" for path in paths]
    summaries = [read_document(file, Summary) for file in files]
    page = files[0].parent / "compare.html"
    write_atomically(page, render_comparison(summaries, _distinct_names(paths)).encode())
    return [page]


def _documents(path: Path) -> list[Path]:
    """Return a file itself, or the summaries and the horizon of a folder: at least one is expected."""
    if path.suffix == ".json":
        return [path]
    lengths = sorted(path.glob("summary-*-steps.json"))
    files = [path / "summary.json", *lengths, path / "horizon.json"]
    return [file for file in files if file.exists()] or files[:1]


def _write_again(file: Path) -> Path:
    """Write the page of a summary or a horizon; samples need the runs in the folder of a study."""
    if has_field(file, "lengths"):
        return write_horizon_page(read_document(file, Horizon), file.with_suffix(".html"))
    summary = read_document(file, Summary)
    if file.name.startswith("summary"):  # of a study's folder, summary.json or summary-250-steps.json
        page = file.with_name(file.with_suffix(".html").name.replace("summary", "report", 1))
        return _write_report(summary, runs_of(summary, file.parent), page)
    return _write_report(summary, [], file.with_suffix(".html"))


def write_horizon_page(horizon: Horizon, path: Path) -> Path:
    """Write the page of a horizon, with links to the pages of its lengths that are beside it."""
    links = {each.steps: each.page for each in horizon.lengths if path.with_name(each.page).is_file()}
    write_atomically(path, horizon_page.render(horizon, links).encode())
    return path


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ: studies of one recipe have folders of one name."""
    paths = [path.resolve() for path in paths]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def runs_of(summary: Summary, folder: Path) -> list[RunResult]:
    """Return the results that a summary was made of, as far as they are still there: pages show samples."""
    results = [RunFolder.of(folder, summary.recipe, run).result() for run in summary.runs]
    return [result for result in results if result is not None]


def _write_report(summary: Summary, runs: list[RunResult], path: Path) -> Path:
    write_atomically(path, render(summary, runs).encode())
    return path

"""What the commands do: studies, the paper's seven, one run, pages again."""

import contextlib
import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.progress import Progress

from dualavg_bench.recipe import RecipeError, Scale
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.documents import read_document
from dualavg_bench.store.files import StoreError, write_atomically
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Summary
from dualavg_bench.terminal import Display, announce, console, print_run

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
    """A study that has come to its end."""

    summary: Summary
    runs: list[RunResult]
    report: Path
    failed: str = ""  # which optimizers are without result, and why


class Shared:
    """Workers and their display, for one study or for several in threads, which take turns.

    A study has its turn except while it waits for its runs: what it does besides draws from torch's generator
    and with matplotlib, of which a process has one.
    """

    def __init__(self, display: Display) -> None:
        self.display = display
        self.turn = threading.Lock()
        self.given_up = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others have their turn in the block."""
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()


@contextlib.contextmanager
def _workers(workers: int | None, scheduler: str | None, *, together: bool = False) -> Iterator[Shared]:
    from dualavg_bench.study.cluster import cluster

    with cluster(workers, scheduler) as client, (display := Display(client, together=together)).progress:
        shared = Shared(display)
        try:
            yield shared
        finally:
            shared.given_up = True


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
    shared: Shared | None = None,
) -> Finished:
    """Run a study with a live display, write its summary and report, and print what came of it.

    Args:
        reference: a built-in name, or the path of a file.
        scale: quick, mini or paper.
        out: where the studies go.
        data: the folder with the data set.
        workers: processes at once; one a core if None.
        scheduler: address of a dask scheduler to use instead.
        names: of optimizers; all that have a grid if None.
        extend: add step sizes while the best lies on the edge of its grid.
        tensorboard: write event files too.
        shared: workers that other studies use too, instead of `workers` or `scheduler`.

    Raises:
        Incomplete: at the end, when all is written, if some optimizers are without result.
    """
    from dualavg_bench.report.tensorboard import require_tensorboard, write_tensorboard
    from dualavg_bench.study.executor import Engine, Failure, Unfinished, finished_runs
    from dualavg_bench.study.study import Incomplete, Study

    if tensorboard:
        require_tensorboard()  # now, not when the runs are done
    _check_one(workers, scheduler)
    study = Study.of(reference, scale, out, data, names)
    name, folder = study.recipe.name, study.out
    console.print(f"[bold]{name}[/] at {scale} scale: {', '.join(study.names)} -> {folder}")
    incomplete = None
    try:
        try:
            summary, runs = study.run(lambda specs: finished_runs(folder, name, specs), extend=extend)
        except Unfinished:
            with contextlib.ExitStack() as stack:
                there = shared
                if there is None:
                    there = stack.enter_context(_workers(workers, scheduler))
                    stack.enter_context(there.turn)
                display, engine = there.display, Engine(there.display.client, folder, study.data, scale)

                def execute(specs: Sequence[RunSpec]) -> list[RunResult]:
                    phase: Literal["tuning", "confirming"] = "confirming" if specs[0].test else "tuning"
                    display.begin(name, phase, len({spec.hash for spec in specs}))
                    with there.waiting():
                        return engine.execute(specs, name, count)

                def count(_: RunSpec, result: RunResult | Failure) -> None:
                    display.finished(name, result if isinstance(result, RunResult) else None)

                summary, runs = study.run(execute, extend=extend, workers=display.workers())
    except Incomplete as error:
        incomplete, summary, runs = error, error.summary, error.runs
    if tensorboard:
        write_tensorboard(runs, folder)
    report = _write_report(summary, runs, folder)
    announce(summary, report, study.kept)
    if incomplete:
        raise incomplete
    return Finished(summary, runs, report)


def _check_one(workers: int | None, scheduler: str | None) -> None:
    if workers is not None and scheduler is not None:
        raise ValueError(
            "--workers starts processes here and --scheduler takes workers that are there: give only one."
        )


def reproduce(
    scale: Scale,
    *,
    out: Path,
    names: Sequence[str] | None = None,
    together: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    **more: Any,
) -> bool:
    """Run the paper's experiments one after the other or side by side, and write the page of them all.

    A study that cannot be run, or fails, does not keep the others from running. Says whether none did. The
    page also has the studies that were not asked for and lie finished in `out`.

    Args:
        scale: quick, mini or paper.
        out: where the studies and the page go.
        names: of recipes; all of the paper's if None.
        together: all at once on the same workers, none of which is idle while any study has runs to do.
        workers: processes at once; one a core if None.
        scheduler: address of a dask scheduler to use instead.
        more: what else `run_study` takes.
    """
    from dualavg_bench.analysis import paper
    from dualavg_bench.report.paper_page import render

    names = tuple(dict.fromkeys(names or paper.RECIPES))
    for name in names:
        if name not in paper.RECIPES:
            raise ValueError(f"{name!r} is no experiment of the paper: it has {', '.join(paper.RECIPES)}.")
    _check_one(workers, scheduler)
    how = {"workers": workers, "scheduler": scheduler}
    came = (_together if together else _in_turn)(names, how, {"scale": scale, "out": out, **more})
    others = {name: _found(name, scale, out) for name in paper.RECIPES if name not in names}
    done = {name: found for name, found in {**came, **others}.items() if isinstance(found, Finished)}
    missing = {name: found if isinstance(found, str) else found.failed for name, found in came.items()}
    missing = {name: why for name, why in missing.items() if why}
    studies = {name: (finished.summary, finished.runs) for name, finished in done.items()}
    path = out.absolute() / f"reproduction-{scale}.html"
    links = {
        name: finished.report.relative_to(path.parent).as_posix()
        for name, finished in done.items()
        if name in came or finished.report.is_file()
    }
    write_atomically(path, render(scale, studies, links, missing).encode())
    console.print(paper.finding(paper.judge({name: runs for name, (_, runs) in studies.items()}), scale))
    console.print(f"page: {path}", markup=False, soft_wrap=True)
    return not missing


def _in_turn(names: Sequence[str], how: dict[str, Any], more: dict[str, Any]) -> dict[str, Finished | str]:
    """Run studies one after the other; return each, or why it was not run to its end."""
    return {name: _attempt(name, **how, **more) for name in names}


def _together(names: Sequence[str], how: dict[str, Any], more: dict[str, Any]) -> dict[str, Finished | str]:
    """Run studies side by side on the same workers; return each, or why it was not run to its end."""
    # Workers are given up before the threads are waited for, which ends whatever these still wait for.
    with ThreadPoolExecutor(len(names)) as pool, _workers(**how, together=True) as shared:

        def attempt(name: str) -> Finished | str:
            with shared.turn:
                return _attempt(name, shared=shared, **more)

        return dict(zip(names, pool.map(attempt, names), strict=True))


def _attempt(name: str, **more: Any) -> Finished | str:
    """Run a study; whatever goes wrong with it, only Ctrl-C keeps the others from running."""
    from dualavg_bench.study.study import Incomplete

    try:
        return run_study(name, **more)
    except Incomplete as error:
        console.print(f"{name}: {error_message(error)}", markup=False, soft_wrap=True)
        report = more["out"].absolute() / f"{error.summary.recipe}-{more['scale']}" / "report.html"
        why = "; ".join(dict.fromkeys(failure.sentence.rstrip(".") for failure in error.failures[:3]))
        return Finished(error.summary, error.runs, report, f"Runs failed: {why}.")
    except Exception as error:
        shared = more.get("shared")
        if shared and shared.given_up:
            raise  # somebody stopped them all, and says so
        if not isinstance(error, USER_ERRORS) or os.environ.get("DUALAVG_TRACEBACK"):
            traceback.print_exc()
        why = error_message(error)
        console.print(f"{name} failed: {why}", markup=False, soft_wrap=True)
        return why


def _found(name: str, scale: Scale, out: Path) -> Finished | None:
    """Return a finished study in `out` that this command did not run, if its files can be read."""
    folder = out.absolute() / f"{name}-{scale}"
    try:
        summary = read_document(folder / "summary.json", Summary)
        if (summary.recipe, summary.scale) != (name, scale):
            return None
        return Finished(summary, _runs_of(summary, folder), folder / "report.html")
    except StoreError:  # of another version, or damaged: as if it were not there
        return None


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

    from dualavg_bench.recipe import Point, registry
    from dualavg_bench.report.tensorboard import require_tensorboard, write_tensorboard
    from dualavg_bench.run import training
    from dualavg_bench.study.study import Study

    if tensorboard:
        require_tensorboard()
    registry.find(optimizer)
    study = Study.of(reference, scale, out, data)
    grid = study.recipe.grids.get(optimizer)
    point = Point(lr, weight_decay, schedule or (grid.schedule[0] if grid else "constant"))
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's
    spec = replace(study.spec(optimizer, point, seed, test=False), processes=processes)
    if processes > 1:
        dist.init_process_group()
    try:
        quiet = not console.is_terminal or (processes > 1 and dist.get_rank() > 0)
        with Progress(console=console, disable=quiet) as progress:
            task = progress.add_task(f"{optimizer} lr {lr:g}", total=study.recipe.steps)
            result = training.run(
                spec,
                study.recipe,
                RunFolder.of(study.out, study.recipe.name, spec.hash),
                study.data,
                progress=lambda done, _: progress.update(task, completed=done),
            )
        if not dist.is_initialized() or dist.get_rank() == 0:
            print_run(result)
            if tensorboard:
                write_tensorboard([result], study.out)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def write_reports(folders: Sequence[Path], *, compare: bool) -> list[Path]:
    """Write the pages of studies again from what is on disk."""
    from dualavg_bench.report.study_page import render_comparison

    summaries = [read_document(folder / "summary.json", Summary) for folder in folders]
    if compare:
        path = folders[0] / "compare.html"
        write_atomically(path, render_comparison(summaries, _told_apart(folders)).encode())
        return [path]
    return [
        _write_report(summary, _runs_of(summary, folder), folder)
        for summary, folder in zip(summaries, folders, strict=True)
    ]


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """As much of the end of each path as it takes: studies of one recipe have folders of one name."""
    whole = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(path.parts) for path in whole)):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(set(whole)):
            return names
    return [str(path) for path in whole]


def _runs_of(summary: Summary, folder: Path) -> list[RunResult]:
    runs = []
    for run_hash in summary.runs:
        run = RunFolder.of(folder, summary.recipe, run_hash).result()
        if run is None:
            raise StoreError(f"{folder} lacks the run {run_hash} of its summary: run the study again.")
        runs.append(run)
    return runs


def _write_report(summary: Summary, runs: list[RunResult], folder: Path) -> Path:
    from dualavg_bench.report.study_page import render

    path = folder / "report.html"
    write_atomically(path, render(summary, runs).encode())
    return path

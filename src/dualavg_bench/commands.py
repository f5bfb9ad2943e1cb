"""What the commands do: studies, the paper's seven, one run, pages again."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from dualavg_bench.display import Display, announce, console, print_run
from dualavg_bench.recipe import RecipeError, RunSpec, Scale
from dualavg_bench.store import RunFolder, StoreError, read_json, write_atomically

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
    """Run a study with a live display, write its summary and report, and print what came of it."""
    from dualavg_bench.engine import Engine, Unfinished, cluster, finished_runs
    from dualavg_bench.sinks import require_tensorboard, write_tensorboard
    from dualavg_bench.study import Study

    if tensorboard:
        require_tensorboard()  # now, not when the runs are done
    data = data or out.absolute() / "data"
    study = Study.of(reference, scale, out, data, names)
    name, folder = study.recipe.name, study.out
    console.print(f"[bold]{name}[/] at {scale} scale: {', '.join(study.names)} -> {folder}")
    try:
        summary, runs = study.run(lambda specs: finished_runs(folder, name, specs), extend=extend)
    except Unfinished:
        with cluster(workers, scheduler) as client, (display := Display(client)).progress:
            engine = Engine(client, folder, data, scale)

            def execute(specs: Sequence[RunSpec]) -> list[dict[str, Any]]:
                display.begin(specs)
                return engine.execute(specs, name, display.finished)

            summary, runs = study.run(execute, extend=extend)
    if tensorboard:
        write_tensorboard(runs, folder)
    report = _write_report(summary, runs, folder)
    announce(summary, report)
    return Finished(summary, runs, report)


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
    if processes > 1:
        dist.init_process_group()
    try:
        quiet = not console.is_terminal or (processes > 1 and dist.get_rank() > 0)
        with Progress(console=console, disable=quiet) as progress:
            task = progress.add_task(f"{optimizer} lr {lr:g}", total=study.recipe.steps)
            result = runner.run(
                spec,
                study.recipe,
                RunFolder.of(study.out, study.recipe.name, spec.hash),
                data,
                progress=lambda done, _: progress.update(task, completed=done),
            )
        if not dist.is_initialized() or dist.get_rank() == 0:
            print_run(result, study.recipe.metric.name)
            if tensorboard:
                write_tensorboard([result], study.out)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


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

"""`dualavg reproduce`: the paper's experiments, one after the other or at once, and one page about them."""

import os
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dualavg_bench import commands
from dualavg_bench.analysis import paper
from dualavg_bench.commands import USER_ERRORS, Finished, WorkerPool, check_one, error_message, worker_pool
from dualavg_bench.report.paper_page import render
from dualavg_bench.scales import Scale
from dualavg_bench.store.documents import read_document
from dualavg_bench.store.files import StoreError, write_atomically
from dualavg_bench.store.summaries import Summary
from dualavg_bench.study.failures import Incomplete
from dualavg_bench.terminal import console

Outcome = Finished | str  # a study, or why it failed


def reproduce(
    scale: Scale,
    *,
    out: Path,
    names: Sequence[str] | None = None,
    together: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    **options: Any,
) -> bool:
    """Run the paper's experiments and write the page about them; return whether none failed.

    A study that fails does not stop the others. The page also shows studies that are finished in `out` and
    not among `names`.

    Args:
        scale: quick, mini or paper.
        out: where the studies and the page go.
        names: of recipes; default: all of the paper.
        together: run all studies at once on the same workers.
        workers: processes at once; default: one per core.
        scheduler: address of a dask scheduler to use instead.
        options: further options of `run_study`.
    """
    names = tuple(dict.fromkeys(names or paper.RECIPES))
    for name in names:
        if name not in paper.RECIPES:
            raise ValueError(f"{name!r} is no experiment of the paper: it has {', '.join(paper.RECIPES)}.")
    check_one(workers, scheduler)
    options |= {"scale": scale, "out": out}
    if together:
        outcomes = _run_together(names, workers, scheduler, options)
    else:
        options |= {"workers": workers, "scheduler": scheduler}
        outcomes = {name: _attempt(name, options) for name in names}
    found = {name: _find(name, scale, out) for name in paper.RECIPES if name not in names}
    finished = {name: s for name, s in (outcomes | found).items() if isinstance(s, Finished)}
    failed = {name: s if isinstance(s, str) else s.failed for name, s in outcomes.items()}
    failed = {name: reason for name, reason in failed.items() if reason}
    studies = {name: (study.summary, study.runs) for name, study in finished.items()}
    path = out.absolute() / f"reproduction-{scale}.html"
    links = {
        name: study.report.relative_to(path.parent).as_posix()
        for name, study in finished.items()
        if name in outcomes or study.report.is_file()
    }
    write_atomically(path, render(scale, studies, links, failed).encode())
    judgements = paper.judge({name: study.summary for name, study in finished.items()})
    console.print(paper.finding(judgements, scale), paper.finding_for_mda(judgements))
    console.print(f"page: {path}", markup=False, soft_wrap=True)
    return not failed


def write_page(files: Sequence[Path], page: Path) -> list[paper.Judgement]:
    """Write the page about the paper from summaries alone, without samples; return the judgements.

    A study's own page is linked if it is there: that of results/mini/cifar10.json is cifar10.html beside it.

    Args:
        files: summaries of the paper's experiments, all at one scale.
        page: the file to write.
    """
    summaries: dict[str, Summary] = {}
    links = {}
    for file in files:
        summary = read_document(file, Summary)
        if summary.recipe not in paper.RECIPES:
            raise ValueError(f"{file}: {summary.recipe} is no experiment of the paper.")
        if summary.recipe in summaries:
            raise ValueError(f"{file}: there is another summary of {summary.recipe}: name one of them.")
        summaries[summary.recipe] = summary
        own = file.with_suffix(".html")
        if own.is_file():
            links[summary.recipe] = Path(os.path.relpath(own, page.parent)).as_posix()
    scales = {summary.scale for summary in summaries.values()}
    if len(scales) != 1:
        raise ValueError(
            f"The page is about studies at one scale, got {', '.join(sorted(scales)) or 'none'}."
        )
    studies = {recipe: (summary, ()) for recipe, summary in summaries.items()}
    write_atomically(page, render(scales.pop(), studies, links, {}).encode())
    return paper.judge(summaries)


def _run_together(
    names: Sequence[str], workers: int | None, scheduler: str | None, options: dict[str, Any]
) -> dict[str, Outcome]:
    """Run studies at once on the same workers."""
    # On Ctrl-C the workers are closed first: that ends the threads, which wait for runs.
    with (
        ThreadPoolExecutor(len(names)) as threads,
        worker_pool(workers, scheduler, together=True) as pool,
    ):

        def attempt(name: str) -> Outcome:
            with pool.active:
                return _attempt(name, options, pool)

        return dict(zip(names, threads.map(attempt, names), strict=True))


def _attempt(name: str, options: dict[str, Any], pool: WorkerPool | None = None) -> Outcome:
    """Run a study. Only Ctrl-C raises: every other error is printed and returned."""
    try:
        return commands.run_study(name, **options, pool=pool)
    except Incomplete as error:
        console.print(f"{name}: {error_message(error)}", markup=False, soft_wrap=True)
        report = options["out"].absolute() / f"{error.summary.recipe}-{options['scale']}" / "report.html"
        reasons = dict.fromkeys(failure.message.rstrip(".") for failure in error.failures[:3])
        return Finished(error.summary, error.runs, report, f"Runs failed: {'; '.join(reasons)}.")
    except Exception as error:
        if pool is not None and pool.closed:
            raise  # the user stopped all studies
        if not isinstance(error, USER_ERRORS) or os.environ.get("DUALAVG_TRACEBACK"):
            traceback.print_exc()
        reason = error_message(error)
        console.print(f"{name} failed: {reason}", markup=False, soft_wrap=True)
        return reason


def _find(name: str, scale: Scale, out: Path) -> Finished | None:
    """Return a finished study in `out`, or None if its files are missing, damaged or of another version."""
    folder = out.absolute() / f"{name}-{scale}"
    try:
        summary = read_document(folder / "summary.json", Summary)
        if (summary.recipe, summary.scale) != (name, scale):
            return None
        return Finished(summary, commands.runs_of(summary, folder), folder / "report.html")
    except StoreError:
        return None

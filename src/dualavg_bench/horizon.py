"""`dualavg horizon`: a recipe tuned and confirmed at several run lengths, and one page about them.

Each length is a study in the recipe's folder. A run is named by its spec, so the study of the recipe's own
length and a horizon that includes it share all their runs.
"""

from collections.abc import Sequence
from pathlib import Path

from dualavg_bench.analysis.horizon import at_length, combine
from dualavg_bench.commands import check_one, complete, write_horizon_page
from dualavg_bench.scales import Scale
from dualavg_bench.store.documents import write_document
from dualavg_bench.store.horizons import Horizon, Length
from dualavg_bench.store.summaries import Summary
from dualavg_bench.study.failures import Failure, Incomplete, StudyFailed
from dualavg_bench.study.study import Study
from dualavg_bench.terminal import announce_horizon, console


def run_horizon(
    reference: str,
    scale: Scale,
    lengths: Sequence[int],
    *,
    out: Path,
    data: Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    names: Sequence[str] | None = None,
    extend: bool = True,
) -> Horizon:
    """Run a recipe at several lengths, from short to long; write horizon.json and horizon.html after each.

    Args:
        reference: a built-in name, or the path of a file.
        scale: quick, mini or paper.
        lengths: in steps, each once.
        out: where the studies go.
        data: the folder with the data set.
        workers: processes at once; default: one per core.
        scheduler: address of a dask scheduler to use instead.
        names: of optimizers; default: all that have a grid.
        extend: add step sizes while the best is at the end of its grid.

    Raises:
        StudyFailed: some optimizers have no result at some length; raised when all files are written.
    """
    check_one(workers, scheduler)
    lengths = sorted(lengths)
    recipe_study = Study.of(reference, scale, out, data, names)
    name, steps = recipe_study.recipe.name, ", ".join(f"{length:,}" for length in lengths)
    optimizers = ", ".join(recipe_study.names)
    console.print(f"[bold]{name}[/] at {scale} scale, {steps} steps: {optimizers} -> {recipe_study.out}")
    summaries: list[Summary] = []
    finished: list[Length] = []
    failures: list[Failure] = []
    for length in lengths:
        study = recipe_study.at_length(length)
        console.print(f"\n[bold]{length:,} steps[/]")
        try:
            summary = complete(study, workers=workers, scheduler=scheduler, extend=extend).summary
        except Incomplete as error:
            summary = error.summary
            failures += error.failures
        summaries.append(summary)
        files = {"summary_file": study.summary_file.name, "page": study.report_file.name}
        finished.append(at_length(summary, epochs=study.epochs, **files))
        horizon = combine(
            summaries,
            finished,
            command=recipe_study.command(extend=extend, lengths=lengths),
            own_steps=recipe_study.recipe.steps,
            planned=lengths,
        )
        write_document(study.out / "horizon.json", horizon)
        page = write_horizon_page(horizon, study.out / "horizon.html")
    announce_horizon(horizon, page)
    if failures:
        raise StudyFailed(failures)
    return horizon

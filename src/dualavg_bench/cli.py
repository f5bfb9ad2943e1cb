"""The command line: `dualavg ...`. Heavy things are imported where they are used."""

import importlib.metadata
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from dualavg_bench.scales import Scale

Workers = Annotated[int | None, Parameter(validator=Number(gte=1))]

app = App(
    name="dualavg",
    help="Which optimizer for my model, and at which step size? A fair comparison, with error bars.",
    version=lambda: importlib.metadata.version("dualavg"),
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an error that a person can mend is a sentence, not a traceback."""
    try:
        app(arguments)
    except KeyboardInterrupt:
        print("\ndualavg: stopped. The same command goes on from here.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from dualavg_bench.commands import MENDABLE, sentence

        if not isinstance(error, MENDABLE) or os.environ.get("DUALAVG_TRACEBACK"):
            raise
        first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, one says it
        sys.exit(f"dualavg: {sentence(error)}" if first else 1)


@app.command
def study(
    recipe: str,
    *,
    scale: Scale = "quick",
    data: Path | None = None,
    out: Path = Path("studies"),
    workers: Workers = None,
    scheduler: str | None = None,
    optimizers: str | None = None,
    extend: bool = True,
    tensorboard: bool = False,
) -> None:
    """Compare optimizers on a recipe: grid, choice on validation, confirmation on fresh seeds, report.

    Kill it at any time: the same command goes on where it was.

    Args:
        recipe: A built-in name (see `dualavg recipes`) or a Python file of your own.
        scale: How large: quick (seconds a run), mini (minutes) or paper (the paper's, on GPUs).
        data: The folder with the data set, see `dualavg recipes`; quick needs none.
        out: Where runs, summary.json and report.html go: a folder for each recipe and scale.
        workers: Processes that run at once; one a core if not said.
        scheduler: Address of a dask scheduler to use instead, e.g. tcp://10.0.0.1:8786.
        optimizers: Names with commas between, e.g. mda,sgd,adam; all that have a grid if not said. The
            summary and report of an earlier study of more of them are kept under other names.
        extend: Add step sizes while the best lies on the edge of its grid, at most three times.
        tensorboard: Write the runs as TensorBoard's event files too, beside the report.
    """
    from dualavg_bench.commands import run_study

    names = None if optimizers is None else [name.strip() for name in optimizers.split(",")]
    run_study(
        recipe,
        scale,
        out=out,
        data=data,
        workers=workers,
        scheduler=scheduler,
        names=names,
        extend=extend,
        tensorboard=tensorboard,
    )


@app.command
def demo(*, out: Path = Path("studies"), workers: Workers = None) -> None:
    """MDA, SGD+M and Adam on two small tasks, an image and a language one, in a few minutes.

    Args:
        out: Where runs, summaries and reports go.
        workers: Processes that run at once; one a core if not said.
    """
    from dualavg_bench.commands import run_study

    for recipe in ("cifar10", "wikitext103"):
        run_study(recipe, "quick", out=out, workers=workers, extend=False)


@app.command
def reproduce(
    *,
    scale: Scale = "quick",
    data: Path | None = None,
    out: Path = Path("studies"),
    workers: Workers = None,
    scheduler: str | None = None,
    recipes: str | None = None,
    together: bool = False,
    extend: bool | None = None,
) -> None:
    """Run the paper's experiments and its ablation, and print what agrees with the paper and what does not.

    Kill it at any time: the same command goes on where it was.

    Args:
        scale: How large: quick (seconds a run), mini (minutes) or paper (the paper's, on GPUs).
        data: The folder with the data sets, each in its own folder; quick needs none.
        out: Where the studies and the page go.
        workers: Processes that run at once; one a core if not said.
        scheduler: Address of a dask scheduler to use instead.
        recipes: Names with commas between; all seven if not said. The page keeps what lies finished in OUT.
        together: Side by side on the same workers, not one after the other: none is idle at a study's end.
        extend: Add step sizes, at most three times, while the best lies on the edge of its grid; not at quick
            scale if not said.
    """
    from dualavg_bench.commands import reproduce

    names = [name.strip() for name in recipes.split(",")] if recipes else None
    whole = reproduce(
        scale,
        out=out,
        names=names,
        together=together,
        workers=workers,
        scheduler=scheduler,
        data=data,
        extend=scale != "quick" if extend is None else extend,
    )
    if not whole:
        sys.exit(1)


@app.command
def run(
    recipe: str,
    *,
    optimizer: str = "mda",
    lr: float,
    weight_decay: float = 0.0,
    schedule: str | None = None,
    seed: int = 0,
    scale: Scale = "quick",
    data: Path | None = None,
    out: Path = Path("studies"),
    tensorboard: bool = False,
) -> None:
    """Train one run and print what came of it. Under torchrun, the processes share it (DDP).

    Args:
        recipe: A built-in name or a Python file of your own.
        optimizer: A name of the registry, or a dotted path such as madgrad.MADGRAD.
        lr: Step size.
        weight_decay: Weight decay.
        schedule: The first of the optimizer's grid if not said.
        seed: Decides initialisation and data order.
        scale: quick, mini or paper.
        data: The folder with the data set; quick needs none.
        out: Where the run is kept.
        tensorboard: Write the run as TensorBoard's event files too.
    """
    from dualavg_bench.commands import run_one

    for name, value in {"--lr": lr, "--weight-decay": weight_decay}.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a number >= 0, got {value}.")
    run_one(recipe, scale, optimizer, lr, weight_decay, schedule, seed, data, out, tensorboard=tensorboard)


@app.command
def report(*folders: Path, compare: bool = False) -> None:
    """Make the page of a study again, or one page of several.

    Args:
        folders: Folders of studies, each with its summary.json.
        compare: Put all of them on one page, in the first folder.
    """
    from dualavg_bench.commands import write_reports

    if not folders:
        raise ValueError("Name the folder of a study.")
    for path in write_reports(list(folders), compare=compare):
        print(path)


@app.command
def recipes() -> None:
    """List the built-in recipes: scales, data, expected time."""
    from dualavg_bench.terminal import list_recipes

    list_recipes()


@app.command
def new(path: Annotated[Path, Parameter(help="Where to write it, e.g. my_recipe.py.")]) -> None:
    """Write a commented recipe to start from; it runs as it is."""
    from dualavg_bench.store.files import StoreError, write_atomically

    if path.exists():
        raise StoreError(f"{path} is there already: choose another name.")
    if path.suffix != ".py":
        raise StoreError(f"A recipe is a Python file: {path}.py?")
    template = Path(__file__).parent / "recipe" / "templates" / "new_recipe.py"
    write_atomically(path, template.read_bytes())
    print(f"written: {path}\nnext:    dualavg study {path}")


if __name__ == "__main__":
    main()

"""The command line: `dualavg ...`.

Each command imports its function when it is called: `dualavg --help` answers without loading torch.
"""

import importlib.metadata
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from dualavg_bench.scales import Scale
from dualavg_bench.store.files import StoreError, write_atomically

TEMPLATE = Path(__file__).parent / "recipe" / "templates" / "new_recipe.py"
Workers = Annotated[int | None, Parameter(validator=Number(gte=1))]

app = App(
    name="dualavg",
    help="Which optimizer for my model, and at which step size? A fair comparison, with error bars.",
    version=lambda: importlib.metadata.version("dualavg"),
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Errors that the user can fix are printed in one line, without a traceback."""
    try:
        app(arguments)
    except KeyboardInterrupt:
        print("\ndualavg: stopped. Run the command again to resume.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from dualavg_bench.commands import USER_ERRORS, error_message

        if not isinstance(error, USER_ERRORS) or os.environ.get("DUALAVG_TRACEBACK"):
            raise
        is_first = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes prints it
        sys.exit(f"dualavg: {error_message(error)}" if is_first else 1)


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
    budget: str | None = None,
    tensorboard: bool = False,
    open_page: Annotated[bool, Parameter(name="--open", negative=())] = False,
) -> None:
    """Compare optimizers on a recipe: grid, choice on validation, confirmation on fresh seeds, report.

    It can be killed at any time: run the command again to resume.

    Args:
        recipe: A built-in name (see `dualavg recipes`) or a Python file of your own.
        scale: How large: quick (seconds per run), mini (minutes) or paper (the paper's, on GPUs).
        data: The folder with the data set, see `dualavg recipes`; quick needs none.
        out: Where runs, summary.json and report.html go: a folder for each recipe and scale.
        workers: Processes that run at once; default: one per core.
        scheduler: Address of a dask scheduler to use instead, e.g. tcp://10.0.0.1:8786.
        optimizers: Names separated by commas, e.g. mda,sgd,adam; default: all that have a grid. The
            summary and report of an earlier study with more optimizers are kept under other names.
        extend: Add step sizes while the best is at the end of its grid, at most three times.
        budget: Time for this command, such as 90s, 10m or 2h: run what fits. Fewer seeds, then fewer grid
            points, never fewer steps. Run it again without it, or with more, to complete the study.
        tensorboard: Also write the runs as TensorBoard event files, beside the report.
        open_page: Open the report in a browser at the end.
    """
    started = time.monotonic()
    from dualavg_bench.commands import run_study
    from dualavg_bench.study.budget import Budget

    run_study(
        recipe,
        scale,
        out=out,
        data=data,
        workers=workers,
        scheduler=scheduler,
        names=_names(optimizers),
        extend=extend,
        budget=None if budget is None else Budget.parse(budget, started),
        tensorboard=tensorboard,
        open_page=open_page,
    )


@app.command
def horizon(
    recipe: str,
    *,
    steps: str,
    scale: Scale = "quick",
    data: Path | None = None,
    out: Path = Path("studies"),
    workers: Workers = None,
    scheduler: str | None = None,
    optimizers: str | None = None,
    extend: bool = True,
) -> None:
    """How long is long enough? A study at each of several run lengths, and one page about them.

    It can be killed at any time: run the command again to resume. Runs are shared with `dualavg study`.

    Args:
        recipe: A built-in name (see `dualavg recipes`) or a Python file of your own.
        steps: Run lengths separated by commas, e.g. 250,1000,4000; each is tuned and confirmed by itself.
        scale: How large: quick (seconds per run), mini (minutes) or paper (the paper's, on GPUs).
        data: The folder with the data set, see `dualavg recipes`; quick needs none.
        out: Where runs, horizon.json and horizon.html go: the folder of the recipe's study.
        workers: Processes that run at once; default: one per core.
        scheduler: Address of a dask scheduler to use instead, e.g. tcp://10.0.0.1:8786.
        optimizers: Names separated by commas, e.g. mda,sgd,adam; default: all that have a grid.
        extend: Add step sizes while the best is at the end of its grid, at most three times.
    """
    lengths = _lengths(steps)
    from dualavg_bench.horizon import run_horizon

    run_horizon(
        recipe,
        scale,
        lengths,
        out=out,
        data=data,
        workers=workers,
        scheduler=scheduler,
        names=_names(optimizers),
        extend=extend,
    )


@app.command
def demo(*, out: Path = Path("studies"), workers: Workers = None) -> None:
    """MDA, SGD+M and Adam on two small tasks, an image and a language one, in a few minutes.

    Args:
        out: Where runs, summaries and reports go.
        workers: Processes that run at once; default: one per core.
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
    """Run the paper's experiments and its ablation, and print which of its claims hold.

    It can be killed at any time: run the command again to resume.

    Args:
        scale: How large: quick (seconds per run), mini (minutes) or paper (the paper's, on GPUs).
        data: The folder with the data sets, each in its own folder; quick needs none.
        out: Where the studies and the page go.
        workers: Processes that run at once; default: one per core.
        scheduler: Address of a dask scheduler to use instead.
        recipes: Names separated by commas; default: all seven. The page also shows studies that are finished
            in OUT.
        together: Run all studies at once on the same workers, so that none is idle at the end of a study.
        extend: Add step sizes, at most three times, while the best is at the end of its grid; default: not at
            quick scale.
    """
    from dualavg_bench.reproduction import reproduce

    complete = reproduce(
        scale,
        out=out,
        names=_names(recipes),
        together=together,
        workers=workers,
        scheduler=scheduler,
        data=data,
        extend=scale != "quick" if extend is None else extend,
    )
    if not complete:
        sys.exit(1)


@app.command
def run(
    recipe: str,
    *,
    optimizer: str = "mda",
    lr: float,
    weight_decay: float | None = None,
    schedule: str | None = None,
    seed: int = 0,
    scale: Scale = "quick",
    data: Path | None = None,
    out: Path = Path("studies"),
    tensorboard: bool = False,
) -> None:
    """Train one run and print its result. Under torchrun, its processes share the run (DDP).

    Args:
        recipe: A built-in name or a Python file of your own.
        optimizer: A name of the registry, or a dotted path such as madgrad.MADGRAD.
        lr: Step size.
        weight_decay: Weight decay; default: the first of the optimizer's grid, or its class's own default.
        schedule: Name of the schedule; default: the first of the optimizer's grid.
        seed: Decides initialisation and data order.
        scale: quick, mini or paper.
        data: The folder with the data set; quick needs none.
        out: Where the run is kept.
        tensorboard: Also write the run as TensorBoard event files.
    """
    from dualavg_bench.commands import run_one

    for name, value in {"--lr": lr, "--weight-decay": weight_decay}.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a number >= 0, got {value}.")
    run_one(recipe, scale, optimizer, lr, weight_decay, schedule, seed, data, out, tensorboard=tensorboard)


@app.command
def report(*paths: Path, compare: bool = False) -> None:
    """Write the page of a study or a horizon again, or one page of several studies.

    Args:
        paths: Folders of studies, whose pages are report.html, or summaries such as results/cifar10.json,
            whose pages are beside them, here results/cifar10.html. Samples need the runs of a folder.
            Horizons are horizon.json in a folder, or files such as results/cifar10-horizon.json.
        compare: Put all of them on one page, compare.html beside the first.
    """
    from dualavg_bench.commands import write_reports

    if not paths:
        raise ValueError("Name the folder of a study, or its summary.")
    for path in write_reports(list(paths), compare=compare):
        print(path)


@app.command
def recipes() -> None:
    """List the built-in recipes: scales, data, expected time."""
    from dualavg_bench.terminal import list_recipes

    list_recipes()


@app.command
def new(path: Annotated[Path, Parameter(help="Where to write it, e.g. my_recipe.py.")]) -> None:
    """Write a commented recipe to start from; it runs as it is."""
    if path.exists():
        raise StoreError(f"{path} exists: choose another name.")
    if path.suffix != ".py":
        raise StoreError(f"A recipe is a Python file: {path}.py?")
    write_atomically(path, TEMPLATE.read_bytes())
    print(f"written: {path}\nnext:    dualavg study {path}")


def _names(text: str | None) -> list[str] | None:
    """Split names at commas."""
    return [name.strip() for name in text.split(",")] if text is not None else None


def _lengths(text: str) -> list[int]:
    """Split run lengths at commas."""
    lengths = []
    for word in _names(text) or []:
        if not (word.isascii() and word.isdigit() and int(word)):
            raise ValueError(
                f"--steps must be whole numbers >= 1 separated by commas, e.g. 250,1000,4000, got {word!r}."
            )
        if int(word) in lengths:
            raise ValueError(f"--steps names {int(word)} more than once: name each once.")
        lengths.append(int(word))
    return lengths

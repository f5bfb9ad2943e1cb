"""What an experiment is: one typed, frozen value that holds all that can move a number."""

import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from dualavg_bench import checks

Scale = Literal["quick", "mini", "paper"]
Precision = Literal["float32", "bfloat16", "float16"]
Batch = Any


class Source(Protocol):
    """A split of a data set, read by whole batches."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:
        """Return the examples at `indices`: augmented by `rng` in training, as they are if it is None."""


class FromDataset:
    """Any map-style torch data set as a `Source`; its augmentation, if any, uses global generators."""

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Batch] = default_collate
    ) -> None:
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.dataset)  # type: ignore[arg-type]

    def batch(self, indices: Tensor, rng: torch.Generator | None) -> Batch:  # noqa: ARG002
        """Return the examples at `indices`, collated."""
        return self.collate([self.dataset[i] for i in indices.tolist()])


@dataclass(frozen=True)
class Splits:
    """The three parts of a data set. Tuning sees `valid` alone; `test` is read once, for the winners."""

    train: Source
    valid: Source
    test: Source


@dataclass(frozen=True)
class Metric:
    """The score that decides."""

    name: str
    higher_is_better: bool
    unit: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no metric."""
        checks.check_metric(self)


@dataclass(frozen=True)
class Picture:
    """A picture for the report: what was wanted and what the network made of it, (height, width) each."""

    title: str
    truth: Tensor
    made: Tensor


@dataclass(frozen=True)
class Passage:
    """A text for the report: what the network was given, what was wanted, what it made of it."""

    given: str
    truth: str
    made: str


@dataclass(frozen=True, order=True)
class Point:
    """One setting of an optimizer."""

    lr: float
    weight_decay: float = 0.0
    schedule: str = "constant"


@dataclass(frozen=True)
class Grid:
    """The settings an optimizer is tuned over, and those that are fixed for it."""

    lr: tuple[float, ...]
    weight_decay: tuple[float, ...] = (0.0,)
    schedule: tuple[str, ...] = ("constant",)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take one value for a tuple of one, and refuse what is no setting."""
        for name in ("lr", "weight_decay", "schedule"):
            value = getattr(self, name)
            values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
            object.__setattr__(self, name, values)
        checks.check_grid(self)
        for name in ("lr", "weight_decay"):
            plain = (value if isinstance(value, int) else float(value) for value in getattr(self, name))
            object.__setattr__(self, name, tuple(plain))  # not numpy's

    def points(self) -> list[Point]:
        """Every combination."""
        return [Point(*values) for values in product(self.lr, self.weight_decay, self.schedule)]


@dataclass(frozen=True)
class Seeds:
    """How many seeds tuning takes, and how many fresh ones confirm its choice."""

    tune: int = 2
    confirm: int = 5

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        checks.check_seeds(self)


@dataclass(frozen=True)
class Recipe:
    """One experiment at one scale.

    Args:
        name: what it is called, in folders and reports.
        scale: quick, mini or paper.
        metric: the score, which `evaluate` must return under its name.
        data: `data(folder)` returns the splits; `folder` is what `--data` says, or a place to write to.
        model: makes the network; torch's generator is seeded before.
        loss: `loss(model, batch)`, a mean over the batch.
        evaluate: `evaluate(model, batches)`, with `loss` and the metric among its results; finite numbers for
            the untrained network, as which a run that diverges is scored.
        batch_size: examples of an optimizer step, over all processes and accumulations.
        steps: optimizer steps of a run.
        grids: the settings of each optimizer, by its name in the registry.
        schedules: the recipe's own schedules, `make(optimizer, steps)`, beside those of `optimizers.py`.
        accumulate: backward passes an optimizer step is split into.
        precision: autocast dtype of forward passes; float16 scales the loss.
        clip_norm: largest norm of the gradient, or None.
        compile: run the network through torch.compile.
        threads: CPU threads of a run; part of what it is, because sums depend on their order.
        evaluations: how often validation is evaluated in a run, the end included.
        eval_batch_size: examples of an evaluation's batch; `batch_size` unless given.
        seeds: how many seeds for tuning and confirmation.
        samples: `samples(model, test)` returns a few pictures or passages, for the report to show.
        diverged_above: a training loss beyond this many times the first one (or 0.1) is a divergence.
        paper: which part of the paper this is.
        about: a sentence for the report.
        expected: seconds of a run on two cores, for `dualavg recipes`.
    """

    name: str
    metric: Metric
    data: Callable[[Path], Splits]
    model: Callable[[], torch.nn.Module]
    loss: Callable[[torch.nn.Module, Batch], Tensor]
    evaluate: Callable[[torch.nn.Module, Iterable[Batch]], dict[str, float]]
    batch_size: int
    steps: int
    grids: Mapping[str, Grid]
    scale: Scale = "quick"
    schedules: Mapping[str, Callable[[torch.optim.Optimizer, int], Any]] = field(default_factory=dict)
    accumulate: int = 1
    precision: Precision = "float32"
    clip_norm: float | None = None
    compile: bool = False
    threads: int = 1
    evaluations: int = 10
    eval_batch_size: int | None = None
    seeds: Seeds = Seeds()
    samples: Callable[[torch.nn.Module, Source], list[Picture | Passage]] | None = None
    diverged_above: float = 10.0
    paper: str = ""
    about: str = ""
    expected: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run, in one sentence."""
        checks.check_recipe(self)

    def settings(self) -> dict[str, Any]:
        """Everything but the functions and the grids, as JSON can hold it: what a run's hash is made of."""
        skipped = {"data", "model", "loss", "evaluate", "grids", "schedules", "seeds", "metric", "samples"}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        for name in ("paper", "about", "expected"):
            del plain[name]
        if self.diverged_above == math.inf:
            plain["diverged_above"] = "inf"  # which JSON has not
        return {**plain, "metric": [self.metric.name, self.metric.higher_is_better]}


@dataclass(frozen=True)
class RunSpec:
    """Everything that can change the result of one run; its hash is the name of the run's folder."""

    recipe: str  # the name of a built-in recipe, or the path of a file
    source: str  # sha256 of the recipe's code: another text, another experiment
    data: str  # fingerprint of what it reads
    settings: Mapping[str, Any]  # Recipe.settings()
    optimizer: str
    point: Point
    optimizer_settings: Mapping[str, Any]
    seed: int
    test: bool  # whether the test split is read at the end
    versions: Mapping[str, str]  # of torch, dualavg, and the packages that the recipe or the optimizer is of
    processes: int = 1  # that share the run: dropout and sums depend on how its batches are parted

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["point"] = [self.point.lr, self.point.weight_decay, self.point.schedule]
        for name in ("settings", "optimizer_settings", "versions"):
            plain[name] = checks.as_json(plain[name])
        del plain["recipe"]  # where the file lies changes nothing; its text and name do
        return plain

    @property
    def hash(self) -> str:
        """Name of the run's folder."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class RecipeError(Exception):
    """A recipe that cannot be loaded, in one sentence."""


def load(reference: str, scale: Scale) -> tuple[Recipe, Path]:
    """Return a recipe and its file, by a built-in name or the path of a person's own file.

    A person's file can import what lies beside it.
    """
    if reference.endswith(".py"):
        path = Path(reference)
        if not path.is_file():
            raise RecipeError(f"There is no recipe at {path}.")
        module = _import(path)
    else:
        try:
            module = importlib.import_module(f"dualavg_bench.recipes.{reference}")
        except ModuleNotFoundError as error:
            meant = f"{reference}.py, which is here, or " if Path(f"{reference}.py").is_file() else ""
            raise RecipeError(
                f"There is no recipe called {reference!r}: give {meant}a name that `dualavg recipes` lists, "
                "or a file that ends in .py."
            ) from error
        path = Path(str(module.__file__))
    from dualavg_bench.raised import place, said

    make = getattr(module, "recipe", None)
    if not callable(make):
        raise RecipeError(f"{path} has no function recipe(scale).")
    try:
        inspect.signature(make).bind(scale)
    except TypeError as error:
        raise RecipeError(f"recipe of {path} must take one argument, the scale ({error}).") from None
    try:
        made = make(scale)
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"recipe({scale!r}) of {path} cannot be made ({said(error)}){place(error)}."
        ) from error
    if not isinstance(made, Recipe):
        raise RecipeError(f"recipe({scale!r}) of {path} returned {type(made).__name__}, not a Recipe.")
    if made.scale != scale:
        raise RecipeError(
            f"recipe({scale!r}) of {path} returned a Recipe of scale {made.scale!r}: "
            "hand what it is asked for on, Recipe(scale=scale, ...)."
        )
    return made, path


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path} cannot be imported.")
    beside = str(path.parent.absolute())
    if beside not in sys.path:
        sys.path.append(beside)  # as Python does for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        from dualavg_bench.raised import place, said

        raise RecipeError(f"{path} cannot be imported ({said(error)}){place(error)}.") from error
    return module

"""Finds and makes optimizers, by a name of `optimizers.py` or by a dotted path."""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from dualavg_bench.recipe.optimizers import OPTIMIZERS, Entry
from dualavg_bench.recipe.settings import Grid, Point, is_number


def find(name: str) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return the class and the settings of a registered name, or of a dotted path."""
    entry = OPTIMIZERS.get(name) or Entry(name)
    module, _, attribute = entry.path.rpartition(".")
    known = f"one of {', '.join(OPTIMIZERS)}, or a dotted path such as madgrad.MADGRAD"
    if not module:
        similar = name.lower() if name.lower() in OPTIMIZERS else _of_torch(name)
        known = f"{similar}, {known}" if similar else known
        raise ValueError(f"There is no optimizer called {name!r}: give {known}.")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"The optimizer {name!r} cannot be imported ({error}): install its package, or give {known}."
        ) from error
    except Exception as error:  # a foreign package's import can raise anything
        raise ValueError(f"The optimizer {name!r} cannot be imported ({error}): give {known}.") from error
    base = torch.optim.Optimizer
    if not (isinstance(cls, type) and issubclass(cls, base) and cls is not base):
        raise ValueError(f"{name!r} is not a subclass of torch.optim.Optimizer: give {known}.")
    closure = inspect.signature(cls.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"{name!r} needs a closure for each step, which runs do not have.")
    return cls, dict(entry.settings)


def module_of(name: str) -> str:
    """Return the module that defines an optimizer's class."""
    return find(name)[0].__module__


def _of_torch(name: str) -> str:
    """Return the dotted path of torch's optimizer of this name, in any case of letters, or ""."""
    found = (path for path in dir(torch.optim) if path.lower() == name.lower() and path[0].isupper())
    return next((f"torch.optim.{path}" for path in found), "")


def make(
    name: str, params: Iterable[torch.nn.Parameter], point: Point, settings: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Make an optimizer at a point of its grid; the recipe's settings override the registry's."""
    cls, fixed = find(name)
    arguments = {**fixed, **settings, "lr": point.lr}
    if "weight_decay" in inspect.signature(cls).parameters:
        arguments["weight_decay"] = point.weight_decay
    elif point.weight_decay:
        raise ValueError(f"{name!r} has no weight_decay, but its grid asks for {point.weight_decay}.")
    try:
        return cls(list(params), **arguments)
    except Exception as error:  # a foreign class can raise anything
        raise ValueError(f"{name!r} cannot be made with {arguments} ({error}).") from error


def default_weight_decay(name: str) -> float:
    """Return the weight decay that an optimizer's class has by default: 0.01 for AdamW; 0 if it has none."""
    parameter = inspect.signature(find(name)[0]).parameters.get("weight_decay")
    default: Any = None if parameter is None else parameter.default
    return float(default) if is_number(default) else 0.0


def complete(name: str, grid: Grid) -> Grid:
    """Return a grid with the weight decay of the optimizer's class, unless it names its own."""
    return (
        grid if grid.weight_decay is not None else replace(grid, weight_decay=(default_weight_decay(name),))
    )


def try_out(name: str, grid: Grid) -> None:
    """Make an optimizer at each point of its grid, to find wrong settings before anything is trained."""
    find(name)
    for point in grid.points():
        make(name, [torch.nn.Parameter(torch.zeros(2, 2))], point, grid.settings)


def set_mode(optimizer: torch.optim.Optimizer, *, training: bool) -> None:
    """Switch optimizers that train and evaluate at different points, such as those of schedulefree."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if callable(switch):
        switch()

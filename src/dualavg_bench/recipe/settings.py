"""The settings of an experiment: its metric, the grid of each optimizer, the numbers of seeds.

Each is validated when it is created. A mistake raises a one-line ValueError.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from numbers import Real
from typing import Any, Literal

import torch

Precision = Literal["float32", "bfloat16", "float16"]
Report = Literal["last", "best"]  # the network of the last step, or that of the best validation score
RESERVED_NAMES = ("step",)  # the x axis of every curve
FIRST_CONFIRMATION_SEED = 1000  # tuning uses seeds below it


def require(condition: object, message: str) -> None:
    """Raise a ValueError unless the condition holds."""
    if not condition:
        raise ValueError(message)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, numpy's included, booleans excluded."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number >= 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with every torch dtype replaced by its name."""
    return {name: str(v) if isinstance(v, torch.dtype) else v for name, v in settings.items()}


@dataclass(frozen=True)
class Metric:
    """The score that decides between settings and optimizers."""

    name: str
    higher_is_better: bool
    unit: str = ""

    def __post_init__(self) -> None:
        """Validate."""
        usable = isinstance(self.name, str) and self.name and self.name not in RESERVED_NAMES
        require(usable, f"A metric needs a name other than {RESERVED_NAMES[0]!r}, got {self.name!r}.")
        require(
            isinstance(self.higher_is_better, bool),
            f"higher_is_better of the metric {self.name} must be True or False, "
            f"got {self.higher_is_better!r}.",
        )


@dataclass(frozen=True, order=True)
class Point:
    """One point of an optimizer's grid."""

    lr: float
    weight_decay: float = 0.0
    schedule: str = "constant"

    def __str__(self) -> str:
        return f"lr {self.lr:g}, weight decay {self.weight_decay:g}, {self.schedule}"


AXES = tuple(axis.name for axis in fields(Point))


@dataclass(frozen=True)
class Grid:
    """The settings that an optimizer is tuned over, and `settings` that are fixed.

    An optimizer whose grid names no weight decay gets its class's own default; see `registry.complete`.
    """

    lr: tuple[float, ...]
    weight_decay: tuple[float, ...] | None = None
    schedule: tuple[str, ...] = ("constant",)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Wrap scalars in tuples and validate."""
        for name in AXES:
            value = getattr(self, name)
            if name == "weight_decay" and value is None:
                continue
            values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
            object.__setattr__(self, name, values)
        self._check()
        for name in ("lr", "weight_decay"):
            if (values := getattr(self, name)) is not None:  # numpy numbers become Python's
                plain = (value if isinstance(value, int) else float(value) for value in values)
                object.__setattr__(self, name, tuple(plain))

    def points(self) -> list[Point]:
        """Return all combinations. A weight decay that is not named counts as one value, 0."""
        decays = (0.0,) if self.weight_decay is None else self.weight_decay
        return [Point(*values) for values in product(self.lr, decays, self.schedule)]

    def _check(self) -> None:
        for value in self.lr:
            valid = is_number(value) and 0 < value < math.inf
            require(valid, f"lr of a grid must be numbers > 0, got {value!r}.")
        for value in self.weight_decay or ():
            valid = is_number(value) and 0 <= value < math.inf
            require(valid, f"weight_decay of a grid must be numbers >= 0, got {value!r}.")
        named = all(isinstance(name, str) for name in self.schedule)
        require(named, f"schedule of a grid must be names, got {self.schedule!r}.")
        named = isinstance(self.settings, Mapping) and all(isinstance(name, str) for name in self.settings)
        require(named, f"settings of a grid must be a dictionary by name, got {self.settings!r}.")
        for name in AXES:
            require(
                name not in self.settings,
                f"settings of a grid are the same at all points: give {name} as Grid({name}=...) instead.",
            )
        try:
            json.dumps(as_json(self.settings), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"settings of a grid must be plain values, got {self.settings!r} ({error})."
            ) from None


@dataclass(frozen=True)
class Seeds:
    """The number of seeds for tuning, and of fresh seeds for confirmation."""

    tune: int = 2
    confirm: int = 5

    def __post_init__(self) -> None:
        """Validate."""
        for name in ("tune", "confirm"):
            value = getattr(self, name)
            require(is_count(value), f"Seeds.{name} must be a whole number >= 1, got {value!r}.")
        require(
            self.tune <= FIRST_CONFIRMATION_SEED,
            f"Seeds.tune must be at most {FIRST_CONFIRMATION_SEED}, the first seed of confirmation, "
            f"got {self.tune}.",
        )

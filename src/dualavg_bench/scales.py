"""The three sizes of every experiment. Imports nothing, so that the command line answers at once."""

from typing import Literal, get_args

Scale = Literal["quick", "mini", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

"""The optimizers that have a name, for recipes and commands.

This file names no run: each run's spec has the class and the settings that it found here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """The dotted path of a class, and its settings unless a recipe changes them."""

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)


OPTIMIZERS = {
    "mda": Entry("dualavg.MDA", {"momentum": 0.9}),
    "dadapt-mda": Entry("dualavg._dadapt.DAdaptMDA", {"momentum": 0.9}),
    "da": Entry("dualavg.DualAveraging", {"average": False}),
    "da+momentum": Entry("dualavg.DualAveraging", {"momentum": 0.9, "average": False}),
    "sgd": Entry("torch.optim.SGD", {"momentum": 0.9}),
    "adam": Entry("torch.optim.Adam"),
    "adamw": Entry("torch.optim.AdamW"),
    # For fine-tuning: with weight_decay as the strength of a pull to the start; and for a network with LoRA.
    "sgd+l2sp": Entry("dualavg_bench.recipe.towards_start.SGDTowardsStart", {"momentum": 0.9}),
    "adamw+start": Entry("dualavg_bench.recipe.towards_start.AdamWTowardsStart"),
    "adamw+lora": Entry("torch.optim.AdamW"),
}

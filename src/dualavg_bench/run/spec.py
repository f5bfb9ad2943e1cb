"""Everything that can change the result of one run. Its hash is the name of the run's folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dualavg_bench.recipe.settings import Point, as_json
from dualavg_bench.store.results import spec_hash


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
        """Return the spec as JSON values, with lists for tuples: what a result keeps."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["point"] = [self.point.lr, self.point.weight_decay, self.point.schedule]
        for name in ("settings", "optimizer_settings", "versions"):
            plain[name] = as_json(plain[name])
        del plain["recipe"]  # where the file lies changes nothing; its text and name do
        values: dict[str, Any] = json.loads(json.dumps(plain))
        return values

    @property
    def hash(self) -> str:
        """Name of the run's folder."""
        return spec_hash(self.to_json())

"""The spec of a run: everything that can change its result. Its hash names the run's folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dualavg_bench.recipe.settings import AXES, Point, as_json
from dualavg_bench.store.results import spec_hash


@dataclass(frozen=True)
class RunSpec:
    """Everything that can change the result of a run."""

    recipe: str  # the name of a built-in recipe, or the path of a file
    source: str  # digest of the code, see `code.py`
    data: str  # fingerprint of the data, see `data.py`
    settings: Mapping[str, Any]  # Recipe.settings()
    optimizer: str
    optimizer_class: str  # its dotted path
    point: Point
    optimizer_settings: Mapping[str, Any]
    seed: int
    test: bool  # whether the run reads the test split
    versions: Mapping[str, str]  # of torch, dualavg, and the packages that the code imports
    processes: int = 1  # that share the run: dropout and sums depend on them
    start: "RunSpec | None" = None  # of the run whose network this one starts from

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values, with lists for tuples: what a result keeps."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["point"] = [getattr(self.point, axis) for axis in AXES]
        for name in ("settings", "optimizer_settings", "versions"):
            values[name] = as_json(values[name])
        values["start"] = None if self.start is None else self.start.hash
        del values["recipe"]  # where its file lies changes no result
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def shared_by(self, processes: int) -> "RunSpec":
        """Return the spec of the same run in several processes, which also train its start."""
        start = None if self.start is None else self.start.shared_by(processes)
        return replace(self, processes=processes, start=start)

    @property
    def hash(self) -> str:
        """Name of the run's folder."""
        return spec_hash(self.to_json())

"""A study: every optimizer over its grid, the choice on validation, the confirmation on fresh seeds.

tune      optimizer x grid point x tuning seed     -> choose on validation
extend    a best lr on the edge of its grid gets a neighbour, and the choice is made anew
confirm   the chosen setting x fresh seeds         -> test, read once
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dualavg_bench import optimizers, sources, stats
from dualavg_bench.fingerprint import check, fingerprint
from dualavg_bench.recipe import Point, Recipe, RunSpec, Scale, load
from dualavg_bench.store import write_json

FIRST_CONFIRMATION_SEED = 1000
MOST_EXTENSIONS = 3

Executor = Callable[[Sequence[RunSpec]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Study:
    """What is compared, and where it is kept."""

    recipe: Recipe
    reference: str
    path: Path
    data: Path
    names: tuple[str, ...]
    out: Path
    prints: dict[bool, str]  # of the data, without the test split and with it
    codes: dict[str, sources.Code] = field(default_factory=dict)  # by optimizer, as when first asked for

    @classmethod
    def of(
        cls, reference: str, scale: Scale, root: Path, data: Path, names: Iterable[str] | None = None
    ) -> "Study":
        """Load a recipe, look at its data, and check that it has a grid for each optimizer.

        The study is kept in a folder of its own in `root`.
        """
        recipe, path = load(reference, scale)
        chosen = tuple(names) if names else tuple(recipe.grids)
        for name in chosen:
            if name not in recipe.grids:
                raise ValueError(
                    f"Recipe {recipe.name} has no grid for {name!r}: it has {', '.join(recipe.grids)}."
                )
            optimizers.find(name)
        prints = {False: check(recipe.data(data), recipe)}
        out = (root / f"{recipe.name}-{scale}").absolute()
        return cls(recipe, reference, path, data, chosen, out, prints)

    def spec(self, name: str, point: Point, seed: int, *, test: bool) -> RunSpec:
        """Say everything that can change the result of one run."""
        if name not in self.codes:
            self.codes[name] = sources.trace(self.path, [optimizers.module_of(name)])
        if test not in self.prints:
            self.prints[test] = fingerprint(self.recipe.data(self.data), test=test)
        code, grid = self.codes[name], self.recipe.grids.get(name)
        return RunSpec(
            recipe=self.reference,
            source=code.digest,
            data=self.prints[test],
            settings=self.recipe.settings(),
            optimizer=name,
            point=point,
            optimizer_settings=grid.settings if grid else {},
            seed=seed,
            test=test,
            versions={**code.packages, "torch": torch.__version__, "dualavg": version("dualavg")},
        )

    def tuning(self, points: dict[str, list[Point]]) -> list[RunSpec]:
        """Return one spec per optimizer, grid point and tuning seed, seed by seed."""
        return [
            self.spec(name, point, seed, test=False)
            for seed in range(self.recipe.seeds.tune)
            for name in self.names
            for point in points[name]
        ]

    def confirmation(self, choice: dict[str, Point]) -> list[RunSpec]:
        """Return one spec per optimizer and fresh seed, at the setting that tuning chose."""
        return [
            self.spec(name, choice[name], FIRST_CONFIRMATION_SEED + seed, test=True)
            for seed in range(self.recipe.seeds.confirm)
            for name in self.names
        ]

    def run(self, execute: Executor, *, extend: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Run it to its end; return the summary, which is also written, and all runs."""
        points = {name: self.recipe.grids[name].points() for name in self.names}
        tuned = execute(self.tuning(points))
        for _ in range(MOST_EXTENSIONS if extend else 0):
            more = {name: _one_more(tuned, name, points[name]) for name in self.names}
            if not any(on_edge for on_edge, _ in more.values()):
                break
            points = {name: points[name] + more[name][1] for name in self.names}
            tuned = execute(self.tuning(points))
        chosen = stats.select(tuned)
        choice = {
            name: Point(chosen[name]["lr"], chosen[name]["weight_decay"], chosen[name]["schedule"])
            for name in self.names
        }
        runs = tuned + execute(self.confirmation(choice))
        added = {name: len(points[name]) - len(self.recipe.grids[name].points()) for name in self.names}
        recipe = self.recipe
        summary = stats.summarize(runs, about=recipe.about, paper=recipe.paper, extended=added)
        name, names = Path(self.reference).name, ",".join(self.names)
        flags = ("" if recipe.scale == "quick" else " --data DIR") + ("" if extend else " --no-extend")
        summary["command"] = f"dualavg study {name} --scale {recipe.scale} --optimizers {names}{flags}"
        write_json(self.out / "summary.json", summary)
        return summary, runs


def _one_more(runs: list[dict[str, Any]], name: str, points: list[Point]) -> tuple[bool, list[Point]]:
    """Say whether an optimizer's best lr is the outermost, and give its grid one more lr.

    Further out if it is; else between the best and its better neighbour, so that all keep as many points.
    """
    mine = [run for run in runs if run["optimizer"] == name]
    best = stats.select(mine)[name]
    lrs = sorted({point.lr for point in points})
    place = lrs.index(best["lr"])
    on_edge = len(lrs) > 1 and place in (0, len(lrs) - 1)
    if on_edge:
        further = lrs[0] ** 2 / lrs[1] if place == 0 else lrs[-1] ** 2 / lrs[-2]
    elif len(lrs) > 1:
        beside = {
            lr: stats.select([r for r in mine if r["lr"] == lr])[name]
            for lr in lrs[place - 1 : place + 2 : 2]
        }
        sign = 1 if mine[0]["higher_is_better"] else -1
        further = (best["lr"] * max(beside, key=lambda lr: sign * beside[lr]["valid"]["mean"])) ** 0.5
    else:
        return False, []
    return on_edge, sorted({replace(point, lr=float(f"{further:.3g}")) for point in points})

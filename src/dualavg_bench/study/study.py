"""A study: every optimizer over its grid, the choice on validation, the confirmation on fresh seeds.

tune      optimizer x grid point x tuning seed     -> choose on validation
extend    while a best lr is on the edge of its grid, all grids get equally many points more
confirm   the chosen setting x fresh seeds         -> test, read once

An optimizer with a run that failed (it raised, or killed its workers) is without result from there on. Were
the failed setting left out, its grid would be smaller than the others'; and a mistake in somebody's code is
no divergence.
"""

import ast
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dualavg_bench.analysis import statistics
from dualavg_bench.recipe import Grid, Point, Recipe, Scale, registry
from dualavg_bench.recipe.loading import data_needed, load
from dualavg_bench.recipe.settings import FIRST_CONFIRMATION_SEED
from dualavg_bench.run.code import Code, trace
from dualavg_bench.run.data import check, fingerprint, read
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.files import StoreError, read_json, write_json
from dualavg_bench.study.executor import Failure, StudyFailed
from dualavg_bench.study.extension import MOST_EXTENSIONS, further_points

Executor = Callable[[Sequence[RunSpec]], list[dict[str, Any]]]


class Incomplete(StudyFailed):
    """Some runs failed, and their optimizers are without result; the others have their summary."""

    def __init__(self, failures: list[Failure], summary: dict[str, Any], runs: list[dict[str, Any]]) -> None:
        super().__init__(failures)
        self.summary, self.runs = summary, runs


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
    codes: dict[str, Code] = field(default_factory=dict)  # by optimizer, as when first asked for
    data_given: bool = False  # with --data, which the command to run it again needs too
    kept: list[Path] = field(default_factory=list)  # an earlier summary and page that had more optimizers

    @classmethod
    def of(
        cls,
        reference: str,
        scale: Scale,
        root: Path,
        data: Path | None = None,
        names: Iterable[str] | None = None,
    ) -> "Study":
        """Load a recipe, look at its data, and check that it has a grid for each optimizer.

        The study is kept in a folder of its own in `root`, and so are its data unless `data` says where.
        """
        for place in (root.absolute(), *root.absolute().parents):
            if place.exists() and not place.is_dir():
                raise ValueError(f"{place} is a file: --out must be a folder, or the name of a new one.")
        recipe, path = load(reference, scale)
        chosen = tuple(names) if names else tuple(recipe.grids)
        for name in chosen:
            if name not in recipe.grids:
                raise ValueError(
                    f"Recipe {recipe.name} has no grid for {name!r}: it has {', '.join(recipe.grids)}."
                )
            registry.try_out(name, recipe.grids[name])
            _check_grid(recipe, name, recipe.grids[name])
        if twice := _repeated(chosen):
            raise ValueError(f"The optimizer {twice[0]} is named more than once: name each once.")
        folder = data or root.absolute() / "data"
        try:
            splits = read(recipe, folder)
        except (OSError, ValueError) as error:
            if data is None and scale != "quick":
                raise ValueError(_data_missing(scale, path, error)) from error
            raise
        prints = {False: check(splits, recipe)}
        out = (root / f"{recipe.name}-{scale}").absolute()
        return cls(recipe, reference, path, folder, chosen, out, prints, data_given=data is not None)

    def spec(self, name: str, point: Point, seed: int, *, test: bool) -> RunSpec:
        """Say everything that can change the result of one run."""
        if name not in self.codes:
            self.codes[name] = trace(self.path, [registry.module_of(name)])
        if test not in self.prints:
            self.prints[test] = fingerprint(read(self.recipe, self.data), test=test)
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
            for name in points
            for point in points[name]
        ]

    def confirmation(self, choice: dict[str, Point]) -> list[RunSpec]:
        """Return one spec per optimizer and fresh seed, at the setting that tuning chose."""
        return [
            self.spec(name, choice[name], FIRST_CONFIRMATION_SEED + seed, test=True)
            for seed in range(self.recipe.seeds.confirm)
            for name in choice
        ]

    def run(
        self, execute: Executor, *, extend: bool = True, workers: int | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Run it to its end; return the summary, which is also written, and all runs.

        Args:
            execute: runs specs, and returns their results in order.
            extend: add step sizes while the best lies on the edge of its grid.
            workers: how many runs share the machines, for the page to say.

        Raises:
            Incomplete: when the summary of the others is written, if some optimizers had runs that failed.
            StudyFailed: if all optimizers had.
        """
        attempts = _Attempts(execute)
        points = {name: self.recipe.grids[name].points() for name in self.names}
        tuned = attempts(self.tuning(points))
        rounds = 0
        while True:
            points = attempts.without_failed(points)
            tuned = [run for run in tuned if run["optimizer"] in points]
            if not points:
                raise StudyFailed(attempts.failures)
            more = further_points(tuned, points) if extend and rounds < MOST_EXTENSIONS else {}
            if not more:
                break
            rounds += 1
            points = {name: points[name] + more[name] for name in points}
            tuned = attempts(self.tuning(points))
        chosen = statistics.select(tuned)
        choice = {name: Point(*(chosen[name][key] for key in statistics.POINT)) for name in points}
        confirmed = attempts(self.confirmation(choice))
        left = attempts.without_failed(points)
        runs = tuned + [run for run in confirmed if run["optimizer"] in left]
        summary = statistics.summarize(
            runs,
            about=self.recipe.about,
            paper=self.recipe.paper,
            extended={name: len(points[name]) - len(self.recipe.grids[name].points()) for name in points},
            extension={"allowed": extend, "rounds": rounds, "most": MOST_EXTENSIONS},
            failures=[_plain(failure) for failure in attempts.failures],
        )
        self._write(summary, extend=extend, workers=workers)
        if attempts.failures:
            raise Incomplete(attempts.failures, summary, runs)
        return summary, runs

    def _write(self, summary: dict[str, Any], *, extend: bool, workers: int | None) -> None:
        """Write the summary, with what it takes to run the study again."""
        file = self.out / "summary.json"
        try:
            earlier = read_json(file, "summary of a study") if file.exists() else {}
        except StoreError:  # it is about to be replaced
            earlier = {}
        words = ["dualavg", "study", Path(self.reference).name, "--scale", self.recipe.scale]
        words += ["--optimizers", ",".join(self.names)]
        if self.data_given or self.recipe.scale != "quick":
            words += ["--data", "DIR"]
        summary["command"] = shlex.join(words + ([] if extend else ["--no-extend"]))
        summary["times"]["workers"] = workers or earlier.get("times", {}).get("workers")
        before, file_before = earlier.get("optimizers", {}), _recipe_of(earlier)
        if file_before not in ("", Path(self.reference).name):
            self._keep(file_before)  # another recipe of the same name
        elif set(before) - set(summary["optimizers"]):
            self._keep(",".join(before))
        write_json(file, summary)

    def _keep(self, names: str) -> None:
        """Keep the summary and the page of an earlier study beside those of this one."""
        for file in (self.out / "summary.json", self.out / "report.html"):
            if file.exists():
                copy = file.with_name(f"{file.stem}-{names[:150]}{file.suffix}")
                shutil.copyfile(file, copy)
                self.kept.append(copy)


class _Attempts:
    """Executes specs, and remembers which runs failed."""

    def __init__(self, execute: Executor) -> None:
        self.execute = execute
        self.failures: list[Failure] = []

    def __call__(self, specs: Sequence[RunSpec]) -> list[dict[str, Any]]:
        """Return the results of those that did not fail."""
        try:
            return self.execute(specs)
        except StudyFailed as error:
            self.failures += error.failures
            return error.finished

    def without_failed(self, points: dict[str, list[Point]]) -> dict[str, list[Point]]:
        """Leave out the optimizers that had a run that failed."""
        failed = {failure.spec.optimizer for failure in self.failures}
        return {name: mine for name, mine in points.items() if name not in failed}


def _plain(failure: Failure) -> dict[str, Any]:
    """Say in JSON which run failed, and why."""
    spec, point = failure.spec, failure.spec.point
    return {
        "optimizer": spec.optimizer,
        "lr": point.lr,
        "weight_decay": point.weight_decay,
        "schedule": point.schedule,
        "seed": spec.seed,
        "phase": "confirm" if spec.test else "tune",
        "run": spec.hash,
        "why": " ".join(failure.sentence.split()),
    }


def _recipe_of(summary: dict[str, Any]) -> str:
    """The file or the name of the recipe that a summary is of, as its command says."""
    words = shlex.split(summary.get("command", ""))
    return words[2] if len(words) > 2 else ""


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, times in Counter(values).items() if times > 1]


def _check_grid(recipe: Recipe, name: str, grid: Grid) -> None:
    """Refuse a point that is named twice: it would count as two of the equally many that all get."""
    for key in statistics.POINT:
        if twice := _repeated(getattr(grid, key)):
            raise ValueError(
                f"The grid of {name} in recipe {recipe.name} has the {key} {twice[0]} more than once: "
                "name each once."
            )


def _data_missing(scale: str, path: Path, error: Exception) -> str:
    """What to say where the data were not found, and nobody said where they are."""
    needed = data_needed(ast.get_docstring(ast.parse(path.read_bytes())))
    return f"{error} At {scale} scale, --data DIR says where the data set is. {needed}".strip()

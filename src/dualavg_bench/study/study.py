"""A study: every optimizer over its grid, the choice on validation, the confirmation on fresh seeds.

tune      optimizer x grid point x tuning seed   -> choose on validation
extend    while a best lr is at the end of its grid, every grid gets the same number of further points
confirm   the chosen setting x fresh seeds       -> test, read once

An optimizer with a failed run (it raised, or killed its workers) has no result. If only the failed setting
were left out, its grid would be smaller than the others; and a mistake in the code is not a divergence.
"""

import ast
import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from dualavg_bench.analysis.selection import select
from dualavg_bench.analysis.summary import summarize
from dualavg_bench.recipe import Grid, Point, Recipe, Scale, registry
from dualavg_bench.recipe.loading import data_needed, load
from dualavg_bench.recipe.settings import AXES, FIRST_CONFIRMATION_SEED, is_count
from dualavg_bench.recipe.user_code import user_code
from dualavg_bench.run.code import Code, trace
from dualavg_bench.run.data import check, fingerprint, read
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.documents import read_document, write_document
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Extension, FailedRun, Reduced, Summary
from dualavg_bench.study.extension import MOST_EXTENSIONS, further_points
from dualavg_bench.study.failures import Failure, Incomplete, StudyFailed

Execute = Callable[[Sequence[RunSpec]], list[RunResult]]


class Limit(Protocol):
    """What a study may do in the time that it has; see `budget.py`."""

    def may_extend(self, study: "Study", points: dict[str, list[Point]], tuned: Sequence[RunResult]) -> bool:
        """Return whether there is time to tune these points, some of them new, and to confirm."""

    def confirmation_seeds(self, study: "Study", choice: dict[str, Point]) -> int:
        """Return the number of confirmation seeds that there is time for."""

    def reduced(self, study: "Study", confirmation_seeds: int) -> Reduced | None:
        """Return what a study has of the whole one; None if it has all of it."""


@dataclass(frozen=True)
class Study:
    """The optimizers that are compared on a recipe, and the folder of the study."""

    recipe: Recipe
    reference: str  # the name of a built-in recipe, or the path of a file
    path: Path  # of the recipe's file
    data: Path
    names: tuple[str, ...]  # of optimizers
    out: Path
    test_examples: int
    fingerprints: dict[bool, str]  # of the data, by whether the test split counts
    codes: dict[str, Code] = field(default_factory=dict)  # by optimizer; fixed once the study runs
    data_given: bool = False  # whether --data was given
    kept: list[Path] = field(default_factory=list)  # files of an earlier study that were copied
    tried: set[str] = field(default_factory=set)  # optimizers that passed a trial
    train_examples: int | None = None
    own_steps: int | None = None  # of the recipe, if the runs of this study have another length
    starts: dict[str, RunSpec] = field(default_factory=dict)  # that of the recipe's start, by its name

    @classmethod
    def of(
        cls,
        reference: str,
        scale: Scale,
        root: Path,
        data: Path | None = None,
        names: Iterable[str] | None = None,
    ) -> "Study":
        """Load a recipe, and check its data and the grid of each optimizer.

        Args:
            reference: the name of a built-in recipe, or the path of a file.
            scale: quick, mini or paper.
            root: the study gets a folder in it.
            data: the folder with the data set; default: `data` in `root`.
            names: of optimizers; default: all that have a grid.
        """
        _check_writable(root.absolute())
        recipe, path = load(reference, scale)
        chosen = tuple(names) if names else tuple(recipe.grids)
        grids = dict(recipe.grids)
        for name in chosen:
            if name not in grids:
                raise ValueError(
                    f"Recipe {recipe.name} has no grid for {name!r}: it has {', '.join(recipe.grids)}."
                )
            grids[name] = registry.complete(name, grids[name])
            registry.try_out(name, grids[name])
            _check_grid(recipe, name, grids[name])
        recipe = replace(recipe, grids=grids)
        if twice := _repeated(chosen):
            raise ValueError(f"The optimizer {twice[0]} is named more than once: name each once.")
        folder = data or root.absolute() / "data"
        try:
            splits = read(recipe, folder)
        except (OSError, ValueError) as error:
            if data is None and scale != "quick":
                raise ValueError(_with_data_hint(error, scale, path)) from error
            raise
        fingerprints = {False: check(splits, recipe)}
        if recipe.start is not None:
            check(read(recipe.start, folder), recipe.start)
        out = (root / f"{recipe.name}-{scale}").absolute()
        count: Any = getattr(splits.test, "examples", None)
        examples = count if is_count(count) else len(splits.test)  # it may be a list of the user's
        return cls(
            *(recipe, reference, path, folder, chosen, out, examples, fingerprints),
            data_given=data is not None,
            train_examples=len(splits.train),
        )

    def at_length(self, steps: int) -> "Study":
        """Return the study of the same recipe with runs of another length, in the same folder.

        If that is not the recipe's own length, its summary and its page have names of their own.
        """
        own = self.own_steps or self.recipe.steps
        recipe = replace(self.recipe, steps=steps)
        return replace(self, recipe=recipe, own_steps=None if steps == own else own, kept=[])

    @property
    def epochs(self) -> float | None:
        """How many times a run sees the training data."""
        if self.train_examples is None:
            return None
        return self.recipe.steps / (self.train_examples // self.recipe.batch_size)

    def spec(self, name: str, point: Point, seed: int, *, test: bool) -> RunSpec:
        """Return the spec of one run."""
        if name not in self.codes:
            self.codes[name] = trace(self.path, [registry.module_of(name)])
        if test not in self.fingerprints:
            splits = read(self.recipe, self.data)
            with user_code(self.recipe.name, "batch"):
                self.fingerprints[test] = fingerprint(splits, test=test)
        code, grid = self.codes[name], self.recipe.grids.get(name)
        cls, settings = registry.find(name)
        return RunSpec(
            recipe=self.reference,
            source=code.digest,
            data=self.fingerprints[test],
            settings=self.recipe.settings(),
            optimizer=name,
            optimizer_class=f"{cls.__module__}.{cls.__qualname__}",
            point=point,
            optimizer_settings=settings | dict(grid.settings if grid else {}),
            seed=seed,
            test=test,
            versions={**code.packages, "torch": torch.__version__, "dualavg": version("dualavg")},
            start=self._start(),
        )

    def points(self) -> dict[str, list[Point]]:
        """Return the grid points of each optimizer."""
        return {name: self.recipe.grids[name].points() for name in self.names}

    def to_try(self, *, everything: bool = False) -> dict[str, RunSpec]:
        """Return a run of each optimizer, or of those that were neither tried nor have a finished run."""
        specs = {}
        for name, points in self.points().items():
            first = [self.spec(name, point, 0, test=False) for point in points]
            folders = (RunFolder.of(self.out, self.recipe.name, spec.hash) for spec in first)
            known = name in self.tried or any(folder.result() for folder in folders)
            if everything or not known:
                specs[name] = first[0]
        return specs

    def _start(self) -> RunSpec | None:
        """Return the spec of the run that trains the network all runs start from."""
        start = self.recipe.start
        if start is not None and start.name not in self.starts:
            ((name, grid),) = start.grids.items()
            own = replace(self, recipe=start, fingerprints={}, codes={}, starts={})
            self.starts[start.name] = own.spec(name, grid.points()[0], 0, test=False)
        return None if start is None else self.starts[start.name]

    def tuning(self, points: dict[str, list[Point]]) -> list[RunSpec]:
        """Return one spec per optimizer, grid point and tuning seed, seed by seed.

        Optimizers take turns, so that each has a first result early.
        """
        return [
            self.spec(name, grid[i], seed, test=False)
            for seed in range(self.recipe.seeds.tune)
            for i in range(max(map(len, points.values()), default=0))
            for name, grid in points.items()
            if i < len(grid)
        ]

    def confirmation(self, choice: dict[str, Point], seeds: int | None = None) -> list[RunSpec]:
        """Return one spec per optimizer and fresh seed, at the setting that tuning chose."""
        return [
            self.spec(name, choice[name], FIRST_CONFIRMATION_SEED + seed, test=True)
            for seed in range(seeds or self.recipe.seeds.confirm)
            for name in choice
        ]

    def run(
        self, execute: Execute, *, extend: bool = True, workers: int | None = None, limit: Limit | None = None
    ) -> tuple[Summary, list[RunResult]]:
        """Tune, extend and confirm; write the summary; return it and all runs.

        Args:
            execute: executes runs, and returns their results in order.
            extend: add step sizes while the best is at the end of its grid.
            workers: number of workers, for the page.
            limit: what may be done in a given time.

        Raises:
            Incomplete: some optimizers have no result; raised when the summary of the others is written.
            StudyFailed: no optimizer has a result.
        """
        attempts = _Attempts(execute)
        points = self.points()
        tuned = attempts(self.tuning(points))
        rounds = 0
        while True:
            points = attempts.without_failed(points)
            tuned = [run for run in tuned if run.optimizer in points]
            if not points:
                raise StudyFailed(attempts.failures)
            further = further_points(tuned, points) if extend and rounds < MOST_EXTENSIONS else {}
            larger = {name: points[name] + further[name] for name in further}
            if not further or (limit and not limit.may_extend(self, larger, tuned)):
                break
            rounds += 1
            points = larger
            tuned = attempts(self.tuning(points))
        chosen = select(tuned)
        choice = {name: chosen[name].point for name in points}
        seeds = limit.confirmation_seeds(self, choice) if limit else self.recipe.seeds.confirm
        reduced = limit.reduced(self, seeds) if limit else None
        confirmed = attempts(self.confirmation(choice, seeds))
        complete = attempts.without_failed(points)
        runs = tuned + [run for run in confirmed if run.optimizer in complete]
        earlier = self._earlier_summary()
        summary = summarize(
            runs,
            command=self.command(extend=extend, budget=reduced.budget if reduced else None),
            extension=Extension(allowed=extend, rounds=rounds, most=MOST_EXTENSIONS),
            extended={name: len(points[name]) - len(self.recipe.grids[name].points()) for name in points},
            test_examples=self.test_examples,
            failures=[_failed_run(failure) for failure in attempts.failures],
            reduced=reduced,
            about=self.recipe.about,
            paper=self.recipe.paper,
            workers=workers or (earlier.times.workers if earlier else None),
            own_schedules=self.recipe.schedules,
        )
        if earlier:
            self._keep_if_other(earlier, summary)
        write_document(self.summary_file, summary)
        if attempts.failures:
            raise Incomplete(attempts.failures, summary, runs)
        return summary, runs

    @property
    def summary_file(self) -> Path:
        """The path of the summary."""
        return self.out / f"summary{self._length_suffix}.json"

    @property
    def report_file(self) -> Path:
        """The path of the page."""
        return self.out / f"report{self._length_suffix}.html"

    @property
    def _length_suffix(self) -> str:
        return "" if self.own_steps is None else f"-{self.recipe.steps}-steps"

    def _earlier_summary(self) -> Summary | None:
        """Return the summary that is about to be replaced, if it can be read."""
        try:
            return read_document(self.summary_file, Summary)
        except StoreError:
            return None

    def command(self, *, extend: bool, lengths: Sequence[int] = (), budget: str | None = None) -> str:
        """Return the command that runs the study again, or a horizon of several `lengths`."""
        if self.own_steps is not None:
            lengths = lengths or [self.recipe.steps]
        words = ["dualavg", "horizon" if lengths else "study", Path(self.reference).name]
        words += ["--scale", self.recipe.scale]
        words += ["--steps", ",".join(map(str, lengths))] if lengths else []
        words += ["--optimizers", ",".join(self.names)]
        if self.data_given or self.recipe.scale != "quick":
            words += ["--data", "DIR"]
        words += ["--budget", budget] if budget else []
        return shlex.join(words + ([] if extend else ["--no-extend"]))

    def _keep_if_other(self, earlier: Summary, summary: Summary) -> None:
        """Keep the files of an earlier study of another recipe file, or of more optimizers."""
        recipe = shlex.split(earlier.command)[2]
        if recipe != Path(self.reference).name:
            self._keep(recipe)
        elif set(earlier.optimizers) - set(summary.optimizers):
            self._keep(",".join(earlier.optimizers))

    def _keep(self, names: str) -> None:
        """Keep the summary and the page of an earlier study beside those of this one."""
        for file in (self.summary_file, self.report_file):
            if file.exists():
                copy = file.with_name(f"{file.stem}-{names[:150]}{file.suffix}")
                shutil.copyfile(file, copy)
                self.kept.append(copy)


class _Attempts:
    """Executes runs, and collects those that failed."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self.failures: list[Failure] = []

    def __call__(self, specs: Sequence[RunSpec]) -> list[RunResult]:
        """Return the results of the runs that did not fail."""
        try:
            return self.execute(specs)
        except StudyFailed as error:
            self.failures += error.failures
            return error.finished

    def without_failed(self, points: dict[str, list[Point]]) -> dict[str, list[Point]]:
        """Return the grids of the optimizers without a failed run."""
        failed = {failure.spec.optimizer for failure in self.failures}
        return {name: grid for name, grid in points.items() if name not in failed}


def _failed_run(failure: Failure) -> FailedRun:
    spec = failure.spec
    return FailedRun(
        optimizer=spec.optimizer,
        **asdict(spec.point),
        seed=spec.seed,
        phase="confirm" if spec.test else "tune",
        run=spec.hash,
        why=" ".join(failure.message.split()),
    )


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, times in Counter(values).items() if times > 1]


def _check_writable(root: Path) -> None:
    folder = next(folder for folder in (root, *root.parents) if folder.exists())
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file: --out must be a folder, or the name of a new one.")
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"--out {root} cannot be written to ({error.strerror}).") from error


def _check_grid(recipe: Recipe, name: str, grid: Grid) -> None:
    """Refuse a grid with a point twice: every optimizer must have the same number of different points."""
    for axis in AXES:
        if twice := _repeated(getattr(grid, axis)):
            raise ValueError(
                f"The grid of {name} in recipe {recipe.name} has the {axis} {twice[0]} more than once: "
                "name each once."
            )


def _with_data_hint(error: Exception, scale: str, path: Path) -> str:
    """Add to an error about missing data that --data was not given, and what it must hold."""
    needed = data_needed(ast.get_docstring(ast.parse(path.read_bytes())))
    return f"{error} At {scale} scale, --data DIR says where the data set is. {needed}".strip()

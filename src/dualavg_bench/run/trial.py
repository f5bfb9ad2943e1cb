"""A trial before a study: one training step and one evaluation of each optimizer.

A mistake in loss, evaluate, shapes or settings ends the command in seconds, before every run fails. A trial
writes nothing and reads no example of the test split. No run depends on it: runs seed themselves.

A step takes one part of a batch (see `accumulate`), and an evaluation one batch of validation. If that fails,
the evaluation is repeated on the whole split: some scores need examples of all classes.

A timed trial takes a few more steps and returns what a run costs, for `study.budget`.
"""

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dualavg_bench.recipe import Batch, Recipe, RecipeError, Source, Splits, registry
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipe.user_code import RecipeRaised, format_error, user_code
from dualavg_bench.run import machine
from dualavg_bench.run.data import fingerprint, read
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.run.training import _Run
from dualavg_bench.store.folder import RunFolder

LEAST_TIMED, MOST_TIMED, TIMED_SECONDS = 3, 50, 0.5  # steps after the first one, which warms up
TESTS = 3  # evaluations on test in a confirmation run: the untrained, the last and the best network


@dataclass(frozen=True)
class Cost:
    """The expected seconds of a tuning run, and of a confirmation run, which is tested too.

    `start` are those of the run that trains the network all runs start from, if there is one.
    """

    tuning: float
    confirmation: float
    start: float = 0.0


def try_out(
    specs: Mapping[str, RunSpec], recipe: Recipe, data: Path, *, timed: bool = False
) -> dict[str, Cost]:
    """Take one step and one evaluation of each optimizer; raise a one-line error if that fails.

    The recipe's `start` is tried before.

    Args:
        specs: a tuning run of each optimizer.
        recipe: of the runs.
        data: the folder with the data set.
        timed: measure, and return what a run of each optimizer costs.
    """
    costs, start = {}, 0.0
    pretraining = next(iter(specs.values())).start
    if recipe.start is not None and pretraining is not None:
        before = try_out({pretraining.optimizer: pretraining}, recipe.start, data, timed=timed)
        start = sum(cost.tuning for cost in before.values())
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the runs show them
            started = time.perf_counter()
            splits = read(recipe, data)
            if timed:
                fingerprint(splits, test=False)  # as every run does
            reading = time.perf_counter() - started
            for i, (name, spec) in enumerate(specs.items()):
                trial = _Trial(spec, recipe, splits)
                trial.take(untrained=i == 0)
                if timed:
                    costs[name] = replace(trial.cost(reading), start=start)
    finally:
        torch.set_num_threads(threads)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return costs


class _Trial(_Run):
    """The start of a run, on one part of a batch, without files."""

    def __init__(self, spec: RunSpec, recipe: Recipe, splits: Splits) -> None:
        self.whole, self.splits = recipe, splits
        self.most_batches: int | None = 1  # of an evaluation; None: all
        started = time.perf_counter()
        part = replace(
            recipe,
            batch_size=recipe.batch_size // recipe.accumulate,
            accumulate=1,
            eval_batch_size=recipe.eval_batch_size or recipe.batch_size,
        )
        with _one_line(spec, recipe):
            super().__init__(spec, part, RunFolder(Path()), Path())
            self._try_schedules()
        self.setup = time.perf_counter() - started

    def take(self, *, untrained: bool) -> None:
        """Take a step and an evaluation; before them, evaluate the untrained network if asked to."""
        self.model.train()
        registry.set_mode(self.optimizer, training=True)
        with _one_line(self.spec, self.recipe):
            if untrained:
                self._try_evaluation(untrained=True)
            losses: list[torch.Tensor] = []
            started = self._now()
            self._take_step(losses)
            self.first_step = self._now() - started
            if losses:
                self._close_window(losses)  # raises if the first loss is not finite
            self._try_evaluation(untrained=False)

    def cost(self, reading: float) -> Cost:
        """Take a few more steps and an evaluation, and return what the whole run costs."""
        recipe, valid = self.whole, self.splits.valid
        started, first = self._now(), self.step
        while (taken := self.step - first) < min(MOST_TIMED, recipe.steps - 1):
            if taken >= LEAST_TIMED and self._now() - started > TIMED_SECONDS:
                break
            self._take_step([])
        step = (self._now() - started) / taken if taken else self.first_step
        started = self._now()
        self._try_evaluation(untrained=False)
        batches = self._count(valid) if self.most_batches is None else self.most_batches
        evaluation = (self._now() - started) / batches  # of one batch
        tuning = (
            reading
            + self.setup
            + self.first_step
            + step * recipe.steps * recipe.accumulate
            + evaluation * self._count(valid) * (1 + min(recipe.evaluations, recipe.steps))
        )
        return Cost(tuning, tuning + TESTS * evaluation * self._count(self.splits.test))

    def _try_schedules(self) -> None:
        """Make the schedules that the step does not use."""
        for name in self.whole.grids[self.spec.optimizer].schedule:
            if name != self.spec.point.schedule:
                machine.seed_all(self._seed("init"))
                parameters, settings = self.model.parameters(), self.spec.optimizer_settings
                optimizer = registry.make(self.spec.optimizer, parameters, self.spec.point, settings)
                with user_code(self.recipe.name, f"The schedule {name}"):
                    make_schedule(name, self.recipe.schedules, optimizer, self.recipe.steps)

    def _try_evaluation(self, *, untrained: bool) -> None:
        """Evaluate on one batch; on all if that fails, or if it has no score for the untrained network."""
        if self.most_batches is not None:
            try:
                if self._evaluate_valid() is None or not untrained:
                    return
            except Exception:  # noqa: BLE001, S110 - if it is no matter of examples, it is raised again
                pass
            self.most_batches = None
        if untrained:
            self._evaluate_untrained()
        else:
            self._evaluate_valid()

    def _load(self, data: Path) -> None:
        """Keep the splits that were read once for all optimizers."""

    def _batches(self, source: Source) -> Iterator[Batch]:
        return itertools.islice(super()._batches(source), self.most_batches)

    def _count(self, source: Source) -> int:
        return math.ceil(len(source) / (self.recipe.eval_batch_size or 1))

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


@contextlib.contextmanager
def _one_line(spec: RunSpec, recipe: Recipe) -> Iterator[None]:
    """Turn an unexpected exception of an optimizer or a package into one line that names the optimizer."""
    try:
        yield
    except (RecipeError, RecipeRaised):
        raise
    except Exception as error:
        raise RecipeError(
            f"The trial of {spec.optimizer} in recipe {recipe.name} raised {format_error(error)}."
        ) from error

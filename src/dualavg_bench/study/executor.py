"""Where runs are executed: dask.distributed, its local cluster or one that is there.

A worker executes one run at a time, however many threads it has: a run seeds the generators of its process.
If it dies, dask gives its run to another, which goes on from the run's checkpoint; a run that has killed
three workers is given up and reported, and the others go on. Deaths are counted in the run's folder and not
by dask, which blames every run that a dead worker had been given, and gives up when its scheduler was told.
"""

import itertools
import os
import platform
import threading
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualavg_bench.recipe import RecipeError, Scale
from dualavg_bench.recipe.user_code import RecipeRaised
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.folder import HeldError, RunFolder
from dualavg_bench.store.results import RunResult

MOST_CRASHES = 3
PATIENCE = 2.0  # seconds a worker waits for a run that another study has in hand, before it takes the next
ALONE = 5.0  # seconds without a worker after which somebody should be told
_ONE_RUN_OF_THIS_PROCESS = threading.Lock()
_SAID: set[str] = set()


@dataclass(frozen=True)
class Failure:
    """A run that did not come to a result: it raised, or killed its workers."""

    spec: RunSpec
    sentence: str
    details: str = ""


def _run(spec: RunSpec) -> str:
    """Say in words which run it is."""
    return f"{spec.optimizer} at lr {spec.point.lr:g}, seed {spec.seed}"


def _told(failures: list[Failure]) -> str:
    """Say every reason once, a line each, and of which runs else it is one."""
    alike: dict[str, list[Failure]] = {}
    for failure in failures:
        alike.setdefault(failure.sentence.removeprefix(_run(failure.spec)), []).append(failure)
    said = ""
    for first, *others in list(alike.values())[:10]:
        runs = "; ".join(_run(other.spec) for other in others[:3]) + ("; ..." if len(others) > 3 else "")
        said += f"\n  {first.sentence}" + (f"\n    and {len(others)} more alike: {runs}" if others else "")
    return said + (f"\n  and {len(alike) - 10} more reasons" if len(alike) > 10 else "")


class StudyFailed(StoreError):  # noqa: N818
    """Some runs failed; what finished is kept."""

    def __init__(self, failures: list[Failure], finished: Sequence[RunResult] = ()) -> None:
        self.failures, self.finished = failures, list(finished)
        details = failures[0].details and f"\nThe first of them:\n{failures[0].details}"
        count, pronoun = ("1 run", "it") if len(failures) == 1 else (f"{len(failures)} runs", "them")
        super().__init__(
            f"{count} failed; finished runs are kept. Run the command again to retry {pronoun}."
            f"{_told(failures)}{details}"
        )


class KilledItsWorkersError(Exception):
    """A run that has killed its worker too often to be tried again."""


def execute_one(spec: RunSpec, scale: Scale, folder: RunFolder, data: Path, study: str) -> RunResult | None:
    """What a worker does with a run; None if it was not done, because another has it or nobody wants it."""
    from dualavg_bench.recipe.loading import load
    from dualavg_bench.recipe.registry import module_of
    from dualavg_bench.run.code import trace
    from dualavg_bench.run.training import Interrupted, run

    seconds = float(os.environ.get("DUALAVG_CHECKPOINT_SECONDS", "30"))
    abandoned = _abandonment()
    try:
        with _ONE_RUN_OF_THIS_PROCESS, _each_warning_once(), folder.locked(PATIENCE):
            if abandoned():  # while it waited
                return None
            if folder.crashes(study) >= MOST_CRASHES:
                raise KilledItsWorkersError
            with folder.count_crashes(study):
                _check_versions(spec)
                recipe, path = load(spec.recipe, scale)
                if trace(path, [module_of(spec.optimizer)]).digest != spec.source:
                    raise StoreError(f"{spec.recipe} was changed while its study ran: start the study again.")
                return run(spec, recipe, folder, data, checkpoint_seconds=seconds, should_stop=abandoned)
    except (HeldError, Interrupted):
        return None


@contextmanager
def _each_warning_once() -> Iterator[None]:
    """Show what a recipe's code warns of in the first run of this process, and not again in every other."""
    show = warnings.showwarning

    def show_once(message: Any, category: Any, *place: Any, **more: Any) -> None:
        said = f"{category.__name__}: {message}"
        if said not in _SAID:
            _SAID.add(said)
            show(message, category, *place, **more)

    warnings.showwarning = show_once
    try:
        yield
    finally:
        warnings.showwarning = show


def _check_versions(spec: RunSpec) -> None:
    """Refuse to put numbers of one version under the name of another."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    for name, wanted in spec.versions.items():
        try:
            here = torch.__version__ if name == "torch" else version(name)
        except PackageNotFoundError:
            here = "not installed"
        if here != wanted:
            raise StoreError(
                f"A worker on {platform.node()} has {name} {here}, the study has {wanted}: install the same "
                "on both."
            )


def _abandonment() -> Callable[[], bool]:
    """Return a question: has the study been stopped, while this worker of a larger cluster goes on?"""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def abandoned() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    return abandoned


class Unfinished(Exception):  # noqa: N818 - not an error: there is work to do
    """Some runs have no result yet."""


def finished_runs(root: Path, recipe: str, specs: Sequence[RunSpec]) -> list[RunResult]:
    """Return the results that are on disk, if all are: a finished study needs no workers."""
    found = {spec.hash: RunFolder.of(root, recipe, spec.hash).result() for spec in specs}
    if None in found.values():
        raise Unfinished
    return [result for spec in specs if (result := found[spec.hash])]


class Engine:
    """Executes runs on a dask cluster and tells somebody how it goes."""

    def __init__(self, client: Any, root: Path, data: Path, scale: Scale) -> None:
        self.client, self.root, self.data, self.scale = client, root.absolute(), data.absolute(), scale
        self.study = uuid.uuid4().hex
        self.numbers = itertools.count()
        self.known_crashes: dict[str, int] = {}  # of all runs, when a run was last lost
        self.unexplained: Counter[str] = Counter()

    def execute(
        self,
        specs: Sequence[RunSpec],
        recipe: str,
        finished: Callable[[RunSpec, RunResult | Failure], None] = lambda _spec, _result: None,
    ) -> list[RunResult]:
        """Return the results in the order of the specs; what is on disk already is not run again.

        Raises:
            StudyFailed: when all that could be run has been, if a run failed.
            StoreError: at once, if the disk is full or a file is not what it should be.
        """
        from distributed import as_completed

        results: dict[str, RunResult | Failure] = {}
        unique = {spec.hash: spec for spec in specs}
        folders = {name: RunFolder.of(self.root, recipe, name) for name in unique}
        for name, spec in unique.items():
            done = folders[name].result()
            if done is not None:
                results[name] = done
                finished(spec, done)
        resources = {"GPU": 1} if self._has_gpus() else None
        futures = {
            self._submit(spec, folders[name], resources): spec
            for name, spec in unique.items()
            if name not in results
        }
        waiting = as_completed(list(futures))
        alone = threading.Timer(ALONE, self._say_what_is_odd)
        alone.daemon = True
        alone.start()
        try:
            for future in waiting:
                spec = futures.pop(future)
                folder = folders[spec.hash]
                outcome = self._outcome(future, spec, folders)
                future.release()
                if outcome is None:
                    again = self._submit(spec, folder, resources)
                    futures[again] = spec
                    waiting.add(again)
                else:
                    results[spec.hash] = outcome
                    finished(spec, outcome)
        finally:
            alone.cancel()
            self.client.cancel(list(futures))
        failures = [r for r in results.values() if isinstance(r, Failure)]
        successes = [r for spec in specs if isinstance(r := results[spec.hash], RunResult)]
        if failures:
            raise StudyFailed(failures, successes)
        return successes

    def _submit(self, spec: RunSpec, folder: RunFolder, resources: dict[str, int] | None) -> Any:
        number = next(self.numbers)  # a later one waits behind the earlier ones
        if spec.recipe.endswith(".py"):  # the worker may live in another folder
            spec = replace(spec, recipe=str(Path(spec.recipe).absolute()))
        return self.client.submit(
            execute_one,
            spec,
            self.scale,
            folder,
            self.data,
            self.study,
            key=f"{spec.optimizer}-{spec.hash}-{self.study}-{number}",
            priority=-number,
            pure=False,
            resources=resources,
        )

    def _outcome(
        self, future: Any, spec: RunSpec, folders: dict[str, RunFolder]
    ) -> RunResult | Failure | None:
        """Return what came of a run, or None if it has to be tried again."""
        from distributed import KilledWorker

        if future.cancelled():
            raise StoreError("The dask scheduler went away. Run the command again to resume.")
        error = future.exception()
        if error is None:
            result: RunResult | None = future.result()
            return result or folders[spec.hash].result()
        if isinstance(error, StoreError | RecipeError):
            raise error
        where = _run(spec)
        if isinstance(error, KilledWorker | KilledItsWorkersError):
            crashes = self._crashes(spec.hash, folders)
            if crashes < MOST_CRASHES:
                return None
            return Failure(spec, f"{where} killed its worker {crashes} times (out of memory?)")
        if isinstance(error, RecipeRaised):
            return Failure(spec, f"{where}: {error}", error.details)
        details = "".join(traceback.format_exception(error))
        return Failure(spec, f"{where} raised {type(error).__name__}: {error}", details)

    def _crashes(self, name: str, folders: dict[str, RunFolder]) -> int:
        """Return how many workers a run has killed, of which dask says that it has killed too many.

        Either they died of it, or of others that they had in hand before it, or before any was begun.
        """
        known = sum(folder.crashes(self.study) for folder in folders.values())
        if known == self.known_crashes.get(name, 0):
            self.unexplained[name] += 1
        self.known_crashes[name] = known
        return max(folders[name].crashes(self.study), self.unexplained[name])

    def _workers(self) -> list[dict[str, Any]]:
        return list(self.client.scheduler_info(n_workers=-1)["workers"].values())

    def _has_gpus(self) -> bool:
        return any(worker["resources"].get("GPU") for worker in self._workers())

    def _say_what_is_odd(self) -> None:
        """Tell whoever waits that there are no workers, or that these have threads to no avail; once."""
        from dualavg_bench.terminal import console

        with suppress(Exception):  # the scheduler went away: the study says so
            workers, address = self._workers(), self.client.scheduler.address
            if not workers:
                said = f"waiting for workers to join {address}: dask worker {address} --nthreads 1"
            elif most := max((worker["nthreads"] for worker in workers if worker["nthreads"] > 1), default=0):
                said = f"a worker with {most} threads takes one run at a time: start {most} with --nthreads 1"
            else:
                return
            if said not in _SAID:
                _SAID.add(said)
                console.print(said, markup=False, soft_wrap=True)

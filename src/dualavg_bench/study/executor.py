"""Executes runs on a dask cluster.

If a worker dies, dask gives its run to another one, which resumes it from its checkpoint. A run that has
killed three workers is given up and reported; the other runs continue. Crashes are counted in the run's
folder, not by dask: dask blames every run that a dead worker had been given.
"""

import itertools
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dualavg_bench.recipe import RecipeError, Scale
from dualavg_bench.recipe.user_code import RecipeRaised
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.run.trial import Cost
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.folder import RunFolder
from dualavg_bench.store.results import RunResult
from dualavg_bench.study.cluster import TIMEOUTS
from dualavg_bench.study.failures import Failure, StudyFailed, run_name
from dualavg_bench.study.worker import MOST_CRASHES, TooManyCrashesError, execute_one, try_out

SCHEDULER_GONE = "The dask scheduler went away. Run the command again to resume."
NOTICE_SECONDS = 5.0  # after which a notice about missing or unsuitable workers is given


class Unfinished(Exception):  # noqa: N818 - not an error: there is work to do
    """Some runs have no result yet."""


def finished_runs(root: Path, recipe: str, specs: Sequence[RunSpec]) -> list[RunResult]:
    """Return the results on disk, or raise `Unfinished`: a finished study needs no workers."""
    results = [RunFolder.of(root, recipe, spec.hash).result() for spec in specs]
    finished = [result for result in results if result is not None]
    if len(finished) < len(specs):
        raise Unfinished
    return finished


class Executor:
    """Executes the runs of a study.

    Args:
        client: dask's, of the cluster to use.
        root: the folder of the study.
        data: the folder with the data set.
        scale: of the recipe.
        notify: called with a notice for the user.
    """

    def __init__(
        self, client: Any, root: Path, data: Path, scale: Scale, notify: Callable[[str], None]
    ) -> None:
        self.client, self.root, self.data, self.scale = client, root.absolute(), data.absolute(), scale
        self.notify = notify
        self.study = uuid.uuid4().hex
        self.numbers = itertools.count()
        self.known_crashes: dict[str, int] = {}  # of all runs, when dask last gave up a run
        self.unexplained: Counter[str] = Counter()

    def execute(
        self,
        specs: Sequence[RunSpec],
        recipe: str,
        finished: Callable[[RunSpec, RunResult | Failure], None] = lambda _spec, _result: None,
    ) -> list[RunResult]:
        """Return the results in the order of the specs. Runs that have a result are not executed again.

        Args:
            specs: the runs.
            recipe: the name of their recipe.
            finished: called for each run when it has finished or failed.

        Raises:
            StudyFailed: some runs failed; raised when all others have finished.
            StoreError: the disk is full, or a file is damaged; raised at once.
        """
        from distributed import as_completed

        results: dict[str, RunResult | Failure] = {}
        unique = {spec.hash: spec for spec in specs}
        folders = {name: RunFolder.of(self.root, recipe, name) for name in unique}
        for name, spec in unique.items():
            result = folders[name].result()
            if result is not None:
                results[name] = result
                finished(spec, result)
        resources = {"GPU": 1} if self._has_gpus() else None
        futures = {
            self._submit(spec, folders[name], resources): spec
            for name, spec in unique.items()
            if name not in results
        }
        completed = as_completed(list(futures))
        try:
            with self._noticing_missing_workers():
                for future in completed:
                    spec = futures.pop(future)
                    outcome = self._outcome(future, spec, folders)
                    future.release()
                    if outcome is None:
                        retry = self._submit(spec, folders[spec.hash], resources)
                        futures[retry] = spec
                        completed.add(retry)
                    else:
                        results[spec.hash] = outcome
                        finished(spec, outcome)
        except KeyboardInterrupt:
            self.notify("stopping the workers: what has finished is kept")
            raise
        finally:
            with suppress(*TIMEOUTS):  # closing the cluster ends them all the same
                self.client.cancel(list(futures))
        failures = [r for r in results.values() if isinstance(r, Failure)]
        successes = [r for spec in specs if isinstance(r := results[spec.hash], RunResult)]
        if failures:
            raise StudyFailed(failures, successes)
        return successes

    def try_out(self, specs: Mapping[str, RunSpec], *, timed: bool) -> dict[str, Cost]:
        """Try a step of each optimizer on a worker, whose machine may differ from this one."""
        from distributed import KilledWorker, as_completed

        located = {name: _located(spec) for name, spec in specs.items()}
        resources = {"GPU": 1} if self._has_gpus() else None
        future = self.client.submit(
            *(try_out, located, self.scale, self.data),
            timed=timed,
            key=f"trial-{self.study}",
            priority=1,
            pure=False,
            resources=resources,
        )
        try:
            with self._noticing_missing_workers():
                next(iter(as_completed([future])))
            if future.cancelled():
                raise StoreError(SCHEDULER_GONE)
            if isinstance(future.exception(), KilledWorker):
                raise StoreError("The trial of a training step killed its workers (out of memory?).")
            costs: dict[str, Cost] = future.result()
        finally:
            self.client.cancel([future])
        return costs

    @contextmanager
    def _noticing_missing_workers(self) -> Iterator[None]:
        """Check after a while in the block whether there are workers."""
        notice = threading.Timer(NOTICE_SECONDS, self._check_workers)
        notice.daemon = True
        notice.start()
        try:
            yield
        finally:
            notice.cancel()

    def _submit(self, spec: RunSpec, folder: RunFolder, resources: dict[str, int] | None) -> Any:
        number = next(self.numbers)  # runs start in the order of submission
        return self.client.submit(
            execute_one,
            _located(spec),
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
        """Return the result of a run or its failure, or None if it must be executed again."""
        from distributed import KilledWorker

        if future.cancelled():
            raise StoreError(SCHEDULER_GONE)
        error = future.exception()
        if error is None:
            result: RunResult | None = future.result()
            return result or folders[spec.hash].result()
        if isinstance(error, StoreError | RecipeError):
            raise error
        name = run_name(spec)
        if isinstance(error, KilledWorker | TooManyCrashesError):
            crashes = self._crashes(spec.hash, folders)
            if crashes < MOST_CRASHES:
                return None
            return Failure(spec, f"{name} killed its worker {crashes} times (out of memory?)")
        if isinstance(error, RecipeRaised):
            return Failure(spec, f"{name}: {error}", error.details)
        details = "".join(traceback.format_exception(error))
        return Failure(spec, f"{name} raised {type(error).__name__}: {error}", details)

    def _crashes(self, name: str, folders: dict[str, RunFolder]) -> int:
        """Return how many workers a run has killed, after dask gave it up.

        If no crash was recorded since dask last gave it up, workers died before they began a run: that counts
        against this run, or it would be retried for ever.
        """
        recorded = sum(folder.crashes(self.study) for folder in folders.values())
        if recorded == self.known_crashes.get(name, 0):
            self.unexplained[name] += 1
        self.known_crashes[name] = recorded
        return max(folders[name].crashes(self.study), self.unexplained[name])

    def _workers(self) -> list[dict[str, Any]]:
        return list(self.client.scheduler_info(n_workers=-1)["workers"].values())

    def _has_gpus(self) -> bool:
        return any(worker["resources"].get("GPU") for worker in self._workers())

    def _check_workers(self) -> None:
        """Notify the user if there are no workers, or if workers have several threads."""
        with suppress(Exception):  # the scheduler went away: `_outcome` reports it
            workers, address = self._workers(), self.client.scheduler.address
            most = max((worker["nthreads"] for worker in workers), default=0)
            if not workers:
                self.notify(f"waiting for workers to join {address}: dask worker {address} --nthreads 1")
            elif most > 1:
                self.notify(
                    f"a worker with {most} threads takes one run at a time: start {most} with --nthreads 1"
                )


def _located(spec: RunSpec) -> RunSpec:
    """Return a spec with the full path of its recipe's file: a worker may have another current folder."""
    if spec.recipe.endswith(".py"):
        return replace(spec, recipe=str(Path(spec.recipe).absolute()))
    return spec

"""What a dask worker does with one run.

A worker executes one run at a time, however many threads it has: a run seeds the generators of its process.
"""

import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dualavg_bench.recipe import Scale
from dualavg_bench.recipe.loading import load
from dualavg_bench.recipe.registry import module_of
from dualavg_bench.run import trial
from dualavg_bench.run.code import trace
from dualavg_bench.run.pretraining import run
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.run.training import Interrupted
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.folder import RunFolder, RunLockedError
from dualavg_bench.store.results import RunResult

MOST_CRASHES = 3  # of workers, before a run is given up
LOCK_SECONDS = 2.0  # to wait for a run that another study executes, before taking the next
_ONE_RUN_PER_PROCESS = threading.Lock()
_SHOWN_WARNINGS: set[str] = set()


class TooManyCrashesError(Exception):
    """The run has killed too many workers to be tried again."""


def execute_one(spec: RunSpec, scale: Scale, folder: RunFolder, data: Path, study: str) -> RunResult | None:
    """Execute a run; return None if another study executes it, or if its own was stopped."""
    seconds = float(os.environ.get("DUALAVG_CHECKPOINT_SECONDS", "30"))
    is_cancelled = _cancellation()
    try:
        with _ONE_RUN_PER_PROCESS, _warn_once(), folder.locked(LOCK_SECONDS):
            if is_cancelled():  # while it waited
                return None
            if folder.crashes(study) >= MOST_CRASHES:
                raise TooManyCrashesError
            with folder.count_crashes(study):
                _check_versions(spec)
                recipe, path = load(spec.recipe, scale)
                if trace(path, [module_of(spec.optimizer)]).digest != spec.source:
                    raise StoreError(
                        f"The code of {spec.recipe} changed during its study: start the study again."
                    )
                recipe = replace(recipe, steps=spec.settings["steps"])  # a horizon's, or the recipe's own
                return run(spec, recipe, folder, data, checkpoint_seconds=seconds, should_stop=is_cancelled)
    except (RunLockedError, Interrupted):
        return None


def try_out(specs: Mapping[str, RunSpec], scale: Scale, data: Path, *, timed: bool) -> dict[str, trial.Cost]:
    """Try a step of each optimizer on this worker; see `run.trial`."""
    with _ONE_RUN_PER_PROCESS:
        for spec in specs.values():
            _check_versions(spec)
        spec = next(iter(specs.values()))
        recipe, _ = load(spec.recipe, scale)
        recipe = replace(recipe, steps=spec.settings["steps"])
        return trial.try_out(specs, recipe, data, timed=timed)


def _cancellation() -> Callable[[], bool]:
    """Return a function that tells whether the study was stopped, on a cluster that outlives it."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_cancelled() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    return is_cancelled


@contextmanager
def _warn_once() -> Iterator[None]:
    """Show each warning once per process instead of once per run."""
    show = warnings.showwarning

    def show_once(message: Any, category: Any, *arguments: Any, **options: Any) -> None:
        text = f"{category.__name__}: {message}"
        if text not in _SHOWN_WARNINGS:
            _SHOWN_WARNINGS.add(text)
            show(message, category, *arguments, **options)

    warnings.showwarning = show_once
    try:
        yield
    finally:
        warnings.showwarning = show


def _check_versions(spec: RunSpec) -> None:
    """Refuse a run if this worker has other versions of packages than its spec names."""
    for name, wanted in spec.versions.items():
        try:
            installed = torch.__version__ if name == "torch" else version(name)
        except PackageNotFoundError:
            installed = "not installed"
        if installed != wanted:
            raise StoreError(
                f"A worker on {platform.node()} has {name} {installed}, the study has {wanted}: install the "
                "same version on both."
            )

"""The score of a run: one number per run and split, which everything else in this package compares."""

from collections.abc import Callable, Hashable, Sequence
from statistics import fmean
from typing import Literal

from dualavg_bench.store.results import RunResult

Split = Literal["train", "valid", "test"]


def score(run: RunResult, split: Split) -> float:
    """Return the score of a run on a split.

    On "valid" and "test" it is the metric at the end of the run, or before training if the run diverged. On
    "train" it is the training loss: the mean over the last tenth of its curve, or the first value if the run
    diverged.
    """
    if split == "valid":
        return run.valid[run.metric][0 if run.diverged else -1]
    if split == "test":
        if run.test is None:
            raise ValueError(f"{_name(run)} has no test score: only confirmation runs read the test split.")
        return run.test[run.metric]
    losses = run.train["loss"]
    if not losses:
        raise ValueError(f"{_name(run)} has no training loss: it diverged too early.")
    return losses[0] if run.diverged else fmean(losses[-max(1, len(losses) // 10) :])


def check_unique(runs: Sequence[RunResult], key: Callable[[RunResult], Hashable]) -> None:
    """Refuse two runs with the same key: they come from different versions, and must not be averaged."""
    seen = set()
    for run in runs:
        if key(run) in seen:
            raise ValueError(
                f"Two results for {run.optimizer} with seed {run.seed}, one of them {run.hash}: they are "
                "from different settings, versions or recipes, and must not be averaged."
            )
        seen.add(key(run))


def _name(run: RunResult) -> str:
    return f"Run {run.hash} ({run.optimizer}, seed {run.seed})"

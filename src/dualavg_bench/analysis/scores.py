"""The score of a run: one number per run and split, which everything else in this package compares."""

from collections.abc import Callable, Hashable, Sequence
from statistics import fmean
from typing import Literal

from dualavg_bench.recipe import Report
from dualavg_bench.store.results import RunResult

Split = Literal["train", "valid", "test"]


def score(run: RunResult, split: Split, report: Report | None = None) -> float:
    """Return the score of a run on a split.

    On "valid" and "test" it is the metric of the network that decides, the last or the best one, or of the
    untrained network if the run diverged. On "train" it is the training loss: the mean over the last tenth
    of its curve, or the first value if the run diverged.

    Args:
        run: finished or diverged.
        split: of the data.
        report: "last" or "best"; default: what the recipe says.
    """
    report = report or run.report
    if split == "valid":
        if run.diverged:
            return run.valid[run.metric][0]
        return run.best_valid if report == "best" else run.valid[run.metric][-1]
    if split == "test":
        scores = run.test_best if report == "best" else run.test
        if scores is None:
            raise ValueError(f"{_name(run)} has no test score: only confirmation runs read the test split.")
        return scores[run.metric]
    losses = run.train["loss"]
    if not losses:
        raise ValueError(f"{_name(run)} has no training loss: it diverged too early.")
    return losses[0] if run.diverged else fmean(losses[-max(1, len(losses) // 10) :])


def also_score(run: RunResult, split: Literal["valid", "test"]) -> float | None:
    """Return the second score of the network that decides; None if there is none, or if it is not finite."""
    if run.also is None:
        return None
    name = run.also.name
    if split == "test":
        return ((run.test_best if run.report == "best" else run.test) or {}).get(name)
    if name not in run.valid.names:
        return None
    place = 0 if run.diverged else -1
    if run.report == "best" and not run.diverged:
        place = run.valid[run.metric].index(run.best_valid)
    return run.valid[name][place]


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

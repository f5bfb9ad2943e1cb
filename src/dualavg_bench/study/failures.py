"""Runs that failed: their code raised an exception, or they killed their workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Summary

MOST_REASONS, MOST_RUNS = 10, 3  # that a message lists


@dataclass(frozen=True)
class Failure:
    """A run that failed.

    Args:
        spec: which run.
        message: why, in one line.
        details: the traceback, if it helps.
    """

    spec: RunSpec
    message: str
    details: str = ""


class StudyFailed(StoreError):  # noqa: N818 - a study that failed
    """Some runs failed. The results of the others are in `finished`."""

    def __init__(self, failures: list[Failure], finished: Sequence[RunResult] = ()) -> None:
        self.failures, self.finished = failures, list(finished)
        details = failures[0].details and f"\nDetails of the first failure:\n{failures[0].details}"
        count, pronoun = ("1 run", "it") if len(failures) == 1 else (f"{len(failures)} runs", "them")
        super().__init__(
            f"{count} failed; finished runs are kept. Run the command again to retry {pronoun}."
            f"{_reasons(failures)}{details}"
        )


class Incomplete(StudyFailed):
    """Some runs failed, and their optimizers have no result. The summary has the other optimizers."""

    def __init__(self, failures: list[Failure], summary: Summary, runs: list[RunResult]) -> None:
        super().__init__(failures)
        self.summary, self.runs = summary, runs


def run_name(spec: RunSpec) -> str:
    """Return the optimizer, step size and seed of a run, for messages."""
    return f"{spec.optimizer} at lr {spec.point.lr:g}, seed {spec.seed}"


def _reasons(failures: list[Failure]) -> str:
    """Return one line for each reason, and the other runs that failed for the same reason."""
    by_reason: dict[str, list[Failure]] = {}
    for failure in failures:
        by_reason.setdefault(failure.message.removeprefix(run_name(failure.spec)), []).append(failure)
    lines = ""
    for first, *others in list(by_reason.values())[:MOST_REASONS]:
        lines += f"\n  {first.message}"
        if others:
            runs = [run_name(other.spec) for other in others[:MOST_RUNS]]
            runs += ["..."] if len(others) > MOST_RUNS else []
            lines += f"\n    and {len(others)} more alike: {'; '.join(runs)}"
    hidden = len(by_reason) - MOST_REASONS
    return lines + (f"\n  and {hidden} more reasons" if hidden > 0 else "")

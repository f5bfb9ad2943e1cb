"""The curves of a run: thinned for a summary, and how soon one of them reaches a target."""

from dualavg_bench.store.results import Curve, RunResult
from dualavg_bench.store.summaries import RunCurves

POINTS, POINTS_IN_ALL = 100, 2400  # of a thinned curve, and of all in a summary, at most
DIGITS = 6  # of its values


def thinned(run: RunResult, runs: int = 1) -> RunCurves:
    """Return the curves as a summary keeps them: means of neighbouring training losses, rounded values.

    Args:
        run: finished or diverged.
        runs: how many runs of the summary have curves.
    """
    steps, losses = run.train.step, run.train["loss"]
    width = -(-len(steps) // max(1, min(POINTS, POINTS_IN_ALL // runs)))
    ends = range(width, len(steps) + width, width) if steps else range(0)
    groups = [losses[end - width : end] for end in ends]
    train = {
        "step": [steps[min(end, len(steps)) - 1] for end in ends],
        "loss": [_rounded(sum(group) / len(group)) for group in groups],
    }
    also = [run.also.name] if run.also and run.also.name in run.valid.names else []
    valid = {name: [_rounded(value) for value in run.valid[name]] for name in ("loss", run.metric, *also)}
    return RunCurves(
        train=Curve.model_validate(train), valid=Curve.model_validate({"step": run.valid.step, **valid})
    )


def steps_to_target(run: RunResult, target: float) -> int | None:
    """Return the step of the first evaluation on validation that is at least as good, or None.

    The untrained network does not count, and a run that diverged never arrives.
    """
    sign = 1 if run.higher_is_better else -1
    scores = [] if run.diverged else zip(run.valid.step, run.valid[run.metric], strict=True)
    return next((step for step, score in scores if step and sign * score >= sign * target), None)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

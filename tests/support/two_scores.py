"""A made-up study with a metric and a second score, whose means are known."""

from dualavg_bench.store.results import Curve, RunResult, SecondScore
from support.synthetic_runs import run

ALSO = SecondScore(name="old", higher_is_better=True, unit="%")
START = (20.0, 95.0)
# Metric and second score at three step sizes. At 80, a has 80 and b, between (75, 60) and (85, 40), has 50.
GRID = {
    "a": [(70.0, 90.0), (80.0, 80.0), (90.0, 50.0)],
    "b": [(75.0, 60.0), (74.0, 55.0), (85.0, 40.0)],
}
LRS = (0.1, 0.3, 1.0)


def with_also(result: RunResult, old: float) -> RunResult:
    """The result with a second score that goes from that of the start to `old`."""
    curve = {**result.valid.model_dump(), "old": [START[1], *[old] * (len(result.valid.step) - 1)]}
    changes = {"also": ALSO, "valid": Curve.model_validate(curve)}
    for name in ("test", "test_best"):
        if (scores := getattr(result, name)) is not None:
            changes[name] = {**scores, "old": old}
    return result.model_copy(update=changes)


def runs(grid=None, seeds=4, spread=0.0, old_of=lambda old, seed: old, **changes):
    """A study with known means: seeds differ by `spread` in the metric, by `old_of` in the second score."""
    found = []
    for name, points in (grid or GRID).items():
        best = max(range(len(points)), key=lambda i: points[i][0])
        for i, (new, old) in enumerate(points):
            phases = [("tune", range(seeds)), *([("confirm", range(1000, 1003))] if i == best else [])]
            for phase, numbers in phases:
                for seed in numbers:
                    final = new + spread * (seed % 1000 - (len(numbers) - 1) / 2)
                    result = run(name, LRS[i], seed, phase, final, untrained=START[0], **changes)
                    found.append(with_also(result, old_of(old, seed)))
    return found

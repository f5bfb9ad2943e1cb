"""A horizon made up from scores: studies of one recipe at several lengths, without training anything."""

import random

from dualavg_bench.analysis.horizon import at_length, combine
from dualavg_bench.store.results import Curve
from support.synthetic_runs import run, summarize

COMMAND = "dualavg horizon cifar10 --scale quick --steps 250,1000,4000"
# mda comes from behind: at 250 steps it is the worst, at 4,000 the best.
SCORES = {
    250: {"mda": 60.0, "sgd": 70.0, "adam": 68.0},
    1000: {"mda": 80.0, "sgd": 80.0, "adam": 75.0},
    4000: {"mda": 92.0, "sgd": 90.0, "adam": 85.0},
}


def study(steps, scores, *, n=5, noise=0.2, train=None, failures=(), **changes):
    """The summary of a study whose optimizers have these test scores, give or take the noise."""
    runs, changes = [], {"steps": steps, **changes}
    for name, score in scores.items():
        losses = {"step": [10, 20], "loss": [9.0, (train or {}).get(name, 1.0)]}
        own = {"train": Curve.model_validate(losses), **changes}
        for lr in (0.1, 1.0, 10.0):  # 1.0 is the best and inside the grid
            worse = 0.0 if lr == 1.0 else -5.0 if changes.get("higher_is_better", True) else 5.0
            runs.append(run(name, lr, 0, "tune", score + worse, **own))
        for seed in range(n):
            wiggle = random.Random(f"{name} {seed} {steps}").gauss(0, noise)
            runs.append(run(name, 1.0, 1000 + seed, "confirm", score, test_score=score + wiggle, **own))
    command = f"dualavg horizon cifar10 --scale quick --steps {steps}"
    return summarize(runs, command=command, failures=failures)


def length(summary, steps, epochs=2.5):
    file, page = f"summary-{steps}-steps.json", f"report-{steps}-steps.html"
    return at_length(summary, epochs=epochs, summary_file=file, page=page)


def horizon(scores=None, *, planned=None, own_steps=1000, **arguments):
    """The horizon of studies with these scores by length; `arguments` are those of `study`."""
    scores = scores or SCORES
    summaries = {steps: study(steps, means, **arguments) for steps, means in scores.items()}
    lengths = [length(summary, steps, steps / 100) for steps, summary in summaries.items()]
    return combine(
        list(summaries.values()),
        lengths,
        command=COMMAND,
        own_steps=own_steps,
        planned=planned or list(scores),
    )

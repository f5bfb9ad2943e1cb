"""Made-up studies of the paper's experiments, with scores that are given."""

import random

from dualavg_bench.store.results import Curve
from support.synthetic_runs import run


def study(recipe, scores, n=5, higher=True, train=None, noise=0.01):
    """Runs of a study whose optimizers have these test scores and training losses, up to noise."""
    runs = []
    for name, score in scores.items():
        kind = {"recipe": recipe, "higher_is_better": higher, "metric": "accuracy"}
        runs.append(run(name, 1.0, 0, "tune", score, **kind))
        for seed in range(n):
            wiggle = random.Random(f"{name} {seed}").gauss(0, noise)
            if train:
                losses = {"step": [10, 20], "loss": [9.0, train[name] + wiggle]}
                kind["train"] = Curve.model_validate(losses)
            runs.append(run(name, 1.0, 1000 + seed, "confirm", score, test_score=score + wiggle, **kind))
    return runs
